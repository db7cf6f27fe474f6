"""/v1/metrics for dashboards and programs, /metrics for Prometheus.

/v1/metrics can be limited to a tenant. /metrics has no labels whose number grows with the tenants.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from fastapi import Request
from starlette.responses import Response

from leaseway import __version__
from leaseway.api.inspection import store_stats
from leaseway.api.metrics.job_counters import OUTCOMES, OutcomeCounters
from leaseway.api.metrics.prometheus_text import MEDIA_TYPE, Family, Sample, counter, gauge, render_text
from leaseway.api.routing import Authenticated, Routes, visible_tenant
from leaseway.api.schemas.budgets import burning_window_document
from leaseway.api.schemas.lanes import COUNTS, total_counts
from leaseway.api.schemas.limits import LimitNowDocument, limit_now_document
from leaseway.api.schemas.operations import MetricsDocument, ThroughputDocument, WorkersCountDocument
from leaseway.api.schemas.values import as_dict, seconds, timestamp
from leaseway.api.service import get_service
from leaseway.api.system_snapshot import SystemSnapshot, system_snapshot
from leaseway.domain.budgets.budget import MICRO, is_template
from leaseway.domain.errors import TerminalError, TransientError
from leaseway.domain.identity import Scope
from leaseway.domain.ids import SECOND_US
from leaseway.domain.job import State
from leaseway.domain.limits.limit import PermitRequest

routes = Routes("", "metrics")

REASONS = ("lane", "limit", "tenant", "budget")
QUEUES_MAX = 200
OTHERS = "_other"
"""Clients choose the names of queues, so only the largest queues have a series of their own."""


@routes.get("/v1/metrics", Scope.JOBS_READ)
async def metrics_json(request: Request, caller: Authenticated, tenant: str | None = None) -> MetricsDocument:
    """Show jobs by state, blocked jobs and throughput. For operators also limits, budgets and workers."""
    visible = visible_tenant(caller, tenant)
    snapshot = (await system_snapshot(request)).for_tenant(visible)
    document = metrics_document(snapshot, visible)
    if caller.sees_all:
        add_shared(document, snapshot)
    return document


def metrics_document(snapshot: SystemSnapshot, tenant: str | None) -> MetricsDocument:
    totals = total_counts(snapshot.lanes)
    oldest = min((each.since for each in snapshot.waiting), default=None)
    return MetricsDocument(
        at=timestamp(snapshot.at),
        tenant=tenant,
        pending=totals.ready + totals.scheduled,
        running=totals.leased,
        **as_dict(totals),
        blocked=sum(lane.ready for lane in snapshot.lanes if snapshot.lane_closure(lane) is not None),
        oldest_ready_seconds=None if oldest is None else seconds(max(snapshot.at - oldest, 0)),
        throughput=throughput_document(snapshot),
    )


def throughput_document(snapshot: SystemSnapshot) -> ThroughputDocument:
    counts = Counter[State]()
    for each in snapshot.ended:
        counts[each.state] += each.count
    return ThroughputDocument(
        window_seconds=round(snapshot.seconds, 3),
        done=counts[State.DONE],
        failed=counts[State.FAILED],
        cancelled=counts[State.CANCELLED],
        per_second=round(counts.total() / snapshot.seconds, 3),
    )


def add_shared(document: MetricsDocument, snapshot: SystemSnapshot) -> None:
    owners = snapshot.owners
    document.workers = WorkersCountDocument(
        count=len(owners),
        leased=sum(owner.leased for owner in owners),
        expired=sum(owner.expired for owner in owners),
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
    except (TransientError, TerminalError):
        families = []
    text = render_text([*process_families(request, is_up=bool(families)), *families])
    return Response(text, headers={"Content-Type": MEDIA_TYPE})


def process_families(request: Request, *, is_up: bool) -> Iterator[Family]:
    service = get_service(request)
    yield gauge("build_info", "Always 1; the label is the version.", [Sample(1, {"version": __version__})])
    yield gauge("store_up", "Whether the store responds.", [Sample(is_up)])
    yield from request.app.state.requests.families()
    yield from service.work_counters.families()
    yield from service.live.families()


async def count_outcomes(request: Request, snapshot: SystemSnapshot) -> Mapping[tuple[str, str], int]:
    state = request.app.state
    if not hasattr(state, "outcomes"):
        state.outcomes = OutcomeCounters()
    outcomes: OutcomeCounters = state.outcomes
    return await outcomes.update(store_stats(get_service(request).world), snapshot.lanes, snapshot.at)


def outcome_families(snapshot: SystemSnapshot, totals: Mapping[tuple[str, str], int]) -> Iterator[Family]:
    queues = queue_labels(snapshot)
    counts = Counter[tuple[str, str]]()
    for (queue, outcome), count in totals.items():
        counts[queues.get(queue, OTHERS), outcome] += count
    labels = list(dict.fromkeys((*queues.values(), *(queue for queue, _ in counts))))
    outcomes = tuple(state.value for state in OUTCOMES)
    yield counter(
        "jobs_ended_total", "Jobs in the store that finished since the first scrape of this process.",
        queue_samples(counts, labels, "outcome", outcomes),
    )  # fmt: skip


def job_families(snapshot: SystemSnapshot) -> Iterator[Family]:
    yield from queue_families(snapshot)
    yield gauge("workers", "Workers that hold leases.", [Sample(len(snapshot.owners))])
    expired = sum(owner.expired for owner in snapshot.owners)
    yield gauge("leases_expired", "Leases that have expired and have not been reclaimed.", [Sample(expired)])
    yield from limit_families(snapshot)
    yield from budget_families(snapshot)


def queue_families(snapshot: SystemSnapshot) -> Iterator[Family]:
    queues = queue_labels(snapshot)
    jobs, blocked, ages = Counter[tuple[str, str]](), Counter[tuple[str, str]](), dict.fromkeys(queues.values(), 0.0)
    for lane in snapshot.lanes:
        for state in COUNTS:
            jobs[queues[lane.queue], state] += getattr(lane, state)
        if (closure := snapshot.lane_closure(lane)) is not None:
            blocked[queues[lane.queue], closure.what] += lane.ready
    for each in snapshot.waiting:
        queue = queues.get(each.queue, OTHERS)
        ages[queue] = max(ages.get(queue, 0.0), (snapshot.at - each.since) / SECOND_US)
    labels = list(dict.fromkeys(queues.values()))
    yield gauge("jobs", "Jobs by state.", queue_samples(jobs, labels, "state", COUNTS))
    yield gauge("jobs_blocked", "Ready jobs that cannot start now.", queue_samples(blocked, labels, "reason", REASONS))
    yield gauge(
        "queue_oldest_ready_age_seconds", "Age of the oldest ready job.",
        [Sample(age, {"queue": queue}) for queue, age in ages.items()],
    )  # fmt: skip
    yield gauge(
        "jobs_ended_per_second", "Jobs that finished, over the last minute.", ended_samples(snapshot, queues, labels)
    )


def queue_labels(snapshot: SystemSnapshot) -> dict[str, str]:
    """By queue: its own name for the largest queues, `_other` for the rest."""
    sizes = Counter[str]()
    for lane in snapshot.lanes:
        sizes[lane.queue] += lane.unfinished + lane.done + lane.failed + lane.cancelled
    largest = {queue for queue, _ in sizes.most_common(QUEUES_MAX)}
    return {queue: queue if queue in largest else OTHERS for queue in sorted(sizes)}


def queue_samples(
    counts: Counter[tuple[str, str]], queues: list[str], label: str, values: tuple[str, ...]
) -> list[Sample]:
    return [Sample(counts[queue, value], {"queue": queue, label: value}) for queue in queues for value in values]


def ended_samples(snapshot: SystemSnapshot, queues: dict[str, str], labels: list[str]) -> list[Sample]:
    counts = Counter[tuple[str, str]]()
    for each in snapshot.ended:
        counts[queues.get(each.queue, OTHERS), each.state.value] += each.count
    return [
        Sample(counts[queue, state.value] / snapshot.seconds, {"queue": queue, "outcome": state.value})
        for queue in labels
        for state in OUTCOMES
    ]


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
