"""What a handler can ask and say while it runs: the `ctx` of its signature."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec

from leaseway.domain import payload
from leaseway.domain.errors import LeaseLost
from leaseway.domain.ids import JobId
from leaseway.flows.running import Running
from leaseway.flows.submit import KEY_KEEP_US, Bound
from leaseway.ports.clock import Ids
from leaseway.ports.job_store import JobStore

CHILDREN_MAX = 10_000


class Context:
    """The job's own view of itself. Async handlers await `checkpoint`; in plain functions it simply returns."""

    def __init__(self, running: Running, store: JobStore, ids: Ids, key_keep_us: int = KEY_KEEP_US) -> None:
        self._running = running
        self._store = store
        self._ids = ids
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
        child = job.new(self._ids, self._key_keep_us, self.tenant)
        self._running.children.append(child)
        return child.id

    async def checkpoint(self, cursor: Any) -> None:
        """Keep the cursor for the next attempt. Raises LeaseLost if the job is no longer ours."""
        text = payload.encode(cursor, "cursor")
        if not await self._store.checkpoint(self.id, self._running.lease.token, text):
            raise LeaseLost(f"job {self.id}: the lease is lost, the cursor was not stored")
        self.cursor = cursor


class PlainContext(Context):
    """For functions that run in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._loop = loop

    def checkpoint(self, cursor: Any) -> None:  # type: ignore[override]
        asyncio.run_coroutine_threadsafe(super().checkpoint(cursor), self._loop).result()
