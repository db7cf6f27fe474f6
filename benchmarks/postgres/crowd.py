"""Idle workers that wait for the same jobs: `python -m benchmarks.postgres.crowd URL WORKERS` runs them until its input
has a line, and prints how long each job waited that one of them ran.

Each worker has an app and connections of its own, as if it were alone in its process.
"""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from leaseway import App
from leaseway.bench.probe import IDLE_SECONDS
from leaseway.bench.processes import ready
from leaseway.telemetry.log import NoEvents

PER_PROCESS = 5


class Waits:
    def __init__(self) -> None:
        self.ms: list[float] = []

    async def note(self, sent_ns: int) -> None:
        self.ms.append((time.monotonic_ns() - sent_ns) / 1e6)  # all processes of a machine share this clock


async def work(url: str, count: int) -> list[float]:
    waits, apps = Waits(), [App(url, events=NoEvents()) for _ in range(count)]
    workers = []
    for app in apps:
        app.job(waits.note)
        await app.store()
        workers.append(app.worker())
    async with asyncio.TaskGroup() as group:
        for app, worker in zip(apps, workers, strict=True):
            group.create_task(app.run_worker(worker))
        await ready()
        for worker in workers:
            worker.drain()
    for app in apps:
        await app.close()
    return waits.ms


@contextmanager
def idle_crowd(url: str, workers: int, waits_ms: list[float]) -> Iterator[None]:
    """So many idle workers. At the end, `waits_ms` has what their jobs have waited."""
    counts = [min(PER_PROCESS, workers - first) for first in range(0, workers, PER_PROCESS)]
    pipe, module = subprocess.PIPE, "benchmarks.postgres.crowd"
    processes = [
        subprocess.Popen([sys.executable, "-m", module, url, str(count)], stdin=pipe, stdout=pipe, text=True)
        for count in counts
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield
        for process in processes:
            waits_ms += json.loads(process.communicate("stop\n")[0])
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def submit_alone(url: str, count: int) -> None:
    """One by one, each into an idle system. This process has no worker and listens to nothing."""
    app, chance = App(url, events=NoEvents()), random.Random(count)
    job = app.job(Waits().note)
    async with app:
        for _ in range(count):
            await asyncio.sleep(chance.uniform(*IDLE_SECONDS))
            last = await job.submit(sent_ns=time.monotonic_ns())
        await app.wait(last, timeout=60)


async def create_tables(url: str) -> None:
    async with App(url, events=NoEvents()) as app:
        await app.store()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(work(sys.argv[1], int(sys.argv[2])))))
