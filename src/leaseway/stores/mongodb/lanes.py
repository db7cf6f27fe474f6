"""Lanes and flows: counters and virtual times that many transactions change at once, without conflicts.

A transaction that moves jobs inserts one document per lane into `leaseway_lane_changes`; it never updates a lane.
`fold` adds these documents to `leaseway_lanes` and `leaseway_flows` and deletes them. A lane is therefore its document
plus its changes, and both are read in one snapshot. A lane whose document was deleted, because it had no job left, is
created again by the next fold.

Virtual times (`domain.lane`) only rise, and a claim raises one to `max(time, floor) + charge`. So a change holds
floor and charge, and changes of concurrent claims add up.

A flow tells whether it has an open lane with ready jobs: one without a gate (`has_free`), or one behind a gate
(`has_gated`). So claims find the flows with work by an index, in the order of their virtual times. `fold` computes
both. They are right for every flow that no change names, because whatever opens or closes a lane inserts a change, too.
Flows that a change names are looked at anyway.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field
from pymongo import ReplaceOne

from leaseway.domain.exchange import LANES_MAX
from leaseway.domain.ids import Instant
from leaseway.domain.lane import Flow, LaneCount, Pause
from leaseway.domain.tenant import Tenant
from leaseway.stores.mongodb.connection import META, SCHEMA_ID, Database, Document, Session, Transaction
from leaseway.stores.mongodb.documents import STATUSES, Doc, LaneKey, lane_fields, lane_key, next_seq, parse_tenant
from leaseway.stores.mongodb.schema import FLOWS, LANE_CHANGES, LANES, OPEN_GATED, TENANTS

BYTES = "bytes"
COUNTERS = (*STATUSES, BYTES)
CHANGES_MAX = 1_000
"""The most changes that one call reads or folds."""
FOLD_AT = 50
"""With so many changes, a call folds them."""


class VtimeCharge(NamedTuple):
    """A virtual time becomes `max(time, floor) + amount`."""

    floor: int
    amount: int

    def apply(self, vtime: int) -> int:
        return max(vtime, self.floor) + self.amount


class FlowState(Struct):
    vtime: int = 0
    vfloor: int = 0
    lane_floor: int = 0
    served_at: Instant = 0
    has_gated: bool = False
    """As its document says: see the start of this module."""


class LaneState(Struct):
    """A lane as the changes that are known so far have made it."""

    key: LaneKey
    counts: Counter[str] = field(default_factory=Counter)
    vtime: int = 0
    closed_until: Instant | None = None
    closed_why: str | None = None

    @property
    def flow(self) -> Flow:
        return self.key[:2]

    @property
    def ready(self) -> int:
        return self.counts["ready"]

    @property
    def is_open(self) -> bool:
        return self.ready > 0 and self.closed_until is None

    @property
    def jobs(self) -> int:
        return sum(self.counts[status] for status in STATUSES)

    def count(self) -> LaneCount:
        counts: dict[str, Any] = {name: self.counts[name] for name in COUNTERS}
        return LaneCount(**lane_fields(self.key), **counts, closed_until=self.closed_until, closed_why=self.closed_why)


class LaneChange(Struct):
    """What one transaction does to one lane, and to its flow."""

    counts: Counter[str] = field(default_factory=Counter)
    lane_charge: VtimeCharge | None = None
    flow_charge: VtimeCharge | None = None
    vfloor: int = 0
    lane_floor: int = 0

    def render(self, key: LaneKey, now: Instant) -> Doc:
        doc: Doc = {"seq": next_seq(now), **lane_fields(key), "counts": {k: n for k, n in self.counts.items() if n}}
        if self.lane_charge is not None:
            doc["lane_charge"] = list(self.lane_charge)
        if self.flow_charge is not None:
            doc |= {"flow_charge": list(self.flow_charge), "vfloor": self.vfloor, "lane_floor": self.lane_floor}
            doc["served_at"] = now
        return doc


class LaneChanges:
    """The changes of one transaction, collected until its end."""

    def __init__(self) -> None:
        self.by_lane: dict[LaneKey, LaneChange] = {}
        self._reopened: set[Flow] = set()

    def of(self, key: LaneKey) -> LaneChange:
        change = self.by_lane.get(key)
        if change is None:  # `setdefault` would build a counter each time
            change = self.by_lane[key] = LaneChange()
        return change

    def add(self, key: LaneKey, name: str, number: int) -> None:
        self.of(key).counts[name] += number

    def reopened(self, flow: Flow) -> None:
        """Lanes of this flow were opened or closed, or its tenant's caps have changed."""
        self._reopened.add(flow)

    def merge(self, other: "LaneChanges") -> None:
        """`other` is that of the transaction's claim, which alone charges virtual times."""
        for key, change in other.by_lane.items():
            own = self.of(key)
            change.counts.update(own.counts)
            self.by_lane[key] = change

    def render(self, now: Instant) -> list[Doc]:
        moved = [change.render(key, now) for key, change in self.by_lane.items()]
        plain = LaneChange()
        return moved + [plain.render((*flow, ""), now) | {"reopened": True} for flow in sorted(self._reopened)]


