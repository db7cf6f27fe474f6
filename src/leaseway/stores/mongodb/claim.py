"""Claims: which lanes have work, how many jobs each of them gives, and the leases.

    survey (flows with work, their lanes, changes, pauses, tenants) ─► turns ─► shares ─► jobs ─► leases

A survey walks over the flows with work in the order of their virtual times and stops after as many as a claim
serves, so that its cost does not depend on how many lanes exist. The decisions are those of `domain.lane`. Jobs of a
lane are claimed in the order of their index. If several workers claim from one lane at once, they would all choose its
first jobs, and all but one would conflict. So a worker that has met conflicts begins further back, at a random multiple
of its share: see `Contention`.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pymongo import UpdateMany, UpdateOne

from leaseway.domain.exchange import CLAIM_MAX, LANES_MAX, Gate, Gated, Wants
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
from leaseway.stores.mongodb.connection import Database, Document, Session
from leaseway.stores.mongodb.database import JobTransaction
from leaseway.stores.mongodb.documents import (
    FAST_CODEC,
    LEASED,
    READY,
    Doc,
    LaneKey,
    lane_fields,
    lane_key,
    new_lease,
    parse_lease,
    parse_pause,
    parse_tenant,
)
from leaseway.stores.mongodb.lanes import (
    CHANGES_MAX,
    COUNTERS,
    HAS_GATED,
    KINDS,
    MOVED_MAX,
    TURN,
    LaneChanges,
    Lanes,
    LaneState,
    VtimeCharge,
    Walk,
    flow_of,
    named_like,
    named_stages,
    open_lanes_of,
    read_together,
    stage,
    walk_stages,
    without_walks,
)
from leaseway.stores.mongodb.schema import FLOWS, JOBS, LANE_CHANGES, LANES, PAUSES
from leaseway.stores.mongodb.settle import OPENED

ID: Doc = {"$project": {"_id": 1}}
ORDER = {"turn": 1, "run_at": 1, "seq": 1}
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
    """Those without a gate that come first, those that changes name, and those behind the gates that were asked for."""
    tenants: Mapping[str, Tenant]
    pauses: Sequence[Pause]
    gated: set[Flow]
    """Flows that may have further open lanes behind a gate."""

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


def survey_stages(queues: Sequence[str], gates: Collection[Gate] = (), tenant: str | None = None) -> list[Doc]:
    """What a survey reads together with the time. `gates`: their lanes are read even if they are closed."""
    named = {"queue": {"$in": list(queues)}}
    asked = [{"needs": gate.needs, "tenant": gate.tenant} for gate in gates]
    by_gate = [stage("gate_lanes", LANES, {"gate": {"$in": asked}, **named}, TURN)] if asked else []
    return [
        stage("changes", LANE_CHANGES, named, {"$sort": {"seq": 1}}, {"$limit": CHANGES_MAX + 1}),
        stage("pauses", PAUSES, named),
        *floor_stages(queues),
        *walk_stages(Walk(queues, tenant)),
        *by_gate,
    ]


def floor_stages(queues: Sequence[str]) -> list[Doc]:
    first: list[Doc] = [{"$sort": {"vfloor": -1}}, {"$limit": 1}]
    return [stage(f"first_floor{n}", FLOWS, where, *first) for n, where in enumerate(Walk(queues).conditions())]


async def survey(
    database: Database, session: Session, found: Document, walk: Walk, pending: Sequence[Doc] = ()
) -> Survey:
    """`found`: what `survey_stages` have read. `pending`: changes of this transaction that are not written yet."""
    if len(found["changes"]) > CHANGES_MAX:
        raise TooManyChanges
    changes = [*found["changes"], *pending]
    pauses = [parse_pause(doc) for doc in found["pauses"]]
    moved = {flow_of(change) for change in changes}
    if pauses or len(moved) > MOVED_MAX:
        walk = walk._replace(pauses=pauses, limit=LANES_MAX + len(moved))
        found = without_walks(found) | await read_together(database, session, *walk_stages(walk))
    lanes, tenants = Lanes(), dict[str, Tenant]()
    lanes.floor = max((doc["vfloor"] for doc in named_like("first_floor", found)), default=0)
    for doc in (doc for kind in KINDS for doc in named_like(kind, found)):
        lanes.add_flow(doc)
        for lane in doc["plain"]:
            lanes.add_lane(lane)
        tenants |= {each["_id"]: parse_tenant(each) for each in doc["settings"]}
    for doc in found.get("gate_lanes", ()):
        lanes.add_lane(doc)
    tenants |= await complete(database, session, lanes, changes)
    for change in changes:
        lanes.apply(change)
    gated = {flow_of(doc) for doc in named_like(HAS_GATED, found)}
    gated |= {flow_of(change) for change in changes if "reopened" in change}
    return Survey(lanes, tenants, pauses, gated)


async def complete(database: Database, session: Session, lanes: Lanes, changes: Sequence[Doc]) -> dict[str, Tenant]:
    """Add the lanes and flows that changes name, and the flows of all lanes. Return the tenants of what was added."""
    moved = {flow_of(change) for change in changes}
    keys = {lane_key(change) for change in changes} | {(*flow, "") for flow in moved}
    flows = {key[:2] for key in keys | lanes.lanes.keys()} - lanes.flows.keys()
    missing = {key for key in keys - lanes.lanes.keys() if key[:2] in flows or key[2]}
    if not missing and not flows:
        return {}
    found = await read_together(database, session, *named_stages(missing, flows, TURN))
    for doc in found["lanes"]:
        lanes.add_lane(doc)
    for doc in found["flows"]:
        lanes.add_flow(doc)
    return {doc["_id"]: parse_tenant(doc) for doc in found["tenants"]}


async def read_gated(
    database: Database, session: Session, survey: Survey, count: int, closed: Collection[Gate] = ()
) -> bool:
    """Add the first open lanes behind a gate of each flow that may have some, except those of the gates in `closed`.
    True: a flow may have more of them."""
    flows = {flow: [gate.needs for gate in closed if gate.tenant == flow[1]] for flow in survey.gated}
    for queue, tenant, needs in survey.lanes.lanes:
        if (queue, tenant) in flows:
            flows[queue, tenant].append(needs)
    docs = await open_lanes_of(database, session, flows, count, TURN) if flows else []
    for doc in docs:
        survey.lanes.add_lane(doc)
    return any(number == count for number in Counter(flow_of(doc) for doc in docs).values())


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
            else:
                continue
            transaction.changes.reopened(lane.flow)
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
    lease(transaction, worker, wants, docs)
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
        (
            {"status": READY, **lane_fields(lane.key), **transaction.readable},
            contention.offset(lane.ready, share),
            share,
        )
        for lane, share in portions
    ]
    if len(queries) == 1:
        ((where, skip, limit),) = queries
    else:
        where, skip, limit = {"_id": {"$in": await ready_ids(transaction, queries)}}, 0, 0
    fields, order = {"errors": 0, "trace": 0, "progress": 0, "result": 0}, list(ORDER.items())
    jobs = transaction.jobs.with_options(FAST_CODEC)
    claimable = jobs.find(where, fields, session=transaction.session, sort=order, skip=skip, limit=limit)
    for doc in await claimable.batch_size(CLAIM_MAX).to_list():
        found[lane_key(doc)].append(doc)
    return found


async def ready_ids(transaction: JobTransaction, queries: Iterable[tuple[Doc, int, int]]) -> list[JobId]:
    stages = [
        stage(f"lane{n}", JOBS, where, {"$sort": ORDER}, *([{"$skip": skip}] if skip else []), {"$limit": limit}, ID)
        for n, (where, skip, limit) in enumerate(queries)
    ]
    if not stages:
        return []
    found = await read_together(transaction.database, transaction.session, *stages)
    return [doc["_id"] for n in range(len(stages)) for doc in found[f"lane{n}"]]


def lease(transaction: JobTransaction, worker: WorkerId, wants: Wants, docs: Iterable[Doc]) -> None:
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
        transaction.update_later(UpdateMany({"_id": {"$in": ids}}, update))


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


async def list_gates(transaction: JobTransaction, wants: Wants, survey: Survey) -> tuple[Gated, ...]:
    """The gates behind which jobs are still ready. Only as many lanes are read as the list needs, unless lanes share
    gates."""
    count = -(-LANES_MAX // max(len(survey.gated), 1))
    while True:  # ends, because the number of lanes grows
        is_cut = await read_gated(transaction.database, transaction.session, survey, count)
        gates = gates_of(survey, wants)
        if count >= LANES_MAX or len(gates) >= LANES_MAX or not is_cut:
            return gates
        count = min(4 * count, LANES_MAX)


def gates_of(survey: Survey, wants: Wants) -> tuple[Gated, ...]:
    lanes = [lane for lane in survey.with_work(wants.queues, wants.tenant) if lane.closed_until is None]
    turns = [turn for turn, _ in survey.turns(lane for lane in lanes if survey.gate(lane) is not None)]
    listed = {turn.lane for of_flow in by_flow(turns).values() for turn in of_flow[:LANES_MAX]}
    ready: dict[Gate, int] = {}
    for turn in turns:
        if turn.lane in listed and turn.gate is not None:
            ready[turn.gate] = ready.get(turn.gate, 0) + turn.ready
    return tuple(Gated(gate, count) for gate, count in ready.items())[:LANES_MAX]
