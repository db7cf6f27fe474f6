"""A model of the provider: how long a request takes, how often it fails, and what it costs."""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping
from random import Random

from msgspec import Struct, field

from leaseway.domain.errors import BadValue
from leaseway.domain.http import HttpReply, HttpRequest
from leaseway.ports.provider_requests import AboutToSend

URL = "https://provider.simulated/"
SECONDS_MAX = 3_600.0
COST_MAX = 1e9
P95 = 1.6448536269514722
"""The 95th percentile of the standard normal distribution."""
REFUSED_SECONDS = 0.02
"""A request that is throttled is answered without work."""
OK, TOO_MANY, UNAVAILABLE = 200, 429, 503


class ProviderModel(Struct, frozen=True, kw_only=True):
    """How a provider answers.

    `seconds`: the median time of a request; `p95_seconds`: its 95th percentile, None if every request takes the same
    time. `errors`, `throttled`: the shares of requests that are answered with 503 and 429, which asks to wait for
    `retry_after_seconds`. `costs`: what a request really costs, by unit, for example {"usd": 0.004, "tokens": 900};
    units that are missing cost what the job declares.
    """

    seconds: float = 0.2
    p95_seconds: float | None = None
    errors: float = 0.0
    throttled: float = 0.0
    retry_after_seconds: float = 1.0
    costs: Mapping[str, float] = field(default_factory=dict)


def check_provider(model: ProviderModel) -> ProviderModel:
    """Refuse a model that no provider can have. The error names the field."""
    check_number("provider: seconds", model.seconds, SECONDS_MAX)
    if model.p95_seconds is not None:
        check_number("provider: p95_seconds", model.p95_seconds, SECONDS_MAX)
        if model.p95_seconds < model.seconds:
            problem = f"must not be smaller than seconds (is {model.p95_seconds:g}, seconds is {model.seconds:g})"
            raise BadValue("provider: p95_seconds", problem)
        if model.seconds == 0 < model.p95_seconds:
            raise BadValue("provider: seconds", "must be greater than 0 if p95_seconds is given")
    check_number("provider: errors", model.errors, 1.0)
    check_number("provider: throttled", model.throttled, 1.0)
    if model.errors + model.throttled > 1:
        raise BadValue("provider: errors", "and throttled must not exceed 1 together")
    check_number("provider: retry_after_seconds", model.retry_after_seconds, SECONDS_MAX)
    for unit, cost in model.costs.items():
        check_number(f"provider: costs: {unit}", cost, COST_MAX)
    return model


def check_number(name: str, value: object, most: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= most:  # type: ignore[operator]
        raise BadValue(name, f"must be a number from 0 to {most:,g} (is {value!r})")
    return float(value)  # type: ignore[arg-type]


class ModelledProvider:
    """Answers the requests of all workers of one run, and counts them."""

    def __init__(self, model: ProviderModel, random: Random) -> None:
        self.model = model
        self._random = random
        self.throttled = self.errors = 0
        self.by_url = Counter[str]()

    @property
    def requests(self) -> int:
        return self.by_url.total()

    async def send(self, request: HttpRequest, about_to_send: AboutToSend) -> HttpReply:
        await about_to_send()
        self.by_url[request.url] += 1
        drawn = self._random.random()
        if drawn < self.model.throttled:
            self.throttled += 1
            await asyncio.sleep(REFUSED_SECONDS)
            headers = {"Retry-After": str(math.ceil(self.model.retry_after_seconds))}
            return HttpReply(TOO_MANY, headers=headers, request=request)
        await asyncio.sleep(self._draw_seconds())
        if drawn < self.model.throttled + self.model.errors:
            self.errors += 1
            return HttpReply(UNAVAILABLE, request=request)
        return HttpReply(OK, content=b"{}", request=request)

    async def close(self) -> None:
        """Nothing is open."""

    def _draw_seconds(self) -> float:
        """Lognormal: latencies have a long tail to the right."""
        model = self.model
        if model.p95_seconds is None or model.seconds == 0:
            return model.seconds
        sigma = math.log(model.p95_seconds / model.seconds) / P95
        return model.seconds * math.exp(sigma * self._random.gauss(0, 1))
