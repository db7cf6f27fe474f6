"""Cancel, retry, run, discard and prune jobs in one MongoDB database. Each method is one transaction."""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import copy

from msgspec.structs import replace

from leaseway.domain.ids import JobId
from leaseway.domain.inspection import KEYS_PER_JOB, CancelResult, JobFilter
from leaseway.domain.lane import Flow
from leaseway.domain.requirements import quoted_name
from leaseway.stores.mongodb.connection import Database
from leaseway.stores.mongodb.database import JobDatabase, JobTransaction
from leaseway.stores.mongodb.documents import (
    CANCELLED,
    FAILED,
    FINAL,
    LEASED,
    PENDING,
    READY,
    SCHEDULED,
    Doc,
    lane_fields,
    lane_key,
)
from leaseway.stores.mongodb.lanes import BYTES
from leaseway.stores.mongodb.reads import filter_conditions
from leaseway.stores.mongodb.schema import CANCEL_REQUESTS, FLOWS, IDEMPOTENCY_KEYS, JOBS, LANE_CHANGES, LANES
from leaseway.stores.mongodb.settle import open_lanes, read_jobs, write_jobs

Change = Callable[[JobTransaction, dict[JobId, Doc]], Awaitable[None]]


class MongoOperations:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def cancel(self, job: JobId) -> CancelResult:
        answer = await self._database.write(lambda transaction: cancel(transaction, job))
        self._database.local.notify()
        return answer

    async def retry(self, which: JobFilter, limit: int) -> list[JobId]:
        async def change(transaction: JobTransaction, docs: dict[JobId, Doc]) -> None:
            before = {id_: copy(doc) for id_, doc in docs.items()}
            for doc in docs.values():
                doc |= {"attempts": 0, "run_at": transaction.now, "cancel_requested": False}
                for name in ("result", "last_token"):
                    doc.pop(name, None)
                transaction.move(doc, READY)
            await write_jobs(transaction, before, docs)

        return await self._change(change, which, (FAILED, CANCELLED), limit)

    async def run_now(self, which: JobFilter, limit: int) -> list[JobId]:
        async def change(transaction: JobTransaction, docs: dict[JobId, Doc]) -> None:
            before = {id_: copy(doc) for id_, doc in docs.items()}
            for doc in docs.values():
                doc["run_at"] = min(doc["run_at"], transaction.now)
                transaction.move(doc, READY)
            await write_jobs(transaction, before, docs)

        return await self._change(change, which, (SCHEDULED,), limit)

    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        async def change(transaction: JobTransaction, docs: dict[JobId, Doc]) -> None:
            await delete_jobs(transaction, docs.values())

        return await self._change(change, which, FINAL, limit)

    async def _change(self, change: Change, which: JobFilter, statuses: Sequence[str], limit: int) -> list[JobId]:
        """Look for the jobs before the transaction, which finds them by their ids: the search may take long."""
        order = [("seq", 1)]

        async def look(database: Database) -> list[JobId]:
            where = filter_conditions(which, statuses)
            return [doc["_id"] async for doc in database[JOBS].find(where, {"_id": 1}).sort(order).limit(limit)]

        async def work(transaction: JobTransaction) -> list[JobId]:
            where = filter_conditions(replace(which, ids=tuple(ids)), statuses)
            docs = await read_jobs(transaction, where, sort=order)
            await change(transaction, docs)
            return list(docs)

        ids = await self._database.connections.read(look) if limit > 0 else []
        changed = await self._database.write(work) if ids else []
        self._database.local.notify()
        return changed

    async def open_lanes(self, name: str, limit: int, tenant: str | None = None) -> int:
        quoted = quoted_name(name)
        of_tenant = {} if tenant is None else {"tenant": tenant}

        async def work(transaction: JobTransaction) -> int:
            where = {"closed_until": {"$exists": True}, "needs": {"$regex": re.escape(quoted)}, **of_tenant}
            closed = await transaction.find(LANES, where, "queue", "tenant", sort=[("closed_until", 1)], limit=limit)
            await open_lanes(transaction, closed)
            return len(closed)

        opened = await self._database.write(work) if limit > 0 else 0
        self._database.local.notify()
        return opened

    async def prune(self, keep_us: int, limit: int) -> int:
        limit = max(limit, 0)

        async def work(transaction: JobTransaction) -> int:
            where = {"status": {"$in": list(FINAL)}, "at": {"$lte": transaction.now - keep_us}}
            order = [("at", 1), ("seq", 1)]
            fields = ("queue", "tenant", "needs", "status", "bytes")
            old = await transaction.find(JOBS, where, *fields, sort=order, limit=limit) if limit else []
            await delete_jobs(transaction, old)
            return len(old)

        pruned = await self._database.write(work)
        if limit:
            await self._database.write(lambda transaction: prune_keys(transaction, limit * KEYS_PER_JOB))
            while await self._database.fold():
                pass
            await self._database.write(lambda transaction: prune_lanes(transaction, limit))
        return pruned


