"""Schedules, weights and caps of tenants, paused lanes, and the list of workers, in one SQLite file."""

from collections.abc import Sequence

import msgspec

from leaseway.domain.ids import Instant, WorkerId
from leaseway.domain.inspection import only_usable
from leaseway.domain.job import NewJob, jobs_by_id
from leaseway.domain.lane import Pause, check_pause
from leaseway.domain.limits.limit import Rate
from leaseway.domain.quota import Quotas
from leaseway.domain.schedule import Missed, Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant, check_tenant
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
        return only_usable(found, lambda row: parse_schedule(row, self._database.now_us()))

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        jobs_by_id(jobs)

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
_decode_quotas = msgspec.json.Decoder(Quotas).decode


class SqliteTenants:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(self, tenant: Tenant) -> None:
        settings: dict[str, object] = {
            "weight": tenant.weight, "starts": as_json(tenant.starts), "concurrency": tenant.concurrency,
            "quotas": as_json(tenant.quotas),
        }  # fmt: skip

        def work(transaction: Transaction) -> None:
            transaction.run("tenant_set", name=tenant.name, is_capped=int(tenant.is_capped), **settings)
            transaction.run("lanes_of_tenant_open", tenant=tenant.name)

        await self._database.write(work)
        self._database.notifier.notify()

    async def all(self) -> list[Tenant]:
        return only_usable(await self._database.read("tenant_list"), parse_tenant)

    async def forget(self, name: str) -> bool:
        def work(transaction: Transaction) -> list[Row]:
            transaction.run("lanes_of_tenant_open", tenant=name)
            return transaction.run("tenant_forget", name=name)

        forgotten = await self._database.write(work)
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
    name, weight, starts, concurrency, quotas = row
    rates, allowed = _decode_rates(starts), _decode_quotas(quotas)
    return check_tenant(Tenant(name=name, weight=weight, starts=rates, concurrency=concurrency, quotas=allowed))


_decode_beat = msgspec.json.Decoder(Heartbeat).decode


class SqliteWorkers:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        def work(transaction: Transaction) -> HeartbeatReply:
            now, values = transaction.now, {"name": beat.worker, "beat": as_json(beat), "now": transaction.now}
            if known := transaction.run("worker_beat", **values):
                return HeartbeatReply(now, bool(known[0][0]))
            transaction.run("worker_forget", before=now - FORGET_AFTER_US)
            bounds = {"tenant": beat.tenant or "", "since": now - beat.uptime_us, "most": workers_max(beat.tenant)}
            transaction.run("worker_list_new", **values, **bounds)
            return HeartbeatReply(now, False)

        return await self._database.write(work)

    async def leave(self, worker: WorkerId) -> None:
        await self._database.write(lambda transaction: transaction.run("worker_leave", name=worker))

    async def all(self, tenant: str | None = None) -> list[StoredWorker]:
        found = await self._database.read("worker_all", tenant=tenant, most=WORKERS_MAX)
        return only_usable(found, lambda row: parse_worker(row, self._database.now_us()))

    async def drain(self, worker: WorkerId) -> bool:
        return bool(await self._database.write(lambda transaction: transaction.change("worker_drain", name=worker)))


def parse_worker(row: Row, now: Instant) -> StoredWorker:
    since, seen_at, drain, beat = row
    return StoredWorker(beat=_decode_beat(beat), since=since, seen_at=seen_at, drain_requested=bool(drain), now=now)


class SqlitePools:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, pool: str) -> PoolRecord | None:
        found = await self._database.read("pool_list", name=pool, most=1)
        return PoolRecord(*found[0]) if found else None

    async def write(self, pool: str, seen: str | None, version: str, text: str) -> bool:
        values = {"name": pool, "version": version, "record": text}

        def work(transaction: Transaction) -> bool:
            now = transaction.now
            if transaction.change("pool_replace", **values, seen=seen, now=now):
                return True
            if seen is not None:
                return False
            transaction.change("pool_forget", before=now - FORGET_POOL_AFTER_US)
            return bool(transaction.change("pool_add", **values, now=now, most=POOLS_MAX))

        return await self._database.write(work)

    async def all(self) -> list[PoolRecord]:
        return [PoolRecord(*row) for row in await self._database.read("pool_list", name=None, most=POOLS_MAX)]
