"""store, limiter, ledger ─► [one snapshot of a pool] ─► domain.scaling

A pool is the queues that a fleet serves. Everything is read from counters and definitions, so the cost of a snapshot
does not grow with the number of jobs that wait. Rates come from the differences between snapshots of the last minute:
the mean service time is the time that slots were busy, divided by the jobs that ended.

A lease is not a busy slot. Workers lease ahead, jobs that wait in place lend their slots to others, and the leases of a
killed worker last until they expire. What workers have reported in their heartbeats tells them apart.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from leaseway.domain.exchange import Gate
from leaseway.domain.explain.closures import LevelReading, closed_by_budget, closed_by_limit, gate_requests, limit_label
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.inspection import EndedCount
from leaseway.domain.lane import Flow, LaneCount, Pause, covering_pause
from leaseway.domain.limits.buckets import NO_HOLDER, Acquisition, available, repace
from leaseway.domain.limits.limit import PermitRequest, size_limit
from leaseway.domain.requirements import readable_needs
from leaseway.domain.scaling.demand import AdmissionBound, PoolObservation, WorkGroup
from leaseway.domain.tenant import Tenant
from leaseway.domain.workers import BusyLeases, WorkerView, join_owners, share_busy
from leaseway.ports.store import require_inspection
from leaseway.worker.environment import Environment
from leaseway.worker.explain_waits import Defined, limits_by_name, read_levels

HISTORY_SECONDS, HISTORY_SECONDS_MIN = 60.0, 2.0
LANES_MAX = 500
"""The number of lanes for which bounds are read; those with the most jobs come first."""
SERVICE_SECONDS_PRIOR = 1.0
"""The service time of jobs of which none was seen yet."""
SOON_SECONDS = 60.0
"""A limit that stays closed for longer than this starts nothing soon. Saved permits are spread over this time."""

SPENT_SAMPLES, SPENT_SAMPLES_MIN = 8, 4
"""A limit without a permit in half of the last samples, and in so many at least, is used up: the slots that were busy
are all that it can feed. For jobs that make many calls there is no other sign, because their number is not known."""
SPENT_STILL_MIN = 2
"""It stays used up while it has no permit in so many of the last samples: at nine tenths of its rate it has some now
and then, and each time the fleet would grow by a worker."""

LaneKey = tuple[str, str, str]
"""Queue, tenant and needs."""


class CounterSample(NamedTuple):
    at: Instant
    unfinished: Mapping[LaneKey, int]
    """Ready or leased."""
    leased: Counter[Flow]
    busy: BusyLeases
    """What part of the leases kept slots busy."""
    spent: frozenset[str] = frozenset()
    """The bounds that had no permit left."""


class FlowRates(NamedTuple):
    """What a tenant's jobs in a queue did since the oldest sample."""

    ended_per_second: float
    service_seconds: float


