"""Claims: which lanes have work, how many jobs each of them gives, and the leases.

    survey (lanes with ready jobs, changes, pauses, flows, tenants) ─► turns ─► shares ─► jobs ─► leases

The decisions are those of `domain.lane`. Jobs of a lane are claimed in the order of their index. If several workers
claim from one lane at once, they would all choose its first jobs, and all but one would conflict. So a worker that has
met conflicts begins further back, at a random multiple of its share: see `Contention`.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pymongo import UpdateOne

from leaseway.domain.exchange import LANES_MAX, Exchange, Gate, Gated, Wants
from leaseway.domain.ids import JobId, WorkerId
from leaseway.domain.job import Lease
from leaseway.domain.lane import (
    Flow,
    LaneTurn,
    Pause,
    admits_by_gate,
    advance,
    by_flow,
    covering_pause,
    distinct_closings,
    divide_claim,
)
from leaseway.domain.outcome import usable_lease_us
from leaseway.domain.tenant import Tenant
from leaseway.stores.mongodb.connection import META, SCHEMA_ID, Database, Document, Session
from leaseway.stores.mongodb.database import JobTransaction
from leaseway.stores.mongodb.definitions import parse_pause, parse_tenant
from leaseway.stores.mongodb.documents import (
    ALL_LEASED,
    LEASED,
    READY,
    Doc,
    LaneKey,
    lane_fields,
    lane_key,
    new_lease,
    parse_lease,
    renewal,
)
from leaseway.stores.mongodb.lanes import CHANGES_MAX, COUNTERS, LaneChanges, Lanes, LaneState, VtimeCharge
from leaseway.stores.mongodb.schema import FLOWS, JOBS, LANE_CHANGES, LANES, PAUSES, TENANTS
from leaseway.stores.mongodb.settle import OPENED

OPEN_LANES_MAX = 20_000
"""The most open lanes with ready jobs that one claim looks at."""
TURN: Doc = {"$project": dict.fromkeys(("queue", "tenant", "needs", "counts.ready", "vtime", "closed_until"), 1)}
"""What decides about the turn of a lane."""
ID: Doc = {"$project": {"_id": 1}}
ORDER = {"priority": -1, "run_at": 1, "seq": 1}
SPREAD_MAX = 16
CALM_AFTER = 20
"""After so many claims without a conflict, a worker begins closer to the front again."""


class TooManyChanges(Exception):
    """There are more unfolded changes than a survey reads."""


class Contention:
    """How far from the front of a lane claims of this process begin, in shares."""

    def __init__(self) -> None:
        self.spread = 1
        self._calm = 0

    def conflicted(self) -> None:
        self.spread, self._calm = min(self.spread * 2, SPREAD_MAX), 0

    def succeeded(self) -> None:
        self._calm += 1
        if self._calm >= CALM_AFTER:
            self.spread, self._calm = max(self.spread // 2, 1), 0

    def offset(self, ready: int, share: int) -> int:
        """A job at the front is skipped only by chance, so it cannot be skipped for long."""
        places = min(self.spread, ready // share) if share else 0
        return random.randrange(places) * share if places > 1 else 0


class Survey(NamedTuple):
    """The lanes with work, and all that decides about their turns, in one snapshot."""

    lanes: Lanes
    tenants: Mapping[str, Tenant]
    pauses: Sequence[Pause]

    def gate(self, lane: LaneState) -> Gate | None:
        tenant = self.tenants.get(lane.key[1])
        is_gated = bool(lane.key[2]) or (tenant is not None and tenant.is_capped)
        return Gate(lane.key[2], lane.key[1]) if is_gated else None

    def with_work(self, queues: Collection[str], tenant: str | None = None) -> list[LaneState]:
        wanted = [lane for lane in self.lanes.lanes.values() if lane.ready > 0 and lane.key[0] in queues]
        wanted = [lane for lane in wanted if tenant in (None, lane.key[1])]
        return [lane for lane in wanted if covering_pause(*lane.flow, self.pauses) is None]

    def turns(self, lanes: Iterable[LaneState]) -> list[tuple[LaneTurn, LaneState]]:
        """These lanes in the order in which they are served: the first lane of each flow, then the second of each."""
        ranks: Counter[Flow] = Counter()
        turns: list[tuple[int, int, str, str, LaneTurn, LaneState]] = []
        for number, lane in enumerate(sorted(lanes, key=lambda lane: (lane.vtime, lane.key[2], lane.key))):
            flow, tenant = self.lanes.flow(lane.flow), self.tenants.get(lane.key[1])
            place, lane_place = max(flow.vtime, self.lanes.floor), max(lane.vtime, flow.lane_floor)
            weight = 1 if tenant is None else tenant.weight
            turn = LaneTurn(number, lane.ready, weight, self.gate(lane), lane.flow, place, lane_place)
            ranks[lane.flow] += 1
            # Of several flows at the floor, the one that has been behind for longest comes first.
            turns.append((ranks[lane.flow], flow.vtime, *lane.flow, turn, lane))
        return [(turn, lane) for *_, turn, lane in sorted(turns, key=lambda each: each[:4])]


# -- survey -----------------------------------------------------------------------------------------------------------


def survey_stages(queues: Sequence[str], gates: Collection[Gate] = ()) -> list[Doc]:
    """What a survey reads together with the time. `gates`: their lanes are read even if they are closed."""
    named = {"queue": {"$in": list(queues)}}
    asked = [{"needs": gate.needs, "tenant": gate.tenant} for gate in gates]
    lanes = [{"$limit": OPEN_LANES_MAX}, TURN]
    by_gate = [stage("gate_lanes", LANES, {"gate": {"$in": asked}, **named}, *lanes)] if asked else []
    return [
        stage("open_lanes", LANES, {"is_open": True, **named}, *lanes),
        stage("changes", LANE_CHANGES, named, {"$sort": {"seq": 1}}, {"$limit": CHANGES_MAX + 1}),
        stage("pauses", PAUSES, named),
        stage("first_floor", FLOWS, named, {"$sort": {"vfloor": -1}}, {"$limit": 1}),
        *by_gate,
    ]


def stage(name: str, collection: str, condition: Doc, *more: Doc) -> Doc:
    """A stage that adds the documents of a collection which meet this condition, under this name. Transactions support
    $lookup, but not $unionWith."""
    return {"$lookup": {"from": collection, "pipeline": [{"$match": condition}, *more], "as": name}}


async def survey(database: Database, session: Session, found: Document, pending: Sequence[Doc] = ()) -> Survey:
    """`found`: what `survey_stages` have read. `pending`: changes of this transaction that are not written yet."""
    if len(found["changes"]) > CHANGES_MAX:
        raise TooManyChanges
    lanes, changes = Lanes(), [*found["changes"], *pending]
    for doc in [*found["open_lanes"], *found.get("gate_lanes", ())]:
        lanes.add_lane(doc)
    lanes.floor = max((doc["vfloor"] for doc in found["first_floor"]), default=0)
    tenants = await complete(database, session, lanes, changes)
    for change in changes:
        lanes.apply(change)
    return Survey(lanes, tenants, [parse_pause(doc) for doc in found["pauses"]])


async def complete(database: Database, session: Session, lanes: Lanes, changes: Sequence[Doc]) -> dict[str, Tenant]:
    """Add the flows of these lanes, and the lanes that only changes name. Return the tenants of all."""
    keys = lanes.lanes.keys() | {lane_key(change) for change in changes}
    if not keys:
        return {}
    missing = [lane_fields(key) for key in keys - lanes.lanes.keys()]
    flows = [{"queue": queue, "tenant": tenant} for queue, tenant in {key[:2] for key in keys}]
    found = await read_together(
        database,
        session,
        stage("lanes", LANES, {"_id": {"$in": missing}}, TURN),
        stage("flows", FLOWS, {"_id": {"$in": flows}}),
        stage("tenants", TENANTS, {"_id": {"$in": list({tenant for _, tenant, _ in keys})}}),
    )
    for doc in found["lanes"]:
        lanes.add_lane(doc)
    for doc in found["flows"]:
        lanes.add_flow(doc)
    return {doc["_id"]: parse_tenant(doc) for doc in found["tenants"]}


async def read_together(database: Database, session: Session, *stages: Doc) -> Document:
    """Several queries in one round trip. All that they find must fit into one document."""
    async with await database[META].aggregate([{"$match": {"_id": SCHEMA_ID}}, *stages], session=session) as cursor:
        return await cursor.next()


# -- close ------------------------------------------------------------------------------------------------------------


async def close_lanes(transaction: JobTransaction, wants: Wants, survey: Survey) -> None:
    """Store what the worker has learned from the limiter. A lane that is closed already keeps its time, and a lane
    without a gate stays open."""
    updates: list[UpdateOne] = []
    for closing in distinct_closings(wants.closed):
        lanes = [survey.lanes.lanes.get((queue, closing.gate.tenant, closing.gate.needs)) for queue in wants.queues]
        for lane in lanes:
            if lane is None or survey.gate(lane) is None or wants.tenant not in (None, lane.key[1]):
                continue
            if closing.wait_us == 0 and lane.closed_until is not None:
                lane.closed_until = lane.closed_why = None
                updates.append(UpdateOne({"_id": lane_fields(lane.key)}, OPENED))
            elif closing.wait_us and lane.closed_until is None:
                lane.closed_until, lane.closed_why = transaction.now + closing.wait_us, closing.why
                updates.append(closing_update(lane))
    if updates:
        await transaction[LANES].bulk_write(updates, session=transaction.session)


def closing_update(lane: LaneState) -> UpdateOne:
    """The lane's document may not exist yet: its first change is not folded."""
    new = {
        **lane_fields(lane.key), "counts": dict.fromkeys(COUNTERS, 0), "vtime": 0, "is_empty": True,
        "gate": {"needs": lane.key[2], "tenant": lane.key[1]},
    }  # fmt: skip
    closed = {"closed_until": lane.closed_until, "closed_why": lane.closed_why, "is_open": False}
    return UpdateOne({"_id": lane_fields(lane.key)}, {"$set": closed, "$setOnInsert": new}, upsert=True)


