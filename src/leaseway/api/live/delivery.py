"""subscriber ─► [delivery] ─► transport: sends frames to one subscriber until the subscription ends.

A frame is {"seq": number, "events": […]}; the client resumes with that number. Without changes an empty frame is sent
from time to time, and immediately to clients that resume, so that both sides notice a broken connection.
"""

import asyncio
from collections.abc import Awaitable, Callable

from leaseway.api.live.change_log import render_frame
from leaseway.api.live.credential_recheck import Credential
from leaseway.api.live.hub import LiveHub
from leaseway.api.live.subscribers import EndReason, Subscriber
from leaseway.domain.ids import Instant
from leaseway.worker.environment import Environment

Send = Callable[[Instant | None, str], Awaitable[None]]
"""Sends a frame and returns when the connection has room again. The sequence number is None for all but the last frame
of a batch."""


class FrameDelivery:
    def __init__(self, live: LiveHub, subscriber: Subscriber, credential: Credential, world: Environment) -> None:
        self._live = live
        self._subscriber = subscriber
        self._credential = credential
        clock = self._clock = world.clock
        self._sent_at = self._rechecked_at = clock.monotonic()
        # Clients that connected together must not reconnect together.
        self._ends_at = clock.monotonic() + live.settings.lifetime_seconds * (0.75 + world.chance.random() / 2)

    async def run(self, send: Send) -> EndReason:
        """Until the subscription ends, or the task is cancelled because the client has disconnected."""
        try:
            await self._greet(send)
            while True:
                reason = await self._end_reason() or await self._deliver_next(send)
                if reason is not None:
                    return reason
        except TimeoutError:
            return "slow"

    async def _greet(self, send: Send) -> None:
        """A client that resumes while nothing changes would otherwise take the connection for a blocked one."""
        if self._subscriber.received is not None:
            await self._send_heartbeat(send, self._subscriber.received)

    async def _deliver_next(self, send: Send) -> EndReason | None:
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

    async def _send_heartbeat(self, send: Send, seq: Instant) -> None:
        await self._send_frame(send, seq, render_frame(seq))

    async def _send_frame(self, send: Send, seq: Instant | None, frame: str) -> None:
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
