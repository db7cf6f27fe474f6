"""submit ─► store ─► exchange ─► [admit (lane, limits, budget)] ─► run handler: a worker's permits.

A permit is taken just before a request leaves and is valid for a short time only. Permits of long windows are taken
several at a time, so that a busy worker calls the limiter once for many requests (see `permit_queue`). Calls under a
concurrency limit are counted by the limiter as long as this worker reports them.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from leaseway.domain.errors import LeasewayError, TransientError, UnknownLimit
from leaseway.domain.ids import SECOND_US, WorkerId
from leaseway.domain.limits.buckets import PAUSED, Acquisition, Granted, Notice, Verdict, Wait, forecast
from leaseway.domain.limits.learnt_use import ESTIMATES_MAX, LearntEstimate
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, size_limit
from leaseway.domain.limits.notices import make_notices
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus
from leaseway.domain.limits.sliding_log import NOTHING_USED
from leaseway.domain.limits.validation import PERMIT_REQUESTS_MAX
from leaseway.ports.limiter import Limiter
from leaseway.worker.calls.metered_use import MeteredUse
from leaseway.worker.definitions import DefinitionWatch, declare_definitions
from leaseway.worker.environment import Environment, retry_delay_seconds
from leaseway.worker.limiter_fallback import LimiterFallback, answer_in_time
from leaseway.worker.permit_queue import Permit, PermitQueue, PermitRequests, Turns, permits_ahead

PATIENCE_SECONDS = 10.0
"""How long a handler waits for a permit. For longer waits the job goes back to its lane."""
RECOUNT_SECONDS = 5.0
DEFINITIONS_SECONDS = 60.0
"""How long the definitions of limits are cached."""
IN_FLIGHT_US = 30 * SECOND_US
"""How long the limiter counts a call that this worker does not report again."""
LONG_SECONDS = 0.5
"""Permits that are valid for so long are taken before a claim."""
QUEUES_MAX = 1_000
"""Above this number, queues that are not in use are dropped: limits with fields may have millions of names."""


class LimiterClient:
    """Everything that a worker tells and asks the limiter."""

    def __init__(self, environment: Environment, holder: WorkerId, definitions: Sequence[LimitDefinition]) -> None:
        self._environment = environment
        self._holder = holder
        self._definitions = {definition.name: definition for definition in definitions}
        self._by_code = dict(self._definitions)
        """As the code declares them; operators may have changed them."""
        self._queues: dict[PermitRequests, PermitQueue] = {}
        self._in_flight: dict[PermitRequest, int] = {}
        self._uncertain: set[PermitRequest] = set()
        """Limits whose in-flight calls the limiter may count wrong, because a reply was lost."""
        self._throttled_at: dict[str, float] = {}
        """When a provider last throttled a call of this worker, by limit."""
        self._failing: set[str] = set()
        """Limits whose last call of this worker failed."""
        self._waited_for: Counter[str] = Counter()
        self._cut_off: list[tuple[float, PermitRequests, Mapping[str, int] | None]] = []
        self.on_ended: Callable[[PermitRequests], None] = lambda _: None
        """Called when calls under a concurrency limit have ended."""
        self._definitions_read_at = float("-inf")
        self._opening = asyncio.Lock()
        self._counting = asyncio.Lock()
        """Changes of in-flight calls reach the limiter in the order in which they happen."""
        self._is_open = False

    @cached_property
    def watch(self) -> DefinitionWatch[LimitDefinition]:
        return DefinitionWatch(self._environment.limiter.definitions, self._environment.clock)

    @cached_property
    def _turns(self) -> Turns:
        return Turns()

    @cached_property
    def metered(self) -> MeteredUse:
        return MeteredUse(self._definitions)

    @cached_property
    def _fallback(self) -> LimiterFallback:
        return LimiterFallback(self._environment.clock, self._holder, self._definitions)

    # -- taking -----------------------------------------------------------------------------------------------------

    async def take(
        self, requests: PermitRequests, patience_seconds: float | None = None, call_seconds: float = 0
    ) -> Permit:
        """A permit for a call that leaves now and takes `call_seconds` at most. Raises `Deferred` if the wait is too
        long for a handler, or if the limiter cannot be reached for that long."""
        lane = self.metered.lane(requests)
        queue = self._queues.get(lane)
        if queue is None:
            if len(self._queues) >= QUEUES_MAX:
                self._queues = {each.requests: each for each in self._queues.values() if each.is_needed}
            queue = self._queues[lane] = PermitQueue(self, lane, permits_ahead(lane, self._definitions))
        self.metered.note(requests)
        patience = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
        return await queue.take(requests, patience, max(IN_FLIGHT_US, int(call_seconds * SECOND_US)))

    async def grant(self, requests: PermitRequests, most: int, call_us: int = IN_FLIGHT_US) -> tuple[Verdict, float]:
        """Ask the limiter once. Returns its verdict and when the request was sent."""
        sent_at = self._environment.clock.monotonic()
        is_metered = any(map(self.metered.includes, requests))
        if not is_metered and (refusal := self._turns.refusal(requests, sent_at)):
            return refusal, sent_at
        try:
            async with answer_in_time():
                await self.opened()
                async with self._counting if any(map(self._is_counted, requests)) else contextlib.nullcontext():
                    await self._correct(requests)
                    sent_at = self._environment.clock.monotonic()
                    verdict = await self._taken(requests, most, call_us)
                    self._count_calls(verdict)
                    if not is_metered:  # a call of another weight may fit
                        self._turns.note(requests, verdict, self._environment.clock.monotonic())
        except (asyncio.CancelledError, TransientError) as error:
            self._uncertain.update(filter(self._is_counted, requests))
            if isinstance(error, TransientError) and (own_share := self._fallback.take(requests, most)) is not None:
                return own_share, self._environment.clock.monotonic()
            raise
        if isinstance(verdict, Wait) and verdict.why == PAUSED:
            await self._read_definitions(at_once=True)  # no more jobs are claimed for a paused limit
        return verdict, sent_at

    def _count_calls(self, verdict: Verdict) -> None:
        if isinstance(verdict, Granted):
            for request in filter(self._is_counted, verdict.asks):
                self._in_flight[request] = self._in_flight.get(request, 0) + verdict.count

    async def _taken(self, requests: PermitRequests, most: int, in_flight_us: int) -> Verdict:
        limiter = self._environment.limiter
        try:
            return await limiter.acquire(requests, least=1, most=most, holder=self._holder, in_flight_us=in_flight_us)
        except UnknownLimit as error:
            await self._declare_again(requests, error)
        try:
            return await limiter.acquire(requests, least=1, most=most, holder=self._holder, in_flight_us=in_flight_us)
        except UnknownLimit as error:  # the limiter lost its state twice, which is not a fault of the job
            raise TransientError(f"{error}; it was declared a moment ago") from error

    async def _correct(self, requests: PermitRequests) -> None:
        """After a lost reply, tell the limiter how many calls are really in flight."""
        for request in [each for each in requests if each in self._uncertain]:
            await self.metered.correct(self._environment.limiter, self._holder, request, self._in_flight)
            self._uncertain.discard(request)

    async def _declare_again(self, requests: PermitRequests, error: UnknownLimit) -> None:
        """The limiter has lost the definitions that the code declared."""
        known = [self._definitions[each.limit] for each in requests if each.limit in self._definitions]
        if len(known) < len(requests):
            raise error
        await self._environment.limiter.definitions.declare(known)

    def permit_seconds(self, requests: PermitRequests) -> float:
        """How long a permit of these limits is valid."""
        known = [self._definitions[each.limit] for each in requests if each.limit in self._definitions]
        return min((size_limit(definition).lease_us / SECOND_US for definition in known), default=float("inf"))

    async def expected(self, requests: PermitRequests) -> tuple[int, Wait | None]:
        """How many calls may leave within a second, besides those that wait here already; or why none may."""
        limiter = await self.opened()
        is_paused = any(each.limit in self._definitions and self._definitions[each.limit].paused for each in requests)
        # The only way to learn that a limit was resumed.
        await self._read_definitions(at_once=is_paused or self._definitions_read_at == float("-inf"))
        try:
            now, levels = await limiter.levels(requests)
        except UnknownLimit as error:
            await self._declare_again(requests, error)
            now, levels = await limiter.levels(requests)
        pairs = [each for each in zip(requests, levels, strict=True) if each[0].limit in self._definitions]
        sized = [
            Acquisition(self.metered.typical(request), size_limit(self._definitions[request.limit]), level)
            for request, level in pairs
        ]
        units, wait = forecast(sized, now, levels[0].since, SECOND_US)
        queue = self._queues.get(self.metered.lane(requests))
        return units - (0 if queue is None else queue.waiting), wait

    def is_valid(self, permit: Permit) -> bool:
        """Whether a permit has not expired and the provider has not throttled calls since it was granted."""
        if self._environment.clock.monotonic() >= permit.valid_until:
            return False
        if not self._throttled_at:
            return True
        never = float("-inf")
        return all(permit.taken_at > self._throttled_at.get(each.name, never) for each in permit.granted.asks)

    @contextlib.contextmanager
    def waiting_in_place(self, requests: PermitRequests) -> Iterator[None]:
        """A job that has begun to call waits for these limits. No job starts under them meanwhile, or all would begin
        and none would end."""
        self._waited_for.update(names := [request.name for request in requests])
        try:
            yield
        finally:
            self._waited_for -= Counter(names)

    def is_waited_for(self, requests: PermitRequests) -> bool:
        return any(request.name in self._waited_for for request in requests)

    # -- returning --------------------------------------------------------------------------------------------------

    async def give_back(self, granted: Granted, count: int) -> None:
        """Return permits that were not used. If that fails, they count as used."""
        try:
            with contextlib.suppress(LeasewayError):
                async with answer_in_time():
                    await (await self.opened()).return_unused(granted, count)
        finally:
            await self.end_calls(granted.asks, count, NOTHING_USED)

    async def end_calls(self, requests: PermitRequests, count: int = 1, used: Mapping[str, int] | None = None) -> None:
        """Calls have ended. `used`: what they used of limits that are settled, by name; None: what they had reserved.
        If the limiter does not answer, the next report of the calls in flight tells it."""
        if not any(self._in_flight.get(each) for each in requests):
            return
        ended: PermitRequests | None = None
        try:
            with contextlib.suppress(LeasewayError):
                async with answer_in_time(), self._counting:
                    ended = self._discount(requests, count)
                    self._uncertain.update(ended)  # until the limiter has answered
                    amounts = self.metered.owe(ended, count, used)
                    if ended:
                        await (await self.opened()).end_calls(ended, self._holder, count, amounts)
                        self._uncertain.difference_update(ended)
                        self.metered.paid(ended, amounts)
        finally:
            if ended is None:  # another call held the lock all the time
                ended = self._discount(requests, count)
                self._uncertain.update(ended)
                self.metered.owe(ended, count, used)
        self.on_ended(ended)
        names = {each.name for each in ended}
        for queue in self._queues.values():
            if any(each.name in names for each in queue.requests):
                queue.call_ended.set()

    def end_calls_later(self, requests: PermitRequests, seconds: float, used: Mapping[str, int] | None = None) -> None:
        """Calls were cut off, and the provider may still be working on them. Their places stay taken meanwhile. If the
        worker stops before, the limiter frees them when they are no longer reported."""
        counted = tuple(each for each in requests if each in self._in_flight)
        if counted:
            self._cut_off.append((self._environment.clock.monotonic() + seconds, counted, used))

    async def _end_cut_off(self) -> None:
        now = self._environment.clock.monotonic()
        over = [(requests, used) for until, requests, used in self._cut_off if until <= now]
        self._cut_off = [each for each in self._cut_off if each[0] > now]
        for requests, used in over:
            await self.end_calls(requests, used=used)

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
        notices = list(make_notices(permit.granted, requests, status, self._definitions, self._failing))
        self._failing -= {notice.name for _, notice in notices if notice.answered}
        if len(self._failing) >= QUEUES_MAX:
            self._failing.clear()
        self._failing.update(notice.name for _, notice in notices if notice.failed)
        for request, notice in notices:
            if notice.throttled:
                if len(self._throttled_at) >= QUEUES_MAX:
                    self._throttled_at.clear()  # permits that old have expired
                self._throttled_at[request.name] = self._environment.clock.monotonic()
                self._environment.events.emit("limit_closed", limit=request.name, retry_after_us=notice.retry_after_us)
            with contextlib.suppress(TransientError):  # the next throttled call reports it again
                async with answer_in_time():
                    await self._observe(request, notice)

    async def _observe(self, request: PermitRequest, notice: Notice) -> None:
        limiter = await self.opened()
        try:
            await limiter.observe(notice)
        except UnknownLimit as error:  # the limiter was restarted, or the limit was forgotten meanwhile
            if request.limit in self._definitions:
                await self._declare_again((request,), error)
                await limiter.observe(notice)

    # -- beside the worker ------------------------------------------------------------------------------------------

    async def keep_calls_counted(self, recount: Callable[[], Mapping[PermitRequest, int]]) -> None:
        """Report the calls in flight at intervals, also to a limiter that has lost its state."""
        while True:  # until it is cancelled
            await self._environment.clock.sleep(RECOUNT_SECONDS)
            await self._end_cut_off()
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
                # In the same order in every process, so that a simulation can be replayed.
                await self._correct(tuple(sorted(self._uncertain)))
            if not self._in_flight:
                return
            for count, requests in self.metered.group_by_count(self._in_flight).items():
                await self._report(requests, count)

    async def _report(self, requests: Sequence[PermitRequest], count: int) -> None:
        for start in range(0, len(requests), PERMIT_REQUESTS_MAX):
            with contextlib.suppress(LeasewayError):
                batch = requests[start : start + PERMIT_REQUESTS_MAX]
                await (await self.opened()).renew_calls(batch, self._holder, count, IN_FLIGHT_US)

    async def declare(self, definitions: Sequence[LimitDefinition]) -> None:
        self._definitions.update({each.name: each for each in definitions})
        with contextlib.suppress(TransientError):
            await (await self.opened()).definitions.declare(definitions)

    async def declare_new(self, definitions: Sequence[LimitDefinition]) -> None:
        """Store limits that only single calls name, each once."""
        if new := [each for each in definitions if self._by_code.get(each.name) != each]:
            self._by_code.update({each.name: each for each in new})
            await self.declare(new)

    async def opened(self) -> Limiter:
        """The limiter. The first use opens it and declares the limits of the code."""
        async with self._opening:
            if not self._is_open:
                limiter = self._environment.limiter
                await limiter.open()
                declared = [*self._definitions.values(), *self._fallback.certificates()]
                await declare_definitions(limiter.definitions, declared, self._environment.store.operations)
                await self._read_definitions()
                await self._fallback.renew(limiter)
                self._is_open = True
        return self._environment.limiter

    def forget_definitions(self) -> None:
        self._definitions_read_at = float("-inf")
        self._turns.forget()
        for queue in self._queues.values():
            queue.forget_refusal()

    async def _read_definitions(self, *, at_once: bool = False) -> None:
        """An operator may have changed them."""
        if not at_once and self._environment.clock.monotonic() - self._definitions_read_at < DEFINITIONS_SECONDS:
            return
        with contextlib.suppress(TransientError):
            stored = await self._environment.limiter.definitions.all()
            self._definitions.update({definition.name: definition for definition, _ in stored})
            self._definitions_read_at = self._environment.clock.monotonic()

    def _is_counted(self, request: PermitRequest) -> bool:
        definition = self._definitions.get(request.limit)
        return definition is None or definition.concurrency is not None or definition.is_metered

    def takes_before_claim(self, requests: PermitRequests) -> bool:
        """Whether their permits are valid for long enough, and their weights do not depend on the job."""
        return self.permit_seconds(requests) >= LONG_SECONDS and not any(map(self.metered.includes, requests))

    def estimates(self) -> tuple[LearntEstimate, ...]:
        """What this worker has learnt. The thread of lease renewal may ask, too."""
        return self.metered.learnt.report(ESTIMATES_MAX) if "metered" in vars(self) else ()

    def emit_unavailable(self, requests: PermitRequests, error: TransientError) -> None:
        self._environment.events.emit(
            "limiter_unavailable", limit=", ".join(each.name for each in requests), error=error
        )

    def warn_of_late(self, requests: PermitRequests, permit: Permit) -> None:
        """The limiter is too slow for this limit: no call would ever get a valid permit."""
        valid = f"its permits are valid for {permit.granted.lease_us / SECOND_US:g} s and arrive later than that"
        advice = f"{valid}; give the limit a longer delay="
        self._environment.events.emit("permits_late", limit=", ".join(each.limit for each in requests), advice=advice)

    async def sleep(self, seconds: float) -> None:
        await self._environment.clock.sleep(seconds)

    def now(self) -> float:
        return self._environment.clock.monotonic()

    def pause_seconds(self, failures: int) -> float:
        return retry_delay_seconds(failures, self._environment.chance.random())
