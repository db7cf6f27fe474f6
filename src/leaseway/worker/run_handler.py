"""submit ─► store ─► exchange ─► [run handler] ─► settle

One attempt, from a lease to an outcome. Whatever a handler returns or raises becomes an outcome; only the end of the
worker itself passes through as an exception.
"""

import asyncio
import contextlib
import queue
import threading
import traceback
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from contextvars import copy_context
from functools import cached_property, partial
from typing import Any, TypeVar

from leaseway.domain.errors import LeaseLost, LeasewayError, StoreRefused
from leaseway.domain.exchange import HeldLease
from leaseway.domain.ids import SECOND_US, JobId, id_instant
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import Failure, Lease, State
from leaseway.domain.kind import BadArguments, Kind
from leaseway.domain.limits.rate_limit_headers import Throttled
from leaseway.domain.outcome import (
    BAD_PAYLOAD,
    UNKNOWN_KIND,
    Abandoned,
    Cancelled,
    Done,
    Fail,
    Failed,
    Interruption,
    Outcome,
    Released,
    Snooze,
    Snoozed,
    find_deferral,
)
from leaseway.domain.redact import Redactor
from leaseway.domain.validators import encode_payload, printable
from leaseway.ports.telemetry import Tracing
from leaseway.worker.blobs import keep_texts, open_texts
from leaseway.worker.context import Context, HandlerContext, SyncContext
from leaseway.worker.environment import Environment, jitter
from leaseway.worker.ledger_client import UnsettledHolds
from leaseway.worker.limiter_client import LimiterClient
from leaseway.worker.provider_calls import ProviderCalls
from leaseway.worker.provider_http import HttpEnvironment
from leaseway.worker.settle import Attempt, Stop

C = TypeVar("C", bound=HandlerContext)

CODE_MAX = 200
MESSAGE_MAX = 2_000
TRACEBACK_MAX = 16_000
OTHER_VERSION = "; give new fields a default, or run a worker of the version that submitted the job"
KINDS_LOGGED_MAX = 1_000
ORIGINS_SECONDS_MAX = 1.0
"""Jobs wait at most this long for the trace context of their submission."""
NO_ORIGINS: Mapping[JobId, str] = {}

STOPPED: dict[Stop, Outcome] = {Stop.CANCELLED: Cancelled(), Stop.LOST: Abandoned(), Stop.DRAIN: Released()}


