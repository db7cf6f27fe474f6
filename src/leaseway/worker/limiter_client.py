"""submit ─► store ─► exchange ─► [admit (lane, limits, budget)] ─► run handler: a worker's permits.

A permit is taken just before a request leaves and is valid for a short time only. Permits of long windows are taken
several at a time, so that a busy worker calls the limiter once for many requests (see `permit_queue`). Calls under a
concurrency limit are counted by the limiter as long as this worker reports them.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from leaseway.domain.errors import LeasewayError, TransientError, UnknownLimit
from leaseway.domain.ids import SECOND_US, WorkerId
from leaseway.domain.limits.buckets import PAUSED, Acquisition, Granted, Notice, Verdict, Wait, forecast
from leaseway.domain.limits.limit import COUNT_MAX, LimitDefinition, PermitRequest, permit_lease_us
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus
from leaseway.domain.limits.sizing import size_limit
from leaseway.domain.limits.validation import PERMIT_REQUESTS_MAX
from leaseway.ports.limiter import Limiter
from leaseway.worker.environment import Environment, retry_delay_seconds
from leaseway.worker.limiter_fallback import LimiterFallback
from leaseway.worker.permit_queue import PermitQueue

DRIFT = 0.01
"""How much faster than this worker's clock the store's clock may run."""
PATIENCE_SECONDS = 10.0
"""How long a handler waits for a permit. For longer waits the job goes back to its lane."""
RECOUNT_SECONDS = 5.0
DEFINITIONS_SECONDS = 60.0
"""How long the definitions of limits are cached."""
IN_FLIGHT_US = 30 * SECOND_US
"""How long the limiter counts a call that this worker does not report again."""
LONG_US = SECOND_US // 2
QUEUES_MAX = 1_000
"""Above this number, queues that are not in use are dropped: limits with fields may have millions of names."""
AHEAD_SHARE = 4
"""A worker takes at most this fraction (a quarter) of a bucket ahead."""

PermitRequests = tuple[PermitRequest, ...]


class Permit(NamedTuple):
    """One unit of a grant, and until when it is valid by this worker's clock."""

    granted: Granted
    valid_until: float
    taken_at: float = 0.0

    def without(self, request: PermitRequest | None) -> "Permit":
        """The same permit for all limits but this one."""
        if request is None:
            return self
        pairs = zip(self.granted.asks, self.granted.generations, strict=True)
        left = [pair for pair in pairs if pair[0] != request]
        requests, generations = tuple(each for each, _ in left), tuple(generation for _, generation in left)
        return self._replace(granted=msgspec.structs.replace(self.granted, asks=requests, generations=generations))


NO_PERMIT = Permit(Granted((), 1, 0, 0, 0, ()), float("inf"))
"""For jobs that need no limit."""


def make_permit(granted: Granted, taken_at: float) -> Permit:
    """`taken_at`: before the request to the limiter was sent."""
    return Permit(granted, taken_at + granted.lease_us / SECOND_US * (1 - DRIFT), taken_at)


