"""Drain: run a number of jobs, share a backlog with other workers, or run for a given time."""

import asyncio
import sys
import time
from contextlib import suppress
from pathlib import Path

from leaseway.app import App
from leaseway.bench.processes import Figures, app_at, ready
from leaseway.domain.exchange import Exchange, ExchangeReply
from leaseway.ports.store import Store
from leaseway.telemetry.log_events import NoEvents

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
