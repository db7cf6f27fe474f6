"""What one tenant may still do in this process: tokens for some moments, and seats for as long as they are needed."""

import asyncio
import contextlib
import hashlib
import logging
import math
from collections.abc import Awaitable, Callable

from msgspec import Struct

from leaseway.api.errors import Problem
from leaseway.domain.errors import LeasewayError, TransientError, UnknownLimit
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import Granted, RateWindow, Verdict, Wait, permits_left
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.validators import NAME_LENGTH_MAX
from leaseway.ports.clock import Clock
from leaseway.ports.limiter import Limiter

log = logging.getLogger("leaseway.api")

DRIFT = 0.01
AHEAD_SHARE = 4
"""A process keeps no more than this part of a burst for itself."""
SEATS_AHEAD = 8
SEAT_US = 30 * SECOND_US
ANSWER_SECONDS = 2.0
"""Who has to wait longer for the limiter is let in uncounted: a limit of ours is no reason to lose a submission."""
OPEN_SECONDS = 1.0
PATIENCE_SECONDS = 0.5
"""Whose turn comes so soon waits for it: a new limit begins empty, and the first who asks shall not be sent away."""
LOOK_SECONDS = 1.0
RETRY_SECONDS = 1


class Terms(Struct, frozen=True, kw_only=True):
    """The same for all tenants of a process."""

    per_minute: str
    at_once: str
    holder: str
    burst: int
    requests_per_minute: int
    requests_at_once: int

    @property
    def policy(self) -> str:
        """As the IETF's RateLimit-Policy has it."""
        at_once = f'"at-once";q={self.requests_at_once};qu="concurrent-requests"'
        return f'"minute";q={self.requests_per_minute};w=60, {at_once}'