class PoolObserver:
    """Takes snapshots of one pool, and remembers those of the last minute, or of a third of the window before the fleet
    shrinks if that is less: a fleet that is to shrink within seconds needs rates of seconds."""

    def __init__(self, world: Environment, queues: Iterable[str], window_seconds: float = math.inf) -> None:
        self._world = world
        self.queues = frozenset(queues)
        history_seconds = min(max(window_seconds / 3, HISTORY_SECONDS_MIN), HISTORY_SECONDS)
        self._history_us = round(history_seconds * SECOND_US)
        self._samples: deque[CounterSample] = deque()
        self._used_up = set[str]()
        """The bounds that the last observation found used up."""
        self._service: dict[Flow, float] = {}
        """The last measured service time of each flow: a pause does not make it unknown."""

    async def observe(self, slots_per_worker: int, workers: int) -> PoolObservation:
        """Raises what the store or the limiter raises: without both of them, nothing is known."""
        reads = self._world.store.reads
        return await self.observe_lanes(await reads.now(), await reads.lanes(), slots_per_worker, workers)

    async def observe_lanes(
        self, now: Instant, lanes: Sequence[LaneCount], slots_per_worker: int, workers: int
    ) -> PoolObservation:
        """The same with counters that have been read already, at `now`."""
        store = self._world.store
        served = [lane for lane in lanes if lane.queue in self.queues]
        since = self._samples[0].at if self._samples else now - self._history_us
        complete_since, ended = await require_inspection(store).ended(since)
        self._remember(now, served, share_busy(await self._workers(now), slots_per_worker))
        rates = self._rates(served, [each for each in ended if each.queue in self.queues], max(since, complete_since))
        busy = [lane for lane in served if lane.ready or lane.leased]
        known = nlargest(LANES_MAX, busy, key=lambda lane: lane.ready + lane.leased)
        bounds = self._feed(await read_bounds(self._world, known, now))
        groups = [*(self._group(lane, rates, bounds) for lane in known), *self._unseen(rates)]
        if len(busy) > len(known):
            groups.append(WorkGroup(ready=1))  # jobs in further lanes need one worker at least
        schedules = sum(not each.paused for each in await store.schedules.all())
        return PoolObservation(
            at=now / SECOND_US,
            groups=groups,
            bounds={str(bound): bound for each in bounds.values() for bound in each},
            scheduled=sum(lane.scheduled for lane in served) + schedules,
            finished_per_second=sum(rate.ended_per_second for rate in rates.values()),
            slots_per_worker=slots_per_worker,
            workers=workers,
        )

    async def _workers(self, now: Instant) -> list[WorkerView]:
        """Those that serve the pool, and those that have not reported which queues they serve."""
        store = self._world.store
        owners = await require_inspection(store).owners()
        views = join_owners([] if store.workers is None else await store.workers.all(), owners, now)
        return [view for view in views if not view.worker.beat.queues or self.queues & set(view.worker.beat.queues)]

    def _remember(self, now: Instant, lanes: Sequence[LaneCount], busy: BusyLeases) -> None:
        leased = Counter[Flow]()
        for lane in lanes:
            leased[lane.queue, lane.tenant] += lane.leased
        unfinished = {lane_key(lane): lane.ready + lane.leased for lane in lanes if lane.ready or lane.leased}
        self._samples.append(CounterSample(now, unfinished, leased, busy))
        # One older sample is kept, so that a pool that is observed rarely has rates as well.
        while len(self._samples) > 2 and self._samples[1].at < now - self._history_us:
            self._samples.popleft()

    def _feed(self, bounds: "LaneBounds") -> "LaneBounds":
        """The bounds, with the slots that those without a permit have kept busy."""
        spent = frozenset(str(bound) for each in bounds.values() for bound in each if bound.is_spent)
        self._samples[-1] = self._samples[-1]._replace(spent=spent)
        recent = list(self._samples)[-SPENT_SAMPLES:]
        flows: dict[str, set[Flow]] = defaultdict(set)
        for (queue, tenant, _), each in bounds.items():
            for bound in each:
                flows[str(bound)].add((queue, tenant))
        fed = {text: fed_slots(recent, text, flows[text], text in self._used_up) for text in flows}
        self._used_up = {text for text, slots in fed.items() if not math.isinf(slots)}
        return {
            lane: {replace(bound, fed_slots=fed[str(bound)]): cost for bound, cost in each.items()}
            for lane, each in bounds.items()
        }

    def _rates(self, lanes: Sequence[LaneCount], ended: Sequence[EndedCount], since: Instant) -> dict[Flow, FlowRates]:
        finished = Counter[Flow]()
        for each in ended:
            finished[each.queue, each.tenant] += each.count
        seconds = max((self._samples[-1].at - since) / SECOND_US, 1.0)
        busy_seconds = sum_busy_seconds(self._samples, since, occupied_share)
        for flow in finished | Counter(busy_seconds.keys()):
            busy = busy_seconds.get(flow, 0.0)
            # While none has ended, the jobs are known to take at least the time that they were seen to run.
            if finished[flow] or busy > self._service.get(flow, SERVICE_SECONDS_PRIOR):
                self._service[flow] = busy / max(finished[flow], 1)
        flows = {(lane.queue, lane.tenant) for lane in lanes}
        self._service = {flow: service for flow, service in self._service.items() if flow in flows}
        return {
            flow: FlowRates(finished[flow] / seconds, self._service.get(flow, SERVICE_SECONDS_PRIOR)) for flow in flows
        }

    def _unseen(self, rates: Mapping[Flow, FlowRates]) -> list[WorkGroup]:
        """Jobs that ended and were never seen running: short ones, of a pool that keeps up. Their rate needs no bound,
        because their limits have admitted it."""
        leased = self._samples[-1].leased
        return [
            WorkGroup(arrivals_per_second=rate.ended_per_second, service_seconds=rate.service_seconds)
            for flow, rate in rates.items()
            if rate.ended_per_second and not leased[flow]
        ]

    def _group(
        self, lane: LaneCount, rates: Mapping[Flow, FlowRates], bounds: Mapping[LaneKey, Mapping[AdmissionBound, float]]
    ) -> WorkGroup:
        flow, first, last = (lane.queue, lane.tenant), self._samples[0], self._samples[-1]
        seconds = max((last.at - first.at) / SECOND_US, 1.0)
        growth = (lane.ready + lane.leased - first.unfinished.get(lane_key(lane), 0)) / seconds
        share = lane.leased / last.leased[flow] if last.leased[flow] else 0.0
        arrivals = growth + rates[flow].ended_per_second * share if len(self._samples) > 1 else 0.0
        return WorkGroup(
            ready=lane.ready,
            running=lane.leased,
            arrivals_per_second=max(arrivals, 0.0),
            service_seconds=rates[flow].service_seconds,
            costs={str(bound): cost for bound, cost in bounds[lane_key(lane)].items()},
        )


