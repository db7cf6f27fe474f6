"""new jobs ─► [submitter] ─► store

The stores group the commits of concurrent submissions, so each request submits its own job. This module adds what is
particular to HTTP: concurrent requests with one idempotency key, one outcome per job of a bulk request, and counters.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from leaseway.api.errors import Problem
from leaseway.api.metrics.job_counters import WorkCounters
from leaseway.domain.errors import UsageError
from leaseway.domain.job import NewJob, Submitted
from leaseway.ports.clock import Clock
from leaseway.ports.job_store import JobStore
from leaseway.worker.submit import submit

SAME_KEY_SECONDS_MAX = 5.0
"""How long a request waits for an earlier one with the same key before it is refused."""

SubmitResult = Submitted | Exception


class Submitter:
    """For one process and its event loop."""

    def __init__(self, jobs: JobStore, clock: Clock, counters: WorkCounters | None = None) -> None:
        self._jobs = jobs
        self._clock = clock
        self._counters = counters or WorkCounters()
        self._first: dict[tuple[str, str], asyncio.Event] = {}
        """By tenant and key: set when the first submission with that key has ended."""

    async def submit(self, job: NewJob) -> Submitted:
        if job.key is None:
            return await self._submit_one(job)
        async with self._after_same_key(job.tenant, job.key):
            return await self._submit_one(job)

    async def submit_many(self, jobs: Sequence[NewJob]) -> list[SubmitResult]:
        """In one transaction, each job with its own outcome."""
        results = await self._store(jobs)
        self._counters.count_submissions(results)
        return results

    async def _submit_one(self, job: NewJob) -> Submitted:
        try:
            (result,) = await submit(self._jobs, [job], self._clock)
        except Exception as error:
            self._counters.count_submissions([error])
            raise
        self._counters.count_submissions([result])
        return result

    @asynccontextmanager
    async def _after_same_key(self, tenant: str, key: str) -> AsyncIterator[None]:
        """A concurrent request with the same key is usually a repetition. It waits for the first one and finds what
        that has stored."""
        name = tenant, key
        ended = asyncio.Event()
        first = self._first.setdefault(name, ended)
        if first is not ended:
            await wait_for_first(first)
            yield
            return
        try:
            yield
        finally:
            del self._first[name]
            ended.set()

    async def _store(self, jobs: Sequence[NewJob]) -> list[SubmitResult]:
        """All in one transaction. If the store refuses it because of one job, the jobs are split in halves, so that one
        invalid job costs a logarithmic number of transactions."""
        if not jobs:
            return []
        try:
            return list(await submit(self._jobs, jobs, self._clock))
        except UsageError as error:
            if len(jobs) == 1:
                return [error]
            half = len(jobs) // 2
            return [*await self._store(jobs[:half]), *await self._store(jobs[half:])]
        except Exception as error:  # noqa: BLE001 - every job reports it
            return [error] * len(jobs)


async def wait_for_first(ended: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(SAME_KEY_SECONDS_MAX):
            await ended.wait()
    except TimeoutError as error:
        detail = "Idempotency-Key: the first request with this key is still being stored; repeat this one later"
        raise Problem(409, "still_running", detail, headers={"Retry-After": "1"}) from error
