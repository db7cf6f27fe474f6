"""/v1/metrics for dashboards and programs, /metrics for Prometheus.

Both show a snapshot of the whole system, which all readers share; see `system_snapshot`.
/v1/metrics can be limited to a tenant. /metrics has no labels whose number grows with the tenants.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from fastapi import Request
from starlette.responses import Response

from leaseway import __version__
from leaseway.api.inspection import store_stats
from leaseway.api.metrics import (
    OUTCOMES,
    PROMETHEUS_MEDIA_TYPE,
    Family,
    OutcomeCounters,
    QueueOutcome,
    Sample,
    counter,
    gauge,
    render_text,
)
from leaseway.api.routing import Authenticated, Routes, visible_tenant
from leaseway.api.schemas.budgets import burning_window_document
from leaseway.api.schemas.jobs import COUNTS, CountsDocument
from leaseway.api.schemas.limits import LimitNowDocument, limit_now_document
from leaseway.api.schemas.operations import (
    HistoryDocument,
    MetricsDocument,
    ThroughputDocument,
    WorkersCountDocument,
    history_document,
)
from leaseway.api.schemas.values import as_dict, seconds, timestamp
from leaseway.api.service import Service, get_service
from leaseway.api.system_snapshot import SystemSnapshot, snapshot_cache
from leaseway.api.ttl_cache import TtlCache
from leaseway.domain.budgets.budget import MICRO, is_template
from leaseway.domain.errors import TerminalError, TransientError
from leaseway.domain.history.rows import HistoryRow
from leaseway.domain.history.timeline import choose_range
from leaseway.domain.identity import Scope
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.job import State
from leaseway.domain.lane import LaneCount
from leaseway.domain.limits.breaker import BreakerState
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.scaling.decision import ScalingDecision
from leaseway.domain.workers import WorkerState
from leaseway.ports.store import require_history
from leaseway.worker.maintenance import read_timeline


async def system_snapshot(request: Request) -> SystemSnapshot:
    """The current snapshot."""
    state, world = request.app.state, get_service(request).world
    if not hasattr(state, "snapshots"):
        state.snapshots = snapshot_cache(world, store_stats(world))
    snapshots: TtlCache[SystemSnapshot] = state.snapshots
    snapshot = await snapshots.get("")
    assert snapshot is not None
    return snapshot


routes = Routes("", "metrics")

REASONS = ("lane", "limit", "tenant", "budget")


@routes.get("/v1/metrics", Scope.JOBS_READ)
async def metrics_json(request: Request, caller: Authenticated, tenant: str | None = None) -> MetricsDocument:
    """Show jobs by state, blocked jobs and throughput. For operators also limits, budgets and workers."""
    visible = visible_tenant(caller, tenant)
    snapshot = await system_snapshot(request)
    document = metrics_document(snapshot, visible)
    if caller.sees_all:
        add_shared(document, snapshot)
    return document


def metrics_document(snapshot: SystemSnapshot, tenant: str | None) -> MetricsDocument:
    totals = snapshot.totals(tenant)
    counts = CountsDocument(**{name: totals.counts[name] for name in COUNTS})
    return MetricsDocument(
        at=timestamp(snapshot.at),
        tenant=tenant,
        pending=counts.ready + counts.scheduled,
        running=counts.leased,
        **as_dict(counts),
        blocked=totals.blocked.total(),
        oldest_ready_seconds=None if totals.oldest is None else seconds(max(snapshot.at - totals.oldest, 0)),
        throughput=throughput_document(totals.ended, snapshot.seconds),
    )


@routes.get("/v1/history", Scope.JOBS_READ, problems=(400,))
async def show_history(
    request: Request,
    caller: Authenticated,
    range: str = "1h",
    tenant: str | None = None,
    queue: str | None = None,
    kind: str | None = None,
) -> HistoryDocument:
    """Show what happened in a range of time, from 15m to 30d: attempts and their outcomes, running times and the
    backlog, in steps of minutes or hours. Tenants see their own jobs."""
    service, only = get_service(request), visible_tenant(caller, tenant)
    history, span = require_history(service.world.store), choose_range(range, await service.world.store.reads.now())

    def chooses(row: HistoryRow) -> bool:
        return queue in (None, row.queue) and (not row.kind or kind in (None, row.kind))

    async with service.searches.turn(None if caller.sees_all else caller.tenant):
        timeline = await read_timeline(history, span, only, chooses)
    return history_document(timeline)


def throughput_document(ended: Counter[State], seconds: float) -> ThroughputDocument:
    return ThroughputDocument(
        window_seconds=round(seconds, 3),
        done=ended[State.DONE],
        failed=ended[State.FAILED],
        cancelled=ended[State.CANCELLED],
        per_second=round(ended.total() / seconds, 3),
    )


def add_shared(document: MetricsDocument, snapshot: SystemSnapshot) -> None:
    document.workers = WorkersCountDocument(
        count=snapshot.count_workers(WorkerState.RUNNING, WorkerState.IDLE, WorkerState.DRAINING),
        lost=snapshot.count_workers(WorkerState.LOST),
        leased=snapshot.leased,
        expired=snapshot.expired,
    )
    document.limits = [limit_now(snapshot, name) for name in snapshot.limits]
    document.budgets = [
        burning_window_document(account, snapshot.at, account.unit)
        for account in snapshot.accounts
        if account.has_begun
    ]


def limit_now(snapshot: SystemSnapshot, name: str) -> LimitNowDocument:
    return limit_now_document(*snapshot.limits[name], snapshot.seen.get(PermitRequest(name, name)), snapshot.at)


# -- for Prometheus -------------------------------------------------------------------------------------------------


@routes.get("/metrics", Scope.OPERATE, media_type="text/plain")
async def metrics_text(request: Request) -> Response:
    """Metrics for Prometheus: those of the store, and the requests of this process.

    While the store does not respond, `leaseway_store_up` is 0 and only the metrics of the process are shown."""
    try:
        snapshot = await system_snapshot(request)
        families = [*job_families(snapshot), *outcome_families(snapshot, await count_outcomes(request, snapshot))]
        families += pool_families(await read_pools(get_service(request), snapshot))
    except (TransientError, TerminalError):
        families = []
    text = render_text([*process_families(request, is_up=bool(families)), *families])
    return Response(text, headers={"Content-Type": PROMETHEUS_MEDIA_TYPE})


async def read_pools(service: Service, snapshot: SystemSnapshot) -> dict[str, ScalingDecision]:
    """A pool that cannot be observed is left out: a lost series must not read as zero workers."""

    async def load() -> tuple[Instant, Sequence[LaneCount]]:
        return snapshot.at, snapshot.lanes

    decisions: dict[str, ScalingDecision] = {}
    for name, pool in service.pools.items():
        with contextlib.suppress(TransientError):
            decisions[name] = (await pool.read(load)).decision
    return decisions


def pool_families(decisions: Mapping[str, ScalingDecision]) -> Iterator[Family]:
    desired = [Sample(decision.workers, {"pool": name}) for name, decision in decisions.items()]
    wanted = [Sample(decision.wanted, {"pool": name}) for name, decision in decisions.items()]
    causes = [Sample(1, {"pool": name, "cause": decision.cause}) for name, decision in decisions.items()]
    yield gauge("pool_desired_workers", "Workers that a pool should have now.", desired)
    yield gauge("pool_wanted_workers", "Workers that the load of a pool needs, before damping.", wanted)
    yield gauge("pool_cause", "Always 1; the label says what the number of workers follows from.", causes)


def process_families(request: Request, *, is_up: bool) -> Iterator[Family]:
    service = get_service(request)
    yield gauge("build_info", "Always 1; the label is the version.", [Sample(1, {"version": __version__})])
    yield gauge("store_up", "Whether the store responds.", [Sample(is_up)])
    yield from request.app.state.requests.families()
    yield from service.work_counters.families()
    yield from service.quotas.families()
    yield from service.live.families()


async def count_outcomes(request: Request, snapshot: SystemSnapshot) -> Mapping[QueueOutcome, int]:
    state = request.app.state
    if not hasattr(state, "outcomes"):
        state.outcomes = OutcomeCounters()
    outcomes: OutcomeCounters = state.outcomes
    summary, stats = snapshot.summary, store_stats(get_service(request).world)
    return await outcomes.update(stats, summary.finished, summary.queues, snapshot.at)


def outcome_families(snapshot: SystemSnapshot, totals: Mapping[QueueOutcome, int]) -> Iterator[Family]:
    labels = list(dict.fromkeys((*snapshot.summary.queues, *(queue for queue, _ in totals))))
    samples = [
        Sample(totals.get((queue, state.value), 0), {"queue": queue, "outcome": state.value})
        for queue in labels
        for state in OUTCOMES
    ]
    yield counter(
        "jobs_ended_total", "Jobs in the store that finished since the first scrape of this process.", samples
    )


def job_families(snapshot: SystemSnapshot) -> Iterator[Family]:
    yield from queue_families(snapshot)
    states = [Sample(snapshot.count_workers(state), {"state": state.value}) for state in WorkerState]
    yield gauge("workers", "Workers by state; lost: silent for more than 15 seconds.", states)
    yield gauge("leases_expired", "Leases that have expired and have not been reclaimed.", [Sample(snapshot.expired)])
    yield from limit_families(snapshot)
    yield from budget_families(snapshot)


def queue_families(snapshot: SystemSnapshot) -> Iterator[Family]:
    queues = snapshot.summary.queues
    yield gauge("jobs", "Jobs by state.", [
        Sample(totals.counts[state], {"queue": queue, "state": state})
        for queue, totals in queues.items() for state in COUNTS
    ])  # fmt: skip
    yield gauge("jobs_blocked", "Ready jobs that cannot start now.", [
        Sample(totals.blocked[reason], {"queue": queue, "reason": reason})
        for queue, totals in queues.items() for reason in REASONS
    ])  # fmt: skip
    yield gauge("queue_oldest_ready_age_seconds", "Age of the oldest ready job.", [
        Sample(0.0 if totals.oldest is None else max(snapshot.at - totals.oldest, 0) / SECOND_US, {"queue": queue})
        for queue, totals in queues.items()
    ])  # fmt: skip
    yield gauge("jobs_ended_per_second", "Jobs that finished, over the last minute.", [
        Sample(totals.ended[state] / snapshot.seconds, {"queue": queue, "outcome": state.value})
        for queue, totals in queues.items() for state in OUTCOMES
    ])  # fmt: skip


def limit_families(snapshot: SystemSnapshot) -> Iterator[Family]:
    shown = {name: limit_now(snapshot, name) for name in snapshot.limits}
    room = [
        Sample(each.room / each.of, {"limit": name, "what": each.rate or "concurrency"})
        for name, limit in shown.items()
        for each in limit.gauges
    ]
    rates = [
        Sample(rate.count * SECOND_US / rate.window_us, {"limit": name, "rate": str(rate)})
        for name, (definition, _) in snapshot.limits.items()
        for rate in definition.rates
    ]
    pace = [Sample(limit.percent / 100, {"limit": name}) for name, limit in shown.items() if limit.percent]
    states = [
        Sample(limit.breaker is state, {"limit": name, "state": state.value})
        for name, limit in shown.items()
        if limit.breaker is not None
        for state in BreakerState
    ]
    yield gauge("limit_breaker_state", "1 for the state in which the circuit breaker of a limit is.", states)
    yield gauge("limit_room_ratio", "Available part of a limit, from 0 to 1.", room)
    yield gauge("limit_permits_per_second", "Average rate that a limit permits.", rates)
    yield gauge("limit_pace_ratio", "Below 1, the provider has rejected calls and the fleet sends slower.", pace)


def budget_families(snapshot: SystemSnapshot) -> Iterator[Family]:
    """Without budgets that have fields, because their names contain tenants."""
    plain = {definition.name for definition, _ in snapshot.budgets if not is_template(definition.name)}
    current = [account for account in snapshot.accounts if account.has_begun and account.name in plain]
    ratios = [
        Sample(account.left_micros / account.balance.limit_micros if account.balance.limit_micros else 0.0,
               {"budget": account.name})
        for account in current
    ]  # fmt: skip
    left = [Sample(account.left_micros / MICRO, {"budget": account.name, "unit": account.unit}) for account in current]
    yield gauge("budget_remaining_ratio", "Remaining part of a budget's current window, from 0 to 1.", ratios)
    yield gauge("budget_remaining", "Remaining amount of a budget's current window, in the budget's unit.", left)
