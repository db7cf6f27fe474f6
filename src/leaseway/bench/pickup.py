"""Pickup: how long a job waits in an idle system, and what idle workers cost."""

import asyncio
import random
import time

from leaseway.app import App
from leaseway.bench.processes import TEXT, Figures, app_at, decoded, ready, started
from leaseway.telemetry.log_events import NoEvents

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
