"""listener ─► [session] ─► the line: one listener's time with us.

A frame is {"seq": number, "events": […]}, and the number is where to go on. Without news there is an empty frame now
and then, and at once for those who come back, so that both sides know that the other is there.
"""

import asyncio
from collections.abc import Awaitable, Callable

from leaseway.api.live.change_log import frame_of
from leaseway.api.live.credential_recheck import Guest
from leaseway.api.live.hub import LiveHub
from leaseway.api.live.subscribers import Listener, Why
from leaseway.domain.ids import Instant
from leaseway.worker.environment import Environment

Deliver = Callable[[Instant | None, str], Awaitable[None]]
"""Sends a frame, and returns when the line has room again. The number is None for a frame that is not the last one."""


class Session:
    def __init__(self, live: LiveHub, listener: Listener, guest: Guest, world: Environment) -> None:
        self._live = live
        self._listener = listener
        self._guest = guest
        clock = self._clock = world.clock
        self._beaten_at = self._checked_at = clock.monotonic()
        # Those who came together shall not come back together.
        self._ends_at = clock.monotonic() + live.bounds.life_seconds * (0.75 + world.chance.random() / 2)

    async def run(self, deliver: Deliver) -> Why:
        """Until it ends, or is cancelled because the listener has gone."""
        try:
            await self._greet(deliver)
            while True:
                why = await self._over() or await self._turn(deliver)
                if why is not None:
                    return why
        except TimeoutError:
            return "slow"

    async def _greet(self, deliver: Deliver) -> None:
        """Who comes back while nothing happens would hear nothing, and take the line for one that lets nothing
        through."""
        if self._listener.told is not None:
            await self._send(deliver, self._listener.told, frame_of(self._listener.told))

    async def _turn(self, deliver: Deliver) -> Why | None:
        bounds = self._live.bounds
        batch = await self._listener.next(min(bounds.beat_seconds, bounds.check_seconds))
        if batch is None:
            return self._listener.why
        for number, frame in enumerate(batch.frames, 1):
            await self._send(deliver, batch.seq if number == len(batch.frames) else None, frame)
        now = self._clock.monotonic()
        if batch.frames:
            self._beaten_at = now
        elif now - self._beaten_at >= bounds.beat_seconds and self._listener.told is not None:
            self._beaten_at = now
            await self._send(deliver, self._listener.told, frame_of(self._listener.told))
        return None

    async def _send(self, deliver: Deliver, seq: Instant | None, frame: str) -> None:
        async with asyncio.timeout(self._live.bounds.send_seconds):
            await deliver(seq, frame)

    async def _over(self) -> Why | None:
        now = self._clock.monotonic()
        if self._guest.is_over(self._live.lookout.board.seq):
            return "expired"
        if now >= self._ends_at:
            return "old"
        if now - self._checked_at >= self._live.bounds.check_seconds:
            self._checked_at = now
            return None if await self._guest.may_stay() else "expired"
        return None
