"""Schedules, weights and caps of tenants, paused lanes, and the list of workers, in memory."""

from collections.abc import Sequence

from msgspec.structs import replace

from leaseway.domain.ids import Instant, WorkerId
from leaseway.domain.job import NewJob, jobs_by_id
from leaseway.domain.lane import Pause, check_pause
from leaseway.domain.schedule import Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant
from leaseway.domain.workers import (
    FORGET_AFTER_US,
    WORKERS_MAX,
    Heartbeat,
    HeartbeatReply,
    StoredWorker,
    workers_max,
)
from leaseway.ports.pool_board import FORGET_AFTER_US as FORGET_POOL_AFTER_US
from leaseway.ports.pool_board import POOLS_MAX, PoolRecord
from leaseway.stores.memory.state import MemoryState, atomic


class MemoryTenants:
    def __init__(self, state: MemoryState) -> None:
        self._state = state

    @atomic
    async def set(self, tenant: Tenant) -> None:
        self._state.tenants[tenant.name] = tenant
        self._state.open_lanes(tenant.name)
        self._state.wake()

    @atomic
    async def all(self) -> list[Tenant]:
        return [tenant for _, tenant in sorted(self._state.tenants.items())]

    @atomic
    async def forget(self, name: str) -> bool:
        self._state.open_lanes(name)
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
        jobs_by_id(jobs)
        row = self._state.schedules.get(name)
        if row is None or row.paused or row.seen != seen:
            return False
        self._state.refuse_foreign_ids(jobs)
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


class MemoryWorkers:
    def __init__(self, state: MemoryState) -> None:
        self._state = state
        self._workers: dict[WorkerId, StoredWorker] = {}

    @atomic
    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        now, workers = self._state.now_us(), self._workers
        before = workers.get(beat.worker)
        if before is None:
            for name in [each.name for each in workers.values() if each.seen_at < now - FORGET_AFTER_US]:
                del workers[name]
            if sum(each.beat.tenant == beat.tenant for each in workers.values()) >= workers_max(beat.tenant):
                return HeartbeatReply(now, False)
            since = now - beat.uptime_us
            before = StoredWorker(beat=beat, since=since, seen_at=now, drain_requested=False, now=now)
        workers[beat.worker] = replace(before, beat=beat, seen_at=now)
        return HeartbeatReply(now, before.drain_requested)

    @atomic
    async def leave(self, worker: WorkerId) -> None:
        self._workers.pop(worker, None)

    @atomic
    async def all(self, tenant: str | None = None) -> list[StoredWorker]:
        now = self._state.now_us()
        found = [each for _, each in sorted(self._workers.items()) if tenant in (None, each.beat.tenant)]
        return [replace(each, now=now) for each in found[:WORKERS_MAX]]

    @atomic
    async def drain(self, worker: WorkerId) -> bool:
        found = self._workers.get(worker)
        if found is not None:
            self._workers[worker] = replace(found, drain_requested=True)
        return found is not None


class MemoryPools:
    def __init__(self, state: MemoryState) -> None:
        self._state = state
        self._pools: dict[str, PoolRecord] = {}

    @atomic
    async def read(self, pool: str) -> PoolRecord | None:
        return self._pools.get(pool)

    @atomic
    async def write(self, pool: str, seen: str | None, version: str, text: str) -> bool:
        now, before = self._state.now_us(), self._pools.get(pool)
        if before is not None and before.version == version:
            return True
        if (None if before is None else before.version) != seen:
            return False
        if before is None:
            for old in [each.pool for each in self._pools.values() if each.written_at < now - FORGET_POOL_AFTER_US]:
                del self._pools[old]
            if len(self._pools) >= POOLS_MAX:
                return False
        self._pools[pool] = PoolRecord(pool, version, text, now)
        return True

    @atomic
    async def all(self) -> list[PoolRecord]:
        return [record for _, record in sorted(self._pools.items())]
