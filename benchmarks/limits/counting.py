"""How often a fleet calls its limiter, and how much of a limit it uses.

Sixty-four workers on one limit, each with a `LimiterClient` of its own as sixty-four processes would have. Calls are
counted at the limiter.
"""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, NamedTuple, TypeVar

from benchmarks.limits.fleet import Worker, maps, worker_of
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.ports.limiter import Limiter
from leaseway.stores.memory.limits import MemoryLimiter
from leaseway.telemetry.log import NoEvents
from leaseway.virtual_time.loop import SimLoop
from leaseway.wiring import build_environment
from leaseway.worker.environment import Environment

T = TypeVar("T")

WORKERS = 64
START_SECONDS = 2.0
"""Until all workers run, and know how much they need."""
WAY_SECONDS = 0.001
REQUEST_SECONDS = 0.001
STEADY_AFTER_SECONDS = 120.0
"""Two windows: the initial contents of the bucket are used up."""
VERBS = ("acquire", "return_unused", "end_calls", "renew_calls", "observe", "levels")


class Counted:
    """A limiter that counts its calls, except for definitions. In virtual time each direction takes up to
    `way_seconds`, so that no worker is ever exactly on time.
    """

    def __init__(self, limiter: Limiter, way_seconds: float = 0.0, seed: int = 0) -> None:
        self._limiter = limiter
        self._way_seconds = way_seconds
        self._chance = Random(seed)
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._limiter, name)
        if name not in VERBS:
            return verb

        async def counted(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            await self._pass()
            answer = await verb(*arguments, **options)
            await self._pass()
            return answer

        return counted

    async def _pass(self) -> None:
        if self._way_seconds:
            await asyncio.sleep(self._way_seconds * self._chance.random())


class Used(NamedTuple):
    sent: int
    calls: int
    seconds: float

    @property
    def calls_per_request(self) -> float:
        return self.calls / self.sent


class Fleet:
    def __init__(self, world: Environment, rate: str, workers: int, way_seconds: float = 0.0) -> None:
        self._limiters = [Counted(world.limiter, way_seconds, seed) for seed in range(workers)]
        self._workers = [worker_of(world._replace(limiter=limiter), [maps(rate)]) for limiter in self._limiters]
        self._is_over = False
        self._sent = 0
        self._calls = 0
        """Of requests that were sent: calls that still wait are not counted, at the beginning and at the end."""

    async def used(self, after_seconds: float, seconds: float, request_seconds: float) -> Used:
        """What happens within this many seconds, after the start."""
        async with asyncio.TaskGroup() as group:
            for worker, limiter in zip(self._workers, self._limiters, strict=True):
                group.create_task(self._send(worker, limiter, request_seconds))
            await asyncio.sleep(after_seconds)
            sent, calls, began = self._sent, self._calls, asyncio.get_running_loop().time()
            await asyncio.sleep(seconds)
            elapsed = asyncio.get_running_loop().time() - began
            used = Used(self._sent - sent, self._calls - calls, elapsed)
            self._is_over = True
        return used

    async def _send(self, worker: Worker, limiter: Counted, request_seconds: float) -> None:
        """One request after the other."""
        while not self._is_over:
            before = limiter.calls
            await worker.call_may_leave()
            self._sent += 1
            self._calls += limiter.calls - before
            await asyncio.sleep(request_seconds)


async def used_of(address: str, rate: str, seconds: float, request_seconds: float) -> Used:
    """In real time, with the limiter at this URL."""
    world = build_environment("memory://", address, NoEvents())
    try:
        return await Fleet(world, rate, WORKERS).used(START_SECONDS, seconds, request_seconds)
    finally:
        await world.limiter.close()


# -- in virtual time ------------------------------------------------------------------------------------------------


class LoopClock:
    """The time of the event loop."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_us(self) -> Instant:
        return round(self.monotonic() * SECOND_US)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def sustained(rate: str, seconds: float, workers: int = WORKERS) -> Used:
    clock = LoopClock()
    world = build_environment("memory://", None, NoEvents())._replace(limiter=MemoryLimiter(clock.wall_us), clock=clock)
    return await Fleet(world, rate, workers, WAY_SECONDS).used(STEADY_AFTER_SECONDS, seconds, REQUEST_SECONDS)


def in_virtual_time(call: Coroutine[Any, Any, T]) -> T:
    loop = SimLoop()
    try:
        return loop.run_until_complete(call)
    finally:
        loop.close()
