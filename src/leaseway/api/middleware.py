"""request ─► [host ─► origin ─► caller ─► rate] ─► routes

What stands before every route, the live ones too. Nothing passes it unnamed: each request has an id, each answer the
headers that keep browsers from harm, and whatever breaks behind it becomes a problem with that id.
"""

import re
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leaseway.api.auth.origin_checks import Hosts
from leaseway.api.errors import answer_of, told
from leaseway.domain.identity import LOCAL, Caller

if TYPE_CHECKING:
    from leaseway.api.service import Service

from fastapi import FastAPI
from starlette.requests import Request

from leaseway.api.metrics.request_metrics import GONE, route_of
from leaseway.api.routing import BUSY
from leaseway.ports.tracer import Tracing

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
STREAM = "text/event-stream"
"""Changes nothing, but stays: a page of somebody else must not be able to use up the seats of those who watch."""
POLICY_VIOLATED = 1008
"""How a WebSocket is told that it may not."""
CSP = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
SECURITY = [
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
NO_STORE = (b"cache-control", b"no-store")


class Gate:
    def __init__(self, app: ASGIApp, service: "Service") -> None:
        self._app = app
        self._service = service
        self._hosts = Hosts(service.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        scope["leaseway.request_id"] = request_id_of(headers)
        answer = Answer(scope, send)
        try:
            await self._let_in(scope, headers, answer)
            await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            pass  # He left before he had sent everything: it is no fault of ours, and nobody is there to be told.
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller hears of it, and the log
            await self._refuse(error, scope, receive, answer)
        finally:
            answer.leave()

    async def _let_in(self, scope: Scope, headers: Headers, answer: "Answer") -> None:
        self._hosts.check_host(headers)
        if is_unsafe(scope) or STREAM in headers.get("accept", ""):
            self._hosts.check_origin(headers)
        caller = scope["leaseway.caller"] = await self._caller(scope, headers)
        limiting = self._service.limiting
        if caller is not None and limiting is not None and limiting.concerns(caller):
            admitted = await limiting.admit(caller.tenant)
            answer.headers += admitted.headers
            answer.leave = admitted.leave

    async def _caller(self, scope: Scope, headers: Headers) -> Caller | None:
        door = self._service.door
        if door is None:
            # A service with authentication that was never opened knows nobody.
            return None if self._service.settings.auth else LOCAL
        caller = await door.caller(headers)
        # A WebSocket cannot send headers of its own; its Origin was looked at.
        if caller is not None and is_unsafe(scope) and scope["type"] == "http":
            door.refuse_forged(headers)
        return caller

    async def _refuse(self, error: Exception, scope: Scope, receive: Receive, answer: "Answer") -> None:
        request_id = scope["leaseway.request_id"]
        problem = told(error, request_id, scope["path"])
        if answer.has_begun:
            raise error  # too late to say anything: the server cuts the line
        if scope["type"] == "websocket":
            await answer.send({"type": "websocket.close", "code": POLICY_VIOLATED, "reason": problem.code})
        else:
            await answer_of(problem, request_id)(scope, receive, answer.send)


class Answer:
    """On its way out: every one of them gets our headers."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.has_begun = False
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = [(b"x-request-id", scope["leaseway.request_id"].encode()), *SECURITY]
        self._is_api = scope["path"].startswith("/v1")
        self._send = send
        self.leave: Callable[[], None] = lambda: None
        """The seat of a tenant that counts its requests. A stream does not keep it: its listeners are counted there."""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begin()
            self.status = message["status"]
            given = message["headers"] = list(message.get("headers", ()))
            if self._is_api and not any(name == b"cache-control" for name, _ in given):
                given.append(NO_STORE)
            # A route that says something of its own about a header knows why.
            said = {name.lower() for name, _ in given}
            given += [header for header in self.headers if header[0] not in said]
        elif message["type"] == "websocket.accept":
            self.begin()
        await self._send(message)

    def begin(self) -> None:
        self.has_begun = True
        self.leave()


def is_unsafe(scope: Scope) -> bool:
    """By an allow-list: a method that nobody thought of is unsafe."""
    return scope["type"] == "websocket" or scope["method"] not in SAFE


def request_id_of(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


class Shortcut:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = BUSY.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        guard, endpoint = found
        request = Request(scope, receive, send)
        response = await endpoint(request, await guard(request))
        await response(scope, receive, send)


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
