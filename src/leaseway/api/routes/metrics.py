"""/v1/metrics for screens and programs, /metrics for Prometheus. The first knows tenants, the second has no labels that
grow with them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import Request
from starlette.responses import Response

from leaseway import __version__
from leaseway.api.metrics.outcome_counters import OUTCOMES, Ends
from leaseway.api.metrics.prometheus_text import MEDIA_TYPE, Family, Sample, counter, exposition, gauge
from leaseway.api.pagination import pulse_of
from leaseway.api.responses import answer
from leaseway.api.routes.lanes import totals_of
from leaseway.api.routing import Asking, Routes, tenant_for
from leaseway.api.schemas.budgets import burn_of
from leaseway.api.schemas.limits import gauges_of, until_of
from leaseway.api.schemas.serializers import account_json, iso, seconds_of
from leaseway.api.service import service_of
from leaseway.api.system_snapshot import Picture, picture_of, shut_of
from leaseway.domain.budgets.budget import MICRO, is_template
from leaseway.domain.errors import TerminalError, TransientError
from leaseway.domain.gates import closed_by_limit
from leaseway.domain.identity import Scope
from leaseway.domain.ids import SECOND_US
from leaseway.domain.job import State
from leaseway.domain.limits.limit import PermitRequest

routes = Routes("", "metrics")

PLACES = ("ready", "scheduled", "leased", "done", "failed", "cancelled")
REASONS = ("lane", "limit", "tenant", "budget")
QUEUES_MAX = 200
OTHERS = "_other"
"""Whoever submits names queues as he likes: what is beyond the largest ones is one series."""


@routes.get("/v1/metrics", Scope.JOBS_READ)
async def metrics_json(request: Request, caller: Asking, tenant: str | None = None) -> Response:
    """How everything is doing now: jobs by state, what waits, throughput. Operators see limits, budgets and workers."""
    whose = tenant_for(caller, tenant)
    picture = (await picture_of(request)).of(whose)
    shown = {"at": iso(picture.at), "tenant": whose, **jobs_json(picture), "throughput": throughput_json(picture)}
    return answer({**shown, **shared_json(picture)} if caller.sees_all else shown)


def jobs_json(picture: Picture) -> dict[str, Any]:
    totals = totals_of(picture.lanes)
    oldest = min((each.since for each in picture.waiting), default=None)
    return {
        "pending": totals["ready"] + totals["scheduled"],
        "running": totals["leased"],
        **totals,
        "blocked": sum(lane.ready for lane in picture.lanes if shut_of(picture, lane) is not None),
        "oldest_ready_seconds": None if oldest is None else seconds_of(max(picture.at - oldest, 0)),
    }


def throughput_json(picture: Picture) -> dict[str, Any]:
    counts = Counter[State]()
    for each in picture.ended:
        counts[each.state] += each.count
    return {
        "window_seconds": round(picture.seconds, 3),
        **{state.value: counts[state] for state in OUTCOMES},
        "per_second": round(counts.total() / picture.seconds, 3),
    }


def shared_json(picture: Picture) -> dict[str, Any]:
    owners = picture.owners
    return {
        "workers": {
            "count": len(owners),
            "leased": sum(owner.leased for owner in owners),
            "late": sum(owner.late for owner in owners),
        },
        "limits": [limit_json(picture, name) for name in picture.limits],
        "budgets": [
            {**account_json(account), "unit": account.unit, "burn": burn_of(account, picture.at)}
            for account in picture.accounts
            if account.has_begun
        ],
    }


def limit_json(picture: Picture, name: str) -> dict[str, Any]:
    definition, version = picture.limits[name]
    seen = picture.seen.get(PermitRequest(name, name))
    shut = None if seen is None else closed_by_limit(PermitRequest(name, name), definition, seen)
    return {
        "name": name,
        "version": version,
        "gauges": [] if seen is None else gauges_of(definition, seen),
        "percent": None if seen is None else seen.level.percent,
        "reason": None if shut is None else shut.why,
        "until": until_of(shut, picture.at),
    }


# -- for Prometheus -------------------------------------------------------------------------------------------------


@routes.get("/metrics", Scope.OPERATE)
async def metrics_text(request: Request) -> Response:
    """The same for Prometheus, and what this process has answered.

    While the store is away, `leaseway_store_up` is 0 and only the process tells of itself."""
    try:
        picture = await picture_of(request)
        families = [*about_jobs(picture), *about_ends(picture, await ended_here(request, picture))]
    except (TransientError, TerminalError):
        families = []
    return Response(
        exposition([*about_process(request, is_up=bool(families)), *families]), headers={"Content-Type": MEDIA_TYPE}
    )


def about_process(request: Request, *, is_up: bool) -> Iterator[Family]:
    service = service_of(request)
    yield gauge("build_info", "Always 1; the label says which version this is.", [Sample(1, {"version": __version__})])
    yield gauge("store_up", "Whether the store has answered.", [Sample(is_up)])
    yield from request.app.state.requests.families()
    yield from service.tally.families()
    yield from service.live.families()


async def ended_here(request: Request, picture: Picture) -> Mapping[tuple[str, str], int]:
    state = request.app.state
    if not hasattr(state, "ends"):
        state.ends = Ends()
    ends: Ends = state.ends
    return await ends.look(pulse_of(request), picture.lanes, picture.at)


def about_ends(picture: Picture, totals: Mapping[tuple[str, str], int]) -> Iterator[Family]:
    queues = labels_of(picture)
    counts = Counter[tuple[str, str]]()
    for (queue, outcome), count in totals.items():
        counts[queues.get(queue, OTHERS), outcome] += count
    labels = list(dict.fromkeys((*queues.values(), *(queue for queue, _ in counts))))
    outcomes = tuple(state.value for state in OUTCOMES)
    yield counter(
        "jobs_ended_total", "Jobs of the store that have ended since this process was first asked.",
        samples(counts, labels, "outcome", outcomes),
    )  # fmt: skip


def about_jobs(picture: Picture) -> Iterator[Family]:
    yield from by_queue(picture)
    yield gauge("workers", "Workers that hold leases.", [Sample(len(picture.owners))])
    late = sum(owner.late for owner in picture.owners)
    yield gauge("leases_late", "Leases that have expired and that nobody has taken back.", [Sample(late)])
    yield from about_limits(picture)
    yield from about_budgets(picture)


def by_queue(picture: Picture) -> Iterator[Family]:
    queues = labels_of(picture)
    jobs, blocked, ages = Counter[tuple[str, str]](), Counter[tuple[str, str]](), dict.fromkeys(queues.values(), 0.0)
    for lane in picture.lanes:
        for place in PLACES:
            jobs[queues[lane.queue], place] += getattr(lane, place)
        if (shut := shut_of(picture, lane)) is not None:
            blocked[queues[lane.queue], shut.what] += lane.ready
    for each in picture.waiting:
        queue = queues.get(each.queue, OTHERS)
        ages[queue] = max(ages.get(queue, 0.0), (picture.at - each.since) / SECOND_US)
    labels = list(dict.fromkeys(queues.values()))
    yield gauge("jobs", "Jobs by state, as the lanes count them.", samples(jobs, labels, "state", PLACES))
    yield gauge("jobs_blocked", "Ready jobs that may not start now.", samples(blocked, labels, "reason", REASONS))
    yield gauge(
        "queue_oldest_ready_age_seconds", "How long the oldest ready job has been waiting.",
        [Sample(age, {"queue": queue}) for queue, age in ages.items()],
    )  # fmt: skip
    yield gauge(
        "jobs_ended_per_second", "Jobs that ended, over the last minute.", ended_samples(picture, queues, labels)
    )


def labels_of(picture: Picture) -> dict[str, str]:
    """By queue: its own name for the largest ones."""
    sizes = Counter[str]()
    for lane in picture.lanes:
        sizes[lane.queue] += lane.unfinished + lane.done + lane.failed + lane.cancelled
    largest = {queue for queue, _ in sizes.most_common(QUEUES_MAX)}
    return {queue: queue if queue in largest else OTHERS for queue in sorted(sizes)}


def samples(counts: Counter[tuple[str, str]], queues: list[str], label: str, values: tuple[str, ...]) -> list[Sample]:
    return [Sample(counts[queue, value], {"queue": queue, label: value}) for queue in queues for value in values]


def ended_samples(picture: Picture, queues: dict[str, str], labels: list[str]) -> list[Sample]:
    counts = Counter[tuple[str, str]]()
    for each in picture.ended:
        counts[queues.get(each.queue, OTHERS), each.state.value] += each.count
    return [
        Sample(counts[queue, state.value] / picture.seconds, {"queue": queue, "outcome": state.value})
        for queue in labels
        for state in OUTCOMES
    ]


def about_limits(picture: Picture) -> Iterator[Family]:
    shown = {name: limit_json(picture, name) for name in picture.limits}
    room = [
        Sample(each["room"] / each["of"], {"limit": name, "what": each["rate"] or "seats"})
        for name, limit in shown.items()
        for each in limit["gauges"]
    ]
    rates = [
        Sample(rate.count * SECOND_US / rate.window_us, {"limit": name, "rate": str(rate)})
        for name, (definition, _) in picture.limits.items()
        for rate in definition.rates
    ]
    pace = [Sample(limit["percent"] / 100, {"limit": name}) for name, limit in shown.items() if limit["percent"]]
    yield gauge("limit_room_ratio", "What may be taken from a limit now, of what it holds at most.", room)
    yield gauge("limit_permits_per_second", "What a limit permits on average.", rates)
    yield gauge("limit_pace_ratio", "Below 1, the provider has refused calls and the fleet goes slower.", pace)


def about_budgets(picture: Picture) -> Iterator[Family]:
    """Only of budgets that are one: those with fields name tenants."""
    plain = {definition.name for definition, _ in picture.budgets if not is_template(definition.name)}
    under_way = [account for account in picture.accounts if account.has_begun and account.name in plain]
    ratios = [
        Sample(account.left_micros / account.book.limit_micros if account.book.limit_micros else 0.0,
               {"budget": account.name})
        for account in under_way
    ]  # fmt: skip
    left = [
        Sample(account.left_micros / MICRO, {"budget": account.name, "unit": account.unit}) for account in under_way
    ]
    yield gauge("budget_remaining_ratio", "What is left of a budget's window.", ratios)
    yield gauge("budget_remaining", "The same, in the budget's unit.", left)
