"""submit ─► store ─► exchange ─► [run handler] ─► settle

One attempt, from a lease to an outcome. Whatever a handler returns or raises becomes an outcome; only the end of the
worker itself passes through as an exception.
"""

import asyncio
import contextlib
import queue
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from leaseway.domain import payload
from leaseway.domain.errors import LeaseLost, LeasewayError
from leaseway.domain.exchange import HeldLease
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.job import Failure, Lease
from leaseway.domain.kind import Kind
from leaseway.domain.limits.rate_limit_headers import Throttled
from leaseway.domain.outcome import Abandoned, Cancelled, Done, Fail, Failed, Outcome, Released, Snooze, Snoozed
from leaseway.ports.telemetry import Tracing
from leaseway.worker.attempt import Attempt, Stop
from leaseway.worker.context import Context, SyncContext
from leaseway.worker.environment import Environment
from leaseway.worker.limiter_client import LimiterClient
from leaseway.worker.provider_calls import ProviderCalls
from leaseway.worker.provider_http import SharedClient

C = TypeVar("C", bound=Context)

THROTTLED_US = 10 * SECOND_US
"""How long a job waits if the provider throttles it without saying for how long."""
CODE_MAX = 200
MESSAGE_MAX = 2_000
TRACEBACK_MAX = 16_000
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
        self._limiter = limiter
        self._key_keep_us = key_keep_us
        self._http_client: SharedClient | None = None
        self._http_client_lock = threading.Lock()
        self.threads = HandlerThreads()

    async def close(self) -> None:
        if self._http_client is not None:
            await self._http_client.close()

    async def run(self, attempt: Attempt) -> Outcome:
        attempt.is_started = True
        if attempt.stop is not None:
            return STOPPED[attempt.stop]
        lease = attempt.lease
        kind = self._kinds.get(lease.kind)
        if kind is None:
            known = ", ".join(sorted(self._kinds)) or "none"
            # The job may be retried, because a worker with a newer version of the code may know this kind.
            return Failed(Failure("unknown_kind", f"this worker has no job named {lease.kind!r}; it knows: {known}"))
        try:
            arguments = kind.decode(lease.payload)
        except Exception as error:  # noqa: BLE001 - the type of an argument may raise anything
            message = f"the stored arguments cannot be read: {error_text(error)}"
            return Failed(Failure("bad_payload", clean(message[:MESSAGE_MAX])), may_retry=False)
        return await self._attempt(attempt, kind, arguments)

    async def _attempt(self, attempt: Attempt, kind: Kind, arguments: dict[str, Any]) -> Outcome:
        try:
            value = await self._call(attempt, kind, arguments)
        except asyncio.CancelledError:
            return self._when_cancelled(attempt)
        except Snooze as snooze:
            return Snoozed(snooze.run_at, snooze.delay_us)
        except Throttled as throttled:
            # The limit is closed for the whole fleet by now. The job waits with the others and keeps its attempt.
            return Snoozed(None, throttled.retry_after_us or THROTTLED_US)
        except KeyboardInterrupt:
            raise
        except LeaseLost:
            return Abandoned()
        except Fail as error:
            return Failed(describe_failure(error, error.code), may_retry=False)
        except BaseException as error:  # noqa: BLE001 - any failure of a handler becomes an outcome
            # An error that the handler raises because it was stopped is not a failure of the job.
            if attempt.stop is not None:
                return STOPPED[attempt.stop]
            return Failed(describe_failure(error, type(error).__name__))
        return self._done(attempt, value)

    def _done(self, attempt: Attempt, value: Any) -> Outcome:
        try:
            result = "null" if value is None else payload.encode(value, "result")
        except Exception as error:  # noqa: BLE001 - a result may have any type, and its fields may raise anything
            return Failed(describe_failure(error, "bad_result"), may_retry=False)
        return Done(result, tuple(attempt.children))

    async def _call(self, attempt: Attempt, kind: Kind, arguments: dict[str, Any]) -> Any:
        timeout_us = attempt.lease.timeout_us
        if timeout_us is None:
            return await self._invoke(attempt, kind, arguments)
        seconds = timeout_us / SECOND_US
        try:
            async with asyncio.timeout(seconds) as scope:
                return await self._invoke(attempt, kind, arguments)
        except TimeoutError as error:
            if not scope.expired():
                raise
            attempt.timed_out = True
            raise TimedOut(f"the attempt took longer than {seconds:g} s") from error

    async def _invoke(self, attempt: Attempt, kind: Kind, arguments: dict[str, Any]) -> Any:
        if kind.is_async:
            if kind.takes_context:
                return await kind.function(self._context(Context, attempt, kind, arguments), **arguments)
            return await kind.function(**arguments)
        call = partial(kind.function, **arguments)
        if kind.takes_context:
            call = partial(call, self._context(SyncContext, attempt, kind, arguments))
        return await self.threads.run(call)

    def _context(self, context: type[C], attempt: Attempt, kind: Kind, arguments: dict[str, Any]) -> C:
        def make_calls() -> ProviderCalls:
            return ProviderCalls(attempt, kind.requirements, arguments, self._limiter, self._environment)

        made = context(attempt, self._environment, make_calls, self._shared_client, self._key_keep_us)
        if attempt.lease.needs:
            # A budget that the code no longer declares must fail the attempt before the handler starts.
            made.prepare_calls()
        return made

    def _shared_client(self) -> SharedClient:
        with self._http_client_lock:  # handlers in threads may ask at the same time
            if self._http_client is None:
                self._http_client = SharedClient()
            return self._http_client

    def _when_cancelled(self, attempt: Attempt) -> Outcome:
        if attempt.stop is not None:
            return STOPPED[attempt.stop]
        # The worker always sets `stop` first, so this cancellation came from the handler or from what it awaited.
        return Failed(Failure("CancelledError", "the handler was cancelled, but not by its worker"))


class TimedOut(Exception):
    """The attempt took longer than its timeout."""


def describe_failure(error: BaseException, code: str) -> Failure:
    """The error as text, bounded, with characters that every store can keep."""
    if isinstance(error, TimedOut):
        return Failure("timeout", str(error))
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - a broken exception class must not break the worker
        lines = ""
    message = error_text(error)
    # The end of a traceback is the useful part: it names the error and the place.
    return Failure(clean(code[:CODE_MAX]), clean(message[:MESSAGE_MAX]), clean(lines[-TRACEBACK_MAX:]))


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