# -- claim ------------------------------------------------------------------------------------------------------------


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


async def claim(
    transaction: JobTransaction, worker: WorkerId, wants: Wants, survey: Survey, contention: Contention
) -> list[Lease]:
    admits = admits_by_gate(wants.admits)
    with_work = survey.with_work(wants.queues, wants.tenant)
    turns = survey.turns(lane for lane in with_work if is_open_for(survey, lane, admits))[:LANES_MAX]
    lanes = {turn.lane: lane for turn, lane in turns}
    shares = divide_claim(wants.count, [turn for turn, _ in turns], admits)
    found = await read_ready(transaction, [(lanes[number], share) for number, share in shares.items()], contention)
    claimed = {number: found[lanes[number].key] for number in shares}
    docs = [doc for of_lane in claimed.values() for doc in of_lane]
    await lease(transaction, worker, wants, docs)
    changes = charge(survey, [turn for turn, _ in turns], lanes, {number: len(of) for number, of in claimed.items()})
    for change in changes.render(transaction.now):
        survey.lanes.apply(change)
    transaction.changes.merge(changes)
    return [parse_lease(doc, wants.token) for doc in docs]


def is_open_for(survey: Survey, lane: LaneState, admits: Mapping[Gate, int]) -> bool:
    """A worker that has what a gate needs may enter although the lane is marked as closed."""
    gate = survey.gate(lane)
    return lane.closed_until is None if gate is None else gate in admits


