"""[span] ─► gate ─► routes: each request as a span, where somebody traces. Others do not have this at all."""

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leaseway.api.counting import GONE, route_of
from leaseway.ports.tracer import Tracing

QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked every few seconds by machines: their spans would hide those that somebody looks for."""


class Traced:
    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in QUIET:
            await self._app(scope, receive, send)
            return
        status = GONE

        async def seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with self._tracing.serving(scope["method"], Headers(scope=scope)) as served:
            try:
                await self._app(scope, receive, seen)
            finally:
                served.end(route_of(scope), status, facts_of(scope))


def facts_of(scope: Scope) -> dict[str, str]:
    caller = scope.get("leaseway.caller")
    facts = {"request_id": scope.get("leaseway.request_id", "")}
    return facts if caller is None else {**facts, "tenant": caller.tenant}


def trace_requests(api: FastAPI, tracing: Tracing | None) -> None:
    """To be called last: log lines of the request shall know its span."""
    if tracing is not None and tracing.has_traces:
        api.add_middleware(Traced, tracing=tracing)
