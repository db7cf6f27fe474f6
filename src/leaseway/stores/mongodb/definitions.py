"""Schedules, weights and caps of tenants, paused lanes, and the list of workers, in one MongoDB database."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pymongo import ReturnDocument, UpdateOne
from pymongo.errors import DuplicateKeyError

from leaseway.domain.ids import Instant, WorkerId
from leaseway.domain.inspection import only_usable
from leaseway.domain.job import NewJob, jobs_by_id
from leaseway.domain.lane import Pause, check_pause
from leaseway.domain.schedule import Missed, Schedule, StoredSchedule, check_schedule
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
from leaseway.stores.mongodb.connection import Database
from leaseway.stores.mongodb.database import JobDatabase, JobTransaction
from leaseway.stores.mongodb.documents import Doc, parse_pause, parse_tenant
from leaseway.stores.mongodb.lanes import flow_of
from leaseway.stores.mongodb.schema import FLOWS, LANES, PAUSES, POOLS, SCHEDULES, TENANTS, WORKERS
from leaseway.stores.mongodb.settle import OPENED
from leaseway.stores.mongodb.submit import submit


class MongoSchedules:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def declare(self, schedules: Sequence[Schedule]) -> None:
        async def work(transaction: JobTransaction) -> None:
            names = [each.name for each in schedules]
            stored = {doc["_id"]: doc for doc in await transaction.find(SCHEDULES, {"_id": {"$in": names}})}
            for each in schedules:
                before = stored.get(each.name)
                is_same = before is not None and (before["cron"], before["tz"]) == (each.cron, each.tz)
                stored[each.name] = (before or {}) | declared(each) | ({} if is_same else {"seen": transaction.now})
            updates = [UpdateOne({"_id": name}, {"$set": without_id(stored[name])}, upsert=True) for name in names]
            if updates:
                await transaction[SCHEDULES].bulk_write(updates, session=transaction.session)

        await self._database.write(work)

    async def all(self) -> list[StoredSchedule]:
        async def query(database: Database) -> list[StoredSchedule]:
            now = await self._database.connections.now(database)
            found = await database[SCHEDULES].find().sort("_id", 1).to_list()
            return only_usable(found, lambda doc: parse_usable_schedule(doc, now))

        return await self._database.connections.read(query)

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        jobs_by_id(jobs)

        async def work(transaction: JobTransaction) -> bool:
            where = {"_id": name, "seen": seen, "paused": {"$ne": True}}
            update = {"$set": {"seen": upto, "last_fire": upto}}
            if not (await transaction[SCHEDULES].update_one(where, update, session=transaction.session)).matched_count:
                return False
            await submit(transaction, jobs, ignore_conflicts=True)
            return True

        fired = await self._database.write(work)
        self._database.local.notify()
        return fired

    async def pause(self, name: str, paused: bool) -> bool:
        async def work(transaction: JobTransaction) -> bool:
            found = await transaction.find(SCHEDULES, {"_id": name})
            if not found:
                return False
            resumes = found[0].get("paused", False) and not paused
            changes = {"paused": paused} | ({"seen": transaction.now} if resumes else {})
            await transaction[SCHEDULES].update_one({"_id": name}, {"$set": changes}, session=transaction.session)
            return True

        return await self._database.write(work)


def declared(schedule: Schedule) -> Doc:
    return {"kind": schedule.kind, "cron": schedule.cron, "tz": schedule.tz, "missed": schedule.missed.value}


def without_id(doc: Mapping[str, Any]) -> Doc:
    return {name: value for name, value in doc.items() if name != "_id"}


def parse_schedule(doc: Mapping[str, Any], now: Instant) -> StoredSchedule:
    schedule = Schedule(name=doc["_id"], kind=doc["kind"], cron=doc["cron"], tz=doc["tz"], missed=Missed(doc["missed"]))
    return StoredSchedule(
        schedule=schedule, seen=doc["seen"], now=now, last_fire=doc.get("last_fire"), paused=doc.get("paused", False)
    )


def parse_usable_schedule(doc: Mapping[str, Any], now: Instant) -> StoredSchedule:
    parsed = parse_schedule(doc, now)
    check_schedule(parsed.schedule)
    return parsed


class MongoTenants:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def set(self, tenant: Tenant) -> None:
        settings = {
            "weight": tenant.weight, "concurrency": tenant.concurrency, "starts": msgspec.to_builtins(tenant.starts),
            "quotas": msgspec.to_builtins(tenant.quotas),
        }  # fmt: skip

        async def work(transaction: JobTransaction) -> None:
            where = {"_id": tenant.name}
            await transaction[TENANTS].replace_one(where, settings, upsert=True, session=transaction.session)
            await open_lanes(transaction, tenant.name)

        await self._database.write(work)
        self._database.local.notify()

    async def all(self) -> list[Tenant]:
        async def query(database: Database) -> list[Tenant]:
            return [parse_tenant(doc) async for doc in database[TENANTS].find().sort("_id", 1)]

        return await self._database.connections.read(query)

    async def forget(self, name: str) -> bool:
        async def work(transaction: JobTransaction) -> bool:
            await open_lanes(transaction, name)
            deleted = await transaction[TENANTS].delete_one({"_id": name}, session=transaction.session)
            return bool(deleted.deleted_count)

        forgotten = await self._database.write(work)
        self._database.local.notify()
        return forgotten


async def open_lanes(transaction: JobTransaction, tenant: str) -> None:
    """The caps of this tenant have changed: a worker asks the limiter again."""
    where = {"tenant": tenant, "closed_until": {"$exists": True}}
    await transaction[LANES].update_many(where, OPENED, session=transaction.session)
    for flow in await transaction.find(FLOWS, {"tenant": tenant}, "queue", "tenant"):
        transaction.changes.reopened(flow_of(flow))


class MongoPauses:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def pause(self, queue: str, tenant: str | None = None) -> bool:
        check_pause(Pause(queue, tenant))
        names = {"queue": queue, "tenant": tenant or ""}

        async def work(transaction: JobTransaction) -> bool:
            new = {"$setOnInsert": {**names, "since": transaction.now}}
            answer = await transaction[PAUSES].update_one({"_id": names}, new, upsert=True, session=transaction.session)
            return not answer.matched_count

        return await self._database.write(work)

    async def resume(self, queue: str, tenant: str | None = None) -> bool:
        async def work(transaction: JobTransaction) -> bool:
            where = {"_id": {"queue": queue, "tenant": tenant or ""}}
            return bool((await transaction[PAUSES].delete_one(where, session=transaction.session)).deleted_count)

        resumed = await self._database.write(work)
        self._database.local.notify()
        return resumed

    async def all(self) -> list[Pause]:
        async def query(database: Database) -> list[Pause]:
            return [parse_pause(doc) async for doc in database[PAUSES].find().sort([("queue", 1), ("tenant", 1)])]

        return await self._database.connections.read(query)


class MongoWorkers:
    """A heartbeat is one command, in which the server takes its own time, and no transaction: nothing depends on it."""

    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        async def run(_: float) -> HeartbeatReply:
            async with self._database.connections.calling() as database:
                seen = {"seen_at": self._database.connections.now_micros, "beat": {"$literal": render_heartbeat(beat)}}
                known = await database[WORKERS].find_one_and_update(
                    {"_id": beat.worker}, [{"$set": seen}], return_document=ReturnDocument.AFTER
                )
                if known is not None:
                    return HeartbeatReply(known["seen_at"], known["drain_requested"])
                now = await self._database.connections.now(database)
                await self._list(database, beat, now)
                return HeartbeatReply(now, False)

        return await self._database.connections.repeat(run)

    async def _list(self, database: Database, beat: Heartbeat, now: Instant) -> None:
        workers, tenant = database[WORKERS], beat.tenant or ""
        await workers.delete_many({"seen_at": {"$lt": now - FORGET_AFTER_US}})
        if await workers.count_documents({"tenant": tenant}) < workers_max(beat.tenant):
            new = {"tenant": tenant, "since": now - beat.uptime_us, "seen_at": now, "drain_requested": False}
            new["beat"] = render_heartbeat(beat)
            await workers.update_one({"_id": beat.worker}, {"$setOnInsert": new}, upsert=True)

    async def leave(self, worker: WorkerId) -> None:
        async def run(_: float) -> None:
            async with self._database.connections.calling() as database:
                await database[WORKERS].delete_one({"_id": worker})

        await self._database.connections.repeat(run)

    async def all(self, tenant: str | None = None) -> list[StoredWorker]:
        where = {} if tenant is None else {"tenant": tenant}

        async def query(database: Database) -> list[StoredWorker]:
            now = await self._database.connections.now(database)
            found = database[WORKERS].find(where).sort("_id", 1).limit(WORKERS_MAX)
            return [parse_worker(doc, now) async for doc in found]

        return await self._database.connections.read(query)

    async def drain(self, worker: WorkerId) -> bool:
        async def run(_: float) -> bool:
            async with self._database.connections.calling() as database:
                answer = await database[WORKERS].update_one({"_id": worker}, {"$set": {"drain_requested": True}})
                return bool(answer.matched_count)

        return await self._database.connections.repeat(run)


def render_heartbeat(beat: Heartbeat) -> Doc:
    doc: Doc = msgspec.to_builtins(beat)
    return doc


def parse_worker(doc: Mapping[str, Any], now: Instant) -> StoredWorker:
    return StoredWorker(
        beat=msgspec.convert(doc["beat"], Heartbeat), since=int(doc["since"]), seen_at=int(doc["seen_at"]),
        drain_requested=doc["drain_requested"], now=now,
    )  # fmt: skip


class MongoPools:
    """One document per pool, changed by one update without a transaction."""

    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def read(self, pool: str) -> PoolRecord | None:
        async def query(database: Database) -> PoolRecord | None:
            doc = await database[POOLS].find_one({"_id": pool})
            return None if doc is None else parse_pool(doc)

        return await self._database.connections.read(query)

    async def write(self, pool: str, seen: str | None, version: str, text: str) -> bool:
        async def run(_: float) -> bool:
            async with self._database.connections.calling() as database:
                now = await self._database.connections.now(database)
                new = {"version": version, "record": text, "written_at": now}
                # A repeated write finds its own version.
                where = {"_id": pool, "version": {"$in": [seen, version]}}
                if (await database[POOLS].update_one(where, {"$set": new})).matched_count:
                    return True
                return seen is None and await add_pool(database, {"_id": pool} | new)

        return await self._database.connections.repeat(run)

    async def all(self) -> list[PoolRecord]:
        async def query(database: Database) -> list[PoolRecord]:
            return [parse_pool(doc) async for doc in database[POOLS].find().sort("_id", 1).limit(POOLS_MAX)]

        return await self._database.connections.read(query)


async def add_pool(database: Database, new: Doc) -> bool:
    await database[POOLS].delete_many({"written_at": {"$lt": new["written_at"] - FORGET_POOL_AFTER_US}})
    if await database[POOLS].count_documents({}) >= POOLS_MAX:
        return False
    try:
        await database[POOLS].insert_one(new)
    except DuplicateKeyError:  # another process was faster
        return False
    return True


def parse_pool(doc: Mapping[str, Any]) -> PoolRecord:
    return PoolRecord(doc["_id"], doc["version"], doc["record"], int(doc["written_at"]))
