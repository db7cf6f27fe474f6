"""Metrics of this process: requests, the access log, jobs, and the text format of Prometheus.

The middleware is the outermost one, so that refused requests count as well.
"""

import asyncio
import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fastapi import FastAPI
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leaseway.api.routing import every_route
from leaseway.domain.errors import UsageError
from leaseway.domain.exchange import Exchange, ExchangeReply
from leaseway.domain.ids import Instant
from leaseway.domain.inspection import EndedCount
from leaseway.domain.job import State, Submitted
from leaseway.domain.lane import LaneCount
from leaseway.ports.reads import Inspection
from leaseway.stores.http import protocol
from leaseway.stores.http.protocol import Verb

PROMETHEUS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NO_LABELS: Mapping[str, str] = {}


class Sample(NamedTuple):
    value: float
    labels: Mapping[str, str] = NO_LABELS
    suffix: str = ""
    """For histograms: _bucket, _sum or _count."""


class Family(NamedTuple):
    name: str
    kind: str
    """gauge, counter or histogram"""
    help: str
    samples: Iterable[Sample]


def gauge(name: str, help: str, samples: Iterable[Sample]) -> Family:
    return Family(f"leaseway_{name}", "gauge", help, samples)


def counter(name: str, help: str, samples: Iterable[Sample]) -> Family:
    return Family(f"leaseway_{name}", "counter", help, samples)


def histogram(name: str, help: str, samples: Iterable[Sample]) -> Family:
    return Family(f"leaseway_{name}", "histogram", help, samples)


def render_text(families: Iterable[Family]) -> str:
    return "".join(render_family(family) for family in families)


def render_family(family: Family) -> str:
    head = f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
    return head + "".join(
        f"{family.name}{sample.suffix}{render_labels(sample.labels)} {render_number(sample.value)}\n"
        for sample in family.samples
    )


def render_labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escape(value)}"' for name, value in labels.items()) + "}"


def escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def render_number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


access = logging.getLogger("leaseway.access")
"""One line per request, at INFO."""

METHODS = ("GET", "POST", "PUT", "DELETE", "other")
CLASSES = ("2xx", "3xx", "4xx", "5xx")
BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
NO_ROUTE = "_none"
"""For requests without a route. Paths that clients invent must not become labels."""
CLIENT_GONE = 499
"""There was no response: the client disconnected, or the connection broke."""

MethodRoute = tuple[str, str]
"""Method and route."""


