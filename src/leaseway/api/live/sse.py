"""GET /v1/events: the same frames as an event stream (SSE), or one at a time for those who poll."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from leaseway.api.errors import Problem
from leaseway.api.live.change_log import Batch
from leaseway.api.live.credential_recheck import Guest
from leaseway.api.live.delivery import Session
from leaseway.api.live.hub import LiveHub
from leaseway.api.live.websocket import abort
from leaseway.domain.ids import Instant
from leaseway.worker.environment import Environment

MEDIA_TYPE = "text/event-stream"
RETRY_MS = 2_000
FIRST_SECONDS = 5.0
MOMENT_SECONDS = 0.001
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),  # a proxy that gathers answers would hold back the news
]


class EventStream(Response):
    """Until somebody ends it. The last number is the id of an event: browsers send it when they connect again."""

    def __init__(
        self,
        live: LiveHub,
        guest: Guest,
        world: Environment,
        told: Instant | None,
        follow: Sequence[str],
        tenant: str | None,
    ) -> None:
        super().__init__()
        self._live = live
        self._guest = guest
        self._world = world
        self._listening = live.listening(guest.caller, told, follow, tenant)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def deliver(seq: Instant | None, frame: str) -> None:
            number = "" if seq is None else f"id: {seq}\n"
            await part(send, f"{number}data: {frame}\n\n")

        async with self._listening as listener:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await part(send, f"retry: {RETRY_MS}\n\n")
            watching = asyncio.ensure_future(gone(receive, lambda: listener.end("left")))
            try:
                why = await Session(self._live, listener, self._guest, self._world).run(deliver)
            finally:
                watching.cancel()
                await asyncio.wait([watching])
        if why == "slow":
            await abort(scope, self._world.clock)
        elif why != "left":
            await part(send, f"event: end\ndata: {why}\n\n", is_last=True)


async def part(send: Send, text: str, *, is_last: bool = False) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": not is_last})


async def gone(receive: Receive, end: Callable[[], Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    end()


async def polled(
    live: LiveHub, guest: Guest, told: Instant | None, follow: Sequence[str], tenant: str | None, seconds: float
) -> Batch:
    """What differs, at once or as soon as there is something; after so many seconds nothing."""
    async with live.listening(guest.caller, told, follow, tenant) as listener:
        # The first look may still be under way.
        batch = await listener.next(max(seconds, MOMENT_SECONDS)) if await listener.seen(FIRST_SECONDS) else None
        if batch is None:
            raise Problem(503, "unavailable", "nothing can be seen now; ask again", headers={"Retry-After": "1"})
        return batch