async def read_ready(
    transaction: JobTransaction, portions: Sequence[tuple[LaneState, int]], contention: Contention
) -> dict[LaneKey, list[Doc]]:
    """The first jobs of each lane: higher priority first, then the earlier time to run, then the earlier
    submission."""
    found: dict[LaneKey, list[Doc]] = {lane.key: [] for lane, _ in portions}
    queries: list[tuple[Doc, int, int]] = [
        ({"status": READY, **lane_fields(lane.key)}, contention.offset(lane.ready, share), share)
        for lane, share in portions
    ]
    if len(queries) == 1:
        ((where, skip, limit),) = queries
        docs = await read_claimable(transaction, where, skip=skip, limit=limit)
    else:
        docs = await read_claimable(transaction, {"_id": {"$in": await ready_ids(transaction, queries)}})
    for doc in docs:
        found[lane_key(doc)].append(doc)
    return found


async def read_claimable(transaction: JobTransaction, where: Doc, **options: Any) -> list[Doc]:
    fields, order = {"errors": 0, "trace": 0}, list(ORDER.items())
    return await transaction.jobs.find(where, fields, session=transaction.session, sort=order, **options).to_list()


async def ready_ids(transaction: JobTransaction, queries: Iterable[tuple[Doc, int, int]]) -> list[JobId]:
    stages = [
        stage(f"lane{n}", JOBS, where, {"$sort": ORDER}, *([{"$skip": skip}] if skip else []), {"$limit": limit}, ID)
        for n, (where, skip, limit) in enumerate(queries)
    ]
    if not stages:
        return []
    found = await read_together(transaction.database, transaction.session, *stages)
    return [doc["_id"] for n in range(len(stages)) for doc in found[f"lane{n}"]]


