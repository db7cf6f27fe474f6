"""How many workers a pool should have, and what its supervisors have decided."""

import math
from collections.abc import Mapping
from typing import Any

from leaseway.api.schemas.values import Document, Timestamp, timestamp
from leaseway.domain.ids import SECOND_US
from leaseway.domain.scaling.agreement import FleetShare, PastDecision, PoolAgreement
from leaseway.domain.scaling.demand import AdmissionBound
from leaseway.scaling.pools import PoolReading, PoolSpec


class ScaleBoundDocument(Document, kw_only=True):
    """A limit, budget, tenant cap or pause that bounds how many jobs start."""

    what: str
    """limit, budget, tenant or lane"""
    name: str
    starts_per_second: float | None
    """0: spent or paused; null: no rate."""
    at_once: int | None
    """How many jobs may run at the same time; null: any number."""


class ScaleDocument(Document, kw_only=True):
    """How many workers a pool should have, why, and what that was decided from."""

    pool: str
    queues: list[str]
    desired_workers: int
    wanted_workers: int
    """What the load needs, before damping."""
    workers_min: int
    workers_max: int
    slots_per_worker: int
    cause: str
    """demand, limit, budget, tenant, lane, minimum, maximum, idle, stale or no_benefit"""
    reason: str
    """For people."""
    observed_at: Timestamp | None
    ready: int
    running: int
    scheduled: int
    """Jobs and schedules that a worker must start when their time comes."""
    arrivals_per_second: float
    finished_per_second: float
    bounds: list[ScaleBoundDocument]


class FleetDocument(Document, kw_only=True):
    """One supervisor of a pool, with its share of the workers."""

    name: str
    desired_workers: int
    live_workers: int | None
    """Null: the workers belong to an orchestrator, which does not report them."""
    workers_min: int
    workers_max: int
    seen_at: Timestamp | None


class PoolDecisionDocument(Document, kw_only=True):
    at: Timestamp | None
    desired_workers: int
    wanted_workers: int
    """What the load needed, before damping."""
    cause: str
    reason: str


class PoolDocument(Document, kw_only=True):
    """What the supervisors of a pool have agreed on."""

    pool: str
    """fleet: and the queues, or service: and the name of the pool."""
    queues: list[str]
    slots_per_worker: int
    desired_workers: int
    cause: str
    reason: str
    ready: int
    running: int
    decided_at: Timestamp | None
    fleets: list[FleetDocument]
    decisions: list[PoolDecisionDocument]
    """The newest first, at most 20."""


class SimulatedImportRunDocument(Document, kw_only=True):
    workers: int
    seconds: float
    requests: int
    throttled: int
    errors: int
    wait_p95_seconds: float
    """How long shards waited for their first start."""
    costs: dict[str, str]
    """By source: an amount with its unit."""
    is_complete: bool
    """False: not all shards had ended after 30 simulated days."""


class ImportSimulationDocument(Document, kw_only=True):
    """What an import would take with how many workers, against a model of the provider."""

    source: str
    knee_workers: int | None
    """The fewest workers within 5 % of the fastest run; null: more workers may be faster than all that were tried."""
    reason: str
    runs: list[SimulatedImportRunDocument]


def simulation_document(source: str, report: Mapping[str, Any]) -> ImportSimulationDocument:
    """`report`: what `leaseway simulate --json` prints."""
    runs = [
        SimulatedImportRunDocument(
            workers=run["workers"], seconds=round(run["seconds"], 3), requests=run["requests"],
            throttled=run["throttled"], errors=run["errors"], wait_p95_seconds=round(run["wait_p95_seconds"], 3),
            costs={name: f"{spent['amount']:.2f} {spent['unit']}" for name, spent in run["costs"].items()},
            is_complete=not run["left"],
        )
        for run in report["runs"]
    ]  # fmt: skip
    return ImportSimulationDocument(
        source=source, knee_workers=report["knee_workers"], reason=report["reason"], runs=runs
    )


def scale_document(spec: PoolSpec, reading: PoolReading) -> ScaleDocument:
    seen, decision = reading.observation, reading.decision
    return ScaleDocument(
        pool=spec.name,
        queues=list(spec.queues),
        desired_workers=decision.workers,
        wanted_workers=decision.wanted,
        workers_min=spec.settings.workers_min,
        workers_max=spec.settings.workers_max,
        slots_per_worker=spec.slots,
        cause=decision.cause,
        reason=decision.reason,
        observed_at=timestamp(round(seen.at * SECOND_US)),
        ready=seen.ready,
        running=seen.running,
        scheduled=seen.scheduled,
        arrivals_per_second=round(sum(group.arrivals_per_second for group in seen.groups), 3),
        finished_per_second=round(seen.finished_per_second, 3),
        bounds=[bound_document(bound) for bound in seen.bounds.values()],
    )


def bound_document(bound: AdmissionBound) -> ScaleBoundDocument:
    rate, at_once = bound.starts_per_second, bound.at_once
    return ScaleBoundDocument(
        what=bound.what,
        name=bound.name,
        starts_per_second=None if math.isinf(rate) else round(rate, 3),
        at_once=None if math.isinf(at_once) else int(at_once),
    )


def pool_document(name: str, agreed: PoolAgreement) -> PoolDocument:
    last = agreed.last
    return PoolDocument(
        pool=name,
        queues=list(agreed.queues),
        slots_per_worker=agreed.slots,
        desired_workers=agreed.workers,
        cause="" if last is None else last.cause,
        reason="" if last is None else last.reason,
        ready=agreed.ready,
        running=agreed.running,
        decided_at=to_timestamp(agreed.decided_at),
        fleets=[fleet_document(fleet) for fleet in agreed.fleets],
        decisions=[decision_document(decision) for decision in agreed.decisions],
    )


def fleet_document(fleet: FleetShare) -> FleetDocument:
    return FleetDocument(
        name=fleet.name, desired_workers=fleet.workers, live_workers=fleet.live, workers_min=fleet.workers_min,
        workers_max=fleet.workers_max, seen_at=to_timestamp(fleet.seen_at),
    )  # fmt: skip


def decision_document(decision: PastDecision) -> PoolDecisionDocument:
    return PoolDecisionDocument(
        at=to_timestamp(decision.at), desired_workers=decision.workers, wanted_workers=decision.wanted,
        cause=decision.cause, reason=decision.reason,
    )  # fmt: skip


def to_timestamp(seconds: float) -> str | None:
    return timestamp(round(seconds * SECOND_US))
