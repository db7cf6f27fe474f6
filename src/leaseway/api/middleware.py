"""request ─► [request id ─► host ─► origin ─► caller ─► rate limit] ─► routes

Runs before every route, the live ones included. Each request has an id, each response has the security headers, and
every exception becomes a problem that contains the request id.
"""

import re
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leaseway.api.auth.origin_checks import OriginChecks
from leaseway.api.errors import log_problem, problem_response
from leaseway.api.metrics import CLIENT_GONE, route_path
from leaseway.domain.identity import LOCAL, Caller
from leaseway.ports.telemetry import Tracing

if TYPE_CHECKING:
    from leaseway.api.service import Service

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
EVENT_STREAM = "text/event-stream"
"""Its origin is checked although it changes nothing: a page of another site must not use up the subscriptions."""
POLICY_VIOLATION = 1008
"""The close code of a WebSocket that is refused."""
CSP = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
SECURITY_HEADERS = [
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
NO_STORE = (b"cache-control", b"no-store")
UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})
"""Machines request these every few seconds; their spans would bury the interesting ones."""


class RequestMiddleware:
    def __init__(self, app: ASGIApp, service: "Service") -> None:
        self._app = app
        self._service = service
        self._origins = OriginChecks(service.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        scope["leaseway.request_id"] = choose_request_id(headers)
        response = OutgoingResponse(scope, send)
        try:
            await self._admit(scope, headers, response)
            await self._app(scope, receive, response.send)
        except ClientDisconnect:
            pass  # The client disconnected before it had sent its request: there is no error to report.
        except Exception as error:  # noqa: BLE001 - every exception is reported to the client and logged
            await self._refuse(error, scope, receive, response)
        finally:
            response.release()

    async def _admit(self, scope: Scope, headers: Headers, response: "OutgoingResponse") -> None:
        self._origins.check_host(headers)
        if is_unsafe(scope) or EVENT_STREAM in headers.get("accept", ""):
            self._origins.check_origin(headers)
        caller = scope["leaseway.caller"] = await self._authenticate(scope, headers)
        for rate_limit in self._service.rate_limits:
            if caller is not None and rate_limit.applies_to(caller):
                admission = await rate_limit.admit(caller.tenant)
                response.headers += admission.headers
                response.release = admission.release

    async def _authenticate(self, scope: Scope, headers: Headers) -> Caller | None:
        authenticator = self._service.authenticator
        if authenticator is None:
            # A service with authentication that was never opened has no callers.
            return None if self._service.settings.auth else LOCAL
        caller = await authenticator.caller(headers)
        # A WebSocket cannot send custom headers; its Origin header has been checked.
        if caller is not None and is_unsafe(scope) and scope["type"] == "http":
            authenticator.check_csrf(headers)
        return caller

    async def _refuse(self, error: Exception, scope: Scope, receive: Receive, response: "OutgoingResponse") -> None:
        request_id = scope["leaseway.request_id"]
        problem = log_problem(error, request_id, scope["path"])
        if response.has_begun:
            raise error  # too late for an error response: the server closes the connection
        if scope["type"] == "websocket":
            await response.send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": problem.code})
        else:
            await problem_response(problem, request_id)(scope, receive, response.send)


class OutgoingResponse:
    """Adds headers to a response, and ends the request's count against the tenant's concurrency limit."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.has_begun = False
        self.status: int | None = None
        request_id = scope["leaseway.request_id"].encode()
        self.headers: list[tuple[bytes, bytes]] = [(b"x-request-id", request_id), *SECURITY_HEADERS]
        self._is_api = scope["path"].startswith("/v1")
        self._send = send
        self.release: Callable[[], None] = lambda: None
        """Called when the response begins. A stream is not counted any longer then: its subscribers are counted."""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begin()
            self.status = message["status"]
            given = message["headers"] = list(message.get("headers", ()))
            if self._is_api and not any(name == b"cache-control" for name, _ in given):
                given.append(NO_STORE)
            # Headers that a route sets itself take precedence.
            names = {name.lower() for name, _ in given}
            given += [header for header in self.headers if header[0] not in names]
        elif message["type"] == "websocket.accept":
            self._begin()
        await self._send(message)

    def _begin(self) -> None:
        self.has_begun = True
        self.release()


def is_unsafe(scope: Scope) -> bool:
    """An allow-list: unknown methods are unsafe."""
    return scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS


def choose_request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


# -- tracing --------------------------------------------------------------------------------------------------------


class TracingMiddleware:
    """Makes each request a span. Added only if tracing is configured."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNTRACED:
            await self._app(scope, receive, send)
            return
        status = CLIENT_GONE

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with self._tracing.serving(scope["method"], Headers(scope=scope)) as span:
            try:
                await self._app(scope, receive, watch)
            finally:
                span.end(route_path(scope), status, span_attributes(scope))


def span_attributes(scope: Scope) -> dict[str, str]:
    caller = scope.get("leaseway.caller")
    attributes = {"request_id": scope.get("leaseway.request_id", "")}
    return attributes if caller is None else {**attributes, "tenant": caller.tenant}


def trace_requests(api: FastAPI, tracing: Tracing | None) -> None:
    """Call it last, so that the log lines of a request contain its span."""
    if tracing is not None and tracing.has_traces:
        api.add_middleware(TracingMiddleware, tracing=tracing)
