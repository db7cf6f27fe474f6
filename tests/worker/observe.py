"""Shared functions that read jobs in these tests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from msgspec.structs import replace

from leaseway import App, JobRecord, Submitted
from leaseway.domain.exchange import Closing, Exchange, Gate, Wants
from leaseway.domain.ids import SECOND_US, Token, WorkerId
from leaseway.domain.job import Job
from leaseway.ports.store import Store

T = TypeVar("T")

SOON_SECONDS = 60.0
"""Longer than any test here takes on any machine."""


async def record(app: App, job: Submitted) -> JobRecord:
    found = await app.find(job.id)
    assert found is not None, f"job {job.id} is gone"
    return found


async def stored(app: App, job: Submitted) -> Job:
    """The job as the store has it, with its values as JSON text."""
    found = await (await app.store()).reads.job(job.id)
    assert found is not None, f"job {job.id} is gone"
    return found


async def worked(app: App, job: Submitted, **settings: Any) -> JobRecord:
    """The record of a job after a worker has finished all pending work."""
    async with asyncio.timeout(SOON_SECONDS):
        await app.run_worker(until_empty=True, **settings)
    return await record(app, job)


async def codes(app: App, job: Submitted) -> list[tuple[int, str]]:
    """Attempt and error code of each failure, oldest first."""
    return [(error.attempt, error.code) for error in await (await app.store()).reads.errors(job.id)]


async def eventually(condition: Callable[[], Awaitable[T]], seconds: float = SOON_SECONDS, every: float = 0.005) -> T:
    """Poll a condition and return its value as soon as it holds."""
    async with asyncio.timeout(seconds):
        while not (answer := await condition()):  # noqa: ASYNC110 - a store has no event for every condition
            await asyncio.sleep(every)
    return answer


@asynccontextmanager
async def working(app: App, *, poll_seconds: float = 1.0, **settings: Any) -> AsyncIterator[None]:
    """Run a worker beside the body and drain it when the body ends."""
    worker = app.worker(**{"grace": 0, **settings})
    worker._settings = replace(worker._settings, poll_seconds=poll_seconds)
    async with asyncio.TaskGroup() as group:
        group.create_task(app.run_worker(worker))
        try:
            yield
        finally:
            worker.drain()


async def close_lanes(store: Store) -> int:
    """Close every lane that has a gate, as a worker does that finds its limit or budget used up."""
    lanes = [lane for lane in await store.reads.lanes() if lane.needs]
    closings = tuple(Closing(Gate(lane.needs, lane.tenant), 60 * SECOND_US, "used up") for lane in lanes)
    wants = Wants(tuple({lane.queue for lane in lanes}), 1, Token("t"), closed=closings)
    await store.jobs.exchange(Exchange(WorkerId("w"), wants=wants))
    return await count_closed(store)


async def count_closed(store: Store) -> int:
    return sum(lane.closed_until is not None for lane in await store.reads.lanes())
