"""Lanes and flows: counters and virtual times that many transactions change at once, without conflicts.

A transaction that moves jobs inserts one document per lane into `leaseway_lane_changes`; it never updates a lane.
`fold` adds these documents to `leaseway_lanes` and `leaseway_flows` and deletes them. A lane is therefore its document
plus its changes, and both are read in one snapshot. A lane whose document was deleted, because it had no job left, is
created again by the next fold.

Virtual times (`domain.lane`) only rise, and a claim raises one to `max(time, floor) + charge`. So a change holds
floor and charge, and changes of concurrent claims add up.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field
from pymongo import ReplaceOne

from leaseway.domain.ids import Instant
from leaseway.domain.lane import Flow, LaneCount
from leaseway.stores.mongodb.connection import Database, Session, Transaction
from leaseway.stores.mongodb.documents import STATUSES, Doc, LaneKey, lane_fields, lane_key, next_seq
from leaseway.stores.mongodb.schema import FLOWS, LANE_CHANGES, LANES

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

    def of(self, key: LaneKey) -> LaneChange:
        return self.by_lane.setdefault(key, LaneChange())

    def add(self, key: LaneKey, name: str, number: int) -> None:
        self.of(key).counts[name] += number

    def merge(self, other: "LaneChanges") -> None:
        """`other` is that of the transaction's claim, which alone charges virtual times."""
        for key, change in other.by_lane.items():
            own = self.of(key)
            change.counts.update(own.counts)
            self.by_lane[key] = change

    def render(self, now: Instant) -> list[Doc]:
        return [change.render(key, now) for key, change in self.by_lane.items()]


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
        self.flows[doc["queue"], doc["tenant"]] = FlowState(
            doc["vtime"], doc["vfloor"], doc["lane_floor"], doc["served_at"]
        )

    def lane(self, key: LaneKey) -> LaneState:
        return self.lanes.setdefault(key, LaneState(key))

    def flow(self, flow: Flow) -> FlowState:
        return self.flows.setdefault(flow, FlowState())

    def apply(self, change: Mapping[str, Any]) -> None:
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
        "is_open": lane.ready > 0 and lane.closed_until is None, "is_empty": lane.jobs == 0,
    }  # fmt: skip
    return doc if lane.closed_until is None else doc | {
        "closed_until": lane.closed_until, "closed_why": lane.closed_why,
    }  # fmt: skip


def render_flow(flow: Flow, state: FlowState) -> Doc:
    names = {"queue": flow[0], "tenant": flow[1]}
    return {
        "_id": names, **names, "vtime": state.vtime, "vfloor": state.vfloor, "lane_floor": state.lane_floor,
        "served_at": state.served_at,
    }  # fmt: skip


# -- reading ----------------------------------------------------------------------------------------------------------


async def load(database: Database, session: Session | None, changes: Sequence[Doc], known: Lanes) -> None:
    """Add the documents of the lanes and flows that occur in these changes, and apply the changes."""
    keys = {lane_key(change) for change in changes} - known.lanes.keys()
    flows = {key[:2] for key in keys} - known.flows.keys()
    if keys:
        ids = [lane_fields(key) for key in keys]
        async for doc in database[LANES].find({"_id": {"$in": ids}}, session=session):
            known.add_lane(doc)
    if flows:
        ids = [{"queue": queue, "tenant": tenant} for queue, tenant in flows]
        async for doc in database[FLOWS].find({"_id": {"$in": ids}}, session=session):
            known.add_flow(doc)
    for change in changes:
        known.apply(change)


async def read_lanes(database: Database, session: Session | None, where: Mapping[str, Any]) -> list[LaneState]:
    """Every lane that matches; `where` uses queue, tenant and needs only. By queue, tenant and needs."""
    known = Lanes()
    async for doc in database[LANES].find(where, session=session):
        known.add_lane(doc)
    async for change in database[LANE_CHANGES].find(where, session=session).sort("seq", 1):
        known.apply(change)
    return [lane for _, lane in sorted(known.lanes.items())]


# -- writing ----------------------------------------------------------------------------------------------------------


async def fold(transaction: Transaction) -> int:
    """Add the oldest changes to their lanes and flows; return their number."""
    database, session = transaction.database, transaction.session
    changes = await database[LANE_CHANGES].find(session=session).sort("seq", 1).limit(CHANGES_MAX).to_list()
    if not changes:
        return 0
    known = Lanes()
    await load(database, session, changes, known)
    await write_lanes(transaction, known.lanes.values())
    flows = [
        ReplaceOne({"_id": doc["_id"]}, doc, upsert=True)
        for doc in (render_flow(flow, state) for flow, state in known.flows.items())
    ]
    if flows:
        await database[FLOWS].bulk_write(flows, ordered=False, session=session)
    await database[LANE_CHANGES].delete_many({"_id": {"$in": [change["_id"] for change in changes]}}, session=session)
    return len(changes)


async def write_lanes(transaction: Transaction, lanes: Iterable[LaneState]) -> None:
    docs = [render_lane(lane) for lane in lanes]
    if docs:
        replaced = [ReplaceOne({"_id": doc["_id"]}, doc, upsert=True) for doc in docs]
        await transaction.database[LANES].bulk_write(replaced, ordered=False, session=transaction.session)
