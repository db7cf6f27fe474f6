"""Schedules, and up to which instant each has fired. `leaseway.testing.schedule_contract` proves every store."""

from collections.abc import Sequence
from typing import Protocol

from leaseway.domain.ids import Instant
from leaseway.domain.job import NewJob
from leaseway.domain.schedule import Schedule, StoredSchedule


class ScheduleStore(Protocol):
    async def declare(self, schedules: Sequence[Schedule]) -> None:
        """Create or update schedules. A new or changed expression counts from now: it has no missed fires."""
        ...

    async def all(self) -> list[StoredSchedule]:
        """Return all schedules, by name, with the instant up to which fires were handled."""
        ...

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        """Submit the jobs and advance the schedule from `seen` to `upto`, in one transaction.

        False: another process has fired it, and nothing was written.
        """
        ...

    async def pause(self, name: str, paused: bool) -> bool:
        """Pause or resume a schedule. Fires missed while paused are dropped. False: there is no such schedule."""
        ...
