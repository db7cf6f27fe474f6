"""submit ─► store ─► [exchange ─►] run handler: a claim that was sent and is not answered yet.

What it was granted runs down in the store, and nobody here knows of it: the reply must pass through the worker's loop,
which a handler may block. The keeper has a way of its own to the store. It asks what was granted, and gives it back
before it lapses. So two hands may hold one claim, and whoever takes it first has it for good:

    the worker, with the reply in its hand   its leases go to the shelf, and run
    the keeper, because no reply came        its leases go back, now and whenever one turns up; none of them ever runs

All leases of a claim carry its token, and the same job may be granted twice under it, because an exchange whose reply
was lost is sent again. A give-back on its way would then end the second lease together with the first. It may: under
a token that the keeper gives back nothing runs.
"""

import threading

from leaseway.domain.exchange import Wants
from leaseway.domain.job import Lease


class Claim:
    __slots__ = ("_lock", "_owner", "given_back", "looked_at", "sent_at", "wants")

    def __init__(self, wants: Wants, sent_at: float) -> None:
        self.wants = wants
        self.sent_at = sent_at
        """Before the first request left: no lease of this claim is older."""
        self.looked_at = sent_at
        """When the keeper last asked what was granted."""
        self.given_back: set[Lease] = set()
        """By the keeper, and the store knows it."""
        self._owner: object | None = None
        self._lock = threading.Lock()

    def take(self, who: object) -> bool:
        """True for whoever comes first, from then on."""
        with self._lock:
            if self._owner is None:
                self._owner = who
            return self._owner is who

    @property
    def is_taken(self) -> bool:
        return self._owner is not None

    def granted(self) -> Wants:
        """Asks, in a repeated exchange, for what was granted before, and for nothing new."""
        return Wants(self.wants.queues, 0, self.wants.token)
