"""A hundred scale-ups and a hundred scale-downs under load, on every store: nothing is lost, doubled or counted."""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest
from tests.faults.test_fleet import empty_store

from leaseway import App, Context
from leaseway.worker.loop import Worker

pytestmark = pytest.mark.slow

ACTIONS = int(os.environ.get("LEASEWAY_SCALE_ACTIONS", "100"))
SLOTS, FLEET_MAX = 4, 3
SECONDS_MAX = 300


@pytest.fixture(params=["sqlite", "postgresql", "mongodb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Not async: the schema is emptied in an event loop of its own."""
    return f"sqlite:///{tmp_path / 'work.db'}" if request.param == "sqlite" else empty_store(request.param, request)


async def test_a_hundred_scaling_actions_lose_and_double_nothing(url: str) -> None:
    """Every action interrupts jobs: the grace period is shorter than they are. Each one must run again, as its first
    attempt, and end once. Real processes do the same in tests/faults/test_fleet.py, a few times."""
    app = App(url)
    begun, ended = Counter[int](), Counter[int]()

    @app.job(queue="scaled", attempts=1)
    async def work(ctx: Context, n: int) -> None:
        begun[n] += 1
        await asyncio.sleep(0.2)
        ended[n] += 1

    async with app:
        fleet, chance, submitted = Fleet(app), random.Random(1), 0
        ids = []
        async with asyncio.timeout(SECONDS_MAX):
            while fleet.ups < ACTIONS or fleet.downs < ACTIONS:
                ids += [(await work.submit(n=submitted + number)).id for number in range(2)]
                submitted += 2
                is_up = len(fleet.running) < FLEET_MAX and (not fleet.running or chance.random() < 0.5)
                if is_up:
                    await fleet.up()
                else:
                    await fleet.down(chance.randrange(len(fleet.running)))
            await fleet.up()
            records = [await app.wait(job, timeout=SECONDS_MAX) for job in ids]
            await fleet.close()
    assert Counter((record.state, record.attempts) for record in records) == {("done", 1): submitted}
    assert set(ended) == set(range(submitted))
    assert ended.total() == submitted
    assert fleet.released, "no job was interrupted, so this run proves nothing"
    assert fleet.lost == 0


class Fleet:
    """Workers in this process: each has connections, leases and heartbeats of its own in the store."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.running: list[tuple[Worker, asyncio.Task[object]]] = []
        self.ups = self.downs = self.released = self.lost = 0

    async def up(self) -> None:
        self.ups += 1
        worker = self._app.worker(concurrency=SLOTS, queues=["scaled"], grace=0.05)
        self.running.append((worker, asyncio.create_task(self._run(worker))))
        await asyncio.sleep(0.05)  # it claims some jobs

    async def _run(self, worker: Worker) -> None:
        summary = await worker.run()
        self.released += summary.released
        self.lost += summary.lost

    async def down(self, index: int) -> None:
        self.downs += 1
        worker, task = self.running.pop(index)
        worker.drain()
        await task

    async def close(self) -> None:
        while self.running:
            await self.down(0)