class Durations:
    """A histogram of response times."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS_SECONDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.seconds += seconds

    def samples(self, name: MethodRoute) -> Iterator[Sample]:
        total, labels = 0, {"method": name[0], "route": name[1]}
        for bound, count in zip((*map(str, BUCKETS_SECONDS), "+Inf"), self.buckets, strict=True):
            total += count
            yield Sample(total, {**labels, "le": bound}, "_bucket")
        yield Sample(self.seconds, labels, "_sum")
        yield Sample(total, labels, "_count")


class RequestMetrics:
    """For one process. All series exist from the start, so that Prometheus sees their first increase."""

    def __init__(self, names: Collection[MethodRoute]) -> None:
        self.names = frozenset(names)
        known = (*names, *((method, NO_ROUTE) for method in METHODS))
        self.counts = {(name, each): 0 for name in known for each in CLASSES}
        self.times: dict[MethodRoute, Durations] = {}
        self.in_progress = 0

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        name = method if method in METHODS else "other", route
        counted = name, CLASSES[max(min(status // 100, 5), 2) - 2]
        self.counts[counted] = self.counts.get(counted, 0) + 1
        self.times.setdefault(name, Durations()).add(seconds)

    def families(self) -> Iterator[Family]:
        yield counter(
            "http_requests_total", "Requests to this process.",
            [
                Sample(count, {"method": method, "route": route, "status": each})
                for ((method, route), each), count in self.counts.items()
            ],
        )  # fmt: skip
        taken = [sample for name, times in self.times.items() for sample in times.samples(name)]
        yield histogram("http_request_seconds", "Duration of requests to this process.", taken)
        yield gauge(
            "http_requests_in_progress", "Requests to this process that are in progress.", [Sample(self.in_progress)]
        )


class RequestMetricsMiddleware:
    def __init__(self, app: ASGIApp, requests: RequestMetrics) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        response, begun = WatchedResponse(send), time.perf_counter()
        is_request = scope["type"] == "http"
        self._requests.in_progress += is_request
        try:
            await self._app(scope, receive, response.send)
        finally:
            seconds = time.perf_counter() - begun
            if is_request:
                self._requests.in_progress -= 1
                self._requests.add(scope["method"], route_path(scope) or NO_ROUTE, response.status, seconds)
            if access.isEnabledFor(logging.INFO):
                access.info("request", extra={"fields": log_fields(scope, response, seconds)})


class WatchedResponse:
    """Remembers the status of a response, and the job that it created."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = CLIENT_GONE
        self.location: bytes | None = None

    async def send(self, message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
            if self.status == 202:
                self.location = dict(message.get("headers", ())).get(b"location")
        elif message["type"] == "websocket.accept":
            self.status = 101
        await self._send(message)


def route_path(scope: Scope) -> str | None:
    """The path of the route, with placeholders for ids. A request that is refused before a route is found has the route
    of its path, if that has no placeholders."""
    route = scope.get("route")
    if route is not None:
        return declared_path(route)
    is_known = (scope.get("method"), scope["path"]) in scope["app"].state.requests.names
    return scope["path"] if is_known else None


def declared_path(route: BaseRoute) -> str | None:
    path: str | None = getattr(route, "path_format", None) or getattr(route, "path", None)
    return path


def log_fields(scope: Scope, response: WatchedResponse, seconds: float) -> dict[str, object]:
    """Without the query, which may contain a ticket, and without the body."""
    caller = scope.get("leaseway.caller")
    fields: dict[str, object] = {
        "request_id": scope.get("leaseway.request_id"), "method": scope.get("method", "WEBSOCKET"),
        "route": route_path(scope), "path": scope["path"], "status": response.status, "seconds": round(seconds, 6),
        "tenant": None if caller is None else caller.tenant, "caller": None if caller is None else caller.name,
    }  # fmt: skip
    job = job_id(scope, response)
    return fields if job is None else {**fields, "job": job}


def job_id(scope: Scope, response: WatchedResponse) -> str | None:
    """The job that the request refers to or has created."""
    if response.location is not None:
        return response.location.decode("latin-1").rpartition("/")[2]
    route = route_path(scope) or ""
    found: str | None = scope.get("path_params", {}).get("id") if route.startswith("/v1/jobs/{id}") else None
    return found


def count_requests(api: FastAPI) -> None:
    """Call it after the other middleware is added: the middleware that is added last runs first."""
    routes = [route for route in every_route(api.routes) if isinstance(route, Route)]
    names = dict.fromkeys(
        (method, path)
        for route in routes
        for method in sorted(route.methods or ())
        if method in METHODS and (path := declared_path(route)) is not None
    )
    api.state.requests = RequestMetrics(names)
    api.add_middleware(RequestMetricsMiddleware, requests=api.state.requests)


SUBMISSIONS = ("accepted", "replayed", "refused", "failed")
SETTLEMENTS = (*(state.value for state in (State.DONE, State.FAILED, State.CANCELLED, State.PENDING)), "lost")


class WorkCounters:
    """All series exist from the start, so that Prometheus sees their first increase."""

    def __init__(self) -> None:
        self.submissions = dict.fromkeys(SUBMISSIONS, 0)
        self.settlements = dict.fromkeys(SETTLEMENTS, 0)
        self.exchanges = 0
        self.leases = 0

    def count_submissions(self, results: Sequence[Submitted | Exception]) -> None:
        for result in results:
            if isinstance(result, Submitted):
                self.submissions["replayed" if result.replayed else "accepted"] += 1
            else:
                self.submissions["refused" if isinstance(result, UsageError) else "failed"] += 1

    def count_call(self, verb: Verb[Any, Any], body: Any, reply: Any) -> None:
        """A call of the worker protocol."""
        if verb is protocol.EXCHANGE:
            self.count_exchange(body, reply)
        elif verb is protocol.SUBMIT:
            self.count_submissions(reply)

    def count_exchange(self, call: Exchange, reply: ExchangeReply) -> None:
        self.exchanges += 1
        self.leases += len(reply.leases)
        lost = set(reply.lost)
        for settlement in call.settlements:
            self.settlements["lost" if settlement.id in lost else settlement.state.value] += 1

    def families(self) -> Iterator[Family]:
        yield counter(
            "submissions_total", "Jobs submitted through this process.",
            [Sample(count, {"answer": answer}) for answer, count in self.submissions.items()],
        )  # fmt: skip
        yield counter("exchanges_total", "Exchanges of workers through this process.", [Sample(self.exchanges)])
        yield counter("leases_granted_total", "Leases granted through this process.", [Sample(self.leases)])
        yield counter(
            "settlements_total", "Leases settled through this process; pending: to be run again.",
            [Sample(count, {"state": state}) for state, count in self.settlements.items()],
        )  # fmt: skip


OUTCOMES = (State.DONE, State.FAILED, State.CANCELLED)
OTHERS = "_other"
"""The label of all but the largest queues. Clients choose the names of queues, so the number of series is bounded."""

QueueOutcome = tuple[str, str]
"""Queue and outcome."""


class OutcomeCounters:
    """Finished jobs since the first snapshot of this process. All processes count the same store: use the maximum, not
    the sum.

    The counts of lanes decrease when jobs are pruned, discarded or retried. So each snapshot is compared with the
    previous one in two ways: by how much the counts of lanes have increased, and by what the store reports as finished
    since then. The first misses jobs that were pruned meanwhile, the second jobs that were written late or exceed what
    a store reports. The larger number counts.

    A queue that is no longer among the largest loses its counter, and is counted with the others from then on. If it
    returns, its counter starts at zero, which Prometheus treats like a restart of the process.
    """

    def __init__(self) -> None:
        self._finished: Counter[QueueOutcome] | None = None
        self._at: Instant = 0
        self.totals: Counter[QueueOutcome] = Counter()

    async def update(
        self, stats: Inspection, finished: Counter[QueueOutcome], labels: Container[str], at: Instant
    ) -> Mapping[QueueOutcome, int]:
        """`finished`: all finished jobs in the store. `labels`: the queues that have a counter of their own."""
        before, self._finished = self._finished, finished
        since, self._at = self._at, at
        if before is not None and at > since:
            _, ended = await stats.ended(since)
            self.totals = await asyncio.to_thread(add_increase, self.totals, before, finished, ended, labels)
        return self.totals


def add_increase(
    totals: Counter[QueueOutcome],
    before: Counter[QueueOutcome],
    now: Counter[QueueOutcome],
    ended: Iterable[EndedCount],
    labels: Container[str],
) -> Counter[QueueOutcome]:
    increased = Counter({name: count for name, count in totals.items() if name[0] in labels or name[0] == OTHERS})
    reported: Counter[QueueOutcome] = Counter()
    for each in ended:
        reported[each.queue, each.state.value] += each.count
    for name in {*now, *reported}:
        queue, outcome = name
        increase = max(now[name] - before[name], reported[name], 0)
        if increase:
            increased[queue if queue in labels else OTHERS, outcome] += increase
    return increased


def count_outcomes(lanes: Iterable[LaneCount]) -> Counter[QueueOutcome]:
    counts: Counter[QueueOutcome] = Counter()
    for lane in lanes:
        for state in OUTCOMES:
            counts[lane.queue, state.value] += getattr(lane, state.value)
    return counts