class Allowance:
    def __init__(
        self, limiter: Limiter, clock: Clock, terms: Terms, tenant: str, define: Callable[[], Awaitable[None]]
    ) -> None:
        self._limiter = limiter
        self._clock = clock
        self._terms = terms
        self._define = define
        self._per_minute = PermitRequest(named(terms.per_minute, tenant), terms.per_minute)
        self._at_once = PermitRequest(named(terms.at_once, tenant), terms.at_once)
        self._tokens = 0
        self._used = 0
        self._ahead = 1
        self._good_until = self._shut_until = 0.0
        self._left, self._full_seconds, self._looked_at = 0, 1, float("-inf")
        self._asking, self._seating = asyncio.Lock(), asyncio.Lock()
        self._waiting = 0
        self._seats = 0
        self.busy = 0
        """Requests that sit."""
        self._most_busy = 0

    @property
    def is_needed(self) -> bool:
        return self.busy > 0 or self._seats > 0 or self._waiting > 0

    @property
    def told(self) -> str:
        """As the IETF's RateLimit has it: what is left, and in how many seconds all of it is there again."""
        left = self._left + max(self._tokens, 0)
        at_once = max(self._terms.requests_at_once - self.busy, 0)
        return f'"minute";r={left};t={self._full_seconds}, "at-once";r={at_once}'

    # -- tokens -----------------------------------------------------------------------------------------------------

    async def take(self) -> None:
        """One token. Problem 429: none comes so soon that it would be worth waiting."""
        patience_ends = self._clock.monotonic() + PATIENCE_SECONDS
        self._waiting += 1
        try:
            if not self._has_token():
                async with self._asking:  # who comes meanwhile finds what this one brings
                    if not self._has_token():
                        await self._fetch(patience_ends)
        finally:
            self._waiting -= 1
        self._tokens -= 1
        self._used += 1

    def _has_token(self) -> bool:
        return self._tokens > 0 and self._clock.monotonic() < self._good_until

    async def _fetch(self, patience_ends: float) -> None:
        self._ahead = self._next_ahead()
        while True:  # until there are some, or patience ends
            sent_at = self._clock.monotonic()
            if self._shut_until > max(patience_ends, sent_at):
                raise too_many("minute", self._shut_until - sent_at, self._terms)
            await self._clock.sleep(max(self._shut_until - sent_at, 0))
            sent_at = self._clock.monotonic()
            verdict = await self._answer(self._per_minute, max(self._ahead, self._waiting))
            if not isinstance(verdict, Wait):
                break
            # Asking again before that would only put us further behind.
            self._shut_until = sent_at + verdict.wait_us / SECOND_US
        self._used, self._tokens = 0, verdict.count if isinstance(verdict, Granted) else self._waiting
        await self._look(sent_at)
        lease_seconds = verdict.lease_us / SECOND_US if isinstance(verdict, Granted) else OPEN_SECONDS
        self._good_until = sent_at + lease_seconds * (1 - DRIFT)

    async def _look(self, now: float) -> None:
        """How much is left in the store, now and then: only to be told."""
        if now < self._looked_at + LOOK_SECONDS:
            return
        self._looked_at = now
        with contextlib.suppress(LeasewayError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                at, (level,) = await self._limiter.look([self._per_minute])
            for bucket in level.buckets.values():
                window = RateWindow(0, self._terms.burst, bucket.token_ns)
                self._left = permits_left(window, bucket, at)
                self._full_seconds = max(math.ceil((bucket.tat - at) / SECOND_US), 1)

    def _next_ahead(self) -> int:
        """Twice as many as the last time if they were used up in time, else as many as were used."""
        wanted = self._used * 2 if self._tokens <= 0 else self._used
        return min(max(wanted, 1), max(self._terms.burst // AHEAD_SHARE, 1))

    # -- seats ------------------------------------------------------------------------------------------------------

    async def sit(self) -> None:
        if self.busy >= self._seats:
            async with self._seating:
                if self.busy >= self._seats:
                    await self._find_seats()
        self.busy += 1
        self._most_busy = max(self._most_busy, self.busy)

    async def _find_seats(self) -> None:
        verdict = await self._answer(self._at_once, SEATS_AHEAD)
        if isinstance(verdict, Wait):
            await self._find_forgotten_seats(verdict)
        else:
            self._seats += verdict.count if isinstance(verdict, Granted) else 1

    async def _find_forgotten_seats(self, wait: Wait) -> None:
        """A limiter that has lost its memory gives no seats for some seconds, until all have said what they hold. Calls
        to providers must wait for that; requests to us need not: what is not taken is free."""
        _, (level,) = await self._limiter.look([self._at_once])
        free = self._terms.requests_at_once - sum(seat.count for seat in level.seats.values())
        if free <= 0:
            raise too_many("at-once", wait.wait_us / SECOND_US, self._terms)
        seats = self._seats + min(free, SEATS_AHEAD)
        await self._limiter.keep([self._at_once], self._terms.holder, seats, SEAT_US)
        self._seats = seats

    async def keep_seats(self) -> None:
        """Says that those are still needed which were needed since the last time, and leaves the others."""
        async with self._seating:
            spare, self._most_busy = self._seats - max(self._most_busy, self.busy), self.busy
            if spare > 0:
                self._seats -= spare
                await self._limiter.vacate([self._at_once], self._terms.holder, spare)
            if self._seats > 0:
                await self._limiter.keep([self._at_once], self._terms.holder, self._seats, SEAT_US)

    async def leave_seats(self) -> None:
        if self._seats > 0:
            await self._limiter.vacate([self._at_once], self._terms.holder, self._seats)

    # -- asking -----------------------------------------------------------------------------------------------------

    async def _answer(self, ask: PermitRequest, most: int) -> Verdict | None:
        """None: the limiter did not answer."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                try:
                    return await self._ask(ask, most)
                except UnknownLimit:
                    await self._define()
                    return await self._ask(ask, most)
        except (TransientError, TimeoutError) as error:
            log.warning("the limiter does not answer, requests go uncounted: %s", error)
            return None

    async def _ask(self, ask: PermitRequest, most: int) -> Verdict:
        return await self._limiter.take([ask], most=most, holder=self._terms.holder, seat_us=SEAT_US)


def named(name: str, tenant: str) -> str:
    """The tenant's own limit. Names have a bound, and tenants may be named up to it."""
    text = name.replace("{tenant}", tenant)
    if len(text) <= NAME_LENGTH_MAX:
        return text
    return name.replace("{tenant}", hashlib.sha256(tenant.encode()).hexdigest())


def too_many(policy: str, seconds: float, terms: Terms) -> Problem:
    limit = f"{terms.requests_per_minute:,} requests a minute"
    if policy == "at-once":
        limit = f"{terms.requests_at_once:,} requests at once"
    wait = max(math.ceil(seconds), RETRY_SECONDS)
    return Problem(
        429, "rate_limited", f"this tenant has {limit}; try again in {wait} s",
        headers={
            "Retry-After": str(wait), "RateLimit-Policy": terms.policy, "RateLimit": f'"{policy}";r=0;t={wait}',
        },
        extra={"violated-policies": [policy]},
    )  # fmt: skip