class Lanes:
    """Lanes and flows as one snapshot has them, with changes applied."""

    def __init__(self) -> None:
        self.lanes: dict[LaneKey, LaneState] = {}
        self.flows: dict[Flow, FlowState] = {}
        self.floor = 0

    def add_lane(self, doc: Mapping[str, Any]) -> None:
        state = LaneState(lane_key(doc), Counter(doc["counts"]), doc["vtime"])
        state.closed_until, state.closed_why = doc.get("closed_until"), doc.get("closed_why")
        self.lanes[state.key] = state

    def add_flow(self, doc: Mapping[str, Any]) -> None:
        times = doc["vtime"], doc["vfloor"], doc["lane_floor"], doc["served_at"]
        self.flows[doc["queue"], doc["tenant"]] = FlowState(*times, doc.get("has_gated", False))

    def lane(self, key: LaneKey) -> LaneState:
        return self.lanes.setdefault(key, LaneState(key))

    def flow(self, flow: Flow) -> FlowState:
        return self.flows.setdefault(flow, FlowState())

    def apply(self, change: Mapping[str, Any]) -> None:
        if "reopened" in change:
            return
        lane = self.lane(lane_key(change))
        for name, number in change["counts"].items():
            lane.counts[name] += number
        if "lane_charge" in change:
            lane.vtime = VtimeCharge(*change["lane_charge"]).apply(lane.vtime)
        if "flow_charge" in change:
            flow = self.flow(lane.flow)
            flow.vtime = VtimeCharge(*change["flow_charge"]).apply(flow.vtime)
            flow.vfloor = max(flow.vfloor, change["vfloor"])
            flow.lane_floor = max(flow.lane_floor, change["lane_floor"])
            flow.served_at = max(flow.served_at, change["served_at"])
            self.floor = max(self.floor, change["vfloor"])


def render_lane(lane: LaneState) -> Doc:
    doc: Doc = {
        "_id": lane_fields(lane.key), **lane_fields(lane.key), "counts": {name: lane.counts[name] for name in COUNTERS},
        "vtime": lane.vtime, "gate": {"needs": lane.key[2], "tenant": lane.key[1]},
        "is_open": lane.is_open, "is_empty": lane.jobs == 0,
    }  # fmt: skip
    return doc if lane.closed_until is None else doc | {
        "closed_until": lane.closed_until, "closed_why": lane.closed_why,
    }  # fmt: skip


def render_flow(flow: Flow, state: FlowState, has_free: bool) -> Doc:
    names = flow_fields(flow)
    return {
        "_id": names, **names, "vtime": state.vtime, "vfloor": state.vfloor, "lane_floor": state.lane_floor,
        "served_at": state.served_at, "has_free": has_free, "has_gated": state.has_gated,
    }  # fmt: skip


def flow_fields(flow: Flow) -> Doc:
    return {"queue": flow[0], "tenant": flow[1]}


def flow_of(doc: Mapping[str, Any]) -> Flow:
    return (doc["queue"], doc["tenant"])


# -- reading ----------------------------------------------------------------------------------------------------------

STAGES_MAX = 200
"""The most queries of one command. The server accepts a thousand."""


def stage(name: str, collection: str, condition: Doc, *more: Doc) -> Doc:
    """A stage that adds the documents of a collection which meet this condition, under this name. Transactions support
    $lookup, but not $unionWith."""
    return {"$lookup": {"from": collection, "pipeline": [{"$match": condition}, *more], "as": name}}


