"""Where schedules keep their place in time."""

from collections.abc import Sequence
from typing import Protocol

from leaseway.domain.ids import Instant
from leaseway.domain.job import NewJob
from leaseway.domain.schedule import Schedule, StoredSchedule


class ScheduleStore(Protocol):
    async def declare(self, schedules: Sequence[Schedule]) -> None:
        """Create or update them. A new or changed expression counts from now: it has no missed fires."""
        ...

    async def schedules(self) -> list[StoredSchedule]:
        """All of them, by name, with the instant up to which fires were handled."""
        ...

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        """Submit the jobs and move the schedule's place from `seen` to `upto`, in one transaction.

        False: another process was faster, and nothing was written.
        """
        ...

    async def pause(self, name: str, paused: bool) -> bool:
        """Stop or resume a schedule. Fires missed while paused are dropped. False: there is no such schedule."""
        ...
