"""/v1/live: frames over a WebSocket. The only message that a client may send is {"follow": [ids]}."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from leaseway.api.errors import Problem, invalid_credential, missing_credential
from leaseway.api.live.credential_recheck import Credential
from leaseway.api.live.delivery import FrameDelivery
from leaseway.api.live.hub import LiveHub, LiveService, check_ids
from leaseway.api.live.subscribers import EndReason, Subscriber
from leaseway.api.live.tickets import use_ticket
from leaseway.domain.identity import Caller
from leaseway.domain.identity import Scope as CallerScope
from leaseway.domain.ids import Instant
from leaseway.ports.clock import Clock

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