async def read_together(database: Database, session: Session, *stages: Doc) -> Doc:
    """Several queries in one round trip. All that they find must fit into one document."""
    found: Doc = {}
    for start in range(0, len(stages), STAGES_MAX):
        some = [{"$match": {"_id": SCHEMA_ID}}, *stages[start : start + STAGES_MAX]]
        async with await database[META].aggregate(some, session=session) as cursor:
            found |= await cursor.next()
    return found


def named_stages(lanes: Iterable[LaneKey], flows: Iterable[Flow], *more: Doc) -> list[Doc]:
    """These lanes and flows, and the tenants of the flows. `more`: stages for the lanes."""
    flows = list(flows)
    return [
        stage("lanes", LANES, {"_id": {"$in": [lane_fields(key) for key in lanes]}}, *more),
        stage("flows", FLOWS, {"_id": {"$in": [flow_fields(flow) for flow in flows]}}),
        stage("tenants", TENANTS, {"_id": {"$in": list({tenant for _, tenant in flows})}}),
    ]


async def open_lanes_of(
    database: Database, session: Session, flows: Mapping[Flow, Sequence[str]], count: int, *more: Doc
) -> list[Doc]:
    """Of each of these flows the first open lanes with requirements, in the order in which they are served, without
    those with the given requirements."""
    stages = [
        stage(
            f"flow{n}", LANES, {**flow_fields(flow), **OPEN_GATED, "needs": {"$gt": "", "$nin": list(without)}},
            {"$sort": {"vtime": 1, "needs": 1}}, {"$limit": count}, *more,
        )
        for n, (flow, without) in enumerate(flows.items())
    ]  # fmt: skip
    found = await read_together(database, session, *stages)
    return [doc for n in range(len(stages)) for doc in found[f"flow{n}"]]


async def read_lanes(database: Database, session: Session | None, where: Mapping[str, Any]) -> list[LaneState]:
    """Every lane that matches; `where` uses queue, tenant and needs only. By queue, tenant and needs."""
    known = Lanes()
    async for doc in database[LANES].find(where, session=session):
        known.add_lane(doc)
    async for change in database[LANE_CHANGES].find(where, session=session).sort("seq", 1):
        known.apply(change)
    return [lane for _, lane in sorted(known.lanes.items())]


# -- walking -----------------------------------------------------------------------------------------------------------

TURN: Doc = {"$project": dict.fromkeys(("queue", "tenant", "needs", "counts.ready", "vtime", "closed_until"), 1)}
"""What decides about the turn of a lane."""
HAS_FREE, HAS_GATED = KINDS = ("has_free", "has_gated")
MOVED_MAX = 50
"""So many flows may have moved back since they were counted, without a second walk over them."""
QUEUES_TOGETHER = 100
"""With more queues in one condition, the server would sort all flows instead of merging their indexes."""
PLAIN_LANE: Doc = {"$lookup": {
    "from": LANES, "let": {"id": {"queue": "$queue", "tenant": "$tenant", "needs": ""}},
    "pipeline": [{"$match": {"$expr": {"$eq": ["$_id", "$$id"]}}}, TURN], "as": "plain",
}}  # fmt: skip
SETTINGS: Doc = {"$lookup": {"from": TENANTS, "localField": "tenant", "foreignField": "_id", "as": "settings"}}


class Walk(NamedTuple):
    """Flows with work, in the order of their virtual times."""

    queues: Sequence[str]
    tenant: str | None = None
    pauses: Sequence[Pause] = ()
    skip: int = 0
    limit: int = LANES_MAX + MOVED_MAX

    def conditions(self) -> Iterator[Doc]:
        """The server merges the queues of each in the order of an index."""
        paused: dict[str, list[str | None]] = {}
        for pause in self.pauses:
            paused.setdefault(pause.queue, []).append(pause.tenant)
        queues = [queue for queue in self.queues if None not in paused.get(queue, ())]
        if self.tenant is not None:
            own = [queue for queue in queues if self.tenant not in paused.get(queue, ())]
            yield {"_id": {"$in": [flow_fields((queue, self.tenant)) for queue in own]}}
            return
        for queue in queues:
            if queue in paused:
                yield {"queue": queue, "tenant": {"$nin": paused[queue]}}
        plain = [queue for queue in queues if queue not in paused]
        for start in range(0, len(plain), QUEUES_TOGETHER):
            yield {"queue": {"$in": plain[start : start + QUEUES_TOGETHER]}}


