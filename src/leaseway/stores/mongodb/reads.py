"""Reads of jobs and lanes, inspection, and the history of the work, in one MongoDB database."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from pymongo import UpdateOne

from leaseway.domain.errors import StoreRefused
from leaseway.domain.health import Finding
from leaseway.domain.history.rows import HISTORY_PAGE, HistoryCell, HistoryLevel, HistoryRow, start_of
from leaseway.domain.ids import Instant, JobId, WorkerId
from leaseway.domain.inspection import (
    ENDED_MAX,
    OWNERS_MAX,
    PAGE_BYTES_MAX,
    PAGE_MAX,
    SCAN_MAX,
    SUMMARIES_MAX,
    EndedCount,
    JobFilter,
    JobSummary,
    LaneWait,
    LeaseOwner,
    SearchPage,
    cut_page,
    is_cut,
)
from leaseway.domain.job import LEASE_US_MAX, LEASE_US_MIN, ErrorRecord, Job, State
from leaseway.domain.lane import LaneCount
from leaseway.stores.mongodb.connection import Database, Session
from leaseway.stores.mongodb.database import JobDatabase, JobTransaction
from leaseway.stores.mongodb.documents import (
    ALL_LEASED,
    FINAL,
    READY,
    STATUSES,
    UNREADABLE,
    Doc,
    job_state,
    lane_fields,
    only_readable,
    parse_errors,
    parse_job,
    parse_summary,
    statuses_of,
)
from leaseway.stores.mongodb.lanes import LaneState, read_lanes
from leaseway.stores.mongodb.schema import IDEMPOTENCY_KEYS, JOBS, WORK_HISTORY

T = TypeVar("T")
SUMMARY = {"payload": 0, "result": 0, "cursor": 0, "errors": 0, "trace": 0}
"""Fields that a summary does not need."""
ORDER = list(State)
BATCH = 20
"""How many jobs are read ahead of a page that ends by its size."""


class MongoReads:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def job(self, job: JobId) -> Job | None:
        async def query(database: Database) -> Job | None:
            found = await database[JOBS].find_one({"_id": job}, {"errors": 0, "trace": 0})
            try:
                return None if found is None else parse_job(found)
            except UNREADABLE as error:
                raise StoreRefused(
                    f"{JOBS}: the document {job!r} was changed by another program ({error!r}); restore it, or delete it"
                ) from error

        return await self._database.connections.read(query)

    async def jobs(
        self, which: JobFilter, *, before: JobId | None = None, limit: int = 50, bytes_max: int | None = None
    ) -> list[Job]:
        limit = max(min(limit, PAGE_MAX), 0)

        async def query(database: Database) -> list[Job]:
            where = filter_conditions(which, before=before)
            found = database[JOBS].find(where, {"errors": 0, "trace": 0}).sort("_id", -1).limit(limit)
            if bytes_max is None:
                return only_readable(await found.to_list(), parse_job)
            page: list[Job] = []
            async for doc in found.batch_size(BATCH):
                page += only_readable([doc], parse_job)
                if is_cut(page, bytes_max):
                    break
            await found.close()
            return page

        return await self._database.connections.read(query) if limit else []

    async def errors(self, job: JobId) -> list[ErrorRecord]:
        async def query(database: Database) -> list[ErrorRecord]:
            found = await database[JOBS].find_one({"_id": job}, {"errors": 1})
            return [] if found is None else parse_errors(found)

        return await self._database.connections.read(query)

    async def lanes(self, tenant: str | None = None) -> Sequence[LaneCount]:
        return [lane.count() for lane in await self._database.lanes(tenant)]

    async def now(self) -> Instant:
        return await self._database.now()

    async def locked_by(self, job: JobId) -> str | None:
        """Only the server's operators can see the transactions of other clients."""
        return None


def filter_conditions(
    which: JobFilter, statuses: Sequence[str] = STATUSES, before: JobId | None = None
) -> dict[str, Any]:
    """A filter as a query. Names and values are the caller's, so each is compared by $eq or $in."""
    conditions: list[Doc] = []
    if which.ids is not None:
        conditions.append({"_id": {"$in": list(which.ids)}})
    if before is not None:
        conditions.append({"_id": {"$lt": before}})
    wanted = [status for status in statuses if which.states is None or status in statuses_of(which.states)]
    if len(wanted) < len(STATUSES):
        conditions.append({"status": wanted[0] if len(wanted) == 1 else {"$in": wanted}})
    for field in ("kind", "queue", "tenant", "shard_key"):
        if getattr(which, field) is not None:
            conditions.append({field: {"$eq": getattr(which, field)}})
    if which.error_code is not None:
        conditions.append({"last_error.code": {"$eq": which.error_code}})
    return {"$and": conditions} if conditions else {}


