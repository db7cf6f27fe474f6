"""The steps of an exchange that end leases: settlements, expired leases; and scheduled jobs that are due.

Each works within an open transaction: it reads jobs, changes their documents, and writes what has changed.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from heapq import nsmallest
from typing import Any

from bson import encode
from pymongo import UpdateMany

from leaseway.domain.exchange import BACKLOG_MAX, PROMOTE_MAX, RECLAIM_MAX, REOPEN_MAX
from leaseway.domain.ids import JobId, Token
from leaseway.domain.job import NewJob, Settlement, State
from leaseway.domain.outcome import expired_lease, state_after_expiry
from leaseway.stores.mongodb.connection import META
from leaseway.stores.mongodb.database import JobTransaction
from leaseway.stores.mongodb.documents import (
    AFTER_EXPIRY,
    CANCELLED,
    LEASED,
    READY,
    SCHEDULED,
    Doc,
    LaneKey,
    append_error,
    lane_fields,
    lane_key,
    pending_status,
    start_time,
)
from leaseway.stores.mongodb.lanes import read_lanes
from leaseway.stores.mongodb.schema import CANCEL_REQUESTS, JOBS, LANES
from leaseway.stores.mongodb.submit import submit

PROMOTION_ID = "promotion"
"""The document that holds the lane with which the last visit of lanes ended."""
Held = frozenset[tuple[JobId, Token]]


async def settle(transaction: JobTransaction, settlements: Sequence[Settlement]) -> list[JobId]:
    """Write the accepted settlements; return the jobs whose settlement is rejected."""
    docs = await read_jobs(transaction, {"_id": {"$in": [each.id for each in settlements]}})
    before = {id_: copy(doc) for id_, doc in docs.items()}
    lost: list[JobId] = []
    children: list[NewJob] = []
    for settlement in settlements:
        doc = docs.get(settlement.id)
        if doc is not None and held_token(doc) == settlement.token:
            record(transaction, doc, settlement)
            children += settlement.children
        elif doc is None or doc.get("last_token") != settlement.token:
            lost.append(settlement.id)
    await write_jobs(transaction, before, docs)
    await forget_cancel_requests(transaction, before, docs)
    if children:
        await submit(transaction, children, ignore_conflicts=True)
    return lost


async def read_jobs(transaction: JobTransaction, where: Mapping[str, Any], **options: Any) -> dict[JobId, Doc]:
    """Without payloads, which may be long and which no step changes."""
    found = transaction.jobs.find(where, {"payload": 0, "trace": 0}, session=transaction.session, **options)
    return {doc["_id"]: doc async for doc in found}


async def write_jobs(
    transaction: JobTransaction, before: Mapping[JobId, Mapping[str, Any]], after: Mapping[JobId, Doc]
) -> None:
    """Write the fields that differ. Jobs with the same changes, such as jobs without results, share an update."""
    groups: dict[bytes, tuple[Doc, list[JobId]]] = {}
    for id_, doc in after.items():
        update = difference(before[id_], doc)
        if update:
            groups.setdefault(encode(update), (update, []))[1].append(id_)
    if groups:
        changed = [UpdateMany({"_id": {"$in": ids}}, update) for update, ids in groups.values()]
        await transaction.jobs.bulk_write(changed, ordered=False, session=transaction.session)


async def forget_cancel_requests(
    transaction: JobTransaction, before: Mapping[JobId, Mapping[str, Any]], after: Mapping[JobId, Doc]
) -> None:
    """A request ends with the lease that it concerns."""
    ended = [id_ for id_, doc in before.items() if doc["cancel_requested"] and after[id_]["status"] != LEASED]
    if ended:
        await transaction[CANCEL_REQUESTS].delete_many({"_id": {"$in": ended}}, session=transaction.session)


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Doc:
    changed = {name: value for name, value in after.items() if name not in before or before[name] != value}
    removed = {name: "" for name in before if name not in after}
    return {"$set": changed} | ({"$unset": removed} if removed else {}) if changed or removed else {}


def held_token(doc: Mapping[str, Any]) -> Token | None:
    return doc["lease"]["token"] if doc["status"] == LEASED else None


def record(transaction: JobTransaction, doc: Doc, settlement: Settlement) -> None:
    if settlement.failure is not None:
        append_error(doc, settlement.failure, transaction.now)
    if settlement.returns_attempt:
        doc["attempts"] = max(doc["attempts"] - 1, 0)
    if settlement.progress is not None:
        doc["progress"] = settlement.progress
    doc["last_token"] = settlement.token
    doc.pop("result", None)
    if settlement.result is not None:
        doc["result"] = settlement.result
    transaction.move(doc, next_status(transaction, doc, settlement))


def next_status(transaction: JobTransaction, doc: Doc, settlement: Settlement) -> str:
    """A job that is to be cancelled does not become pending."""
    if settlement.state is not State.PENDING:
        return settlement.state.value
    doc["run_at"] = start_time(settlement, transaction.now)
    return CANCELLED if doc["cancel_requested"] else pending_status(doc["run_at"], transaction.now)


# -- what is due ------------------------------------------------------------------------------------------------------


async def reclaim(transaction: JobTransaction, settled: Held) -> None:
    """End expired leases: the jobs become ready, failed or cancelled. Leases that this exchange settles are left to
    their settlements."""
    where = {"status": LEASED, "at": {"$lte": transaction.now}}
    order = [("at", 1), ("seq", 1)]
    fields = ("queue", "tenant", "needs", "lease.token", "status")
    oldest = await transaction.find(JOBS, where, *fields, sort=order, limit=BACKLOG_MAX)
    others = [doc for doc in oldest if (doc["_id"], held_token(doc)) not in settled]
    ids = [doc["_id"] for doc in take_turns(others, lane_key, RECLAIM_MAX)]
    docs = await read_jobs(transaction, {"_id": {"$in": ids}}) if ids else {}
    before = {id_: copy(doc) for id_, doc in docs.items()}
    for doc in docs.values():
        state = state_after_expiry(doc["attempts"], doc["attempts_max"], doc["cancel_requested"])
        if state is not State.CANCELLED:
            append_error(doc, expired_lease(doc["lease"]["owner"]), transaction.now)
        transaction.move(doc, AFTER_EXPIRY[state])
    await write_jobs(transaction, before, docs)
    await forget_cancel_requests(transaction, before, docs)


async def promote(transaction: JobTransaction) -> None:
    """The earliest ones. If there are more, lanes take turns."""
    if await promote_earliest(transaction, {}, PROMOTE_MAX) == PROMOTE_MAX:
        await promote_by_lane(transaction)


async def promote_by_lane(transaction: JobTransaction) -> None:
    """Visit lanes with scheduled jobs, starting behind the lane that the last visit ended with."""
    database, session, where = transaction.database, transaction.session, {"_id": PROMOTION_ID}
    last = await database[META].find_one(where, session=session)
    upto: tuple[str, ...] = tuple(last["upto"]) if last is not None else ()
    lanes = await read_lanes(database, session, {})
    visited = [lane.key for lane in lanes if lane.counts[SCHEDULED] > 0 and lane.key > upto][:PROMOTE_MAX]
    due = [key for key in visited if await is_due(transaction, key)]
    for key in due:
        await promote_earliest(transaction, lane_fields(key), PROMOTE_MAX // len(due))
    end = {"$set": {"upto": list(visited[-1]) if len(visited) == PROMOTE_MAX else []}}
    await database[META].update_one(where, end, upsert=True, session=session)


async def is_due(transaction: JobTransaction, lane: LaneKey) -> bool:
    where = {"status": SCHEDULED, **lane_fields(lane), "at": {"$lte": transaction.now}}
    return bool(await transaction.find(JOBS, where, "_id", limit=1))


async def promote_earliest(transaction: JobTransaction, lane: Mapping[str, Any], limit: int) -> int:
    where = {"status": SCHEDULED, **lane, "at": {"$lte": transaction.now}}
    fields = ("queue", "tenant", "needs")
    due = await transaction.find(JOBS, where, *fields, sort=[("at", 1), ("seq", 1)], limit=limit)
    if due:
        ids = [doc["_id"] for doc in due]
        await transaction.jobs.update_many(
            {"_id": {"$in": ids}}, {"$set": {"status": READY}, "$unset": {"at": ""}}, session=transaction.session
        )
    for doc in due:
        transaction.moved(lane_key(doc), SCHEDULED, READY)
    return len(due)


def take_turns(docs: Iterable[Doc], group: Callable[[Doc], Hashable], limit: int) -> list[Doc]:
    """The first document of each group, then the second of each, up to the limit."""
    ranks: Counter[Hashable] = Counter()
    ranked: list[tuple[int, Doc]] = []
    for doc in docs:
        ranks[group(doc)] += 1
        ranked.append((ranks[group(doc)], doc))
    return [doc for _, doc in nsmallest(limit, ranked, key=lambda each: each[0])]


OPENED: list[Doc] = [{"$set": {"is_open": {"$gt": ["$counts.ready", 0]}}}, {"$unset": ["closed_until", "closed_why"]}]


async def reopen(transaction: JobTransaction) -> None:
    """Open the lanes whose time has come. A worker asks the limiter again."""
    where = {"closed_until": {"$lte": transaction.now}}
    first = await transaction.find(LANES, where, "tenant", sort=[("closed_until", 1)], limit=BACKLOG_MAX)
    ids = [doc["_id"] for doc in take_turns(first, lambda doc: doc["tenant"], REOPEN_MAX)]
    if ids:
        await transaction[LANES].update_many({"_id": {"$in": ids}}, OPENED, session=transaction.session)
