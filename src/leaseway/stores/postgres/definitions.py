"""Schedules, tenants, lane pauses and the list of workers in PostgreSQL."""

from collections.abc import Sequence
from typing import Any

import msgspec

from leaseway.domain.ids import Instant, WorkerId
from leaseway.domain.inspection import only_usable
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
from leaseway.stores.postgres import rows
from leaseway.stores.postgres.database import JobDatabase
from leaseway.stores.postgres.rows import encode_json


class PostgresSchedules:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def declare(self, schedules: Sequence[Schedule]) -> None:
        last = {schedule.name: schedule for schedule in schedules}
        await self._database.call("declare_schedules", encode_json(list(last.values())), self._database.at())

    async def all(self) -> list[StoredSchedule]:
        found = await self._database.read("list_schedules")
        now = await self._database.now()
        return only_usable(found, lambda row: rows.parse_schedule(row, now))

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        fired_jobs = list(jobs_by_id(jobs).values())
        ((fired,),) = await self._database.call(
            "fire_schedule", name, seen, upto, *rows.submit_arguments(fired_jobs), self._database.at()
        )
        self._database.notifier.notify()
        return bool(fired)

    async def pause(self, name: str, paused: bool) -> bool:
        ((is_known,),) = await self._database.call("pause_schedule", name, paused, self._database.at())
        return bool(is_known)


class PostgresTenants:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def set(self, tenant: Tenant) -> None:
        starts = encode_json(tenant.starts)
        quotas = encode_json(tenant.quotas)
        await self._database.call(
            "set_tenant", tenant.name, tenant.weight, starts, tenant.concurrency, tenant.is_capped, quotas
        )
        self._database.notifier.notify()

    async def all(self) -> list[Tenant]:
        return only_usable(await self._database.read("list_tenants"), rows.parse_tenant)

    async def forget(self, name: str) -> bool:
        ((is_known,),) = await self._database.call("forget_tenant", name)
        self._database.notifier.notify()
        return bool(is_known)


class PostgresPauses:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def pause(self, queue: str, tenant: str | None = None) -> bool:
        check_pause(Pause(queue, tenant))
        ((is_new,),) = await self._database.call("pause_lanes", queue, tenant or "", self._database.at())
        return bool(is_new)

    async def resume(self, queue: str, tenant: str | None = None) -> bool:
        ((was_paused,),) = await self._database.call("resume_lanes", queue, tenant or "")
        self._database.notifier.notify()
        return bool(was_paused)

    async def all(self) -> list[Pause]:
        return [
            Pause(queue, tenant or None, since) for queue, tenant, since in await self._database.read("list_pauses")
        ]


_decode_beat = msgspec.json.Decoder(Heartbeat).decode


class PostgresWorkers:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        facts, bounds = encode_json(beat), (workers_max(beat.tenant), FORGET_AFTER_US, self._database.at())
        ((at, drain),) = await self._database.call(
            "beat_worker", beat.worker, beat.tenant or "", beat.uptime_us, facts, *bounds
        )
        return HeartbeatReply(at, drain)

    async def leave(self, worker: WorkerId) -> None:
        await self._database.call("remove_worker", worker)

    async def all(self, tenant: str | None = None) -> list[StoredWorker]:
        found, now = await self._database.read("list_workers", tenant, WORKERS_MAX), await self._database.now()
        return only_usable(found, lambda row: parse_worker(row, now))

    async def drain(self, worker: WorkerId) -> bool:
        ((is_known,),) = await self._database.call("drain_worker", worker)
        return bool(is_known)


def parse_worker(row: Sequence[Any], now: Instant) -> StoredWorker:
    since, seen_at, drain, beat = row
    return StoredWorker(beat=_decode_beat(beat), since=since, seen_at=seen_at, drain_requested=drain, now=now)


class PostgresPools:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def read(self, pool: str) -> PoolRecord | None:
        found = await self._database.read("list_pools", pool, 1)
        return PoolRecord(*found[0]) if found else None

    async def write(self, pool: str, seen: str | None, version: str, text: str) -> bool:
        bounds = (POOLS_MAX, FORGET_POOL_AFTER_US, self._database.at())
        ((is_written,),) = await self._database.call("write_pool", pool, seen, version, text, *bounds)
        return bool(is_written)

    async def all(self) -> list[PoolRecord]:
        return [PoolRecord(*row) for row in await self._database.read("list_pools", None, POOLS_MAX)]
