"""Requests that wait for jobs to finish.

While there are such requests, one task reads the states of all their jobs together, after each notification and at
least every `POLL_SECONDS`. Many requests of one tenant, which may wait for the same large job, cost as much as one.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context

from leaseway.domain.errors import LeasewayError
from leaseway.domain.ids import JobId
from leaseway.domain.inspection import SUMMARIES_MAX
from leaseway.ports.clock import Clock
from leaseway.ports.store import Store, require_inspection
from leaseway.worker.environment import cancel_and_wait

POLL_SECONDS = 0.25
BETWEEN_READS_SECONDS = 0.05
"""A busy store sends very many notifications."""


class JobWaits:
    def __init__(self, store: Store, clock: Clock, stopping: asyncio.Event) -> None:
        self._store = store
        self._clock = clock
        self._stopping = stopping
        self._waiting: dict[JobId, list[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None

    async def wait(self, job: JobId, seconds: float) -> None:
        """Return when the job has finished or is gone, after this time, or when the service stops."""
        with self._registered(job) as is_over:
            if self._task is None or self._task.done():
                # The service owns this task and cancels it when it closes. It reads for all tenants.
                self._task = asyncio.get_running_loop().create_task(self._read_until_unneeded(), context=Context())
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await is_over.wait()

    @contextmanager
    def _registered(self, job: JobId) -> Iterator[asyncio.Event]:
        is_over = asyncio.Event()
        events = self._waiting.setdefault(job, [])
        events.append(is_over)
        try:
            yield is_over
        finally:
            events.remove(is_over)
            if not events and self._waiting.get(job) is events:
                del self._waiting[job]

    async def _read_until_unneeded(self) -> None:
        while self._waiting and not self._stopping.is_set():
            await self._store.notifications.wait(POLL_SECONDS)
            ids = list(self._waiting)
            for start in range(0, len(ids), SUMMARIES_MAX):
                await self._read(ids[start : start + SUMMARIES_MAX])
            await self._clock.sleep(BETWEEN_READS_SECONDS)
        self._end(list(self._waiting))

    async def _read(self, ids: Sequence[JobId]) -> None:
        try:
            found = await require_inspection(self._store).summaries(ids)
        except LeasewayError:
            return  # the store may answer the next read
        self._end(set(ids) - {job.id for job in found if not job.state.is_final})

    def _end(self, jobs: Iterable[JobId]) -> None:
        for job in jobs:
            for is_over in self._waiting.get(job, ()):
                is_over.set()

    async def close(self) -> None:
        await cancel_and_wait(self._task)
        self._end(list(self._waiting))
