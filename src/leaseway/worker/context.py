"""What a handler can ask and say while it runs: the `ctx` of its signature."""

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
    """The job's own view of itself. Async handlers await `checkpoint`; in plain functions it simply returns."""

    def __init__(
        self,
        running: Attempt,
        world: Environment,
        calls: ProviderCalls,
        wire: SharedClient,
        key_keep_us: int = KEY_KEEP_US,
    ) -> None:
        self._running = running
        self._world = world
        self._calls = calls
        self._wire = wire
        self._key_keep_us = key_keep_us
        lease = running.lease
        self.id: JobId = lease.id
        self.kind = lease.kind
        self.tenant = lease.tenant
        self.queue = lease.queue
        self.shard_key = lease.shard_key
        self.attempt = lease.attempts
        """Which delivery this is, counted from 1."""
        self.attempts_max = lease.attempts_max
        self.fence = lease.fence
        """Larger with every lease of this job: an outside system can refuse what carries a smaller one."""
        self.lease_duration = timedelta(microseconds=lease.lease_us)
        self.cursor: Any = None if lease.cursor is None else msgspec.json.decode(lease.cursor)
        """Where the last attempt left off; None at the first."""

    @property
    def cancelled(self) -> bool:
        """Stop as soon as you can: the job was cancelled, timed out, its lease is lost, or the worker goes away."""
        return self._running.stop is not None or self._running.timed_out

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Say how far the job has come. Cheap: the newest word is stored about twice a second."""
        self._running.report(done, total, message)

    def call_key(self, step: str = "") -> str:
        """The same text in every attempt: pass it to the provider as the idempotency key of the call."""
        return f"{self.id}:{step}" if step else str(self.id)

    def submit(self, job: Bound) -> JobId:
        """Submit another job, if and when this attempt succeeds, in the same transaction as its result."""
        if len(self._running.children) >= CHILDREN_MAX:
            raise ValueError(f"job {self.id}: more than {CHILDREN_MAX:,} children; submit them from several jobs")
        child = job.new(self._world.ids, self._key_keep_us, self.tenant)
        if self._world.tracing is not None:
            child = msgspec.structs.replace(child, trace=self._world.tracing.origin())
        self._running.children.append(child)
        return child.id

    def call(self) -> ProviderCall:
        """Around one request of any client: `async with ctx.call() as call:`. Waits for the job's limits and its
        budget; the request must leave at once."""
        return self._calls.call()

    @cached_property
    def http(self) -> Http:
        """An HTTP client that takes the job's limits and its budget before each request leaves."""
        return Http(HttpEnvironment(self._wire, self._world.clock, self._world.chance), self._calls, self.call_key)

    async def checkpoint(self, cursor: Any) -> None:
        """Keep the cursor for the next attempt. Raises LeaseLost if the job is no longer ours."""
        text = payload.encode(cursor, "cursor")
        if not await self._world.store.checkpoint(self.id, self._running.lease.token, text):
            raise LeaseLost(f"job {self.id}: the lease is lost, the cursor was not stored")
        self.cursor = cursor


class SyncContext(Context):
    """For functions that run in a thread: nothing is awaited, everything simply returns."""

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
    """`with ctx.call() as call:`"""

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
