"""Schedules, weights and caps of tenants, and paused lanes, in one SQLite file."""

from collections.abc import Sequence

import msgspec

from leaseway.domain.ids import Instant
from leaseway.domain.job import NewJob
from leaseway.domain.lane import Pause, check_pause
from leaseway.domain.limits.limit import Rate
from leaseway.domain.schedule import Missed, Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant
from leaseway.stores.sqlite.database import Database, Row, Transaction, as_json
from leaseway.stores.sqlite.jobs import submit


class SqliteSchedules:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def declare(self, schedules: Sequence[Schedule]) -> None:
        def work(transaction: Transaction) -> None:
            for each in schedules:
                names = {"name": each.name, "kind": each.kind, "cron": each.cron, "tz": each.tz}
                transaction.run("schedule_declare", **names, missed=each.missed.value, now=transaction.now)

        await self._database.write(work)

    async def all(self) -> list[StoredSchedule]:
        found = await self._database.read("schedule_list")
        return [parse_schedule(row, self._database.now_us()) for row in found]

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        def work(transaction: Transaction) -> bool:
            if not transaction.run("schedule_fire", name=name, seen=seen, upto=upto):
                return False
            submit(transaction, jobs, ignore_conflicts=True)
            return True

        fired = await self._database.write(work)
        self._database.notifier.notify()
        return fired

    async def pause(self, name: str, paused: bool) -> bool:
        def work(transaction: Transaction) -> list[Row]:
            return transaction.run("schedule_pause", name=name, paused=paused, now=transaction.now)

        return bool(await self._database.write(work))


def parse_schedule(row: Row, now: Instant) -> StoredSchedule:
    name, kind, cron, tz, missed, seen, last_fire, paused = row
    schedule = Schedule(name=name, kind=kind, cron=cron, tz=tz, missed=Missed(missed))
    return StoredSchedule(schedule=schedule, seen=seen, now=now, last_fire=last_fire, paused=bool(paused))


_decode_rates = msgspec.json.Decoder(tuple[Rate, ...]).decode


class SqliteTenants:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(self, tenant: Tenant) -> None:
        settings = {"weight": tenant.weight, "starts": as_json(tenant.starts), "concurrency": tenant.concurrency}

        def work(transaction: Transaction) -> None:
            transaction.run("tenant_set", name=tenant.name, is_capped=int(tenant.is_capped), **settings)

        await self._database.write(work)
        self._database.notifier.notify()

    async def all(self) -> list[Tenant]:
        return [parse_tenant(row) for row in await self._database.read("tenant_list")]

    async def forget(self, name: str) -> bool:
        forgotten = await self._database.write(lambda transaction: transaction.run("tenant_forget", name=name))
        self._database.notifier.notify()
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
