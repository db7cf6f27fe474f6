"""store, limiter, ledger ─► [snapshot of the system] ─► /v1/metrics, /metrics

A snapshot has totals by tenant and by queue. Clients choose the names of queues, so only the largest queues have totals
of their own. Lanes are added up in a thread: there may be tens of thousands of them.

A snapshot is shared by all readers. It is taken at most once per second, and loading takes at most a tenth of the time,
so with very many lanes a snapshot is used for longer.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct, field

from leaseway.api.inspection import find_closed_gates, lane_gate, read_pauses, read_workers, try_read_levels
from leaseway.api.metrics import OTHERS, QueueOutcome, count_outcomes
from leaseway.api.schemas.jobs import COUNTS
from leaseway.api.ttl_cache import TtlCache
from leaseway.domain.budgets.balances import BudgetWindow
from leaseway.domain.budgets.budget import BudgetDefinition
from leaseway.domain.errors import LeasewayError
from leaseway.domain.explain.closures import Closure, LevelReading, closed_by_pauses, longest_closure
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.inspection import EndedCount, LaneWait
from leaseway.domain.job import State
from leaseway.domain.lane import LaneCount, Pause
from leaseway.domain.limits.limit import TENANT_PREFIX, PermitRequest
from leaseway.domain.limits.templates import template_fields
from leaseway.domain.workers import WorkerState, WorkerView
from leaseway.ports.reads import Inspection
from leaseway.worker.environment import Environment
from leaseway.worker.explain_waits import Defined, limits_by_name

TTL_SECONDS = 1.0
LOAD_SHARE_MAX = 0.1
"""The part of the time that loading snapshots may take."""
RATE_SECONDS = 60
LANES_MAX = 500
"""The number of lanes for which the reasons of waiting are read; lanes with the most ready jobs come first."""
LIMITS_MAX = 200
QUEUES_MAX = 200


class LaneTotals(Struct):
    """Sums over lanes."""

    counts: Counter[str] = field(default_factory=Counter)
    """Jobs by state."""
    blocked: Counter[str] = field(default_factory=Counter)
    """Ready jobs that cannot start now, by reason."""
    ended: Counter[State] = field(default_factory=Counter)
    """Jobs that finished since `SystemSnapshot.ended_since`."""
    oldest: Instant | None = None
    """Since when the oldest ready job is ready."""

    def add_lane(self, lane: LaneCount, closure: Closure | None) -> None:
        for state in COUNTS:
            self.counts[state] += getattr(lane, state)
        if closure is not None:
            self.blocked[closure.what] += lane.ready

    def add_waiting(self, since: Instant) -> None:
        self.oldest = since if self.oldest is None else min(self.oldest, since)


class LaneReadings(NamedTuple):
    """What the store says about lanes."""

    lanes: Sequence[LaneCount]
    closures: Mapping[tuple[str, str], Closure]
    """By needs and tenant: the reason that keeps a gate closed longest."""
    pauses: Sequence[Pause] = ()
    waiting: Sequence[LaneWait] = ()
    ended: Sequence[EndedCount] = ()

    def lane_closure(self, lane: LaneCount) -> Closure | None:
        """Why a lane waits. A pause comes first: while it lasts, nothing else matters."""
        if not lane.ready:
            return None
        gate, paused = lane_gate(lane), closed_by_pauses(lane.queue, lane.tenant, self.pauses)
        return paused[0] if paused else self.closures.get((gate.needs, gate.tenant))


class LaneSummary(NamedTuple):
    everything: LaneTotals
    tenants: Mapping[str, LaneTotals]
    queues: Mapping[str, LaneTotals]
    """By name: the largest queues in alphabetical order, and `_other` if there are further ones."""
    finished: Counter[QueueOutcome]
    """Of all queues; to be compared with the next snapshot."""


def summarize(readings: LaneReadings) -> LaneSummary:
    everything, tenants, queues = LaneTotals(), dict[str, LaneTotals](), dict[str, LaneTotals]()
    labels = queue_labels(readings.lanes)
    for label in labels.values():
        queues.setdefault(label, LaneTotals())

    def totals(queue: str, tenant: str) -> Iterable[LaneTotals]:
        label = labels.get(queue, OTHERS)
        return everything, tenants.setdefault(tenant, LaneTotals()), queues.setdefault(label, LaneTotals())

    for lane in readings.lanes:
        closure = readings.lane_closure(lane)
        for each in totals(lane.queue, lane.tenant):
            each.add_lane(lane, closure)
    for wait in readings.waiting:
        for each in totals(wait.queue, wait.tenant):
            each.add_waiting(wait.since)
    for ended in readings.ended:
        for each in totals(ended.queue, ended.tenant):
            each.ended[ended.state] += ended.count
    return LaneSummary(everything, tenants, queues, count_outcomes(readings.lanes))


def queue_labels(lanes: Sequence[LaneCount]) -> dict[str, str]:
    """By queue: its own name for the largest queues, `_other` for the rest."""
    sizes = Counter[str]()
    for lane in lanes:
        sizes[lane.queue] += lane.unfinished + lane.done + lane.failed + lane.cancelled
    largest = {queue for queue, _ in sizes.most_common(QUEUES_MAX)}
    return {queue: queue if queue in largest else OTHERS for queue in sorted(sizes)}


class SystemSnapshot(NamedTuple):
    at: Instant
    summary: LaneSummary
    ended_since: Instant
    workers: list[WorkerView]
    limits: Defined
    """Without limits that have fields, and without the caps of tenants."""
    seen: Mapping[PermitRequest, LevelReading]
    budgets: list[tuple[BudgetDefinition, int]]
    accounts: list[BudgetWindow]
    lanes: Sequence[LaneCount] = ()

    @property
    def seconds(self) -> float:
        """The time that the counts of finished jobs cover: a minute, or less if very many jobs finished."""
        return max(self.at - self.ended_since, 1) / SECOND_US

    def count_workers(self, *states: WorkerState) -> int:
        return sum(view.state in states for view in self.workers)

    @property
    def leased(self) -> int:
        return sum(view.owner.leased for view in self.workers if view.owner is not None)

    @property
    def expired(self) -> int:
        return sum(view.owner.expired for view in self.workers if view.owner is not None)

    def totals(self, tenant: str | None) -> LaneTotals:
        """What one tenant may see; None: everything."""
        return self.summary.everything if tenant is None else self.summary.tenants.get(tenant, LaneTotals())


def snapshot_cache(world: Environment, stats: Inspection) -> TtlCache[SystemSnapshot]:
    async def load(_: str) -> SystemSnapshot:
        return await take_snapshot(world, stats)

    return TtlCache(
        load, world.clock, ttl_seconds=TTL_SECONDS, negative_ttl_seconds=TTL_SECONDS, max_entries=1,
        load_share_max=LOAD_SHARE_MAX,
    )  # fmt: skip


async def take_snapshot(world: Environment, stats: Inspection) -> SystemSnapshot:
    now, lanes = await world.store.reads.now(), await world.store.reads.lanes()
    fullest = await asyncio.to_thread(nlargest, LANES_MAX, lanes, attrgetter("ready"))
    gates = await find_closed_gates(world, fullest, now)
    closures = {(gate.needs, gate.tenant): longest_closure(each) for gate, each in gates.items()}
    since, ended = await stats.ended(now - RATE_SECONDS * SECOND_US)
    readings = LaneReadings(lanes, closures, await read_pauses(world), await stats.waiting(), ended)
    limits = await read_limits(world)
    return SystemSnapshot(
        at=now,
        summary=await asyncio.to_thread(summarize, readings),
        ended_since=since,
        workers=await read_workers(world),
        limits=limits,
        seen=await try_read_levels(world.limiter, [PermitRequest(name, name) for name in limits]),
        budgets=await world.ledger.definitions.all(),
        accounts=await world.ledger.reads.balances(),
        lanes=lanes,
    )


async def read_limits(world: Environment) -> Defined:
    """Empty if the limiter does not respond: the other metrics do not need it."""
    try:
        defined = await limits_by_name(world.limiter)
    except LeasewayError:
        return {}
    plain = [name for name in defined if not template_fields(name) and not name.startswith(TENANT_PREFIX)]
    return {name: defined[name] for name in plain[:LIMITS_MAX]}
