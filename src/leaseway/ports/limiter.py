"""Where limits are kept, for a whole fleet. One contract, `leaseway.testing.limiter_contract`, proves every store.

Promises that hold for every verb:
- It is atomic, and decided by the store's own clock, read after its locks.
- Whatever is lost counts as used: state that a crash, a restart or a failover may have taken back is never trusted.
- `TransientError`: nothing is granted. A grant whose reply was lost is used up.
- Nonsense raises `BadValue` before anything is looked at (`domain.asks`). What is said about a limit that was forgotten
  meanwhile is not needed any more: only `take` and `look` raise `UnknownLimit`.
"""

from collections.abc import Sequence
from typing import Protocol

from leaseway.domain.ids import Instant
from leaseway.domain.limits.buckets import Granted, Level, Notice, Verdict
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest


class Limiter(Protocol):
    async def open(self) -> None:
        """Connect, and make what is missing. Refuses a server that would forget without telling."""
        ...

    async def close(self) -> None: ...

    async def declare(self, definitions: Sequence[LimitDefinition]) -> None:
        """What the code says. It counts if it is new or differs from what the code said last: a restart does not undo
        what somebody has changed since, and no word of the code resumes what was paused."""
        ...

    async def change(self, definition: LimitDefinition, *, expected: int | None = None) -> int:
        """What an operator says, in force at once for everybody; the new version. `Stale`: its version was not the
        expected one, where 0 means that there is none yet; nothing has changed."""
        ...

    async def definitions(self) -> list[tuple[LimitDefinition, int]]:
        """All in force, by name, each with its version."""
        ...

    async def forget(self, name: str) -> bool:
        """Remove a definition and all that is known of its limits. False: there is none."""
        ...

    async def take(
        self, asks: Sequence[PermitRequest], *, least: int = 1, most: int = 1, holder: str = "", seat_us: int = 0
    ) -> Verdict:
        """All of the asks or none, at least and at most so many times; see `domain.buckets.take`.

        Names are unique. Limits with seats give them to `holder`, for so long. An ask for a limit that nobody has
        defined raises `UnknownLimit`.
        """
        ...

    async def give_back(self, granted: Granted, unused: int) -> None:
        """Return what was not used, worth less with its age. Never repeated: what may have been returned is used."""
        ...

    async def vacate(self, asks: Sequence[PermitRequest], holder: str, count: int) -> None:
        """Leave so many seats of each limit."""
        ...

    async def keep(self, asks: Sequence[PermitRequest], holder: str, count: int, seat_us: int) -> None:
        """Say that one holds so many seats of each limit, for so long from now, even if the store had forgotten it."""
        ...

    async def tell(self, notice: Notice) -> None:
        """What the provider said; the whole fleet hears it."""
        ...

    async def look(self, asks: Sequence[PermitRequest]) -> tuple[Instant, list[Level]]:
        """The store's clock, and each level as it stands now (`domain.buckets.current`). Changes nothing."""
        ...
