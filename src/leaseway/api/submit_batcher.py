"""Submissions that wait together are stored together: one transaction for all requests that came while the last one was
written. Each has its own answer; one that is refused does not take the others along."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from leaseway.api.errors import Problem
from leaseway.api.metrics.work_counters import Tally
from leaseway.domain.errors import UsageError
from leaseway.domain.job import NewJob, Submitted
from leaseway.ports.clock import Clock
from leaseway.ports.store import Store
from leaseway.worker.submit import submit

TOGETHER_MAX = 500
STILL_SECONDS = 5.0
"""So long a request waits for an earlier one with the same key before it is sent away."""

Stored = Submitted | Exception


class Waiting(NamedTuple):
    job: NewJob
    answer: "asyncio.Future[Submitted]"


class Gathering:
    """Of one process and its loop."""

    def __init__(self, store: Store, clock: Clock, tally: Tally | None = None) -> None:
        self._store = store
        self._clock = clock
        self._tally = tally or Tally()
        self._waiting: list[Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        self._first: dict[tuple[str, str], asyncio.Future[Submitted]] = {}
        """By tenant and key: who came first, as long as he has no answer."""

    async def submit(self, job: NewJob) -> Submitted:
        waiting = Waiting(job, asyncio.get_running_loop().create_future())
        if job.key is not None:
            await self._stand_behind_first(waiting, job.key)
        self._waiting.append(waiting)
        if self._writing is None or self._writing.done():
            # The service is its parent, and waits for it when it closes.
            self._writing = asyncio.get_running_loop().create_task(self._write())
        return await waiting.answer

    async def _stand_behind_first(self, waiting: Waiting, key: str) -> None:
        """Most requests with a key under way are the same once more: they find what the first has stored."""
        name = waiting.job.tenant, key
        first = self._first.setdefault(name, waiting.answer)
        if first is waiting.answer:
            first.add_done_callback(lambda _: self._first.pop(name, None))
            return
        done, _ = await asyncio.wait([first], timeout=STILL_SECONDS)
        if not done:
            detail = "Idempotency-Key: the first request with it is still being stored; send this one again later"
            raise Problem(409, "still_running", detail, headers={"Retry-After": "1"})

    async def submit_many(self, jobs: Sequence[NewJob]) -> list[Stored]:
        """In a transaction of their own, each with its own answer."""
        answers = await self._stored(jobs)
        self._tally.submitted(answers)
        return answers

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        while self._waiting:  # until nobody has come while the last ones were written
            batch, self._waiting = self._waiting[:TOGETHER_MAX], self._waiting[TOGETHER_MAX:]
            answers = await self._stored([each.job for each in batch])
            self._tally.submitted(answers)
            for each, answer in zip(batch, answers, strict=True):
                tell(each, answer)

    async def _stored(self, jobs: Sequence[NewJob]) -> list[Stored]:
        """All at once. If somebody's key names another job, in halves: only he shall hear of it, and who sends such
        requests on purpose makes the others wait for some steps, not for one each."""
        if not jobs:
            return []
        try:
            return list(await submit(self._store, jobs, self._clock))
        except UsageError as error:
            if len(jobs) == 1:
                return [error]
            half = len(jobs) // 2
            return [*await self._stored(jobs[:half]), *await self._stored(jobs[half:])]
        except Exception as error:  # noqa: BLE001 - each of them hears it
            return [error] * len(jobs)


def tell(waiting: Waiting, answer: Stored) -> None:
    if waiting.answer.done():
        return  # the client has gone; its job is stored all the same
    if isinstance(answer, Exception):
        waiting.answer.set_exception(answer)
    else:
        waiting.answer.set_result(answer)
