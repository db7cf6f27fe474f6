"""exchange ─► [run handler] ─► settle: what a handler sees of its job, the `ctx` of its signature."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from leaseway.domain import payload
from leaseway.domain.errors import LeaseLost
from leaseway.domain.ids import JobId
from leaseway.worker.attempt import Attempt
from leaseway.worker.environment import Environment
from leaseway.worker.provider_calls import ProviderCall, ProviderCalls
from leaseway.worker.provider_http import Http, HttpEnvironment, SharedClient, SyncHttp
from leaseway.worker.submit import KEY_KEEP_US, Bound

T = TypeVar("T")

CHILDREN_MAX = 10_000


class Context:
    """The first argument of a handler, if it is named `ctx`: the job's data and what the handler can do with it.

    In an async handler, await `checkpoint` and use `async with ctx.call()`. In a plain function, which runs in a
    thread, the same methods block and return.
    """

    def __init__(
        self,
        attempt: Attempt,
        environment: Environment,
        make_calls: Callable[[], ProviderCalls],
        http_client: Callable[[], SharedClient],
        key_keep_us: int = KEY_KEEP_US,
    ) -> None:
        self._attempt = attempt
        self._environment = environment
        self._make_calls = make_calls
        self._http_client = http_client
        self._key_keep_us = key_keep_us
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
        self.lease_duration = timedelta(microseconds=lease.lease_us)
        self.cursor: Any = None if lease.cursor is None else msgspec.json.decode(lease.cursor)
        """The value of the last `checkpoint`; None if there was none."""

    @cached_property
    def _calls(self) -> ProviderCalls:
        return self._make_calls()

    def prepare_calls(self) -> None:
        """Check now that the limits and budgets of the job fit those of its code."""
        _ = self._calls

    @property
    def cancelled(self) -> bool:
        """True if the handler should stop soon: the job was cancelled or timed out, its lease is lost, or the worker is
        stopping."""
        return self._attempt.stop is not None or self._attempt.timed_out

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress. This is cheap: the latest report is stored about twice a second."""
        self._attempt.report(done, total, message)

    def call_key(self, step: str = "") -> str:
        """An idempotency key for a call to a provider. It is the same in every attempt of this job; `step` tells
        several calls of one job apart."""
        return f"{self.id}:{step}" if step else str(self.id)

    def submit(self, job: Bound) -> JobId:
        """Submit another job in the same transaction as this job's result. It is submitted only if this attempt
        succeeds."""
        if len(self._attempt.children) >= CHILDREN_MAX:
            raise ValueError(f"job {self.id}: more than {CHILDREN_MAX:,} children; submit them from several jobs")
        child = job.new(self._environment.ids, self._key_keep_us, self.tenant)
        if self._environment.tracing is not None:
            child = msgspec.structs.replace(child, trace=self._environment.tracing.origin())
        self._attempt.children.append(child)
        return child.id

    def call(self) -> ProviderCall:
        """Wait until the job's limits and budgets allow one request, made with any client:

            async with ctx.call() as call:
                reply = await client.get(...)
                call.settle(usd=0.004)

        Send the request at once; a permit is valid for a short time. Without `settle` the whole estimate is charged.
        """
        return self._calls.call()

    @cached_property
    def http(self) -> Http:
        """An HTTP client that takes the job's limits and budgets before each request."""
        environment = HttpEnvironment(self._http_client(), self._environment.clock, self._environment.chance)
        return Http(environment, self._calls, self.call_key)

    async def checkpoint(self, cursor: Any) -> None:
        """Store a cursor, any JSON value. The next attempt finds it in `ctx.cursor`.

        Raises LeaseLost if another worker has taken over the job.
        """
        text = payload.encode(cursor, "cursor")
        if not await self._environment.store.jobs.checkpoint(self.id, self._attempt.lease.token, text):
            raise LeaseLost(f"job {self.id}: the lease is lost; the cursor was not stored")
        self.cursor = cursor


class SyncContext(Context):
    """For plain functions that run in a thread: every method blocks and returns."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._loop = asyncio.get_running_loop()

    def checkpoint(self, cursor: Any) -> None:  # type: ignore[override]
        self._wait_for(super().checkpoint(cursor))

    def call(self) -> "SyncProviderCall":  # type: ignore[override]
        return SyncProviderCall(self._calls.call(), self._wait_for)

    @cached_property
    def http(self) -> SyncHttp:  # type: ignore[override]
        return SyncHttp(super().http, self._loop)

    def _wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class SyncProviderCall:
    """`with ctx.call() as call:` in a plain function."""

    def __init__(self, call: ProviderCall, wait_for: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._call = call
        self._wait_for = wait_for
        self.settle = call.settle

    def __enter__(self) -> "SyncProviderCall":
        self._wait_for(self._call.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._wait_for(self._call.__aexit__(*error))

    def report(self, status: int, headers: Mapping[str, str], body: str = "") -> None:
        self._wait_for(self._call.report(status, headers, body))