async def cancel(transaction: JobTransaction, job: JobId) -> CancelResult:
    docs = await read_jobs(transaction, {"_id": job})
    if not docs:
        return CancelResult.UNKNOWN
    doc = docs[job]
    if doc["status"] in FINAL:
        return CancelResult.FINISHED
    before = {job: copy(doc)}
    if doc["status"] == LEASED:
        doc["cancel_requested"] = True
        request = {"_id": job, "owner": doc["lease"]["owner"], "seq": doc["seq"]}
        await transaction[CANCEL_REQUESTS].replace_one({"_id": job}, request, upsert=True, session=transaction.session)
    else:
        transaction.move(doc, CANCELLED)
    await write_jobs(transaction, before, docs)
    return CancelResult.CANCELLED if before[job]["status"] in PENDING else CancelResult.REQUESTED


async def delete_jobs(transaction: JobTransaction, docs: Iterable[Doc]) -> None:
    docs = list(docs)
    if not docs:
        return
    ids = [doc["_id"] for doc in docs]
    await transaction.jobs.delete_many({"_id": {"$in": ids}}, session=transaction.session)
    for doc in docs:
        transaction.changes.add(lane_key(doc), doc["status"], -1)
        transaction.changes.add(lane_key(doc), BYTES, -doc["bytes"])


async def prune_keys(transaction: JobTransaction, limit: int) -> None:
    expired = {"expires_at": {"$lte": transaction.now}}
    old = [doc["_id"] for doc in await transaction.find(IDEMPOTENCY_KEYS, expired, "_id", limit=limit)]
    if old:
        await transaction[IDEMPOTENCY_KEYS].delete_many({"_id": {"$in": old}}, session=transaction.session)


async def prune_lanes(transaction: JobTransaction, limit: int) -> None:
    """Delete lanes without jobs, and the virtual times of flows without lanes. A lane with a change that is not folded
    yet may be deleted, too: the next fold creates it again."""
    empty = await transaction.find(LANES, {"is_empty": True}, "queue", "tenant", "needs", limit=limit)
    busy = {lane_key(doc) for doc in await transaction.find(LANE_CHANGES, {}, "queue", "tenant", "needs")}
    keys = [key for key in map(lane_key, empty) if key not in busy]
    if not keys:
        return
    where = {"_id": {"$in": [lane_fields(key) for key in keys]}}
    await transaction[LANES].delete_many(where, session=transaction.session)
    flows: set[Flow] = {key[:2] for key in keys}
    for queue, tenant in flows - {key[:2] for key in busy}:
        names = {"queue": queue, "tenant": tenant}
        if not await transaction.find(LANES, names, "_id", limit=1):
            await transaction[FLOWS].delete_one({"_id": names}, session=transaction.session)
