"""Rate and concurrency limits of a whole fleet. `leaseway.testing.limiter_contract` proves every store.

Promises that hold for every method:
- It is atomic, and decided by the store's own clock, read after its locks.
- Lost state counts as used: state that a crash, a restart or a failover may have rolled back is never trusted.
- `TransientError`: nothing is granted. A grant whose reply was lost is used up.
- Invalid arguments raise `BadValue` before anything is read (`domain.limits.validation`). Only `acquire` and `levels`
  raise `UnknownLimit`; the other methods ignore limits that were forgotten meanwhile.
"""

from collections.abc import Sequence
from typing import Protocol

from leaseway.domain.ids import Instant
from leaseway.domain.limits.buckets import Granted, Notice, Verdict
from leaseway.domain.limits.level import Level
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest


class LimitDefinitions(Protocol):
    async def declare(self, definitions: Sequence[LimitDefinition]) -> None:
        """Set limits as the code declares them. A declaration takes effect if it is new or differs from the last
        declaration: a restart does not undo an operator's change, and no declaration resumes a paused limit."""
        ...

    async def change(self, definition: LimitDefinition, *, expected: int | None = None) -> int:
        """Set a limit as an operator says, for all workers at once, and return the new version.

        `Stale`: the version in force is not `expected` (0 means that there is none yet); nothing has changed.
        """
        ...

    async def all(self) -> list[tuple[LimitDefinition, int]]:
        """Return all definitions in force, by name, each with its version."""
        ...

    async def forget(self, name: str) -> bool:
        """Remove a definition and the state of its limits. False: there is none."""
        ...


class Limiter(Protocol):
    definitions: LimitDefinitions

    async def open(self) -> None:
        """Connect and create what is missing. Refuses a server that may lose state without notice."""
        ...

    async def close(self) -> None: ...

    async def acquire(
        self, asks: Sequence[PermitRequest], *, least: int = 1, most: int = 1, holder: str = "", in_flight_us: int = 0
    ) -> Verdict:
        """Acquire permits for all asks or for none, at least `least` and at most `most` times each.

        Names are unique. Concurrency limits count the calls of `holder` as in flight for `in_flight_us`. An ask for an
        undefined limit raises `UnknownLimit`. `domain.limits.buckets.take` is the rule.
        """
        ...

    async def return_unused(self, granted: Granted, unused: int) -> None:
        """Return permits that were not used; they lose value with age. Never repeated after a lost reply."""
        ...

    async def end_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, used: Sequence[int] = ()) -> None:
        """End `count` in-flight calls of each limit. `used`: what they used together of limits that are logged, in the
        order of the asks; without it, what they had reserved. With a `count` of 0 only the use is logged."""
        ...

    async def renew_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, in_flight_us: int) -> None:
        """State that `holder` has `count` calls in flight under each limit, for `in_flight_us` from now, even if
        the store has lost them."""
        ...

    async def observe(self, notice: Notice) -> None:
        """Record what the provider answered, for the whole fleet. `UnknownLimit`: the limit is not defined, and nothing
        was recorded."""
        ...

    async def levels(self, asks: Sequence[PermitRequest]) -> tuple[Instant, list[Level]]:
        """Return the store's clock and each limit's current level (`domain.limits.buckets.current`)."""
        ...
