"""A context for unit tests: call a job as a function, and look at what it did with its context.

    ctx = FakeContext(geocode, replies=[HttpReply(200, json={"lat": 46.9})])
    assert await geocode(ctx, address="Bern") == {"lat": 46.9}
    assert ctx.cost == {"usd": 0.005}

No store, worker or network is needed. Limits and budgets never make it wait.
"""

from collections.abc import Iterable
from functools import cache, cached_property, partial
from inspect import isawaitable
from random import Random
from typing import Any, NoReturn

import msgspec

from leaseway import Bound, Context, JobHandle
from leaseway.domain.errors import LeaseLost, UsageError
from leaseway.domain.http import HttpReply, HttpRequest
from leaseway.domain.ids import SECOND_US, Instant, JobId
from leaseway.domain.job import Lease
from leaseway.domain.kind import ATTEMPTS_MAX, Kind, KindDefaults
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus
from leaseway.domain.requirements import NO_REQUIREMENTS, BudgetOption, LimitsOption, Requirements
from leaseway.domain.validators import Seconds, check_int, encode_payload
from leaseway.store_session import SyncPortal
from leaseway.stores.memory.budgets import MemoryLedger
from leaseway.stores.memory.limits import MemoryLimiter
from leaseway.stores.memory.store import MemoryStore
from leaseway.system import SystemIds
from leaseway.telemetry.log import NoEvents
from leaseway.testing.clock import FakeClock
from leaseway.testing.fake_call import CURRENT, FakeAdmission, FakeCall
from leaseway.testing.recorded_call import MICROS, RecordedCall
from leaseway.worker.calls.call_needs import CallOptions, call_requirements
from leaseway.worker.calls.key_pool import KeyPool
from leaseway.worker.calls.provider_call import ProviderCall, SyncProviderCall
from leaseway.worker.context import HandlerContext, SyncContext, SyncHttp, deadline_seconds
from leaseway.worker.environment import Environment
from leaseway.worker.provider_http import AnswerFunction, FunctionTransport, Http, HttpEnvironment
from leaseway.worker.settle import Attempt, Stop

NO_NAME = "unnamed"
_IDS = SystemIds()