async def lease(transaction: JobTransaction, worker: WorkerId, wants: Wants, docs: Iterable[Doc]) -> None:
    """Count the attempt at the claim, so that a job that kills its worker is not retried for ever."""
    groups: dict[tuple[int, bool], list[str]] = {}
    for doc in docs:
        doc["attempts"] += 1
        doc["fence"] += 1
        # A delayed copy of a claim: from now on the token stands for the new lease.
        is_copy = doc.get("last_token") == wants.token
        groups.setdefault((usable_lease_us(doc["lease_us"]), is_copy), []).append(doc["_id"])
    for (lease_us, is_copy), ids in groups.items():
        until = transaction.now + lease_us
        update: dict[str, Any] = {
            "$set": {"status": LEASED, "lease": new_lease(worker, until, wants.token), "at": until},
            "$inc": {"attempts": 1, "fence": 1},
        }
        if is_copy:
            update["$unset"] = {"last_token": ""}
        await transaction.jobs.update_many({"_id": {"$in": ids}}, update, session=transaction.session)


def charge(
    survey: Survey, turns: Sequence[LaneTurn], lanes: Mapping[int, LaneState], counts: Mapping[int, int]
) -> LaneChanges:
    """What the claim changes in the lanes and flows that it has served."""
    changes = LaneChanges()
    flows, vtimes = advance(turns, {number: count for number, count in counts.items() if count})
    for turn in turns:
        count, key = counts.get(turn.lane, 0), lanes[turn.lane].key
        if not count:
            continue
        change = changes.of(key)
        change.counts.update({READY: -count, LEASED: count})
        if turn.lane in vtimes:
            floor = survey.lanes.flow(turn.flow).lane_floor
            change.lane_charge = VtimeCharge(floor, vtimes[turn.lane] - turn.lane_place)
        times = flows.pop(turn.flow, None)
        if times is not None:
            change.flow_charge = VtimeCharge(survey.lanes.floor, times.vtime - turn.place)
            change.vfloor, change.lane_floor = times.vfloor, times.lane_floor or 0
    return changes


def list_gates(survey: Survey, wants: Wants) -> tuple[Gated, ...]:
    """The gates behind which jobs are still ready."""
    lanes = [lane for lane in survey.with_work(wants.queues, wants.tenant) if lane.closed_until is None]
    turns = [turn for turn, _ in survey.turns(lane for lane in lanes if survey.gate(lane) is not None)]
    listed = {turn.lane for of_flow in by_flow(turns).values() for turn in of_flow[:LANES_MAX]}
    ready: dict[Gate, int] = {}
    for turn in turns:
        if turn.lane in listed and turn.gate is not None:
            ready[turn.gate] = ready.get(turn.gate, 0) + turn.ready
    return tuple(Gated(gate, count) for gate, count in ready.items())[:LANES_MAX]
