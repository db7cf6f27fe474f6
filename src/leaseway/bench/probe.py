"""One measurement in a process of its own: `python -m leaseway.bench.probe NAME URL COUNT` prints JSON.

    submit    one by one, from synchronous code, from many tasks, in bulk
    pickup    how long a job waits in an idle system, and what idle workers cost
    drain     a number of jobs, a share of a backlog, or as many as a given time permits

The process does only what it measures, so that its memory is that of a worker and no cache is warm that would be cold
in production. The store is a real one with full durability; jobs do nothing and have a payload of 200 bytes.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from leaseway.app import App
from leaseway.bench.processes import TEXT, Figures, app_at, decoded, ready, started
from leaseway.domain.exchange import Exchange, ExchangeReply
from leaseway.ports.store import Store
from leaseway.telemetry.log import NoEvents

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


IDLE_SECONDS = (0.030, 0.090)
"""Pauses between two submissions, of irregular length, so that the system is idle."""


class Pickup:
    """Jobs that know when they were submitted, and a worker that ends after a number of them."""

    def __init__(self, url: str, count: int) -> None:
        self._count = count
        self._waits_ms: list[float] = []
        self.app = App(url, events=NoEvents())
        self._job = self.app.job(self.note)
        self._worker = self.app.worker()

    async def note(self, sent_ns: int, text: str) -> None:
        # All processes of a machine share this clock.
        self._waits_ms.append((time.monotonic_ns() - sent_ns) / 1e6)
        if len(self._waits_ms) == self._count:
            self._worker.drain()

    async def submit(self) -> None:
        """Each submission finds an idle system; its own cost is part of the time."""
        chance = random.Random(self._count)
        for _ in range(self._count):
            await asyncio.sleep(chance.uniform(*IDLE_SECONDS))
            await self._job.submit(sent_ns=time.monotonic_ns(), text=TEXT)

    async def work(self) -> Figures:
        await self.app.run_worker(self._worker)
        return {"waits_ms": self._waits_ms}


async def pickup_same_process(url: str, count: int) -> Figures:
    pickup = Pickup(url, count)
    async with pickup.app, asyncio.TaskGroup() as group:
        worked = group.create_task(pickup.work())
        group.create_task(pickup.submit())
    return worked.result()


async def pickup_other_process(url: str, count: int) -> Figures:
    pickup = Pickup(url, count)
    async with pickup.app:
        worker = await started("pickup_worker", url, count)
        await pickup.submit()
        text, _ = await worker.communicate()
    return decoded(text)


async def pickup_worker(url: str, count: int) -> Figures:
    pickup = Pickup(url, count)
    async with pickup.app:
        print("ready", flush=True)
        return await pickup.work()


async def idle(url: str, count: int) -> Figures:
    """A number of workers without jobs, until stdin says stop.

    Each has an app and connections of its own, as if it were alone in its process.
    """
    apps = [app_at(url)[0] for _ in range(count)]
    for app in apps:
        await app.store()
    workers = [app.worker() for app in apps]
    async with asyncio.TaskGroup() as group:
        for app, worker in zip(apps, workers, strict=True):
            group.create_task(app.run_worker(worker))
        await ready()
        for worker in workers:
            worker.drain()
    for app in apps:
        await app.close()
    return {"count": count}


WINDOWS = 6
"""The length of a window; a rate that falls during a long measurement shows in its windows."""


async def drain(url: str, count: int) -> Figures:
    """Run and settle this many of the waiting jobs. More may wait; they stay."""
    app = App(url, events=NoEvents())
    left = count

    @app.job
    async def noop(text: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            worker.drain()

    worker = app.worker()
    async with app:
        started_at = time.perf_counter()
        worked = await app.run_worker(worker)
        return {"count": worked.settled, "seconds": time.perf_counter() - started_at, "rss_mb": rss_mb()}


async def drain_until_empty(url: str, count: int) -> Figures:
    """One of several processes: starts when stdin says so, and takes its share."""
    app, _ = app_at(url)
    async with app:
        settlings = Settlings(await app.store())
        await ready()
        worked = await app.run_worker(until_empty=True)
    return {"count": worked.settled, "released": worked.released, "rss_mb": rss_mb(), **settlings.times()}


async def drain_for(url: str, seconds: int) -> Figures:
    """Run jobs for this long; more must wait than can be run."""
    app, _ = app_at(url)
    async with app:
        settlings, worker = Settlings(await app.store()), app.worker()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(app.run_worker(worker))
            await asyncio.sleep(seconds)
            worker.drain()
    return {"count": running.result().settled, "rates": settlings.rates(), **settlings.times()}


class Settlings:
    """Watches a store's exchanges, to record when the first began and when the last settlement was acknowledged.

    A worker runs longer than that: it starts threads, and it waits for the other workers.
    """

    def __init__(self, store: Store) -> None:
        self._exchange = store.jobs.exchange
        self._begun_ns = 0
        self._settled: list[tuple[int, int]] = []
        store.jobs.exchange = self.exchange  # type: ignore[method-assign]

    async def exchange(self, call: Exchange) -> ExchangeReply:
        self._begun_ns = self._begun_ns or time.monotonic_ns()
        reply = await self._exchange(call)
        if call.settlements:
            self._settled.append((time.monotonic_ns(), len(call.settlements)))
        return reply

    def times(self) -> dict[str, int]:
        ended_ns = self._settled[-1][0] if self._settled else self._begun_ns
        return {"begun_ns": self._begun_ns, "ended_ns": ended_ns}

    def rates(self) -> list[float]:
        """Jobs per second in each window."""
        times = self.times()
        window_ns = (times["ended_ns"] - times["begun_ns"]) / WINDOWS
        counts = [0] * WINDOWS
        for at_ns, count in self._settled:
            counts[min(int((at_ns - times["begun_ns"]) / window_ns), WINDOWS - 1)] += count
        return [count / window_ns * 1e9 for count in counts]


def rss_mb() -> float:
    """The peak memory of this process."""
    # Not ru_maxrss: on Linux a child inherits its parent's value.
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


PROBES: dict[str, Callable[[str, int], Awaitable[Figures]]] = {
    probe.__name__: probe
    for probe in (
        *(submit_single, submit_plain, submit_at_once, submit_bulk),
        *(drain, drain_until_empty, drain_for),
        *(pickup_same_process, pickup_other_process, pickup_worker, idle),
    )
}


async def main(name: str, url: str, count: str) -> None:
    print(json.dumps(await PROBES[name](url, int(count))))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
