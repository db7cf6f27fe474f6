"""exchange ─► [run handler] ─► settle: what a handler sees of its job, the `ctx` of its signature."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import cached_property, lru_cache, partial
from typing import Any, TypeVar

import msgspec

from leaseway.domain.errors import BadValue, LeaseLost
from leaseway.domain.exchange import CHILDREN_MAX
from leaseway.domain.http import HttpReply
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.requirements import BudgetOption, LimitsOption
from leaseway.domain.validators import Seconds, encode_payload, parse_duration_us
from leaseway.worker.calls.call_needs import CallOptions
from leaseway.worker.calls.key_pool import KeyPool
from leaseway.worker.calls.provider_call import ProviderCall, SyncProviderCall, WaitFor, wait_in_thread
from leaseway.worker.environment import Environment
from leaseway.worker.provider_calls import ProviderCalls
from leaseway.worker.provider_http import Http, HttpEnvironment
from leaseway.worker.settle import Attempt
from leaseway.worker.submit import KEY_KEEP_US, Bound, require_bound

T = TypeVar("T")

CALL_SECONDS = 60.0
"""How long a call may take if its handler does not say. It is an estimate: a call that takes longer is captured, and
corrected when it settles."""
DEADLINE_SECONDS_MAX = 86_400
MAKING = threading.RLock()


@lru_cache(maxsize=100)
def duration(microseconds: int) -> timedelta:
    """The jobs of a kind have the same one, and making it takes a microsecond."""
    return timedelta(microseconds=microseconds)


class HandlerContext:
    """The first argument of a handler, if it is named `ctx`: the job's data and what the handler can do with it.

    An async function gets a `Context`, a plain function a `SyncContext`. Neither is a subclass of the other, so that a
    type checker finds a method that is awaited in the wrong kind of function. After the handler has returned, every
    method raises `AttemptEnded`.
    """

    def __init__(
        self,
        attempt: Attempt,
        environment: Environment,
        make_calls: Callable[[], ProviderCalls],
        http_environment: Callable[[], HttpEnvironment],
        key_keep_us: int = KEY_KEEP_US,
    ) -> None:
        self._attempt = attempt
        self._environment = environment
        self._make_calls = make_calls
        self._http_environment = http_environment
        self._key_keep_us = key_keep_us
        self._made_calls: ProviderCalls | None = None
        self._made_http: Http | None = None
        lease = attempt.lease
        self.id: JobId = lease.id
        self.kind = lease.kind
        self.tenant = lease.tenant
        self.queue = lease.queue
        self.shard_key = lease.shard_key
        self.attempt = lease.attempts
        """The number of this attempt, counted from 1."""
        self.attempts_max = lease.attempts_max
        self.fence = lease.fence
        """A number that grows with every lease of this job. Pass it to an outside system, so that the system can refuse
        a write with a smaller number than it has seen."""
        self.lease_duration = duration(lease.lease_us)
        self.cursor: Any = None if lease.cursor is None else msgspec.json.decode(lease.cursor)
        """The value of the last `checkpoint`; None if there was none."""

    @property
    def _calls(self) -> ProviderCalls:
        if self._made_calls is None:
            with MAKING:  # a plain function may start threads that ask at the same time
                self._made_calls = self._made_calls or self._make_calls()
        return self._made_calls

    def prepare_calls(self) -> None:
        """Check now that the limits and budgets of the job fit those of its code."""
        _ = self._calls

    def finish_calls(self, *, keeps_booked: bool) -> None:
        """The handler has returned or was stopped. `keeps_booked`: the next delivery uses what is booked for it."""
        if self._made_calls is not None:
            self._made_calls.finish(keeps_booked=keeps_booked)

    @property
    def cancelled(self) -> bool:
        """True if the handler should stop soon: the job was cancelled or timed out, its lease is lost, or the worker is
        stopping; and after the handler has returned."""
        return self._attempt.stop is not None or self._attempt.timed_out or self._attempt.has_ended

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress. This is cheap: the latest report is stored about twice a second."""
        self._attempt.refuse_if_ended("progress")
        check_progress(done, total, message)
        self._attempt.report(done, total, message)

    def call_key(self, step: str = "") -> str:
        """An idempotency key for a call to a provider. It is the same in every attempt of this job; `step` tells
        several calls of one job apart."""
        self._attempt.refuse_if_ended("call_key")
        return self._call_key(step)

    def _call_key(self, step: str) -> str:
        return f"{self.id}:{step}" if step else str(self.id)

    def submit(self, job: Bound) -> JobId:
        """Submit another job in the same transaction as this job's result. It is submitted only if this attempt
        succeeds."""
        self._attempt.refuse_if_ended("submit")
        if len(self._attempt.children) >= CHILDREN_MAX:
            raise ValueError(f"job {self.id}: more than {CHILDREN_MAX:,} children; submit them from several jobs")
        environment = self._environment
        child = require_bound(job).new(environment.ids, self._key_keep_us, self.tenant, environment.encryption)
        if self._environment.tracing is not None:
            child = msgspec.structs.replace(child, trace=self._environment.tracing.origin())
        self._attempt.children.append(child)
        return child.id

    def call(
        self,
        deadline: Seconds | None = None,
        *,
        limits: LimitsOption | None = None,
        budget: BudgetOption | None = None,
        cost: object = None,
        pool: KeyPool | None = None,
    ) -> "ProviderCall":
        """Wait until the job's limits and budgets allow one request, made with any client:

            async with ctx.call() as call:
                reply = await client.get(...)
                call.settle(usd=0.004)

        Send the request at once; a permit is valid for a short time. Without `settle` the whole estimate is charged.
        `deadline`: how long the call may take, in seconds; 60 if you do not say. If the worker dies, the estimate is
        charged a quarter of a minute after that, and not before. A call that takes longer is corrected when it settles.

        `limits`, `budget`, `cost`: for this call, instead of those of the job, so that one job can call two providers.
        They take what `@app.job` takes; `[]` stands for none. What you do not name stays as the job has it. `pool`: a
        `KeyPool`, instead of `limits`; the call has the secret of its key as `call.key`.
        """
        self._attempt.refuse_if_ended("call")
        seconds, options = deadline_seconds(deadline), CallOptions(limits, budget, cost)
        if pool is None:
            return ProviderCall(self._calls, seconds, self._calls.needs_with(options))
        if limits is not None:
            raise BadValue("ctx.call: limits", "is given together with pool=; a pool has limits of its own")
        return ProviderCall(self._calls, seconds, partial(self._calls.keys.choose, pool, options))

    @property
    def http(self) -> Http:
        """An HTTP client that takes the job's limits and budgets before each request."""
        if self._made_http is None:
            self._attempt.refuse_if_ended("http")
            self._made_http = Http(self._http_environment(), self._calls, self._call_key)
        return self._made_http

    async def checkpoint(self, cursor: Any) -> None:
        """Store a cursor, any JSON value. The next attempt finds it in `ctx.cursor`.

        Raises LeaseLost if another worker has taken over the job.
        """
        self._attempt.refuse_if_ended("checkpoint")
        text = encode_payload(cursor, "cursor", self._environment.blobs.bytes_max)
        lease = self._attempt.lease
        text = self._environment.encryption.seal_cursor(lease, text)
        text = await self._environment.blobs.keep(self.id, "cursor", text)
        with self.saving_calls():
            if not await self._environment.store.jobs.checkpoint(self.id, lease.token, text):
                raise LeaseLost(f"job {self.id}: the lease is lost; the cursor was not stored")
        self.cursor = cursor

    def saving_calls(self) -> AbstractContextManager[None]:
        """Put it around a write of your own that serves as a checkpoint: after it, a new attempt repeats none of the
        calls that were made before.

        A job that has made a call since its last checkpoint is not restarted because of a limit or a budget. It waits
        where it is.
        """
        self._attempt.refuse_if_ended("saving_calls")
        return self._attempt.saving_calls()


