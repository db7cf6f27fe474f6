"""Lanes from which nothing is claimed until somebody resumes them. What runs goes on to its end."""

from collections.abc import Iterable
from shlex import quote

from msgspec import Struct

from leaseway.domain.gates import Closure
from leaseway.domain.ids import Instant
from leaseway.domain.limits.buckets import PAUSED
from leaseway.domain.validators import check_name

PAUSES_MAX = 1_000


class Pause(Struct, frozen=True, order=True):
    """All lanes of a queue, whatever their jobs need: those of one tenant, or of all, also of those who come later."""

    queue: str
    tenant: str | None = None
    since: Instant = 0

    def covers(self, queue: str, tenant: str) -> bool:
        return self.queue == queue and self.tenant in (None, tenant)

    def __str__(self) -> str:
        return f"queue {self.queue!r}" + ("" if self.tenant is None else f" of tenant {self.tenant!r}")


def check_pause(pause: Pause) -> Pause:
    check_name("queue", pause.queue)
    if pause.tenant is not None:
        check_name("tenant", pause.tenant)
    return pause


def covering_pause(queue: str, tenant: str, pauses: Iterable[Pause]) -> Pause | None:
    """The pause in which this lane is; the wider one, if there are two."""
    return next(
        (pause for pause in sorted(pauses, key=lambda each: each.tenant or "") if pause.covers(queue, tenant)), None
    )


def closed_by_pauses(queue: str, tenant: str, pauses: Iterable[Pause]) -> list[Closure]:
    """What keeps a lane from being served besides its gate."""
    pause = covering_pause(queue, tenant, pauses)
    return [] if pause is None else [closed_by_pause(pause)]


def closed_by_pause(pause: Pause) -> Closure:
    tenant = "" if pause.tenant is None else f" --tenant {quote(pause.tenant)}"
    return Closure("lane", pause.queue, PAUSED, advice=f"Resume it: leaseway lanes resume {quote(pause.queue)}{tenant}")
