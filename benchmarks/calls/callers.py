"""Make calls, 64 at once, in one process: `python -m benchmarks.calls.callers WHO PROVIDER STORE COUNT` prints JSON.

    aiohttp, httpx2       the bare clients in a loop: no job, nothing durable
    taskiq                a job per call, in a Redis list; aiohttp in the task
    plain                 a job per call, `ctx.http`
    limit                 the same, with a limit that never refuses
    budget                the same, with a limit and a budget that never refuse
    any client            a job per call with limit and budget, and aiohttp inside `ctx.call()`

Jobs are submitted before. Time and CPU count from a call after the first ones, which import the client and open the
connections, to the end of the worker, which settles the last job. The CPU is that of this process with all its threads,
and not that of the provider or of a database server.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from leaseway import App, Budget, Context, Limit
from leaseway.bench.processes import Figures
from leaseway.system import garbage_collected_rarely
from leaseway.telemetry.log import NoEvents

AT_ONCE = 64
FIRST = 4 * AT_ONCE
"""Calls that are not timed."""
MANY = 6_000_000
QUERY = {"q": "Bern"}


class Stopwatch:
    """Starts when the first calls have been made."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self) -> None:
        self.calls += 1
        if self.calls == FIRST:
            self._begun, self._cpu = time.perf_counter(), time.process_time()

    def figures(self) -> Figures:
        seconds, cpu_seconds = time.perf_counter() - self._begun, time.process_time() - self._cpu
        timed = self.calls - FIRST
        return {"count": self.calls, "rate": timed / seconds, "cpu_us": cpu_seconds * 1e6 / timed}


# -- the clients ------------------------------------------------------------------------------------------------------


async def by_loop(count: int, call: Callable[[], Awaitable[None]]) -> Figures:
    watch, left = Stopwatch(), iter(range(count))

    async def caller() -> None:
        for _ in left:
            watch.call()
            await call()

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(caller())
    return watch.figures()


async def by_aiohttp(url: str, _: str, count: int) -> Figures:
    import aiohttp

    async with aiohttp.ClientSession() as session:

        async def call() -> None:
            async with session.get(url, params=QUERY) as reply:
                reply.raise_for_status()
                await reply.json()

        return await by_loop(count, call)


async def by_httpx2(url: str, _: str, count: int) -> Figures:
    import httpx2

    async with httpx2.AsyncClient() as client:

        async def call() -> None:
            (await client.get(url, params=QUERY)).raise_for_status().json()

        return await by_loop(count, call)


async def by_taskiq(url: str, store: str, count: int) -> Figures:
    import aiohttp
    from taskiq.api import run_receiver_task
    from taskiq_redis import ListQueueBroker

    broker, watch, is_done = ListQueueBroker(store), Stopwatch(), asyncio.Event()
    ended = 0
    async with aiohttp.ClientSession() as session:

        @broker.task
        async def call() -> Any:
            nonlocal ended
            watch.call()
            async with session.get(url, params=QUERY) as reply:
                reply.raise_for_status()
                found = await reply.json()
            ended += 1
            if ended == count:
                is_done.set()
            return found

        await broker.startup()
        for _ in range(count):
            await call.kiq()
        receiver = asyncio.create_task(run_receiver_task(broker, max_async_tasks=AT_ONCE))
        await is_done.wait()
        figures = watch.figures()
        receiver.cancel()
        await asyncio.gather(receiver, return_exceptions=True)
        await broker.shutdown()
    return figures


# -- leaseway ---------------------------------------------------------------------------------------------------------


async def by_jobs(url: str, store: str, count: int, **needs: Any) -> Figures:
    app, watch = App(store, events=NoEvents()), Stopwatch()

    @app.job(**needs)
    async def call(ctx: Context, q: str) -> Any:
        watch.call()
        reply = await ctx.http.get(url, params={"q": q})
        return reply.raise_for_status().json()

    return await worked(app, call, count, watch)


async def by_any_client(url: str, store: str, count: int) -> Figures:
    import aiohttp

    app, watch = App(store, events=NoEvents()), Stopwatch()
    async with aiohttp.ClientSession() as session:

        @app.job(limits=[roomy_limit()], budget=roomy_budget(), cost_usd=0.001)
        async def call(ctx: Context, q: str) -> Any:
            watch.call()
            async with ctx.call() as permitted, session.get(url, params={"q": q}) as reply:
                permitted.settle(usd=0.001)
                reply.raise_for_status()
                return await reply.json()

        return await worked(app, call, count, watch)


async def worked(app: App, job: Any, count: int, watch: Stopwatch) -> Figures:
    async with app:
        await job.submit_many([QUERY] * count)
        with garbage_collected_rarely():  # as in every process of `app.work()` and `leaseway work`
            await app.run_worker(app.worker(concurrency=AT_ONCE, until_empty=True))
        return watch.figures()


def roomy_limit() -> Limit:
    return Limit("provider", f"{MANY}/minute", start="full")


def roomy_budget() -> Budget:
    return Budget("spend", usd=MANY, every="day")


CALLERS: dict[str, Callable[[str, str, int], Awaitable[Figures]]] = {
    "aiohttp": by_aiohttp,
    "httpx2": by_httpx2,
    "taskiq": by_taskiq,
    "plain": by_jobs,
    "limit": lambda *where: by_jobs(*where, limits=[roomy_limit()]),
    "budget": lambda *where: by_jobs(*where, limits=[roomy_limit()], budget=roomy_budget(), cost_usd=0.001),
    "any client": by_any_client,
}


async def main(who: str, url: str, store: str, count: int) -> None:
    figures = await CALLERS[who](url, store, count)
    assert figures["count"] == count, f"{figures['count']:,} of {count:,} calls were made"
    print(json.dumps(figures))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
