"""caller ─► [rate limit of the tenant] ─► route

Limits the requests of a tenant to all processes of the service together: per minute, and at the same time. Both are
ordinary limits in the shared limiter, `api:{tenant}` and `api-at-once:{tenant}`, which operators can change. A process
takes several permits at a time, so that a busy tenant costs a few calls to the limiter per second, not one per request.

Only tenants are limited; operators and workers are not.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from leaseway.api.auth.tenant_quota import QuotaTerms, TenantQuota
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
RENEW_SECONDS = 5.0
TENANTS_MAX = 10_000
"""Above this number, tenants without requests in progress are dropped."""


def limit_definitions(settings: ServiceSettings) -> list[LimitDefinition]:
    rate = Rate(60 * SECOND_US, settings.requests_per_minute)
    return [
        LimitDefinition(name=PER_MINUTE, rates=(rate,), burst_share=BURST_SHARE),
        LimitDefinition(name=AT_ONCE, concurrency=settings.requests_at_once),
    ]


class AdmittedRequest:
    """One admitted request. It counts as in progress until the response begins, at the latest until it ends."""

    def __init__(self, quota: TenantQuota, headers: list[tuple[bytes, bytes]]) -> None:
        self.headers = headers
        self._quota: TenantQuota | None = quota

    def release(self) -> None:
        if self._quota is not None:
            self._quota.in_progress -= 1
            self._quota = None


class TenantRateLimit:
    """For one process and its event loop. `holder` is the process's name in the limiter."""

    def __init__(self, limiter: Limiter, clock: Clock, settings: ServiceSettings, holder: str) -> None:
        self._limiter = limiter
        self._clock = clock
        self._definitions = limit_definitions(settings)
        burst = math.ceil(BURST_SHARE * settings.requests_per_minute)
        self._terms = QuotaTerms(
            per_minute=PER_MINUTE, at_once=AT_ONCE, holder=holder, burst=burst,
            requests_per_minute=settings.requests_per_minute, requests_at_once=settings.requests_at_once,
        )  # fmt: skip
        self._policy = self._terms.policy.encode()
        self._quotas: dict[str, TenantQuota] = {}
        self._renewing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._limiter.definitions.declare(self._definitions)
        # The service owns the task and cancels it when it closes.
        self._renewing = asyncio.get_running_loop().create_task(self._renew_all())

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        for quota in self._quotas.values():
            await quietly(quota.release_all)

    def applies_to(self, caller: Caller) -> bool:
        return caller.role is Role.TENANT

    async def admit(self, tenant: str) -> AdmittedRequest:
        """Problem 429: the limit is reached."""
        quota = self._quota(tenant)
        await quota.begin_request()
        try:
            await quota.take_permit()  # waiting requests count as in progress, which bounds their number
        except BaseException:
            quota.in_progress -= 1
            raise
        return AdmittedRequest(
            quota, [(b"ratelimit-policy", self._policy), (b"ratelimit", quota.rate_limit_header.encode())]
        )

    def _quota(self, tenant: str) -> TenantQuota:
        found = self._quotas.get(tenant)
        if found is None:
            if len(self._quotas) >= TENANTS_MAX:
                self._quotas = {name: each for name, each in self._quotas.items() if each.is_needed}
            found = self._quotas[tenant] = TenantQuota(self._limiter, self._clock, self._terms, tenant, self._define)
        return found

    async def _define(self) -> None:
        """Declare the limits again: an operator or a restart of the store has removed them."""
        await self._limiter.definitions.declare(self._definitions)

    async def _renew_all(self) -> None:
        while True:  # until the service closes
            await self._clock.sleep(RENEW_SECONDS)
            for quota in list(self._quotas.values()):
                await quietly(quota.renew)


async def quietly(call: Callable[[], Awaitable[None]]) -> None:
    """Errors are logged only, because permits that are neither renewed nor released expire."""
    try:
        await call()
    except LeasewayError as error:
        log.warning("the limiter does not respond: %s", error)