def lane_key(lane: LaneCount) -> LaneKey:
    return lane.queue, lane.tenant, lane.needs


def occupied_share(sample: CounterSample) -> float:
    return sample.busy.occupied


def fed_share(sample: CounterSample) -> float:
    return sample.busy.fed


def sum_busy_seconds(
    samples: Sequence[CounterSample], since: Instant, share: Callable[[CounterSample], float]
) -> dict[Flow, float]:
    """How long slots were busy, by flow: between two samples, the mean of both. `share`: of the leases of a sample."""
    found: dict[Flow, float] = defaultdict(float)
    recent = [(sample.at, sample.leased, share(sample)) for sample in samples if sample.at >= since]
    for (begin, leased, part), (end, later, later_part) in pairwise(recent):
        for flow in leased | later:
            found[flow] += (leased[flow] * part + later[flow] * later_part) / 2 * (end - begin) / SECOND_US
    return found


def fed_slots(samples: Sequence[CounterSample], bound: str, flows: Collection[Flow], was_used_up: bool) -> float:
    """The slots that these flows kept busy on average, if the bound was used up meanwhile."""
    spent = sum(bound in sample.spent for sample in samples)
    seconds = (samples[-1].at - samples[0].at) / SECOND_US
    least = SPENT_STILL_MIN if was_used_up else max(SPENT_SAMPLES_MIN, len(samples) / 2)
    if spent < least or seconds <= 0:
        return math.inf
    leased = sum(sample.leased[flow] for sample in samples for flow in flows)
    busy_seconds = sum_busy_seconds(samples, samples[0].at, fed_share)
    # While all jobs wait for permits, one slot is enough for the next one that gets its permit.
    return max(sum(busy_seconds.get(flow, 0.0) for flow in flows) / seconds, 1.0) if leased else math.inf


# -- bounds ----------------------------------------------------------------------------------------------------------

LaneBounds = dict[LaneKey, dict[AdmissionBound, float]]
"""By lane: its bounds, each with the permits that one job uses."""


