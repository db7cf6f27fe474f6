"""Schedules, weights and caps of tenants, and paused lanes, in memory."""

from collections.abc import Sequence

from msgspec.structs import replace

from leaseway.domain.ids import Instant
from leaseway.domain.job import NewJob
from leaseway.domain.lane import Pause, check_pause
from leaseway.domain.schedule import Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant
from leaseway.stores.memory.state import MemoryState, atomic


class MemoryTenants:
    def __init__(self, state: MemoryState) -> None:
        self._state = state

    @atomic
    async def set(self, tenant: Tenant) -> None:
        self._state.tenants[tenant.name] = tenant
        self._state.wake()

    @atomic
    async def all(self) -> list[Tenant]:
        return [tenant for _, tenant in sorted(self._state.tenants.items())]

    @atomic
    async def forget(self, name: str) -> bool:
        self._state.wake()
        return self._state.tenants.pop(name, None) is not None


class MemoryPauses:
    def __init__(self, state: MemoryState) -> None:
        self._state = state

    @atomic
    async def pause(self, queue: str, tenant: str | None = None) -> bool:
        pause = check_pause(Pause(queue, tenant, self._state.now_us()))
        return self._state.pauses.setdefault((queue, tenant), pause) is pause

    @atomic
    async def resume(self, queue: str, tenant: str | None = None) -> bool:
        self._state.wake()
        return self._state.pauses.pop((queue, tenant), None) is not None

    @atomic
    async def all(self) -> list[Pause]:
        return sorted(self._state.pauses.values(), key=lambda pause: (pause.queue, pause.tenant or ""))


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
