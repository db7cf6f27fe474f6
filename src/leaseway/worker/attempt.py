"""submit ─► store ─► exchange ─► [claim ─► attempt] ─► settle: what the worker knows of a job that it holds."""

import asyncio
import threading
from enum import Enum

from leaseway.domain import payload
from leaseway.domain.exchange import Wants
from leaseway.domain.ids import SECOND_US
from leaseway.domain.job import Lease, NewJob
from leaseway.domain.limits.limit import PermitRequest
from leaseway.worker.limiter_client import Permit


class Stop(Enum):
    """Why the worker stopped a handler."""

    CANCELLED = "the job was cancelled"
    LOST = "the lease is lost"
    DRAIN = "the worker is stopping"


class Attempt:
    """One delivery of a job, from the claim to the settlement.

    Only the event loop changes it, except `renewed_at` and `stop`, which the thread of lease renewal may set.
    """

    __slots__ = (
        "children",
        "is_started",
        "is_sync",
        "lease",
        "origin",
        "permit",
        "progress",
        "progress_is_new",
        "renewed_at",
        "stop",
        "task",
        "tenant_permit",
        "timed_out",
    )

    def __init__(self, lease: Lease, sent_at: float) -> None:
        self.lease = lease
        self.renewed_at = sent_at
        """On the worker's monotonic clock, from before the request was sent: never later than the store's view."""
        self.task: asyncio.Task[None] | None = None
        self.stop: Stop | None = None
        self.timed_out = False
        self.progress: str | None = None
        self.progress_is_new = False
        self.is_sync = False
        """The handler is a plain function that runs in a thread."""
        self.is_started = False
        self.children: list[NewJob] = []
        self.permit: Permit | None = None
        """The permit that admitted the job; its first call uses it."""
        self.origin: str | None = None
        """The trace context of its submission, if tracing is on."""
        self.tenant_permit: PermitRequest | None = None
        """The place that the job takes under its tenant's concurrency limit until it ends."""

    def age(self, now: float) -> float:
        """The age of the lease as a share of its length, by the worker's clock."""
        return (now - self.renewed_at) * SECOND_US / self.lease.lease_us

    def halt(self, why: Stop) -> None:
        """Ask the handler to stop. The first reason counts."""
        if self.stop is None:
            self.stop = why
            # A task that is cancelled before its first step would end without an outcome. Such a task checks `stop`.
            if self.is_started and self.task is not None:
                self.task.cancel()

    def report(self, done: float, total: float | None, message: str | None) -> None:
        self.progress = payload.encode({"done": done, "total": total, "message": message}, "progress")
        self.progress_is_new = True


class Claim:
    """A claim that was sent and has not been answered yet.

    The leases that it was granted run down in the store while the reply is on its way. The reply must pass through the
    worker's event loop, which a handler may block. Lease renewal has its own thread and its own connection: it asks the
    store what was granted and releases it before it expires. So two parties may want the same claim, and the first one
    to take it keeps it:

        the worker, when the reply arrives           its leases are prefetched and run
        lease renewal, when no reply arrives in time its leases are released, now and whenever one turns up later

    All leases of a claim carry its token. The same job may be granted twice under it, because an exchange whose reply
    was lost is sent again; a release that is on its way then ends the second lease together with the first. That is
    harmless, because nothing runs under a token that lease renewal has taken.
    """

    __slots__ = ("_lock", "_owner", "checked_at", "released", "sent_at", "wants")

    def __init__(self, wants: Wants, sent_at: float) -> None:
        self.wants = wants
        self.sent_at = sent_at
        """Before the first request was sent: no lease of this claim is older."""
        self.checked_at = sent_at
        """When lease renewal last asked what was granted."""
        self.released: set[Lease] = set()
        """Leases that lease renewal has released, acknowledged by the store."""
        self._owner: object | None = None
        self._lock = threading.Lock()

    def take(self, owner: object) -> bool:
        """True for the first owner that asks, then and later."""
        with self._lock:
            if self._owner is None:
                self._owner = owner
            return self._owner is owner

    @property
    def is_taken(self) -> bool:
        return self._owner is not None

    def granted(self) -> Wants:
        """In a repeated exchange: asks for what was granted before, and for nothing new."""
        return Wants(self.wants.queues, 0, self.wants.token)
