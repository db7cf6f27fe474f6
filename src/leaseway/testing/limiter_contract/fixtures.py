"""The limits that the tests use, and short functions to acquire them."""

from collections.abc import Sequence

from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import Granted, Notice, Verdict, Wait, permits_left
from leaseway.domain.limits.level import Level
from leaseway.domain.limits.limit import Limit, PermitRequest, size_limit
from leaseway.ports.limiter import Limiter
from leaseway.testing.clock import FakeClock

DAY_SECONDS = 86_400
MANY = 1_000_000

MAPS = Limit("maps", "100/minute")
"""Five permits at once, and then one every 640,625 µs."""
MAPS_BURST = 5
MAPS_TOKEN_US = 640_625

MAIL = Limit("mail", "1000/minute", cost_max=20, delay=0.815)
"""Fifty at once, and then one every 65 ms."""
MAIL_BURST = 50

TWO = Limit("two", "60/minute", "1000/day")
"""Three at once for the minute, and fifty at once for the day."""

PHONE = Limit("phone", concurrency=3)
"""Only a concurrency limit."""

SEAT_US = 30 * SECOND_US


def ask(limit: Limit, cost: int = 1, name: str | None = None) -> PermitRequest:
    return PermitRequest(name or limit.name, limit.name, cost)


async def ready(limiter: Limiter, clock: FakeClock, *limits: Limit) -> None:
    """Declared so long ago that every bucket is full and calls may be in flight."""
    await limiter.definitions.declare([limit.definition for limit in limits])
    clock.advance(2 * DAY_SECONDS)


async def granted(limiter: Limiter, *asks: PermitRequest, least: int = 1, most: int = 1) -> Granted:
    verdict = await limiter.acquire(asks, least=least, most=most)
    assert isinstance(verdict, Granted), verdict
    return verdict


async def waits(limiter: Limiter, *asks: PermitRequest, least: int = 1) -> Wait:
    verdict = await limiter.acquire(asks, least=least, most=least)
    assert isinstance(verdict, Wait), verdict
    return verdict


async def drained(limiter: Limiter, *asks: PermitRequest) -> Granted:
    """Take all available permits."""
    return await granted(limiter, *asks, most=MANY)


async def seated(
    limiter: Limiter, holder: str, *asks: PermitRequest, most: int = 1, in_flight_us: int = SEAT_US
) -> Verdict:
    return await limiter.acquire(asks, most=most, holder=holder, in_flight_us=in_flight_us)


async def throttled(limiter: Limiter, limit: Limit, generation: int = 0, seconds: float | None = 10) -> None:
    retry_after_us = None if seconds is None else round(seconds * SECOND_US)
    await limiter.observe(Notice(limit.name, limit.name, generation, throttled=True, retry_after_us=retry_after_us))


async def level_of(limiter: Limiter, limit: Limit) -> Level:
    _, (level,) = await limiter.levels([ask(limit)])
    return level


async def left(limiter: Limiter, limit: Limit) -> list[int]:
    """The available permits of each window, the shortest first."""
    now, (level,) = await limiter.levels([ask(limit)])
    windows = size_limit(limit.definition).windows
    return [permits_left(window, level.buckets[window.window_us], now, level) for window in windows]


async def picture(limiter: Limiter, limits: Sequence[Limit]) -> object:
    """Everything that can be observed, for comparison."""
    return await limiter.levels([ask(limit) for limit in limits]), await limiter.definitions.all()
