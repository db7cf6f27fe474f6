"""subscriber ─► [delivery] ─► client: over a WebSocket, as server-sent events, or by long polling.

A frame is {"seq": number, "events": […]}; the client resumes with that number. Without changes an empty frame is sent
from time to time, and immediately to clients that resume, so that both sides notice a broken connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from leaseway.api.errors import Problem, invalid_credential, missing_credential
from leaseway.api.live.change_log import EventBatch, render_frame
from leaseway.api.live.credentials import Credential, use_ticket
from leaseway.api.live.hub import LiveHub, LiveService, check_ids
from leaseway.api.live.poller import EndReason, Subscriber
from leaseway.domain.identity import Caller
from leaseway.domain.identity import Scope as CallerScope
from leaseway.domain.ids import Instant
from leaseway.ports.clock import Clock
from leaseway.worker.environment import Environment

SendFrame = Callable[[Instant | None, str], Awaitable[None]]
"""Sends a frame and returns when the connection has room again. The sequence number is None for all but the last frame
of a batch."""


class FrameDelivery:
    """Sends frames to one subscriber until the subscription ends, over either transport."""

    def __init__(self, live: LiveHub, subscriber: Subscriber, credential: Credential, world: Environment) -> None:
        self._live = live
        self._subscriber = subscriber
        self._credential = credential
        clock = self._clock = world.clock
        self._sent_at = self._rechecked_at = clock.monotonic()
        # Clients that connected together must not reconnect together.
        self._ends_at = clock.monotonic() + live.settings.lifetime_seconds * (0.75 + world.chance.random() / 2)

    async def run(self, send: SendFrame) -> EndReason:
        """Until the subscription ends, or the task is cancelled because the client has disconnected."""
        try:
            await self._greet(send)
            while True:
                reason = await self._end_reason() or await self._deliver_next(send)
                if reason is not None:
                    return reason
        except TimeoutError:
            return "slow"

    async def _greet(self, send: SendFrame) -> None:
        """A client that resumes while nothing changes would otherwise take the connection for a blocked one."""
        if self._subscriber.received is not None:
            await self._send_heartbeat(send, self._subscriber.received)

    async def _deliver_next(self, send: SendFrame) -> EndReason | None:
        settings = self._live.settings
        batch = await self._subscriber.next(min(settings.heartbeat_seconds, settings.recheck_seconds))
        if batch is None:
            return self._subscriber.end_reason
        for number, frame in enumerate(batch.frames, 1):
            await self._send_frame(send, batch.seq if number == len(batch.frames) else None, frame)
        now = self._clock.monotonic()
        if batch.frames:
            self._sent_at = now
        elif now - self._sent_at >= settings.heartbeat_seconds and self._subscriber.received is not None:
            self._sent_at = now
            await self._send_heartbeat(send, self._subscriber.received)
        return None

    async def _send_heartbeat(self, send: SendFrame, seq: Instant) -> None:
        await self._send_frame(send, seq, render_frame(seq))

    async def _send_frame(self, send: SendFrame, seq: Instant | None, frame: str) -> None:
        async with asyncio.timeout(self._live.settings.send_seconds):
            await send(seq, frame)

    async def _end_reason(self) -> EndReason | None:
        now = self._clock.monotonic()
        if self._credential.has_expired(self._live.poller.log.seq):
            return "expired"
        if now >= self._ends_at:
            return "lifetime"
        if now - self._rechecked_at >= self._live.settings.recheck_seconds:
            self._rechecked_at = now
            return None if await self._credential.is_valid() else "expired"
        return None


CLOSE_CODES: Mapping[EndReason, int] = {"expired": 4401, "invalid_message": 1008}
TRY_AGAIN_LATER = 1013
"""The close code for every other reason: reconnect with the last sequence number."""
SEQ_DIGITS_MAX = 17


class ClientMessage(Struct, forbid_unknown_fields=True):
    follow: list[str]


_decode = msgspec.json.Decoder(ClientMessage).decode


async def serve_websocket(websocket: WebSocket) -> None:
    service: LiveService = websocket.app.state.service
    live, query, scope = service.live, websocket.query_params, websocket.scope
    credential = await authenticate(service, scope, query.get("ticket"))
    received, follow = parse_seq(query.get("after", "")), query.getlist("follow")
    async with live.subscribe(credential.caller, received, follow, query.get("tenant")) as subscriber:
        await websocket.accept()
        delivery = FrameDelivery(live, subscriber, credential, service.world)
        reason = await WebSocketTransport(live, subscriber, websocket.receive, websocket.send).run(delivery)
    if reason == "slow":
        await abort_connection(scope, service.world.clock)


class WebSocketTransport:
    def __init__(self, live: LiveHub, subscriber: Subscriber, receive: Receive, send: Send) -> None:
        self._live = live
        self._subscriber = subscriber
        self._receive = receive
        self._send = send
        self._messages = 0

    async def run(self, delivery: FrameDelivery) -> EndReason:
        receiving = asyncio.ensure_future(self._receive_messages())
        try:
            reason = await delivery.run(self._send_frame)
        except (OSError, WebSocketDisconnect):
            return "disconnected"
        finally:
            receiving.cancel()
            await asyncio.wait([receiving])
        if reason not in ("slow", "disconnected"):
            await self._close(reason)
        return reason

    async def _send_frame(self, seq: Instant | None, frame: str) -> None:
        await self._send({"type": "websocket.send", "text": frame})

    async def _close(self, reason: EndReason) -> None:
        with suppress(OSError, RuntimeError, WebSocketDisconnect):  # the client has disconnected itself
            code = CLOSE_CODES.get(reason, TRY_AGAIN_LATER)
            await self._send({"type": "websocket.close", "code": code, "reason": reason})

    async def _receive_messages(self) -> None:
        began = asyncio.get_running_loop().time()
        while True:  # until the client disconnects
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self._subscriber.end("disconnected")
                return
            now = asyncio.get_running_loop().time()
            if now - began > self._live.settings.heartbeat_seconds:
                began, self._messages = now, 0
            self._messages += 1
            if self._messages > self._live.settings.messages_max or not self._handle(message.get("text")):
                self._subscriber.end("invalid_message")
                return

    def _handle(self, text: str | None) -> bool:
        """False: the message is not supported."""
        try:
            message = _decode((text or "").encode())
            self._live.follow(self._subscriber, check_ids(message.follow, self._live.settings.follow_max))
        except (msgspec.MsgspecError, Problem):
            return False
        return True


async def authenticate(service: LiveService, scope: Scope, ticket: str | None) -> Credential:
    """By a ticket, or by the credential that the middleware has checked. It has checked the Origin header as well."""
    caller: Caller | None = scope.get("leaseway.caller")
    headers: Headers | None = Headers(scope=scope)
    if ticket is not None:
        caller, headers = await use_ticket(service.world.store, ticket), None
        if caller is None:
            raise invalid_credential()
    if caller is None:
        raise missing_credential()
    if not caller.may(CallerScope.JOBS_READ):
        raise Problem(403, "not_allowed", f"this credential lacks the scope {CallerScope.JOBS_READ.value}")
    return Credential(service, caller, headers)


def parse_seq(text: str) -> Instant | None:
    """None for text that is not a sequence number: the client receives a snapshot."""
    return int(text) if 0 < len(text) <= SEQ_DIGITS_MAX and text.isascii() and text.isdigit() else None


async def abort_connection(scope: Scope, clock: Clock) -> None:
    """A graceful close waits until everything is sent; a client that does not read would keep the connection open."""
    abort = scope.get("leaseway.abort")
    if abort is not None:
        abort()
        await clock.sleep(0)  # lets the server notice it


SSE_MEDIA_TYPE = "text/event-stream"
RETRY_MS = 2_000
FIRST_POLL_SECONDS = 5.0
WAIT_SECONDS_MIN = 0.001
SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),  # a proxy that buffers responses would delay events
]


class EventStream(Response):
    """A stream that lasts until the subscription ends. The sequence number is the id of an event, which browsers send
    when they reconnect."""

    def __init__(
        self,
        live: LiveHub,
        credential: Credential,
        world: Environment,
        received: Instant | None,
        follow: Sequence[str],
        tenant: str | None,
    ) -> None:
        super().__init__()
        self._live = live
        self._credential = credential
        self._world = world
        self._subscription = live.subscribe(credential.caller, received, follow, tenant)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_frame(seq: Instant | None, frame: str) -> None:
            id_line = "" if seq is None else f"id: {seq}\n"
            await send_text(send, f"{id_line}data: {frame}\n\n")

        async with self._subscription as subscriber:
            await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
            await send_text(send, f"retry: {RETRY_MS}\n\n")
            watching = asyncio.ensure_future(wait_for_disconnect(receive, lambda: subscriber.end("disconnected")))
            try:
                reason = await FrameDelivery(self._live, subscriber, self._credential, self._world).run(send_frame)
            finally:
                watching.cancel()
                await asyncio.wait([watching])
        if reason == "slow":
            await abort_connection(scope, self._world.clock)
        elif reason != "disconnected":
            await send_text(send, f"event: end\ndata: {reason}\n\n", is_last=True)


async def send_text(send: Send, text: str, *, is_last: bool = False) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": not is_last})


async def wait_for_disconnect(receive: Receive, end: Callable[[], Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    end()


async def poll_events(
    live: LiveHub,
    credential: Credential,
    received: Instant | None,
    follow: Sequence[str],
    tenant: str | None,
    seconds: float,
) -> EventBatch:
    """The changes, immediately or as soon as there are some; none after this time."""
    async with live.subscribe(credential.caller, received, follow, tenant) as subscriber:
        # The first poll may still be in progress.
        has_polled = await subscriber.wait_for_poll(FIRST_POLL_SECONDS)
        batch = await subscriber.next(max(seconds, WAIT_SECONDS_MIN)) if has_polled else None
        if batch is None:
            detail = "the store cannot be polled; try again"
            raise Problem(503, "unavailable", detail, headers={"Retry-After": "1"})
        return batch
