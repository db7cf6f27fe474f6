"""caller ─► [rate limit of the tenant] ─► route

Limits the requests of a tenant to all processes of the service together: per minute, and at the same time. Both are
ordinary limits in the shared limiter, `api:{tenant}` and `api-at-once:{tenant}`, which operators can change. A process
takes several permits at a time, so that a busy tenant costs a few calls to the limiter per second, not one per request.

Workers with a key of one tenant have limits of their own, `api-work:{tenant}` and `api-work-at-once:{tenant}`: they
send many small requests, and must go on when the tenant's clients have used up theirs. Operators and workers of all
tenants are not limited.
"""

import asyncio
import contextlib
import hashlib
import logging
import math
from collections.abc import Awaitable, Callable

from msgspec import Struct

from leaseway.api.errors import Problem
from leaseway.api.settings import ServiceSettings
from leaseway.domain.errors import LeasewayError, TransientError, UnknownLimit
from leaseway.domain.identity import ANY_TENANT, Caller, Role
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import Granted, Verdict, Wait, permits_left
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, Rate, RateWindow
from leaseway.domain.validators import NAME_LENGTH_MAX
from leaseway.ports.clock import Clock
from leaseway.ports.limiter import Limiter
from leaseway.worker.environment import cancel_and_wait

log = logging.getLogger("leaseway.api")

DRIFT = 0.01
AHEAD_SHARE = 4
"""A process takes at most this part of a burst in advance."""
IN_FLIGHT_AHEAD = 8
IN_FLIGHT_US = 30 * SECOND_US
LIMITER_SECONDS_MAX = 2.0
"""If the limiter takes longer, requests are admitted uncounted: its failure must not cost submissions."""
UNCOUNTED_SECONDS = 1.0
WAIT_SECONDS_MAX = 0.5
"""A request waits this long for a permit: a new limit starts without permits and must not refuse the first request."""
LEVEL_SECONDS = 1.0
RETRY_SECONDS = 1


class RateLimitTerms(Struct, frozen=True, kw_only=True):
    """What all tenants of a process have in common."""

    per_minute: str
    at_once: str
    holder: str
    burst: int
    requests_per_minute: int
    requests_at_once: int
    whose: str
    """For messages: whose requests are limited."""

    @property
    def policy(self) -> str:
        """The RateLimit-Policy header of the IETF draft."""
        at_once = f'"at-once";q={self.requests_at_once};qu="concurrent-requests"'
        return f'"minute";q={self.requests_per_minute};w=60, {at_once}'


