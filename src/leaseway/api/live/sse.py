"""GET /v1/events: frames as server-sent events, or one at a time for clients that poll."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from leaseway.api.errors import Problem
from leaseway.api.live.change_log import EventBatch
from leaseway.api.live.credential_recheck import Credential
from leaseway.api.live.delivery import FrameDelivery
from leaseway.api.live.hub import LiveHub
from leaseway.api.live.websocket import abort_connection
from leaseway.domain.ids import Instant
from leaseway.worker.environment import Environment

MEDIA_TYPE = "text/event-stream"
RETRY_MS = 2_000
FIRST_POLL_SECONDS = 5.0
WAIT_SECONDS_MIN = 0.001
HEADERS = [
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
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
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