def check_progress(done: object, total: object, message: object) -> None:
    for name, value in (("done", done), ("total", 0 if total is None else total)):
        if not isinstance(value, int | float):
            raise BadValue(f"progress: {name}", f"must be a number (is {value!r})")
    if not isinstance(message, str | None):
        raise BadValue("progress: message", f"must be a text (is {message!r})")


def deadline_seconds(deadline: Seconds | None) -> float:
    if deadline is None:
        return CALL_SECONDS
    return parse_duration_us("deadline", deadline, 0.001, DEADLINE_SECONDS_MAX) / SECOND_US


class Context(HandlerContext):
    """The context of an async function: await `checkpoint` and the methods of `http`; use `async with ctx.call()`."""


class SyncContext(HandlerContext):
    """The context of a plain function, which runs in a thread: every method blocks and returns."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._loop = asyncio.get_running_loop()

    # Each method checks in the caller's thread: the loop may have ended with the worker, and would never answer.

    def checkpoint(self, cursor: Any) -> None:  # type: ignore[override]
        self._attempt.refuse_if_ended("checkpoint")
        self._wait_for(super().checkpoint(cursor))

    def call(  # type: ignore[override]
        self,
        deadline: Seconds | None = None,
        *,
        limits: LimitsOption | None = None,
        budget: BudgetOption | None = None,
        cost: object = None,
        pool: KeyPool | None = None,
    ) -> "SyncProviderCall":
        call = super().call(deadline, limits=limits, budget=budget, cost=cost, pool=pool)
        return SyncProviderCall(call, self._wait_for, partial(self._attempt.refuse_if_ended, "call"))

    @cached_property
    def http(self) -> "SyncHttp":  # type: ignore[override]
        return SyncHttp(super().http, self._wait_for, partial(self._attempt.refuse_if_ended, "http"))

    def _wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return wait_in_thread(self._loop, self._counted(coroutine))

    async def _counted(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Counted in the loop: virtual time stands still while a thread works, but not while it waits here."""
        self._attempt.waits_for_loop += 1
        try:
            return await coroutine
        finally:
            self._attempt.waits_for_loop -= 1


class SyncHttp:
    """`ctx.http` for plain functions, which run in a thread."""

    def __init__(self, http: Http, wait_for: WaitFor, refuse_if_ended: Callable[[], None] = lambda: None) -> None:
        self._http = http
        self._wait_for = wait_for
        self._refuse_if_ended = refuse_if_ended

    def request(self, method: str, url: str, **options: Any) -> HttpReply:
        self._refuse_if_ended()
        reply: HttpReply = self._wait_for(self._http.request(method, url, **options))
        return reply

    def get(self, url: str, **options: Any) -> HttpReply:
        return self.request("GET", url, **options)

    def head(self, url: str, **options: Any) -> HttpReply:
        return self.request("HEAD", url, **options)

    def options(self, url: str, **options: Any) -> HttpReply:
        return self.request("OPTIONS", url, **options)

    def put(self, url: str, **options: Any) -> HttpReply:
        return self.request("PUT", url, **options)

    def delete(self, url: str, **options: Any) -> HttpReply:
        return self.request("DELETE", url, **options)

    def post(self, url: str, **options: Any) -> HttpReply:
        return self.request("POST", url, **options)

    def patch(self, url: str, **options: Any) -> HttpReply:
        return self.request("PATCH", url, **options)