class TenantPermits:
    """The permits of one tenant that this process holds: permits per minute for about a second, and permits of the
    concurrency limit for as long as requests are in progress."""

    def __init__(
        self, limiter: Limiter, clock: Clock, terms: RateLimitTerms, tenant: str, define: Callable[[], Awaitable[None]]
    ) -> None:
        self._limiter = limiter
        self._clock = clock
        self._terms = terms
        self._define = define
        self._per_minute = PermitRequest(limit_name(terms.per_minute, tenant), terms.per_minute)
        self._at_once = PermitRequest(limit_name(terms.at_once, tenant), terms.at_once)
        self._permits = 0
        self._used = 0
        self._ahead = 1
        self._valid_until = self._closed_until = 0.0
        self._left, self._full_seconds, self._level_read_at = 0, 1, float("-inf")
        self._permit_lock, self._in_flight_lock = asyncio.Lock(), asyncio.Lock()
        self._waiting = 0
        self._held = 0
        self.in_progress = 0
        """Requests in progress."""
        self._peak = 0

    @property
    def is_needed(self) -> bool:
        return self.in_progress > 0 or self._held > 0 or self._waiting > 0

    @property
    def rate_limit_header(self) -> str:
        """The RateLimit header of the IETF draft: the remaining quota, and the seconds until it is restored."""
        left = self._left + max(self._permits, 0)
        at_once = max(self._terms.requests_at_once - self.in_progress, 0)
        return f'"minute";r={left};t={self._full_seconds}, "at-once";r={at_once}'

    # -- permits per minute -----------------------------------------------------------------------------------------

    async def take_permit(self) -> None:
        """Problem 429: no permit becomes available soon enough."""
        deadline = self._clock.monotonic() + WAIT_SECONDS_MAX
        self._waiting += 1
        try:
            if not self._has_permit():
                async with self._permit_lock:  # requests that wait here find the permits that this one fetches
                    if not self._has_permit():
                        await self._fetch(deadline)
        finally:
            self._waiting -= 1
        self._permits -= 1
        self._used += 1

    def _has_permit(self) -> bool:
        return self._permits > 0 and self._clock.monotonic() < self._valid_until

    async def _fetch(self, deadline: float) -> None:
        self._ahead = self._next_ahead()
        while True:  # until there are permits, or the deadline has passed
            sent_at = self._clock.monotonic()
            if self._closed_until > max(deadline, sent_at):
                raise too_many("minute", self._closed_until - sent_at, self._terms)
            await self._clock.sleep(max(self._closed_until - sent_at, 0))
            sent_at = self._clock.monotonic()
            verdict = await self._try_take(self._per_minute, max(self._ahead, self._waiting))
            if not isinstance(verdict, Wait):
                break
            # An earlier attempt would only be refused again.
            self._closed_until = sent_at + verdict.wait_us / SECOND_US
        self._used, self._permits = 0, verdict.count if isinstance(verdict, Granted) else self._waiting
        await self._read_level(sent_at)
        lease_seconds = verdict.lease_us / SECOND_US if isinstance(verdict, Granted) else UNCOUNTED_SECONDS
        self._valid_until = sent_at + lease_seconds * (1 - DRIFT)

    async def _read_level(self, now: float) -> None:
        """Read the remaining quota from time to time, for the RateLimit header only."""
        if now < self._level_read_at + LEVEL_SECONDS:
            return
        self._level_read_at = now
        with contextlib.suppress(LeasewayError, TimeoutError):
            async with asyncio.timeout(LIMITER_SECONDS_MAX):
                at, (level,) = await self._limiter.levels([self._per_minute])
            for bucket in level.buckets.values():
                window = RateWindow(0, self._terms.burst, bucket.permit_ns)
                self._left = permits_left(window, bucket, at)
                self._full_seconds = max(math.ceil((bucket.tat - at) / SECOND_US), 1)

    def _next_ahead(self) -> int:
        """Twice as many permits as last time if all were used, otherwise as many as were used."""
        wanted = self._used * 2 if self._permits <= 0 else self._used
        return min(max(wanted, 1), max(self._terms.burst // AHEAD_SHARE, 1))

    # -- the concurrency limit --------------------------------------------------------------------------------------

    async def begin_request(self) -> None:
        if self.in_progress >= self._held:
            async with self._in_flight_lock:
                if self.in_progress >= self._held:
                    await self._take_in_flight()
        self.in_progress += 1
        self._peak = max(self._peak, self.in_progress)

    async def _take_in_flight(self) -> None:
        verdict = await self._try_take(self._at_once, IN_FLIGHT_AHEAD)
        if isinstance(verdict, Wait):
            await self._take_after_restart(verdict)
        else:
            self._held += verdict.count if isinstance(verdict, Granted) else 1

    async def _take_after_restart(self, wait: Wait) -> None:
        """A restarted limiter grants no permits of a concurrency limit for some seconds, until all holders have renewed
        theirs. Calls to providers must wait for that; requests to this service need not, so the permits that are not
        held are taken."""
        _, (level,) = await self._limiter.levels([self._at_once])
        free = self._terms.requests_at_once - sum(calls.count for calls in level.in_flight.values())
        if free <= 0:
            raise too_many("at-once", wait.wait_us / SECOND_US, self._terms)
        held = self._held + min(free, IN_FLIGHT_AHEAD)
        await self._limiter.renew_calls([self._at_once], self._terms.holder, held, IN_FLIGHT_US)
        self._held = held

    async def renew(self) -> None:
        """Renew the permits that were needed since the last renewal, and release the others."""
        async with self._in_flight_lock:
            spare, self._peak = self._held - max(self._peak, self.in_progress), self.in_progress
            if spare > 0:
                self._held -= spare
                await self._limiter.end_calls([self._at_once], self._terms.holder, spare)
            if self._held > 0:
                await self._limiter.renew_calls([self._at_once], self._terms.holder, self._held, IN_FLIGHT_US)

    async def release_all(self) -> None:
        if self._held > 0:
            await self._limiter.end_calls([self._at_once], self._terms.holder, self._held)

    # -- the limiter ------------------------------------------------------------------------------------------------

    async def _try_take(self, request: PermitRequest, most: int) -> Verdict | None:
        """None: the limiter does not respond."""
        try:
            async with asyncio.timeout(LIMITER_SECONDS_MAX):
                try:
                    return await self._take(request, most)
                except UnknownLimit:
                    await self._define()
                    return await self._take(request, most)
        except (TransientError, TimeoutError) as error:
            log.warning("the limiter does not respond; requests are not counted: %s", error)
            return None

    async def _take(self, request: PermitRequest, most: int) -> Verdict:
        return await self._limiter.acquire([request], most=most, holder=self._terms.holder, in_flight_us=IN_FLIGHT_US)


def limit_name(name: str, tenant: str) -> str:
    """The name of the tenant's limit. A tenant's name may be as long as names can be, and is hashed then."""
    text = name.replace("{tenant}", tenant)
    if len(text) <= NAME_LENGTH_MAX:
        return text
    return name.replace("{tenant}", hashlib.sha256(tenant.encode()).hexdigest())


def too_many(policy: str, seconds: float, terms: RateLimitTerms) -> Problem:
    limit = f"{terms.requests_per_minute:,} requests per minute"
    if policy == "at-once":
        limit = f"{terms.requests_at_once:,} concurrent requests"
    wait = max(math.ceil(seconds), RETRY_SECONDS)
    return Problem(
        429, "rate_limited", f"the limit of {terms.whose} is {limit}; try again in {wait} s",
        headers={
            "Retry-After": str(wait), "RateLimit-Policy": terms.policy, "RateLimit": f'"{policy}";r=0;t={wait}',
        },
        extra={"violated-policies": [policy]},
    )  # fmt: skip


PER_MINUTE = "api:{tenant}"
AT_ONCE = "api-at-once:{tenant}"
WORK_PER_MINUTE = "api-work:{tenant}"
WORK_AT_ONCE = "api-work-at-once:{tenant}"
BURST_SHARE = 0.2
RENEW_SECONDS = 5.0
TENANTS_MAX = 10_000
"""Above this number, tenants without requests in progress are dropped."""


def rate_limit_terms(settings: ServiceSettings, holder: str, role: Role = Role.TENANT) -> RateLimitTerms:
    """The terms for credentials of this role that are limited to one tenant."""
    if role is Role.WORKER:
        return RateLimitTerms(
            per_minute=WORK_PER_MINUTE, at_once=WORK_AT_ONCE, holder=holder, whose="the workers of this tenant",
            burst=math.ceil(BURST_SHARE * settings.worker_requests_per_minute),
            requests_per_minute=settings.worker_requests_per_minute,
            requests_at_once=settings.worker_requests_at_once,
        )  # fmt: skip
    return RateLimitTerms(
        per_minute=PER_MINUTE, at_once=AT_ONCE, holder=holder, whose="this tenant",
        burst=math.ceil(BURST_SHARE * settings.requests_per_minute),
        requests_per_minute=settings.requests_per_minute, requests_at_once=settings.requests_at_once,
    )  # fmt: skip


def limit_definitions(terms: RateLimitTerms) -> list[LimitDefinition]:
    rate = Rate(60 * SECOND_US, terms.requests_per_minute)
    return [
        LimitDefinition(name=terms.per_minute, rates=(rate,), burst_share=BURST_SHARE),
        LimitDefinition(name=terms.at_once, concurrency=terms.requests_at_once),
    ]


class AdmittedRequest:
    """One admitted request. It counts as in progress until the response begins, at the latest until it ends."""

    def __init__(self, quota: TenantPermits, headers: list[tuple[bytes, bytes]]) -> None:
        self.headers = headers
        self._quota: TenantPermits | None = quota

    def release(self) -> None:
        if self._quota is not None:
            self._quota.in_progress -= 1
            self._quota = None


class TenantRateLimit:
    """For one process and its event loop. `holder` is the process's name in the limiter; `role`: whose requests it
    limits."""

    def __init__(
        self, limiter: Limiter, clock: Clock, settings: ServiceSettings, holder: str, role: Role = Role.TENANT
    ) -> None:
        self._limiter = limiter
        self._clock = clock
        self._role = role
        self._terms = rate_limit_terms(settings, holder, role)
        self._definitions = limit_definitions(self._terms)
        self._policy = self._terms.policy.encode()
        self._quotas: dict[str, TenantPermits] = {}
        self._renewing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._limiter.definitions.declare(self._definitions)
        # The service owns the task and cancels it when it closes.
        self._renewing = asyncio.get_running_loop().create_task(self._renew_all())

    async def close(self) -> None:
        await cancel_and_wait(self._renewing)
        for quota in self._quotas.values():
            await quietly(quota.release_all)

    def applies_to(self, caller: Caller) -> bool:
        return caller.role is self._role and caller.tenant != ANY_TENANT

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

    def _quota(self, tenant: str) -> TenantPermits:
        found = self._quotas.get(tenant)
        if found is None:
            if len(self._quotas) >= TENANTS_MAX:
                self._quotas = {name: each for name, each in self._quotas.items() if each.is_needed}
            found = self._quotas[tenant] = TenantPermits(self._limiter, self._clock, self._terms, tenant, self._define)
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
