"""What this process has answered, counted outside of everything else: refusals count too. And the access log."""

import logging
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from fastapi import FastAPI
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leaseway.api.metrics.prometheus_text import Family, Sample, counter, gauge, histogram
from leaseway.api.routing import BUSY, every_route

access = logging.getLogger("leaseway.access")
"""A line for each request, at INFO."""

METHODS = ("GET", "POST", "PUT", "DELETE", "other")
CLASSES = ("2xx", "3xx", "4xx", "5xx")
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
NO_ROUTE = "_none"
"""Refused before a route was sought, or there is none. Paths that clients make up are no label."""
GONE = 499
"""Nothing was answered: the client left, or the line was cut."""

Name = tuple[str, str]
"""Method and route."""


class Times:
    """How long answers took."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def samples(self, name: Name) -> Iterator[Sample]:
        total, labels = 0, {"method": name[0], "route": name[1]}
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self.buckets, strict=True):
            total += count
            yield Sample(total, {**labels, "le": bound}, "_bucket")
        yield Sample(self.seconds, labels, "_sum")
        yield Sample(total, labels, "_count")


class Requests:
    """Of one process. Every counter is there from the start, so that its first step is seen."""

    def __init__(self, names: Iterable[Name]) -> None:
        known = (*names, *((method, NO_ROUTE) for method in METHODS))
        self.answered = {(name, each): 0 for name in known for each in CLASSES}
        self.times: dict[Name, Times] = {}
        self.under_way = 0

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        name = method if method in METHODS else "other", route
        counted = name, CLASSES[max(min(status // 100, 5), 2) - 2]
        self.answered[counted] = self.answered.get(counted, 0) + 1
        self.times.setdefault(name, Times()).add(seconds)

    def families(self) -> Iterator[Family]:
        yield counter(
            "http_requests_total", "Requests that this process has answered.",
            [
                Sample(count, {"method": method, "route": route, "status": each})
                for ((method, route), each), count in self.answered.items()
            ],
        )  # fmt: skip
        taken = [sample for name, times in self.times.items() for sample in times.samples(name)]
        yield histogram("http_request_seconds", "How long this process took to answer.", taken)
        yield gauge("http_requests_under_way", "Requests that this process works on.", [Sample(self.under_way)])


class Counting:
    def __init__(self, app: ASGIApp, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        answer, begun = Answered(send), time.perf_counter()
        is_request = scope["type"] == "http"
        self._requests.under_way += is_request
        try:
            await self._app(scope, receive, answer.send)
        finally:
            seconds = time.perf_counter() - begun
            if is_request:
                self._requests.under_way -= 1
                self._requests.add(scope["method"], route_of(scope) or NO_ROUTE, answer.status, seconds)
            if access.isEnabledFor(logging.INFO):
                access.info("request", extra={"facts": facts_of(scope, answer, seconds)})


class Answered:
    """What was said first: with which status, and which job it made."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = GONE
        self.location: bytes | None = None

    async def send(self, message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
            if self.status == 202:
                self.location = dict(message.get("headers", ())).get(b"location")
        elif message["type"] == "websocket.accept":
            self.status = 101
        await self._send(message)


def route_of(scope: Scope) -> str | None:
    """As it is declared, with names in the place of ids."""
    route = scope.get("route")
    if route is not None:
        return path_of(route)
    return scope["path"] if (scope.get("method"), scope["path"]) in BUSY else None


def path_of(route: BaseRoute) -> str | None:
    path: str | None = getattr(route, "path_format", None) or getattr(route, "path", None)
    return path


def facts_of(scope: Scope, answer: Answered, seconds: float) -> dict[str, object]:
    """For the log. Without the query, which may hold a ticket, and without anything that was sent."""
    caller = scope.get("leaseway.caller")
    facts: dict[str, object] = {
        "request_id": scope.get("leaseway.request_id"), "method": scope.get("method", "WEBSOCKET"),
        "route": route_of(scope), "path": scope["path"], "status": answer.status, "seconds": round(seconds, 6),
        "tenant": None if caller is None else caller.tenant, "caller": None if caller is None else caller.name,
    }  # fmt: skip
    job = job_of(scope, answer)
    return facts if job is None else {**facts, "job": job}


def job_of(scope: Scope, answer: Answered) -> str | None:
    """Which one it was about, or which one it made."""
    if answer.location is not None:
        return answer.location.decode("latin-1").rpartition("/")[2]
    route = route_of(scope) or ""
    found: str | None = scope.get("path_params", {}).get("id") if route.startswith("/v1/jobs/{id}") else None
    return found


def count_requests(api: FastAPI) -> None:
    """To be called late: what is added last stands outside."""
    routes = [route for route in every_route(api.routes) if isinstance(route, Route)]
    names = dict.fromkeys(
        (method, path)
        for route in routes
        for method in sorted(route.methods or ())
        if method in METHODS and (path := path_of(route)) is not None
    )
    api.state.requests = Requests(names)
    api.add_middleware(Counting, requests=api.state.requests)