class HandlerRunner:
    def __init__(
        self, kinds: Mapping[str, Kind], environment: Environment, limiter: LimiterClient, key_keep_us: int
    ) -> None:
        self._kinds = kinds
        self._environment = environment
        self._redactor = environment.redactor
        self._limiter = limiter
        self._key_keep_us = key_keep_us
        self.misfits = Misfits(environment)
        self._http: HttpEnvironment | None = None
        self._http_lock = threading.Lock()
        self.threads = HandlerThreads()

    @cached_property
    def unsettled(self) -> UnsettledHolds:
        """Only workers with budgets need it."""
        return UnsettledHolds(self._environment)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.transport.close()

    async def run(self, attempt: Attempt) -> Outcome:
        attempt.is_started = True
        attempt.began_at = self._environment.clock.monotonic()
        if attempt.stop is not None:
            return STOPPED[attempt.stop]
        lease = attempt.lease
        kind = self._kinds.get(lease.kind)
        if kind is None:
            known = ", ".join(sorted(self._kinds)) or "none"
            message = f"this worker has no job named {lease.kind!r}; it knows: {known}"
            return self.misfits.give_back(lease, Failure(UNKNOWN_KIND, clean(message[:MESSAGE_MAX])))
        if self._environment.opens(lease):
            return await self._run_opened(attempt, kind)
        return await self._run_kind(attempt, kind)

    async def _run_opened(self, attempt: Attempt, kind: Kind) -> Outcome:
        try:
            opened = await open_texts(self._environment, attempt.lease)
            if not isinstance(opened, Lease):
                return opened
            attempt.lease = opened
            return await keep_texts(self._environment, opened, await self._run_kind(attempt, kind))
        except asyncio.CancelledError:
            return self._when_cancelled(attempt)

    async def _run_kind(self, attempt: Attempt, kind: Kind) -> Outcome:
        try:
            arguments = kind.decode(attempt.lease.payload)
        except Exception as error:  # noqa: BLE001 - the type of an argument may raise anything
            message = f"the stored arguments cannot be read: {error_text(error)}"
            is_of_another_version = isinstance(error, BadArguments) and attempt.lease.payload[:1] == "{"
            way_out = OTHER_VERSION if is_of_another_version else ""
            failure = Failure(BAD_PAYLOAD, clean(self._redactor.head(message, MESSAGE_MAX)) + way_out)
            if is_of_another_version and self.misfits.is_recent(attempt.lease):
                return self.misfits.give_back(attempt.lease, failure)
            return Failed(failure, may_retry=False)
        return await self._attempt(attempt, kind, arguments)

    async def _attempt(self, attempt: Attempt, kind: Kind, arguments: dict[str, Any]) -> Outcome:
        try:
            value = await self._call(attempt, kind, arguments)
        except asyncio.CancelledError:
            return self._when_cancelled(attempt)
        except NotStarted:
            return Released() if attempt.stop is None else STOPPED[attempt.stop]
        except Snooze as snooze:
            return Snoozed(snooze.run_at, snooze.delay_us)
        except KeyboardInterrupt:
            raise
        except (Throttled, BaseExceptionGroup) as error:
            deferred = find_deferral(error)
            if deferred is None or attempt.stop is not None:
                return self._when_failed(attempt, error)
            return Snoozed(deferred.run_at, deferred.delay_us)
        except LeaseLost:
            return Abandoned()
        except Fail as error:
            return Failed(self._describe(error, error.code), may_retry=False)
        except BaseException as error:  # noqa: BLE001 - any failure of a handler becomes an outcome
            return self._when_failed(attempt, error)
        return self._done(attempt, value)

    def _when_failed(self, attempt: Attempt, error: BaseException) -> Outcome:
        # An error that the handler raises because it was stopped is not a failure of the job.
        if attempt.stop is not None:
            return STOPPED[attempt.stop]
        return Failed(self._describe(error, type(error).__name__))

    def _done(self, attempt: Attempt, value: Any) -> Outcome:
        try:
            result = "null" if value is None else encode_payload(value, "result", self._environment.blobs.bytes_max)
        except Exception as error:  # noqa: BLE001 - a result may have any type, and its fields may raise anything
            return Failed(self._describe(error, "bad_result"), may_retry=False)
        return Done(result, tuple(attempt.children))

    def _describe(self, error: BaseException, code: str) -> Failure:
        return describe_failure(error, code, self._redactor)

    async def _call(self, attempt: Attempt, kind: Kind, arguments: dict[str, Any]) -> Any:
        timeout_us = attempt.lease.timeout_us
        if timeout_us is None:
            return await self._invoke(attempt, kind, arguments)
        seconds = timeout_us / SECOND_US
        try:
            async with asyncio.timeout(seconds) as scope:
                with attempt.limited_to(scope):
                    return await self._invoke(attempt, kind, arguments)
        except TimeoutError as error:
            if not scope.expired():
                raise
            attempt.timed_out = True
            raise TimedOut(f"the attempt took longer than {seconds:g} s") from error

    async def _invoke(self, attempt: Attempt, kind: Kind, arguments: dict[str, Any]) -> Any:
        call, context = partial(kind.function, **arguments), None
        if kind.takes_context:
            context = self._context(Context if kind.is_async else SyncContext, attempt, kind, arguments)
            call = partial(call, context)
        is_deferred = False
        try:
            if kind.is_async:
                return await self._begin(attempt, call)
            return await self.threads.run(partial(self._begin, attempt, call))
        except BaseException as error:
            is_deferred = find_deferral(error) is not None
            if isinstance(error, Interruption):
                raise error.error from None
            raise
        finally:
            attempt.has_ended = True
            if context is not None:
                context.finish_calls(keeps_booked=is_deferred or attempt.stop in (Stop.LOST, Stop.DRAIN))

    def _begin(self, attempt: Attempt, call: Callable[[], Any]) -> Any:
        """Call the handler, unless its lease is too old by now. A task waits behind handlers that block the loop, and a
        call waits for its thread; the process may have been frozen meanwhile."""
        if not attempt.may_start(self._environment.clock.monotonic()):
            raise NotStarted
        return call()

    def _context(self, context: type[C], attempt: Attempt, kind: Kind, arguments: dict[str, Any]) -> C:
        def make_calls() -> ProviderCalls:
            return ProviderCalls(
                attempt, kind.requirements, arguments, self._limiter, self._environment, self.unsettled
            )

        made = context(attempt, self._environment, make_calls, self._shared_http, self._key_keep_us)
        if attempt.lease.needs:
            # A budget that the code no longer declares must fail the attempt before the handler starts.
            made.prepare_calls()
        return made

    def _shared_http(self) -> HttpEnvironment:
        if self._http is None:
            with self._http_lock:  # handlers in threads may ask at the same time
                ports = self._environment
                self._http = self._http or HttpEnvironment(ports.make_transport(), ports.clock, ports.chance)
        return self._http

    def _when_cancelled(self, attempt: Attempt) -> Outcome:
        if attempt.stop is not None:
            return STOPPED[attempt.stop]
        # The worker always sets `stop` first, so this cancellation came from the handler or from what it awaited.
        return Failed(Failure("CancelledError", "the handler was cancelled, but not by its worker"))


