"""caller ─► [tenant's rate] ─► strict body

What one tenant may ask of all processes of the service together: so many requests a minute, and so many at once. Both
are ordinary limits in the shared limiter, `api:{tenant}` and `api-at-once:{tenant}`, which operators may change. Tokens
are taken some at a time and are good for a second, seats are kept as long as they are needed: a busy tenant costs a
few calls a second, not one for each request.

The limits are for tenants. Operators and workers are of the house.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from leaseway.api.auth.tenant_quota import Allowance, Terms
from leaseway.api.settings import ServiceSettings
from leaseway.domain.errors import LeasewayError
from leaseway.domain.identity import Caller, Role
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.limit import LimitDefinition, Rate
from leaseway.ports.clock import Clock
from leaseway.ports.limiter import Limiter

log = logging.getLogger("leaseway.api")

PER_MINUTE = "api:{tenant}"
AT_ONCE = "api-at-once:{tenant}"
BURST_SHARE = 0.2
SWEEP_SECONDS = 5.0
TENANTS_MAX = 10_000
"""From so many on, those are forgotten that ask nothing at the moment."""


def definitions_of(settings: ServiceSettings) -> list[LimitDefinition]:
    rate = Rate(60 * SECOND_US, settings.requests_per_minute)
    return [
        LimitDefinition(name=PER_MINUTE, rates=(rate,), burst_share=BURST_SHARE),
        LimitDefinition(name=AT_ONCE, concurrency=settings.requests_at_once),
    ]


class Admitted:
    """One request that was let in. It leaves its seat when the answer begins, at the latest when it is over."""

    def __init__(self, allowance: Allowance, headers: list[tuple[bytes, bytes]]) -> None:
        self.headers = headers
        self._allowance: Allowance | None = allowance

    def leave(self) -> None:
        if self._allowance is not None:
            self._allowance.busy -= 1
            self._allowance = None


class Limiting:
    """Of one process and its loop; `holder` names it."""

    def __init__(self, limiter: Limiter, clock: Clock, settings: ServiceSettings, holder: str) -> None:
        self._limiter = limiter
        self._clock = clock
        self._definitions = definitions_of(settings)
        burst = math.ceil(BURST_SHARE * settings.requests_per_minute)
        self._terms = Terms(
            per_minute=PER_MINUTE, at_once=AT_ONCE, holder=holder, burst=burst,
            requests_per_minute=settings.requests_per_minute, requests_at_once=settings.requests_at_once,
        )  # fmt: skip
        self._policy = self._terms.policy.encode()
        self._allowances: dict[str, Allowance] = {}
        self._sweeping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._limiter.declare(self._definitions)
        # The service is its parent, and ends it when it closes.
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        for allowance in self._allowances.values():
            await quietly(allowance.leave_seats)

    def concerns(self, caller: Caller) -> bool:
        return caller.role is Role.TENANT

    async def admit(self, tenant: str) -> Admitted:
        """Problem 429: not now."""
        allowance = self._of(tenant)
        await allowance.sit()
        try:
            await allowance.take()  # who waits for his turn sits meanwhile: so the line is not endless
        except BaseException:
            allowance.busy -= 1
            raise
        return Admitted(allowance, [(b"ratelimit-policy", self._policy), (b"ratelimit", allowance.told.encode())])

    def _of(self, tenant: str) -> Allowance:
        found = self._allowances.get(tenant)
        if found is None:
            if len(self._allowances) >= TENANTS_MAX:
                self._allowances = {name: each for name, each in self._allowances.items() if each.is_needed}
            found = self._allowances[tenant] = Allowance(self._limiter, self._clock, self._terms, tenant, self._define)
        return found

    async def _define(self) -> None:
        """Somebody has forgotten the limits, by hand or with the store."""
        await self._limiter.declare(self._definitions)

    async def _sweep(self) -> None:
        while True:  # until the service closes
            await self._clock.sleep(SWEEP_SECONDS)
            for allowance in list(self._allowances.values()):
                await quietly(allowance.keep_seats)


async def quietly(call: Callable[[], Awaitable[None]]) -> None:
    """Seats that are not said to be kept or left expire by themselves."""
    try:
        await call()
    except LeasewayError as error:
        log.warning("the limiter does not answer: %s", error)
