"""Weights and caps of tenants, and paused lanes, in PostgreSQL."""

from leaseway.domain.lane import Pause, check_pause
from leaseway.domain.tenant import Tenant
from leaseway.stores.postgres import rows
from leaseway.stores.postgres.database import JobDatabase
from leaseway.stores.postgres.rows import encode_json


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
