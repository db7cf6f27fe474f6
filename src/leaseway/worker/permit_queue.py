"""exchange ─► [admit] ─► run handler: the queue in front of one set of limits.

Calls of one process that need the same limits wait in one queue. The first one asks the limiter for all of them, so
that at most one request per set of limits is under way. Permits of long windows are taken ahead; those that are not
used in time are lost.
"""

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from leaseway.domain.errors import TransientError, UsageError
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import Granted, Never, Wait
from leaseway.domain.outcome import Deferred

if TYPE_CHECKING:
    from leaseway.worker.limiter_client import LimiterClient, Permit, PermitRequests

LATE_MAX = 5
"""After this many permits in a row that arrived too late to be used, a warning is logged."""
BELIEVE_SECONDS = 60.0
"""How long a refusal is remembered. After that the limit may have been raised."""


class PermitQueue:
    def __init__(self, limiter: "LimiterClient", requests: "PermitRequests", ahead: int | None) -> None:
        self.requests = requests
        self._permits: deque[Permit] = deque()
        self.call_ended = asyncio.Event()
        """A call of this process ended, so that its place under a concurrency limit is free."""
        self._limiter = limiter
        self._ahead = ahead
        self._lock = asyncio.Lock()
        self.waiting = 0
        self._refusal = Wait(0, "", "")
        self._closed_until = float("-inf")
        self._believed_until = float("-inf")
        self._late = 0
        self._used = 0
        self._used_since = limiter.now()

    async def take(self, patience_seconds: float) -> "Permit":
        self.waiting += 1
        try:
            if self._limiter.now() < self._believed_until:
                self._defer_if_longer(patience_seconds)
            async with self._lock:
                return await self._first(self._limiter.now() + patience_seconds)
        finally:
            self.waiting -= 1

    async def _first(self, until: float) -> "Permit":
        failures = 0
        while (permit := await self._next_valid()) is None:
            self.call_ended.clear()
            try:
                verdict, sent_at = await self._limiter.grant(self.requests, self._count())
            except TransientError:
                # While it is not known how much was used, nothing is granted.
                failures += 1
                await self._limiter.sleep(self._limiter.pause_seconds(failures))
                continue
            match verdict:
                case Granted(count=count):
                    self._permits.extend([self._limiter.permit(verdict, sent_at)] * count)
                case Never(name, most):
                    raise UsageError(f"limit {name}: one call needs more than the limit ever grants at once ({most:,})")
                case Wait(wait_us):
                    self._refusal, self._closed_until = verdict, self._limiter.now() + wait_us / SECOND_US
                    self._believed_until = self._limiter.now() + BELIEVE_SECONDS
                    self._defer_if_longer(until - self._limiter.now())
                    await self._until_open(wait_us / SECOND_US)
        return permit

    async def _next_valid(self) -> "Permit | None":
        """The next permit that is still valid. Expired ones are lost, but they give up their places."""
        while self._permits:
            permit = self._permits.popleft()
            if self._limiter.is_valid(permit):
                self._used += 1
                self._late = 0
                return permit
            await self._limiter.end_calls(permit.granted.asks)
            self._late += 1
            if self._late == LATE_MAX:
                self._limiter.warn_of_late(self.requests, permit)
        return None

    @property
    def is_needed(self) -> bool:
        return self.waiting > 0 or any(map(self._limiter.is_valid, self._permits))

    def _count(self) -> int:
        """How many permits to ask for: those that are waited for here, and what half a second will need, judging by the
        recent rate."""
        now = self._limiter.now()
        elapsed = max(now - self._used_since, 0.1)
        rate = self._used / elapsed
        if elapsed > 2:
            self._used, self._used_since = int(rate), now - 1
        return 1 if self._ahead is None else max(self.waiting, 1) + min(int(rate / 2), self._ahead)

    def _defer_if_longer(self, patience_seconds: float) -> None:
        left = self._closed_until - self._limiter.now()
        if left > patience_seconds and not self._permits:
            raise Deferred(f"limit {self._refusal.name}: {self._refusal.why}", delay_us=int(left * SECOND_US))

    async def _until_open(self, seconds: float) -> None:
        """Wait this long, or until a call of this process ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.call_ended.wait()