class MongoInspection:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def search(
        self, which: JobFilter, *, before: JobId | None = None, limit: int = 50, scan_max: int = SCAN_MAX
    ) -> SearchPage:
        """Along the index of all ids, or of those of a tenant."""
        base = filter_conditions(JobFilter(queue=which.queue, tenant=which.tenant), before=before)
        scan: list[Doc] = [{"$match": base}, {"$sort": {"_id": -1}}, {"$limit": scan_max}]
        matching: list[Doc] = [*scan, {"$match": filter_conditions(which)}, {"$limit": limit + 1},
                               {"$project": {"errors": 0, "trace": 0}}]  # fmt: skip

        async def query(database: Database) -> SearchPage:
            found = only_readable(await (await database[JOBS].aggregate(matching)).to_list(), parse_job)
            page = cut_page(found[:limit], PAGE_BYTES_MAX)
            if len(page) < len(found):
                return SearchPage(page, page[-1].id if page else before)
            last = database[JOBS].find(base, {"_id": 1}).sort("_id", -1).skip(max(scan_max - 1, 0)).limit(2)
            ends = await last.to_list()
            return SearchPage(found, ends[0]["_id"] if len(ends) == 2 else None)

        return await self._database.connections.read(query)

    async def recent(self, newest: int, ended_after: Instant, ended: int) -> tuple[Instant, list[JobSummary]]:
        async def query(database: Database) -> tuple[Instant, list[JobSummary]]:
            now = await self._database.connections.now(database)
            found: list[Doc] = []
            if newest > 0:
                found += await database[JOBS].find({}, SUMMARY).sort("_id", -1).limit(newest).to_list()
            if ended > 0:
                where = {"status": {"$in": list(FINAL)}, "at": {"$gt": ended_after}}
                found += await database[JOBS].find(where, SUMMARY).sort("at", -1).limit(ended).to_list()
            return now, only_readable(found, parse_summary)

        return await self._database.connections.read(query)

    async def summaries(self, ids: Sequence[JobId]) -> list[JobSummary]:
        async def query(database: Database) -> list[JobSummary]:
            where = {"_id": {"$in": list(ids[:SUMMARIES_MAX])}}
            return only_readable(await database[JOBS].find(where, SUMMARY).to_list(), parse_summary)

        return await self._database.connections.read(query)

    async def owners(self) -> list[LeaseOwner]:
        async def query(database: Database) -> list[LeaseOwner]:
            now = await self._database.connections.now(database)
            return [parse_owner(doc) async for doc in await database[JOBS].aggregate(owner_query(now))]

        return await self._database.connections.read(query)

    async def waiting(self) -> list[LaneWait]:
        async def query(database: Database, session: Session) -> list[LaneWait]:
            lanes = [lane for lane in await read_lanes(database, session, {}) if lane.ready > 0]
            return [await lane_wait(database, session, lane) for lane in lanes]

        return await self._database.snapshot(query)

    async def ended(self, after: Instant) -> tuple[Instant, list[EndedCount]]:
        pipeline: list[Doc] = [
            {"$match": {"status": {"$in": list(FINAL)}, "at": {"$gt": after}}},
            {"$sort": {"at": -1}},
            {"$limit": ENDED_MAX},
            {"$group": {
                "_id": {"queue": "$queue", "tenant": "$tenant", "status": "$status"},
                "count": {"$sum": 1}, "first": {"$min": "$at"},
            }},
        ]  # fmt: skip

        async def query(database: Database) -> tuple[Instant, list[EndedCount]]:
            found = await (await database[JOBS].aggregate(pipeline)).to_list()
            is_all = sum(doc["count"] for doc in found) < ENDED_MAX
            counts = [
                EndedCount(queue=name["queue"], tenant=name["tenant"], state=job_state(name["status"]), count=count)
                for name, count in ((doc["_id"], doc["count"]) for doc in found)
            ]
            counts.sort(key=lambda each: (each.queue, each.tenant, ORDER.index(each.state)))
            return after if is_all else min(doc["first"] for doc in found), counts

        return await self._database.connections.read(query)

    async def jobs_for_keys(self, tenant: str, keys: Sequence[str]) -> dict[str, JobId]:
        async def query(database: Database) -> dict[str, JobId]:
            now = await self._database.connections.now(database)
            ids = [{"tenant": tenant, "key": key} for key in keys]
            found = database[IDEMPOTENCY_KEYS].find({"_id": {"$in": ids}, "expires_at": {"$gt": now}})
            return {doc["_id"]["key"]: JobId(doc["job"]) async for doc in found}

        return await self._database.connections.read(query)

    async def health(self, *, deep: bool = False) -> list[Finding]:
        from leaseway.stores.mongodb.health import check_health  # imported here because workers do not need it

        return await check_health(self._database, deep)


