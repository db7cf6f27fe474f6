"""Submit: one by one, from synchronous code, from many tasks, in bulk."""

import asyncio
import time

from leaseway.bench.processes import TEXT, Figures, app_at

SINGLE_SECONDS_MAX = 5.0
"""Submitting one by one stops after this time on a slow disk."""
TASKS = 16


async def submit_single(url: str, count: int) -> Figures:
    app, noop = app_at(url)
    async with app:
        await noop.submit(text=TEXT)
        started_at = time.perf_counter()
        done, seconds = 0, 0.0
        while done < count and seconds < SINGLE_SECONDS_MAX:
            await noop.submit(text=TEXT)
            done += 1
            seconds = time.perf_counter() - started_at
        return {"count": done, "seconds": seconds}


async def submit_plain(url: str, count: int) -> Figures:
    """The same from code without an event loop."""
    app, noop = app_at(url)

    def submit_all() -> float:
        noop.submit_sync(text=TEXT)
        started_at = time.perf_counter()
        for _ in range(count):
            noop.submit_sync(text=TEXT)
        seconds = time.perf_counter() - started_at
        app.close_sync()
        return seconds

    return {"count": count, "seconds": await asyncio.to_thread(submit_all)}


async def submit_at_once(url: str, count: int) -> Figures:
    """Sixteen tasks that each submit one by one, as the requests of a web server do."""
    app, noop = app_at(url)

    async def submit_some() -> None:
        for _ in range(count // TASKS):
            await noop.submit(text=TEXT)

    async with app:
        await noop.submit(text=TEXT)
        started_at = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(submit_some())
        return {"count": count // TASKS * TASKS, "seconds": time.perf_counter() - started_at}


async def submit_bulk(url: str, count: int) -> Figures:
    app, noop = app_at(url)
    async with app:
        await noop.submit_many([{"text": TEXT}])
        started_at = time.perf_counter()
        await noop.submit_many({"text": TEXT} for _ in range(count))
        return {"count": count, "seconds": time.perf_counter() - started_at}
