"""A fake admission that grants everything and records it, and a clock whose sleeps take no time."""

import asyncio
from collections.abc import Callable

import httpx2

from leaseway.domain.limits.rate_limit_headers import RateLimitStatus
from leaseway.worker.provider_http import (
    DEFAULT_SETTINGS,
    Delivery,
    Http,
    HttpEnvironment,
    HttpSettings,
    RequestGrant,
    SharedClient,
)

NOW_US = 1_791_000_000_000_000


class Grant:
    def __init__(self, number: int, checks: list[bool]) -> None:
        self.number = number
        self._checks = checks

    def is_valid(self) -> bool:
        return self._checks.pop(0) if self._checks else True


class Door:
    """`checks` contains the results of the next validity checks; all later checks succeed."""

    def __init__(self) -> None:
        self.checks: list[bool] = []
        self.given = 0
        self.ended: list[tuple[int, RateLimitStatus | None, Delivery]] = []
        self.when_asked: Callable[[], None] = lambda: None

    async def before(self) -> Grant:
        self.when_asked()
        self.given += 1
        return Grant(self.given, self.checks)

    async def after(self, grant: RequestGrant, status: RateLimitStatus | None, delivery: Delivery) -> None:
        assert isinstance(grant, Grant)
        self.ended.append((grant.number, status, delivery))

    @property
    def fates(self) -> list[Delivery]:
        return [fate for _, _, fate in self.ended]

    @property
    def heard(self) -> list[RateLimitStatus]:
        return [said for _, said, _ in self.ended if said is not None]

    def is_balanced(self) -> bool:
        """Whether each admission was returned exactly once."""
        return sorted(number for number, _, _ in self.ended) == list(range(1, self.given + 1))


class Naps:
    """Sleeps are recorded and take no time."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_us(self) -> int:
        return NOW_US

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


class Half:
    def random(self) -> float:
        return 0.5


class Place:
    """Everything that a test of `ctx.http` inspects."""

    def __init__(self, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self.door = Door()
        self.naps = Naps()
        self.wire = SharedClient(transport)

    def http(self, settings: HttpSettings = DEFAULT_SETTINGS, job: str = "job") -> Http:
        """`ctx.http` as a new attempt of this job would see it."""
        world = HttpEnvironment(self.wire, self.naps, Half())
        return Http(world, self.door, lambda step: f"{job}:{step}" if step else job, settings)
