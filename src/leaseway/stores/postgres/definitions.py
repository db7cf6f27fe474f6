"""Schedules, tenants and lane pauses in PostgreSQL."""

from collections.abc import Sequence

from leaseway.domain.ids import Instant
from leaseway.domain.job import NewJob
from leaseway.domain.lane import Pause, check_pause
from leaseway.domain.schedule import Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant
from leaseway.stores.postgres import rows
from leaseway.stores.postgres.database import JobDatabase
from leaseway.stores.postgres.jobs import distinct
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
        return [rows.parse_schedule(row, now) for row in found]

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        ((fired,),) = await self._database.call(
            "fire_schedule", name, seen, upto, *rows.submit_arguments(distinct(jobs)), self._database.at()
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
        await self._database.call(
            "set_tenant", tenant.name, tenant.weight, starts, tenant.concurrency, tenant.is_capped
        )
        self._database.notifier.notify()

    async def all(self) -> list[Tenant]:
        return [rows.parse_tenant(row) for row in await self._database.read("list_tenants")]

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