MISFIT_SECONDS_MIN = 2.0
MISFIT_SECONDS_MAX = 60.0
MISFITS_PER_SECOND = 50
"""How many jobs that it cannot run a worker claims: the more of them there are, the longer each one waits."""
MISFITS_LISTED_MAX = 1_000
MISFIT_US_MAX = 86_400 * SECOND_US
"""How long after its submission a job may wait for a worker whose function takes its arguments."""


class Misfits:
    """Jobs that other code can run, but not the code of this worker: their kind is unknown here, or their arguments
    have other fields. During a deployment both are normal, so the job goes back without using an attempt."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._given_back: dict[JobId, float] = {}
        self._logged_at: dict[str, float] = {}

    def give_back(self, lease: Lease, failure: Failure) -> Outcome:
        now = self._environment.clock.monotonic()
        self._given_back.pop(lease.id, None)
        self._given_back[lease.id] = now
        seconds = min(max(self.count() / MISFITS_PER_SECOND, MISFIT_SECONDS_MIN), MISFIT_SECONDS_MAX)
        if now - self._logged_at.get(lease.kind, float("-inf")) >= MISFIT_SECONDS_MAX:
            if len(self._logged_at) >= KINDS_LOGGED_MAX:
                self._logged_at.clear()
            self._logged_at[lease.kind] = now
            self._environment.events.emit(
                "job_not_for_this_worker", job=lease.id, kind=lease.kind, code=failure.code, message=failure.message
            )
        return Snoozed(None, int(jitter(seconds, self._environment.chance.random()) * SECOND_US), failure)

    def is_recent(self, lease: Lease) -> bool:
        """Whether a deployment may still be under way that brings code for the arguments of this job."""
        made_at = id_instant(lease.id)
        return made_at is not None and abs(self._environment.clock.wall_us() - made_at) < MISFIT_US_MAX

    async def are_all(self, unfinished: int, queues: Container[str]) -> bool:
        """Whether all unfinished jobs of these queues are jobs that this worker has given back."""
        if not unfinished or unfinished > min(self.count(), MISFITS_LISTED_MAX):
            return not unfinished
        which = JobFilter(ids=tuple(self._given_back), states=(State.PENDING,))
        try:
            found = await self._environment.store.reads.jobs(which, limit=MISFITS_LISTED_MAX)
        except StoreRefused:  # the key of a worker may not list jobs
            return False
        return sum(job.queue in queues for job in found) == unfinished

    def count(self) -> int:
        """How many different jobs were given back lately. Each of them comes again within that time."""
        oldest = self._environment.clock.monotonic() - 2 * MISFIT_SECONDS_MAX
        while self._given_back and next(iter(self._given_back.values())) < oldest:
            del self._given_back[next(iter(self._given_back))]
        return len(self._given_back)


class NotStarted(Exception):
    """The handler was not called, because the lease was too old or the attempt was stopped."""


class TimedOut(Exception):
    """The attempt took longer than its timeout."""


def describe_failure(error: BaseException, code: str, redactor: Redactor) -> Failure:
    """The error as text: without secrets, bounded, with characters that every store can keep."""
    if isinstance(error, TimedOut):
        return Failure("timeout", str(error))
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - a broken exception class must not break the worker
        lines = ""
    return Failure(
        printable(redactor.head(code, CODE_MAX))[:CODE_MAX],
        clean(redactor.head(error_text(error), MESSAGE_MAX)),
        # The end of a traceback is the useful part: it names the error and the place.
        clean(redactor.tail(lines, TRACEBACK_MAX)),
    )


def error_text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - __str__ is the user's code
        return f"{type(error).__name__} (its message cannot be read)"


def clean(text: str) -> str:
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


# -- tracing --------------------------------------------------------------------------------------------------------


async def read_origins(environment: Environment, leases: Sequence[Lease]) -> Mapping[JobId, str]:
    """The trace contexts in which these jobs were submitted. Jobs run even if the store does not answer."""
    if environment.tracing is None or not environment.tracing.has_traces or not leases:
        return NO_ORIGINS
    held = [HeldLease(lease.id, lease.token, lease.lease_us) for lease in leases]
    with contextlib.suppress(LeasewayError, TimeoutError):
        async with asyncio.timeout(ORIGINS_SECONDS_MAX):
            return await environment.store.jobs.traces(held)
    return NO_ORIGINS


async def run_traced(tracing: Tracing, run: Callable[[Attempt], Awaitable[Outcome]], attempt: Attempt) -> Outcome:
    with tracing.running(attempt.lease, attempt.origin) as span:
        outcome = await run(attempt)
        span.end(outcome)
        return outcome


# -- threads --------------------------------------------------------------------------------------------------------

ThreadCall = tuple[asyncio.Future[Any], Callable[[], Any]]


class HandlerThreads:
    """Threads for handlers that are plain functions.

    They are daemon threads. `concurrent.futures` waits for its threads when Python exits, and a handler that hangs must
    not keep a drained worker alive.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[ThreadCall] = queue.SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()
        self.busy = 0
        """Calls that have not returned, including abandoned ones."""

    async def run(self, call: Callable[[], Any]) -> Any:
        """Run the call in a thread. Cancelling stops the wait; the call itself cannot be stopped."""
        future = asyncio.get_running_loop().create_future()
        self.busy += 1
        with self._lock:
            self._idle -= 1
            if self._idle < 0:
                self._idle += 1
                threading.Thread(target=self._serve, name="leaseway-handler", daemon=True).start()
        self._calls.put((future, partial(copy_context().run, call)))
        return await future

    def _serve(self) -> None:
        while True:  # for the life of the process; there are as many threads as sync jobs ever ran at once
            future, call = self._calls.get()
            loop = future.get_loop()
            try:
                result, error = call(), None
            except BaseException as raised:  # noqa: BLE001 - the future carries it to the caller
                result, error = None, raised
            with self._lock:
                self._idle += 1
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: no caller waits any more
                loop.call_soon_threadsafe(self._return, future, result, error)

    def _return(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self.busy -= 1
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):  # a future cannot carry it
            future.set_exception(RuntimeError("the handler raised StopIteration"))
        else:
            future.set_exception(error)
