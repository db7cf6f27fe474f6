"""Counts and durations of requests, and the access log.

The middleware is the outermost one, so that refused requests count as well.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from fastapi import FastAPI
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leaseway.api.metrics.prometheus_text import Family, Sample, counter, gauge, histogram
from leaseway.api.routing import FAST_ROUTES, every_route

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

    def __init__(self, names: Iterable[MethodRoute]) -> None:
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
    """The path of the route, with placeholders for ids."""
    route = scope.get("route")
    if route is not None:
        return declared_path(route)
    return scope["path"] if (scope.get("method"), scope["path"]) in FAST_ROUTES else None


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