class Recorder(HandlerContext):
    """What both contexts share: the record of a run, and what a test can simulate."""

    def __init__(
        self,
        job: "JobHandle[Any] | Bound | None" = None,
        *,
        attempt: int = 1,
        attempts_max: int | None = None,
        cursor: Any = None,
        tenant: str = "default",
        queue: str | None = None,
        shard_key: str | None = None,
        fence: int = 1,
        replies: Iterable[HttpReply | Exception] = (),
        transport: AnswerFunction | None = None,
    ) -> None:
        """`job`: gives the context its kind, its budgets and their cost. If the cost depends on the arguments, bind
        them: `FakeContext(geocode.bind(address="Bern"))`. `replies`: the answers to the requests of `ctx.http`, in
        order; an exception is raised. `transport`: a function that answers them instead, from an `HttpRequest`."""
        kind, payload = parse_job(job)
        if kind is not None and kind.is_async is isinstance(self, SyncContext):
            right = "FakeContext" if kind.is_async else "FakeSyncContext"
            raise UsageError(f"job {kind.name} is {'async' if kind.is_async else 'a plain function'}; use {right}")
        check_options(attempt, replies, transport)
        defaults = KindDefaults() if kind is None else kind.defaults
        self.calls: list[RecordedCall] = []
        """The calls to the provider, retries included, in order."""
        self.checkpoints: list[Any] = []
        """The cursors that were stored."""
        self.reports: list[tuple[float, float | None, str | None]] = []
        """The arguments of each `ctx.progress`: done, total and message."""
        self.children: list[Bound] = []
        """The jobs that were submitted with `ctx.submit`."""
        self._requirements = None if kind is None else kind.requirements
        self._arguments = None if kind is None or payload is None else kind.decode(payload)
        self._replies = iter(replies)
        self._answer = transport
        self._open: list[FakeCall] = []
        lease = Lease(
            id=_IDS.job(),
            token=_IDS.token(),
            fence=fence,
            kind=NO_NAME if kind is None else kind.name,
            queue=queue or defaults.queue,
            tenant=tenant,
            payload=payload or "{}",
            attempts=attempt,
            attempts_max=attempts_max or max(defaults.attempts, attempt),
            lease_us=defaults.lease_us,
            timeout_us=defaults.timeout_us,
            shard_key=shard_key,
            cursor=None if cursor is None else encode_payload(cursor, "cursor"),
            priority=defaults.priority,
            needs="",
        )
        HandlerContext.__init__(self, Attempt(lease, 0.0), environment(), no_worker, no_worker)

    # -- what a test reads ------------------------------------------------------------------------------------------

    @property
    def cost(self) -> dict[str, float]:
        """What all calls cost together, by unit."""
        totals: dict[str, int] = {}
        for call in self.calls:
            for unit, amount in call.cost.items():
                totals[unit] = totals.get(unit, 0) + round(amount * MICROS)
        return {unit: micros / MICROS for unit, micros in totals.items()}

    @property
    def requests(self) -> list[HttpRequest]:
        """The requests of `ctx.http`, retries included."""
        return [call.request for call in self.calls if call.request is not None]

    # -- what a test simulates --------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """`ctx.cancelled` becomes true."""
        self._attempt.stop = Stop.CANCELLED

    def lose_lease(self) -> None:
        """From now on another worker has the job: checkpoints and calls raise `LeaseLost`."""
        self._attempt.stop = Stop.LOST

    def end(self) -> None:
        """The attempt is over: every method raises `AttemptEnded`."""
        self._attempt.has_ended = True

    # -- what a job does --------------------------------------------------------------------------------------------

    def submit(self, job: Bound) -> JobId:
        id_ = super().submit(job)
        self.children.append(job)
        return id_

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        super().progress(done, total, message)
        self.reports.append((done, total, message))

    def _store_cursor(self, cursor: Any) -> None:
        self._attempt.refuse_if_ended("checkpoint")
        text = encode_payload(cursor, "cursor")
        self._refuse_without_lease("the cursor was not stored")
        with self.saving_calls():
            self.checkpoints.append(msgspec.json.decode(text))
        self.cursor = cursor

    def _begin_call(self, seconds: float, needed: Requirements | None = None) -> RecordedCall:
        self._refuse_without_lease("the request was not sent")
        call = RecordedCall(self._estimate(needed), seconds)
        call.number = self._attempt.count_call()
        self.calls.append(call)
        return call

    def _end_request(self, call: RecordedCall, status: RateLimitStatus | None) -> None:
        """A call that the provider did not process is not repeated by a new attempt."""
        call.is_refused = status is not None and status.throttled
        if (not call.is_sent or (status is not None and status.throttled)) and call.number:
            self._attempt.uncount_call(call.number)
            call.number = 0

    def _refuse_without_lease(self, what: str) -> None:
        if self._attempt.stop is Stop.LOST:
            raise LeaseLost(f"job {self._attempt.lease.id}: the lease is lost; {what}")

    def _estimate(self, needed: Requirements | None) -> dict[str, float]:
        needed = needed or self._requirements
        if needed is None or not needed.budgets:
            return {}
        if self._arguments is None and not needed.is_same_for_all:
            raise UsageError("the cost depends on the arguments; bind them: FakeContext(job.bind(…))")
        amounts = needed.amounts(self._arguments or {})
        return {budget.unit: amounts[budget.name] / MICROS for budget in needed.budgets}

    def _make_call(self, deadline: Seconds | None, options: CallOptions, pool: KeyPool | None) -> "FakeCall":
        self._attempt.refuse_if_ended("call")
        needed = self._requirements
        if options:
            needed = call_requirements(needed or NO_REQUIREMENTS, options)
        return FakeCall(self, deadline_seconds(deadline), needed, pool)

    def _make_http(self) -> Http:
        self._attempt.refuse_if_ended("http")
        environment = HttpEnvironment(FunctionTransport(self._reply), InstantClock(), Random(0))
        return Http(environment, FakeAdmission(self), self._call_key)

    async def _reply(self, request: HttpRequest) -> HttpReply:
        call = CURRENT.get()
        call.request = request
        reply = await self._next_reply(request)
        if not isinstance(reply, HttpReply):
            raise UsageError(f"a reply is an HttpReply(200, json=…), or an exception (is {type(reply).__name__})")
        call.status = reply.status_code
        return reply

    async def _next_reply(self, request: HttpRequest) -> HttpReply:
        if self._answer is not None:
            answer = self._answer(request)
            return await answer if isawaitable(answer) else answer
        reply = next(self._replies, None)
        if reply is None:
            raise UsageError(f"no reply is left for {request.method} {request.url}; give the context more replies=")
        if isinstance(reply, Exception):
            raise reply
        return reply


