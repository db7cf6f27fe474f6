"""Weights and caps of tenants, and paused lanes, in one SQLite file."""

import msgspec

from leaseway.domain.lane import Pause, check_pause
from leaseway.domain.limits.limit import Rate
from leaseway.domain.tenant import Tenant
from leaseway.stores.sqlite.database import Database, Row, Transaction, as_json

_decode_rates = msgspec.json.Decoder(tuple[Rate, ...]).decode


class SqliteTenants:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(self, tenant: Tenant) -> None:
        settings = {"weight": tenant.weight, "starts": as_json(tenant.starts), "concurrency": tenant.concurrency}

        def work(transaction: Transaction) -> None:
            transaction.run("tenant_set", name=tenant.name, is_capped=int(tenant.is_capped), **settings)

        await self._database.write(work)
        self._database.notifier.ring()

    async def all(self) -> list[Tenant]:
        return [parse_tenant(row) for row in await self._database.read("tenant_list")]

    async def forget(self, name: str) -> bool:
        forgotten = await self._database.write(lambda transaction: transaction.run("tenant_forget", name=name))
        self._database.notifier.ring()
        return bool(forgotten)


class SqlitePauses:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def pause(self, queue: str, tenant: str | None = None) -> bool:
        check_pause(Pause(queue, tenant))

        def work(transaction: Transaction) -> int:
            return transaction.change("pause_lanes", queue=queue, tenant=tenant or "", now=transaction.now)

        return bool(await self._database.write(work))

    async def resume(self, queue: str, tenant: str | None = None) -> bool:
        def work(transaction: Transaction) -> int:
            return transaction.change("resume_lanes", queue=queue, tenant=tenant or "")

        return bool(await self._database.write(work))

    async def all(self) -> list[Pause]:
        found = await self._database.read("pause_list")
        return [Pause(queue, tenant or None, since) for queue, tenant, since in found]


def parse_tenant(row: Row) -> Tenant:
    name, weight, starts, concurrency = row
    return Tenant(name=name, weight=weight, starts=_decode_rates(starts), concurrency=concurrency)