async def lane_wait(database: Database, session: Session, lane: LaneState) -> LaneWait:
    """The index of a lane is ordered by priority, and then by time: its first entry of each priority is looked at."""
    base: Mapping[str, Any] = {"status": READY, **lane_fields(lane.key)}
    firsts: list[Instant] = []
    below: Mapping[str, Any] = {}
    order = [("priority", -1), ("run_at", 1), ("seq", 1)]
    while True:
        found = await database[JOBS].find_one(
            {**base, **below}, {"priority": 1, "run_at": 1}, sort=order, session=session
        )
        if found is None:
            return LaneWait(**lane_fields(lane.key), since=min(firsts, default=0))
        firsts.append(found["run_at"])
        below = {"priority": {"$lt": found["priority"]}}


def owner_query(now: Instant) -> list[Doc]:
    lease_us = {"$min": [{"$max": ["$lease_us", LEASE_US_MIN]}, LEASE_US_MAX]}
    return [
        {"$match": ALL_LEASED},
        {"$group": {
            "_id": "$lease.owner", "leased": {"$sum": 1},
            "expired": {"$sum": {"$cond": [{"$lte": ["$lease.until", now]}, 1, 0]}},
            "seen_at": {"$max": {"$subtract": ["$lease.until", lease_us]}},
            "until": {"$min": "$lease.until"},
        }},
        {"$sort": {"_id": 1}},
        {"$limit": OWNERS_MAX},
    ]  # fmt: skip


def parse_owner(doc: Mapping[str, Any]) -> LeaseOwner:
    return LeaseOwner(
        name=WorkerId(doc["_id"] or ""),
        leased=doc["leased"],
        expired=doc["expired"],
        seen_at=doc["seen_at"],
        until=doc["until"],
    )


class MongoHistory:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def record(self, rows: Sequence[HistoryRow]) -> None:
        await self.replace((), rows)

    async def rows(
        self,
        level: HistoryLevel,
        since: Instant,
        until: Instant,
        *,
        tenant: str | None = None,
        after: str = "",
        limit: int = HISTORY_PAGE,
    ) -> list[HistoryRow]:
        where: Doc = {"level": level.value, "at": {"$gte": since, "$lt": until}}
        where |= {} if tenant is None else {"tenant": tenant}
        where |= {"$or": [{"at": {"$gt": since}}, {"_id": {"$gt": after}}]} if after else {}

        async def query(database: Database) -> list[HistoryRow]:
            found = database[WORK_HISTORY].find(where).sort([("at", 1), ("_id", 1)]).limit(limit)
            return [parse_history(doc) async for doc in found]

        return await self._database.connections.read(query)

    async def replace(self, ids: Sequence[str], rows: Sequence[HistoryRow]) -> None:
        async def work(transaction: JobTransaction) -> None:
            minute, session = start_of(transaction.now, HistoryLevel.MINUTE), transaction.session
            if ids:
                await transaction[WORK_HISTORY].delete_many({"_id": {"$in": list(ids)}}, session=session)
            updates = [
                UpdateOne({"_id": row.id}, {"$setOnInsert": render_history(row, minute)}, upsert=True) for row in rows
            ]
            if updates:
                await transaction[WORK_HISTORY].bulk_write(updates, ordered=False, session=session)

        if ids or rows:
            await self._database.write(work)

    async def prune(self, level: HistoryLevel, before: Instant, limit: int) -> int:
        async def work(transaction: JobTransaction) -> int:
            where = {"level": level.value, "at": {"$lt": before}}
            old = [doc["_id"] for doc in await transaction.find(WORK_HISTORY, where, "_id", limit=limit)]
            await transaction[WORK_HISTORY].delete_many({"_id": {"$in": old}}, session=transaction.session)
            return len(old)

        return await self._database.write(work)


def render_history(row: HistoryRow, minute: Instant) -> Doc:
    cell = msgspec.to_builtins(row.cell, str_keys=True)
    return {
        "level": row.level.value, "at": row.at or minute, "tenant": row.tenant, "queue": row.queue, "kind": row.kind,
        "cell": cell,
    }  # fmt: skip


def parse_history(doc: Mapping[str, Any]) -> HistoryRow:
    names = {name: doc[name] for name in ("tenant", "queue", "kind")}
    # Keys of documents are texts.
    cell = msgspec.convert(doc["cell"], HistoryCell, strict=False)
    return HistoryRow(id=doc["_id"], level=HistoryLevel(doc["level"]), at=int(doc["at"]), cell=cell, **names)