def walk_stages(walk: Walk) -> list[Doc]:
    """The flows of both kinds, each with its lane without requirements and with the settings of its tenant."""
    order: list[Doc] = [{"$sort": {"vtime": 1, "tenant": 1}}, {"$skip": walk.skip}, {"$limit": walk.limit}]
    return [
        stage(f"{kind}{n}", FLOWS, {**where, kind: True}, *(order if walk.skip else order[::2]), PLAIN_LANE, SETTINGS)
        for kind in KINDS
        for n, where in enumerate(walk.conditions())
    ]


def named_like(name: str, found: Document) -> list[Doc]:
    return [doc for each, docs in found.items() if each.startswith(name) for doc in docs]


def without_walks(found: Document) -> Doc:
    return {name: value for name, value in found.items() if not name.startswith(KINDS)}


# -- writing ----------------------------------------------------------------------------------------------------------


async def fold(transaction: Transaction) -> int:
    """Add the oldest changes to their lanes and flows; return their number."""
    database, session = transaction.database, transaction.session
    found = database[LANE_CHANGES].find(session=session, batch_size=CHANGES_MAX, sort=[("seq", 1)], limit=CHANGES_MAX)
    changes = await found.to_list()
    if not changes:
        return 0
    moved = {lane_key(change) for change in changes if "reopened" not in change}
    known, tenants = await read_named(transaction, moved, {flow_of(change) for change in changes})
    for change in changes:
        known.apply(change)
    reopened = {flow_of(change) for change in changes if "reopened" in change}
    await find_gated(transaction, known, tenants, reopened)
    await write_lanes(transaction, [known.lanes[key] for key in moved])
    flows = [render_flow(flow, state, has_free(flow, known, tenants)) for flow, state in known.flows.items()]
    await database[FLOWS].bulk_write(
        [ReplaceOne({"_id": doc["_id"]}, doc, upsert=True) for doc in flows], ordered=False, session=session
    )
    await database[LANE_CHANGES].delete_many({"_id": {"$in": [change["_id"] for change in changes]}}, session=session)
    return len(changes)


async def read_named(
    transaction: Transaction, moved: set[LaneKey], flows: set[Flow]
) -> tuple[Lanes, dict[str, Tenant]]:
    """These flows and lanes, and the lanes of the flows that have no requirements."""
    keys = moved | {(*flow, "") for flow in flows}
    found = await read_together(transaction.database, transaction.session, *named_stages(keys, flows))
    known = Lanes()
    for flow in flows:
        known.flow(flow)
    for doc in found["lanes"]:
        known.add_lane(doc)
    for doc in found["flows"]:
        known.add_flow(doc)
    return known, {doc["_id"]: parse_tenant(doc) for doc in found["tenants"]}


def has_free(flow: Flow, known: Lanes, tenants: Mapping[str, Tenant]) -> bool:
    return known.lane((*flow, "")).is_open and not is_capped(flow, tenants)


def is_capped(flow: Flow, tenants: Mapping[str, Tenant]) -> bool:
    tenant = tenants.get(flow[1])
    return tenant is not None and tenant.is_capped


async def find_gated(
    transaction: Transaction, known: Lanes, tenants: Mapping[str, Tenant], reopened: set[Flow]
) -> None:
    """Which flows have an open lane behind a gate. A flow that had none has none beside the known lanes, unless a lane
    of it was opened or closed."""
    gated = {key[:2] for key, lane in known.lanes.items() if lane.is_open and (key[2] or is_capped(key[:2], tenants))}
    unsure = {
        flow: [needs for queue, tenant, needs in known.lanes if (queue, tenant) == flow]
        for flow, state in known.flows.items()
        if flow not in gated and (state.has_gated or flow in reopened)
    }
    found = await open_lanes_of(transaction.database, transaction.session, unsure, 1) if unsure else []
    gated |= {flow_of(doc) for doc in found}
    for flow, state in known.flows.items():
        state.has_gated = flow in gated


async def write_lanes(transaction: Transaction, lanes: Iterable[LaneState]) -> None:
    docs = [render_lane(lane) for lane in lanes]
    if docs:
        replaced = [ReplaceOne({"_id": doc["_id"]}, doc, upsert=True) for doc in docs]
        await transaction.database[LANES].bulk_write(replaced, ordered=False, session=transaction.session)