async def read_bounds(world: Environment, lanes: Sequence[LaneCount], now: Instant) -> LaneBounds:
    tenants = {tenant.name: tenant for tenant in await world.store.tenants.all()}
    pauses = () if world.store.pauses is None else await world.store.pauses.all()
    found: LaneBounds = {lane_key(lane): lane_bounds(lane, pauses) for lane in lanes}
    limits = await limit_bounds(world, lanes, tenants)
    budgets = await budget_bounds(world, lanes, now)
    for lane in lanes:
        asks = gate_requests(Gate(lane.needs, lane.tenant), tenants)
        found[lane_key(lane)] |= {limits[ask]: float(ask.cost) for ask in asks}
        names = {charge.name for charge in readable_needs(lane.needs).budgets}
        found[lane_key(lane)] |= {budgets[name]: 1.0 for name in names if name in budgets}
    return found


def lane_bounds(lane: LaneCount, pauses: Sequence[Pause]) -> dict[AdmissionBound, float]:
    if covering_pause(lane.queue, lane.tenant, pauses) is None:
        return {}
    return {AdmissionBound(what="lane", name=f"{lane.queue} of {lane.tenant}", starts_per_second=0.0): 1.0}


async def limit_bounds(
    world: Environment, lanes: Sequence[LaneCount], tenants: Mapping[str, Tenant]
) -> dict[PermitRequest, AdmissionBound]:
    asks = {ask for lane in lanes for ask in gate_requests(Gate(lane.needs, lane.tenant), tenants)}
    defined = await limits_by_name(world.limiter) if asks else {}
    # The first worker that needs the caps of a tenant declares them.
    defined = {tenant.limit: (tenant.definition(), 1) for tenant in tenants.values() if tenant.is_capped} | defined
    seen = await read_levels(world.limiter, (ask for ask in asks if ask.limit in defined))
    return {ask: limit_bound(ask, defined, seen.get(PermitRequest(ask.name, ask.limit))) for ask in asks}


def limit_bound(ask: PermitRequest, defined: Defined, seen: LevelReading | None) -> AdmissionBound:
    """What a limit grants in the long run, and what it has saved up, spread over the time until that is used."""
    what, name = limit_label(ask)
    if ask.limit not in defined:
        return AdmissionBound(what=what, name=name, starts_per_second=0.0)
    definition = defined[ask.limit][0]
    sizing = size_limit(definition)
    at_once = math.inf if definition.concurrency is None else float(definition.concurrency)
    is_spent = False
    rate = min((1e9 / window.permit_ns for window in sizing.windows), default=math.inf)
    if definition.paused:
        rate = 0.0
    elif seen is not None:
        shut = closed_by_limit(ask, definition, seen)
        is_shut = shut is not None and (shut.advice is not None or (shut.wait_us or 0) > SOON_SECONDS * SECOND_US)
        _, units = available(
            Acquisition(ask, sizing, seen.level), repace(seen.level, sizing, seen.now), seen.now, 1, NO_HOLDER
        )
        is_spent = bool(sizing.windows) and units < 1
        saved = max(units, 0) * ask.cost / SOON_SECONDS if sizing.windows else 0.0
        rate = 0.0 if is_shut else rate * seen.level.percent / 100 + saved
    return AdmissionBound(what=what, name=name, starts_per_second=rate, at_once=at_once, is_spent=is_spent)


async def budget_bounds(world: Environment, lanes: Sequence[LaneCount], now: Instant) -> dict[str, AdmissionBound]:
    """Budgets that are spent, paused or not defined. What jobs cost is not known, so a budget with room has no rate."""
    charges = {charge for lane in lanes for charge in readable_needs(lane.needs).budgets}
    if not charges:
        return {}
    definitions = [definition for definition, _ in await world.ledger.definitions.all()]
    accounts = await world.ledger.reads.balances([charge.name for charge in charges])
    return {
        charge.name: AdmissionBound(what="budget", name=charge.name, starts_per_second=0.0)
        for charge in charges
        if closed_by_budget(charge, definitions, accounts, now) is not None
    }