class LimiterClient:
    """Everything that a worker tells and asks the limiter."""

    def __init__(self, environment: Environment, holder: WorkerId, definitions: Sequence[LimitDefinition]) -> None:
        self._environment = environment
        self._holder = holder
        self._definitions = {definition.name: definition for definition in definitions}
        self._queues: dict[PermitRequests, PermitQueue] = {}
        self._in_flight: dict[PermitRequest, int] = {}
        self._uncertain: set[PermitRequest] = set()
        """Limits whose in-flight calls the limiter may count wrong, because a reply was lost."""
        self._throttled_at: dict[str, float] = {}
        """When a provider last throttled a call of this worker, by limit."""
        self.on_ended: Callable[[PermitRequests], None] = lambda _: None
        """Called when calls under a concurrency limit have ended."""
        self._read_at = float("-inf")
        self._opening = asyncio.Lock()
        self._counting = asyncio.Lock()
        """Changes of in-flight calls reach the limiter in the order in which they happen."""
        self._is_open = False

    @cached_property
    def _fallback(self) -> LimiterFallback:
        return LimiterFallback(self._environment.clock, self._holder, self._definitions)

    # -- taking -----------------------------------------------------------------------------------------------------

    async def take(self, requests: PermitRequests, patience_seconds: float = PATIENCE_SECONDS) -> Permit:
        """A permit for a call that leaves now. Raises `Deferred` if the wait is too long for a handler."""
        queue = self._queues.get(requests)
        if queue is None:
            if len(self._queues) >= QUEUES_MAX:
                self._queues = {each.requests: each for each in self._queues.values() if each.is_needed}
            queue = self._queues[requests] = PermitQueue(self, requests, self._ahead(requests))
        return await queue.take(patience_seconds)

    async def grant(self, requests: PermitRequests, most: int) -> tuple[Verdict, float]:
        """Ask the limiter once. Returns its verdict and when the request was sent."""
        sent_at = self._environment.clock.monotonic()
        try:
            await self.opened()
            async with self._counting if any(map(self._is_counted, requests)) else contextlib.nullcontext():
                await self._correct(requests)
                sent_at = self._environment.clock.monotonic()
                verdict = await self._taken(requests, most)
                self._count_calls(verdict)
        except asyncio.CancelledError:
            self._uncertain.update(filter(self._is_counted, requests))
            raise
        except TransientError:
            self._uncertain.update(filter(self._is_counted, requests))
            own_share = self._fallback.take(requests, most)
            if own_share is None:
                raise
            return own_share, self._environment.clock.monotonic()
        if isinstance(verdict, Wait) and verdict.why == PAUSED:
            await self._read_definitions(at_once=True)  # no more jobs are claimed for a paused limit
        return verdict, sent_at

    def permit(self, granted: Granted, taken_at: float) -> Permit:
        return make_permit(granted, taken_at)

    def _count_calls(self, verdict: Verdict) -> None:
        if isinstance(verdict, Granted):
            for request in filter(self._is_counted, verdict.asks):
                self._in_flight[request] = self._in_flight.get(request, 0) + verdict.count

    async def _taken(self, requests: PermitRequests, most: int) -> Verdict:
        limiter = self._environment.limiter
        try:
            return await limiter.acquire(requests, least=1, most=most, holder=self._holder, in_flight_us=IN_FLIGHT_US)
        except UnknownLimit as error:
            await self._declare_again(requests, error)
        try:
            return await limiter.acquire(requests, least=1, most=most, holder=self._holder, in_flight_us=IN_FLIGHT_US)
        except UnknownLimit as error:  # the limiter lost its state twice, which is not a fault of the job
            raise TransientError(f"{error}; it was declared a moment ago") from error

    async def _correct(self, requests: PermitRequests) -> None:
        """After a lost reply, tell the limiter how many calls are really in flight."""
        for request in [each for each in requests if each in self._uncertain]:
            count = sum(count for each, count in self._in_flight.items() if each.name == request.name)
            if count:
                await self._environment.limiter.renew_calls([request], self._holder, count, IN_FLIGHT_US)
            else:
                await self._environment.limiter.end_calls([request], self._holder, COUNT_MAX)
            self._uncertain.discard(request)

    async def _declare_again(self, requests: PermitRequests, error: UnknownLimit) -> None:
        """The limiter has lost the definitions that the code declared."""
        known = [self._definitions[each.limit] for each in requests if each.limit in self._definitions]
        if len(known) < len(requests):
            raise error
        await self._environment.limiter.definitions.declare(known)

    def last_long(self, requests: PermitRequests) -> bool:
        """Whether permits of these limits stay valid from here through a claim until a handler's first call."""
        known = [self._definitions[each.limit] for each in requests if each.limit in self._definitions]
        return all(size_limit(definition).lease_us >= LONG_US for definition in known)

    async def expected(self, requests: PermitRequests) -> tuple[int, Wait | None]:
        """How many calls may leave within a second, besides those that wait here already; or why none may."""
        limiter = await self.opened()
        if any(each.limit in self._definitions and self._definitions[each.limit].paused for each in requests):
            await self._read_definitions(at_once=True)  # the only way to learn that a limit was resumed
        try:
            now, levels = await limiter.levels(requests)
        except UnknownLimit as error:
            await self._declare_again(requests, error)
            now, levels = await limiter.levels(requests)
        pairs = [each for each in zip(requests, levels, strict=True) if each[0].limit in self._definitions]
        sized = [Acquisition(request, size_limit(self._definitions[request.limit]), level) for request, level in pairs]
        units, wait = forecast(sized, now, levels[0].since, SECOND_US)
        queue = self._queues.get(requests)
        return units - (0 if queue is None else queue.waiting), wait

    def is_valid(self, permit: Permit) -> bool:
        """Whether a permit has not expired and the provider has not throttled calls since it was granted."""
        if self._environment.clock.monotonic() >= permit.valid_until:
            return False
        never = float("-inf")
        return all(permit.taken_at > self._throttled_at.get(each.name, never) for each in permit.granted.asks)

    # -- returning --------------------------------------------------------------------------------------------------

    async def give_back(self, granted: Granted, count: int) -> None:
        """Return permits that were not used. If that fails, they count as used."""
        try:
            with contextlib.suppress(LeasewayError):
                await (await self.opened()).return_unused(granted, count)
        finally:
            await self.end_calls(granted.asks, count)

    async def end_calls(self, requests: PermitRequests, count: int = 1) -> None:
        """Calls have ended: their places under concurrency limits are free."""
        if not any(self._in_flight.get(each) for each in requests):
            return
        try:
            await self._counting.acquire()
        except asyncio.CancelledError:
            self._uncertain.update(self._discount(requests, count))
            raise
        try:
            if ended := self._discount(requests, count):
                self._uncertain.update(ended)  # until the limiter has answered
                with contextlib.suppress(LeasewayError):
                    await (await self.opened()).end_calls(ended, self._holder, count)
                    self._uncertain.difference_update(ended)
        finally:
            self._counting.release()
        self.on_ended(ended)
        for queue in self._queues.values():
            if not set(ended).isdisjoint(queue.requests):
                queue.call_ended.set()

    def _discount(self, requests: PermitRequests, count: int) -> PermitRequests:
        """Subtract ended calls. Returns the requests whose limits count calls."""
        counted = tuple(each for each in requests if each in self._in_flight)
        for request in counted:
            if (left := self._in_flight.pop(request) - count) > 0:
                self._in_flight[request] = left
        return counted

    # -- what the provider reports ----------------------------------------------------------------------------------

    async def notify(self, permit: Permit, requests: PermitRequests, status: RateLimitStatus) -> None:
        """Tell the whole fleet what a provider reported: each throttled call, and a remaining quota that is smaller
        than a bucket."""
        for request, generation in zip(permit.granted.asks, permit.granted.generations, strict=True):
            if request not in requests:
                continue  # the provider does not know the limit of a tenant
            if not status.throttled and (status.remaining is None or status.remaining >= self._burst(request)):
                continue
            notice = Notice(
                name=request.name,
                limit=request.limit,
                generation=generation,
                throttled=status.throttled,
                retry_after_us=status.retry_after_us,
                remaining=status.remaining,
                reset_us=status.reset_us,
            )
            if status.throttled:
                if len(self._throttled_at) >= QUEUES_MAX:
                    self._throttled_at.clear()  # permits that old have expired
                self._throttled_at[request.name] = self._environment.clock.monotonic()
                self._environment.events.emit("limit_closed", limit=request.name, retry_after_us=status.retry_after_us)
            with contextlib.suppress(TransientError):  # the next throttled call reports it again
                await (await self.opened()).observe(notice)

    # -- beside the worker ------------------------------------------------------------------------------------------

    async def keep_calls_counted(self, recount: Callable[[], Mapping[PermitRequest, int]]) -> None:
        """Report the calls in flight at intervals, also to a limiter that has lost its state."""
        while True:  # until it is cancelled
            await self._environment.clock.sleep(RECOUNT_SECONDS)
            await self.report_calls(recount)
            if self._is_open:
                await self._fallback.renew(self._environment.limiter)
                await self._read_definitions()

    async def leave(self, recount: Callable[[], Mapping[PermitRequest, int]]) -> None:
        """The worker stops."""
        await self.report_calls(recount)
        if self._is_open:
            await self._fallback.leave(self._environment.limiter)

    async def report_calls(self, recount: Callable[[], Mapping[PermitRequest, int]]) -> None:
        async with self._counting:
            counts = {**self._in_flight, **recount()}
            self._uncertain.update(request for request in self._in_flight if counts[request] < 1)
            self._in_flight = {request: count for request, count in counts.items() if count > 0}
            with contextlib.suppress(LeasewayError):
                await self._correct(tuple(self._uncertain))
            by_name: Counter[tuple[str, str]] = Counter()
            for request, count in self._in_flight.items():  # calls of different cost count for the same limit
                by_name[request.name, request.limit] += count
            by_count: dict[int, list[PermitRequest]] = {}
            for (name, limit), count in by_name.items():
                by_count.setdefault(count, []).append(PermitRequest(name, limit))
            for count, requests in by_count.items():
                await self._report(requests, count)

    async def _report(self, requests: Sequence[PermitRequest], count: int) -> None:
        for start in range(0, len(requests), PERMIT_REQUESTS_MAX):
            with contextlib.suppress(LeasewayError):
                limiter = await self.opened()
                batch = requests[start : start + PERMIT_REQUESTS_MAX]
                await limiter.renew_calls(batch, self._holder, count, IN_FLIGHT_US)

    async def declare(self, definitions: Sequence[LimitDefinition]) -> None:
        self._definitions.update({definition.name: definition for definition in definitions})
        with contextlib.suppress(TransientError):
            await (await self.opened()).definitions.declare(definitions)

    async def opened(self) -> Limiter:
        """The limiter. The first use opens it and declares the limits of the code."""
        async with self._opening:
            if not self._is_open:
                limiter = self._environment.limiter
                await limiter.open()
                await limiter.definitions.declare([*self._definitions.values(), *self._fallback.certificates()])
                await self._read_definitions()
                await self._fallback.renew(limiter)
                self._is_open = True
        return self._environment.limiter

    async def _read_definitions(self, *, at_once: bool = False) -> None:
        """An operator may have changed them."""
        if not at_once and self._environment.clock.monotonic() - self._read_at < DEFINITIONS_SECONDS:
            return
        with contextlib.suppress(TransientError):
            definitions = await self._environment.limiter.definitions.all()
            self._definitions.update({definition.name: definition for definition, _ in definitions})
            self._read_at = self._environment.clock.monotonic()

    def _ahead(self, requests: PermitRequests) -> int | None:
        """How many permits may be taken beyond those that are waited for. None: one at a time, because a permit that is
        not used would take a place under a concurrency limit."""
        most = 1_000
        for request in requests:
            definition = self._definitions.get(request.limit)
            if definition is None or definition.concurrency is not None:
                return None
            if not permit_lease_us(definition):
                most = 0
            windows = size_limit(definition).windows
            most = min([most, *(window.burst // request.cost // AHEAD_SHARE for window in windows)])
        return most

    def _burst(self, request: PermitRequest) -> int:
        definition = self._definitions.get(request.limit)
        return 0 if definition is None else max((each.burst for each in size_limit(definition).windows), default=0)

    def _is_counted(self, request: PermitRequest) -> bool:
        definition = self._definitions.get(request.limit)
        return definition is None or definition.concurrency is not None

    def warn_of_late(self, requests: PermitRequests, permit: Permit) -> None:
        """The limiter is too slow for this limit: no call would ever get a valid permit."""
        names, seconds = ", ".join(each.limit for each in requests), permit.granted.lease_us / SECOND_US
        advice = f"its permits are valid for {seconds:g} s and arrive later than that; give the limit a longer delay="
        self._environment.events.emit("permits_late", limit=names, advice=advice)

    async def sleep(self, seconds: float) -> None:
        await self._environment.clock.sleep(seconds)

    def now(self) -> float:
        return self._environment.clock.monotonic()

    def pause_seconds(self, failures: int) -> float:
        return retry_delay_seconds(failures, self._environment.chance.random())
