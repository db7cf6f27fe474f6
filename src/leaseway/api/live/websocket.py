"""/v1/live: the same frames over a WebSocket. A listener may say {"follow": [ids]}, and nothing else."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from leaseway.api.errors import Problem, invalid_credential, missing_credential
from leaseway.api.live.credential_recheck import Guest
from leaseway.api.live.delivery import Session
from leaseway.api.live.hub import House, LiveHub, followed
from leaseway.api.live.subscribers import Listener, Why
from leaseway.api.live.tickets import use_ticket
from leaseway.domain.identity import Caller
from leaseway.domain.identity import Scope as Right
from leaseway.domain.ids import Instant
from leaseway.ports.clock import Clock

CODES: Mapping[Why, int] = {"expired": 4401, "unruly": 1008}
COME_AGAIN = 1013
"""For every other end: connect again, with the last number."""
SEQ_DIGITS_MAX = 17


class Words(Struct, forbid_unknown_fields=True):
    follow: list[str]


_decode = msgspec.json.Decoder(Words).decode


async def socket(websocket: WebSocket) -> None:
    service: House = websocket.app.state.service
    live, asked, scope = service.live, websocket.query_params, websocket.scope
    guest = await guest_of(service, scope, asked.get("ticket"))
    told, follow = seq_of(asked.get("after", "")), asked.getlist("follow")
    async with live.listening(guest.caller, told, follow, asked.get("tenant")) as listener:
        await websocket.accept()
        why = await Line(live, listener, websocket.receive, websocket.send).run(
            Session(live, listener, guest, service.world)
        )
    if why == "slow":
        await abort(scope, service.world.clock)


class Line:
    def __init__(self, live: LiveHub, listener: Listener, receive: Receive, send: Send) -> None:
        self._live = live
        self._listener = listener
        self._receive = receive
        self._send = send
        self._heard = 0

    async def run(self, session: Session) -> Why:
        hearing = asyncio.ensure_future(self._hear())
        try:
            why = await session.run(self._deliver)
        except (OSError, WebSocketDisconnect):
            return "left"  # the line is cut
        finally:
            hearing.cancel()
            await asyncio.wait([hearing])
        if why not in ("slow", "left"):
            await self._close(why)
        return why

    async def _deliver(self, seq: Instant | None, frame: str) -> None:
        await self._send({"type": "websocket.send", "text": frame})

    async def _close(self, why: Why) -> None:
        with suppress(OSError, RuntimeError, WebSocketDisconnect):  # it has gone by itself
            await self._send({"type": "websocket.close", "code": CODES.get(why, COME_AGAIN), "reason": why})

    async def _hear(self) -> None:
        began = asyncio.get_running_loop().time()
        while True:  # until it goes
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self._listener.end("left")
                return
            now = asyncio.get_running_loop().time()
            if now - began > self._live.bounds.beat_seconds:
                began, self._heard = now, 0
            self._heard += 1
            if self._heard > self._live.bounds.words_max or not self._understands(message.get("text")):
                self._listener.end("unruly")
                return

    def _understands(self, text: str | None) -> bool:
        try:
            words = _decode((text or "").encode())
            self._live.follow(self._listener, followed(words.follow, self._live.bounds.follow_max))
        except (msgspec.MsgspecError, Problem):
            return False
        return True


async def guest_of(service: House, scope: Scope, ticket: str | None) -> Guest:
    """By what the gate has found, or by a ticket. The gate has looked at the Origin before."""
    caller: Caller | None = scope.get("leaseway.caller")
    headers: Headers | None = Headers(scope=scope)
    if ticket is not None:
        caller, headers = await use_ticket(service.world.store, ticket), None
        if caller is None:
            raise invalid_credential()
    if caller is None:
        raise missing_credential()
    if not caller.may(Right.JOBS_READ):
        raise Problem(403, "not_allowed", f"this credential has no scope {Right.JOBS_READ.value}")
    return Guest(service, caller, headers)


def seq_of(text: str) -> Instant | None:
    """What is no number of ours is told everything anew."""
    return int(text) if 0 < len(text) <= SEQ_DIGITS_MAX and text.isascii() and text.isdigit() else None


async def abort(scope: Scope, clock: Clock) -> None:
    """Who does not read would keep the line open for as long as he likes: it closes when everything is sent."""
    cut = scope.get("leaseway.abort")
    if cut is not None:
        cut()
        await clock.sleep(0)  # until the server has noticed
