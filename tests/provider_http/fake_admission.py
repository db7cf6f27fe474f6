"""A fake admission that grants everything and records it, and a clock whose sleeps take no time."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from leaseway.aiohttp_transport import AiohttpTransport
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus
from leaseway.ports.provider_requests import Delivery, HttpTransport, RequestGrant
from leaseway.worker.provider_http import DEFAULT_SETTINGS, Http, HttpEnvironment, HttpSettings

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
        self.settled: list[tuple[int, dict[str, Any]]] = []
        self.has_called = False
        """Whether the job has made calls before, so that it must not start again."""
        self.waits: list[tuple[str, float]] = []
        self.when_asked: Callable[[], None] = lambda: None

    async def before(self, seconds: float) -> Grant:
        self.when_asked()
        self.given += 1
        return Grant(self.given, self.checks)

    async def after(self, grant: RequestGrant, status: RateLimitStatus | None, delivery: Delivery) -> None:
        assert isinstance(grant, Grant)
        self.ended.append((grant.number, status, delivery))

    def settle(self, grant: RequestGrant, amounts: Mapping[str, Any]) -> None:
        assert isinstance(grant, Grant)
        self.settled.append((grant.number, dict(amounts)))

    async def wait_in_place(self, why: str, seconds: float, *, by_limit: bool) -> bool:
        self.waits.append((why, seconds))
        return self.has_called

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

    def __init__(self, transport: HttpTransport | None = None) -> None:
        self.door = Door()
        self.naps = Naps()
        self.wire = transport or AiohttpTransport()

    def http(self, settings: HttpSettings = DEFAULT_SETTINGS, job: str = "job") -> Http:
        """`ctx.http` as a new attempt of this job would see it."""
        world = HttpEnvironment(self.wire, self.naps, Half())
        return Http(world, self.door, lambda step: f"{job}:{step}" if step else job, settings)
