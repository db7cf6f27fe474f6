"""The steps of an exchange that end leases: settlements, expired leases; and scheduled jobs that are due.

Each works within an open transaction: it reads jobs, changes their documents, and writes what has changed.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from heapq import nsmallest
from typing import Any

from bson import encode
from pymongo import UpdateMany, UpdateOne

from leaseway.domain.exchange import BACKLOG_MAX, CLAIM_MAX, PROMOTE_MAX, RECLAIM_MAX, REOPEN_MAX, Exchange
from leaseway.domain.ids import JobId, Token
from leaseway.domain.job import Lease, NewJob, Settlement, State
from leaseway.domain.outcome import expired_lease, state_after_expiry, usable_lease_us
from leaseway.stores.mongodb.connection import META
from leaseway.stores.mongodb.database import JobTransaction
from leaseway.stores.mongodb.documents import (
    AFTER_EXPIRY,
    ALL_LEASED,
    CANCELLED,
    KEPT_TEXTS,
    LEASED,
    READY,
    SCHEDULED,
    Doc,
    LaneKey,
    append_error,
    lane_fields,
    lane_key,
    only_readable,
    parse_lease,
    pending_status,
    renewal,
    start_time,
)
from leaseway.stores.mongodb.lanes import flow_of, read_lanes, read_together, stage
from leaseway.stores.mongodb.schema import CANCEL_REQUESTS, JOBS, LANES
from leaseway.stores.mongodb.submit import submit

UNCHANGED: Doc = {"payload": 0, "trace": 0}
LANE = ("queue", "tenant", "needs")
PROMOTION_ID = "promotion"
"""The document that holds the lane with which the last visit of lanes ended."""
Held = frozenset[tuple[JobId, Token]]


SETTLED: Doc = dict.fromkeys(
    ("queue", "tenant", "needs", "status", "lease.token", "last_token", "attempts", "cancel_requested", "priority",
     "turn", "run_at", "at", "payload_bytes", "bytes"), 1,
)  # fmt: skip
"""What a settlement of a small job reads or removes."""
SMALL: Doc = {name: {"$exists": False} for name in (*KEPT_TEXTS, "errors")}
"""Jobs without long texts beside their payload."""


def settled_stage(settlements: Sequence[Settlement]) -> Doc:
    """The small ones of these jobs: so many of them fit into one document."""
    ids = [each.id for each in settlements]
    return stage("settled", JOBS, {"_id": {"$in": ids}, **SMALL}, {"$project": SETTLED})


async def settle(transaction: JobTransaction, settlements: Sequence[Settlement], *, may_wait: bool) -> list[JobId]:
    """Write the accepted settlements; return the jobs whose settlement is rejected. With `may_wait`, they are written
    with what the transaction writes later, unless a job becomes ready, which may be claimed at once."""
    found = () if transaction.readable else transaction.found["settled"]
    docs: dict[JobId, Doc] = {doc["_id"]: doc for doc in found}
    if others := [each.id for each in settlements if each.id not in docs]:
        docs |= await read_jobs(transaction, {"_id": {"$in": others}})
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
    if may_wait and not any(doc["status"] == READY for doc in docs.values()):
        transaction.update_later(*changes_of(before, docs))
    else:
        await write_jobs(transaction, before, docs)
    await forget_cancel_requests(transaction, before, docs)
    if children:
        await submit(transaction, children, ignore_conflicts=True)
    return lost


async def read_jobs(transaction: JobTransaction, where: Mapping[str, Any], **options: Any) -> dict[JobId, Doc]:
    """Without payloads, which may be long and which no step changes."""
    where = {**where, **transaction.readable}
    found = transaction.jobs.find(where, UNCHANGED, session=transaction.session, **options).batch_size(CLAIM_MAX)
    return {doc["_id"]: doc for doc in await found.to_list()}


async def write_jobs(
    transaction: JobTransaction, before: Mapping[JobId, Mapping[str, Any]], after: Mapping[JobId, Doc]
) -> None:
    """Write the fields that differ."""
    if changed := changes_of(before, after):
        await transaction.jobs.bulk_write(changed, ordered=False, session=transaction.session)


def changes_of(before: Mapping[JobId, Mapping[str, Any]], after: Mapping[JobId, Doc]) -> list[UpdateMany]:
    """Jobs with the same changes, such as jobs without results, share an update."""
    groups: dict[bytes, tuple[Doc, list[JobId]]] = {}
    for id_, doc in after.items():
        update = difference(before[id_], doc)
        if update:
            groups.setdefault(encode(update), (update, []))[1].append(id_)
    return [UpdateMany({"_id": {"$in": ids}}, update) for update, ids in groups.values()]


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


async def adopt(transaction: JobTransaction, call: Exchange) -> list[Lease]:
    """Leases that the first try of this exchange was granted; its reply was lost. They are renewed."""
    assert call.wants is not None
    where = {**ALL_LEASED, "lease.token": call.wants.token, "lease.owner": call.worker}
    docs = await transaction.find(JOBS, where, sort=[("seq", 1)])
    renewals = [
        UpdateOne({"_id": doc["_id"]}, renewal(transaction.now + usable_lease_us(doc["lease_us"]))) for doc in docs
    ]
    if renewals:
        await transaction.jobs.bulk_write(renewals, ordered=False, session=transaction.session)
    return [parse_lease(doc, call.wants.token) for doc in docs][: call.wants.repeat_max]


# -- what is due ------------------------------------------------------------------------------------------------------


async def reclaim(transaction: JobTransaction, settled: Held) -> None:
    """End expired leases: the jobs become ready, failed or cancelled. Leases that this exchange settles are left to
    their settlements."""
    where = {"status": LEASED, "at": {"$lte": transaction.now}}
    order = [("at", 1), ("seq", 1)]
    fields = ("queue", "tenant", "needs", "lease.token", "status")
    oldest = await transaction.find(JOBS, where, *fields, sort=order, limit=BACKLOG_MAX)
    tokens = dict(only_readable(oldest, lambda doc: (doc["_id"], held_token(doc))))
    others = [doc for doc in oldest if doc["_id"] in tokens and (doc["_id"], tokens[doc["_id"]]) not in settled]
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
    where, order = {"status": SCHEDULED, "at": {"$lte": transaction.now}}, [("at", 1), ("seq", 1)]
    first = await transaction.find(JOBS, where, *LANE, sort=order, limit=PROMOTE_MAX)
    await make_ready(transaction, first)
    if len(first) == PROMOTE_MAX:
        await promote_by_lane(transaction)


async def promote_by_lane(transaction: JobTransaction) -> None:
    """Visit lanes with scheduled jobs, starting behind the lane that the last visit ended with."""
    database, session, where = transaction.database, transaction.session, {"_id": PROMOTION_ID}
    last = await database[META].find_one(where, session=session)
    upto: tuple[str, ...] = tuple(last["upto"]) if last is not None else ()
    lanes = await read_lanes(database, session, {})
    visited = [lane.key for lane in lanes if lane.counts[SCHEDULED] > 0 and lane.key > upto][:PROMOTE_MAX]
    due = [lane_key(doc) for doc in await first_due_of(transaction, visited, 1)]
    await make_ready(transaction, await first_due_of(transaction, due, PROMOTE_MAX // max(len(due), 1)))
    end = {"$set": {"upto": list(visited[-1]) if len(visited) == PROMOTE_MAX else []}}
    await database[META].update_one(where, end, upsert=True, session=session)


async def first_due_of(transaction: JobTransaction, lanes: Sequence[LaneKey], count: int) -> list[Doc]:
    """The earliest due jobs of each lane, with a few commands: a transaction of a thousand commands would take so long
    that others end it."""
    of_due: Doc = {"status": SCHEDULED, "turn": 0, "run_at": {"$lte": transaction.now}}
    more: list[Doc] = [{"$sort": {"run_at": 1, "seq": 1}}, {"$limit": count}, {"$project": dict.fromkeys(LANE, 1)}]
    stages = [stage(f"lane{n}", JOBS, of_due | lane_fields(key), *more) for n, key in enumerate(lanes)]
    found = await read_together(transaction.database, transaction.session, *stages)
    return [doc for n in range(len(stages)) for doc in found[f"lane{n}"]]


async def make_ready(transaction: JobTransaction, docs: Sequence[Doc]) -> None:
    ready: list[Doc] = [{"$set": {"status": READY, "turn": {"$multiply": [-1, "$priority"]}}}, {"$unset": "at"}]
    if docs:
        where = {"_id": {"$in": [doc["_id"] for doc in docs]}}
        await transaction.jobs.update_many(where, ready, session=transaction.session)
    for doc in docs:
        transaction.moved(lane_key(doc), SCHEDULED, READY)


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
    first = await transaction.find(LANES, where, "queue", "tenant", sort=[("closed_until", 1)], limit=BACKLOG_MAX)
    await open_lanes(transaction, take_turns(first, lambda doc: doc["tenant"], REOPEN_MAX))


async def open_lanes(transaction: JobTransaction, docs: Sequence[Doc]) -> None:
    """Open these lanes, which are closed."""
    ids = [doc["_id"] for doc in docs]
    if ids:
        await transaction[LANES].update_many({"_id": {"$in": ids}}, OPENED, session=transaction.session)
    for doc in docs:
        transaction.changes.reopened(flow_of(doc))