class FakeContext(Recorder, Context):
    """A context for an async job that a test calls as a function."""

    async def checkpoint(self, cursor: Any) -> None:
        self._store_cursor(cursor)

    def call(
        self,
        deadline: Seconds | None = None,
        *,
        limits: LimitsOption | None = None,
        budget: BudgetOption | None = None,
        cost: object = None,
        pool: KeyPool | None = None,
    ) -> ProviderCall:
        return self._make_call(deadline, CallOptions(limits, budget, cost), pool)

    @cached_property
    def http(self) -> Http:
        return self._make_http()


class FakeSyncContext(Recorder, SyncContext):
    """A context for a job that is a plain function, and that a test calls as a function."""

    def checkpoint(self, cursor: Any) -> None:  # type: ignore[override]
        self._store_cursor(cursor)

    def call(  # type: ignore[override]
        self,
        deadline: Seconds | None = None,
        *,
        limits: LimitsOption | None = None,
        budget: BudgetOption | None = None,
        cost: object = None,
        pool: KeyPool | None = None,
    ) -> SyncProviderCall:
        call = self._make_call(deadline, CallOptions(limits, budget, cost), pool)
        return SyncProviderCall(call, self._wait_for, partial(self._attempt.refuse_if_ended, "call"))

    @cached_property
    def http(self) -> SyncHttp:  # type: ignore[override]
        return SyncHttp(self._make_http(), self._wait_for, partial(self._attempt.refuse_if_ended, "http"))

    def _wait_for(self, coroutine: Any) -> Any:
        return portal().begin(coroutine).result()


class InstantClock(FakeClock):
    """Pauses between retries take no time."""

    def monotonic(self) -> float:
        return self.now_us() / SECOND_US

    def wall_us(self) -> Instant:
        return self.now_us()

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)


def parse_job(job: "JobHandle[Any] | Bound | None") -> tuple[Kind | None, str | None]:
    match job:
        case None:
            return None, None
        case Bound(kind=kind, payload=payload):
            return kind, payload
        case JobHandle():
            return job.kind, None
    raise UsageError(f"give the context a job or a bound job (is {type(job).__name__})")


def check_options(attempt: int, replies: object, transport: object) -> None:
    check_int("attempt", attempt, 1, ATTEMPTS_MAX)
    if not isinstance(replies, Iterable) or not (transport is None or callable(transport)):
        raise UsageError("replies= takes a list of HttpReply objects, and transport= a function that returns one")


def environment() -> Environment:
    clock = InstantClock()
    return Environment(
        store=MemoryStore(clock.now_us),
        limiter=MemoryLimiter(clock.now_us),
        ledger=MemoryLedger(clock.now_us),
        clock=clock,
        chance=Random(0),
        ids=_IDS,
        events=NoEvents(),
    )


def no_worker() -> NoReturn:
    raise UsageError("this context makes its calls and requests without a worker")


@cache
def portal() -> SyncPortal:
    """The event loop in which the calls of plain functions run."""
    return SyncPortal()
