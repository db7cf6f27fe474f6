"""Schedules in memory."""

from collections.abc import Sequence

from msgspec.structs import replace

from leaseway.domain.ids import Instant
from leaseway.domain.job import NewJob
from leaseway.domain.schedule import Schedule, StoredSchedule
from leaseway.stores.memory.state import MemoryState, atomic


class MemorySchedules:
    def __init__(self, state: MemoryState) -> None:
        self._state = state

    @atomic
    async def declare(self, schedules: Sequence[Schedule]) -> None:
        now = self._state.now_us()
        for schedule in schedules:
            row = self._state.schedules.get(schedule.name, StoredSchedule(schedule=schedule, seen=now, now=now))
            same_times = (row.schedule.cron, row.schedule.tz) == (schedule.cron, schedule.tz)
            seen = row.seen if same_times else now
            self._state.schedules[schedule.name] = replace(row, schedule=schedule, seen=seen)
            self._state.wake()

    @atomic
    async def all(self) -> list[StoredSchedule]:
        now = self._state.now_us()
        return [replace(row, now=now) for _, row in sorted(self._state.schedules.items())]

    @atomic
    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        row = self._state.schedules.get(name)
        if row is None or row.paused or row.seen != seen:
            return False
        now = self._state.now_us()
        for job in jobs:
            self._state.submit(job, now)
        self._state.schedules[name] = replace(row, seen=upto, last_fire=upto)
        self._state.wake()
        return True

    @atomic
    async def pause(self, name: str, paused: bool) -> bool:
        row = self._state.schedules.get(name)
        if row is None:
            return False
        resumes = row.paused and not paused
        self._state.schedules[name] = replace(row, paused=paused, seen=self._state.now_us() if resumes else row.seen)
        self._state.wake()
        return True
