"""What a limit feeds, for jobs of many calls: an autoscaler with real workers in virtual time, one of which is killed.

The declared rate of the limit does not bound such jobs, because nobody knows how many calls they make. While the limit
is used up, the slots that are really busy are all that it can feed.
"""

import asyncio
import math
from collections import Counter
from typing import Any, NamedTuple

import pytest

from leaseway import App, Context, Limit
from leaseway.domain.exchange import Gate
from leaseway.domain.ids import SECOND_US
from leaseway.domain.scaling import demand
from leaseway.domain.scaling.decision import ScalingState, decide_workers
from leaseway.domain.scaling.demand import PoolObservation, ScalingSettings, workers_wanted
from leaseway.domain.workers import BusyLeases, Heartbeat
from leaseway.ports.store import require_workers
from leaseway.scaling import observe
from leaseway.scaling.observe import CounterSample, PoolObserver
from leaseway.testing import virtual_time
from leaseway.testing.job_store_contract.fixtures import ContractWorker
from leaseway.worker.loop import Worker
from leaseway.worker.submit import JobHandle

SLOTS = 4
FEEDS = 3
"""The workers that the limit feeds: 50 calls per second of 0.2 s keep 10 slots busy."""
SETTINGS = ScalingSettings(
    workers_max=30, step_seconds=5.0, up_step_workers=1, up_step_ratio=0.0, down_window_seconds=30.0
)


class SimulatedFleet(NamedTuple):
    """Real workers, the real observer and the real decision."""

    app: App
    group: asyncio.TaskGroup
    observer: PoolObserver
    workers: list[Worker]

    async def scale(self, state: ScalingState, seconds: float) -> tuple[ScalingState, list[int]]:
        """Returns how many workers it ran, in each turn."""
        sizes: list[int] = []
        for _ in range(round(seconds)):
            decision = decide_workers(await self.observer.observe(SLOTS, len(self.workers)), state, SETTINGS)
            state = decision.state
            self.resize(decision.workers)
            sizes.append(len(self.workers))
            await self.app.world.clock.sleep(1)
        return state, sizes

    def resize(self, count: int) -> None:
        for _ in range(count - len(self.workers)):
            self.workers.append(worker := self.app.worker(concurrency=SLOTS, grace=0))
            self.group.create_task(self.app.run_worker(worker))
        while len(self.workers) > count:
            self.workers.pop().drain(0)

    async def lose_workers(self) -> None:
        """Workers are killed with their slots full, and say nothing any more. Their leases last for minutes."""
        store = await self.app.store()
        (lane,) = await store.reads.lanes()
        for number in range(2):
            killed = ContractWorker(store, f"vm:{number}:killed")
            leases = await killed.claim(2 * SLOTS, ("default",), {Gate(lane.needs, lane.tenant): 2 * SLOTS})
            assert len(leases) == 2 * SLOTS
            await require_workers(store).beat(Heartbeat(worker=killed.id, queues=("default",), slots=SLOTS, used=SLOTS))


def scaled_app() -> tuple[App, JobHandle[Any]]:
    app = App("memory://")

    @app.job(limits=[Limit("maps", "50/second")], lease=600)
    async def fetch(ctx: Context, n: int) -> None:
        for _ in range(200):
            async with ctx.call():
                await asyncio.sleep(0.2)

    return app, fetch


def run_fleet() -> tuple[list[int], list[int]]:
    """The sizes of a fleet: while it grows into its limit, and after two workers were killed."""
    app, fetch = scaled_app()

    with virtual_time(app) as clock:

        async def load() -> tuple[list[int], list[int]]:
            await fetch.submit_many([{"n": n} for n in range(100)])
            async with asyncio.TaskGroup() as group:
                fleet = SimulatedFleet(app, group, PoolObserver(app.world, ["default"], 30.0), [])
                state, growing = await fleet.scale(ScalingState(), 30)
                await fleet.lose_workers()
                _, after = await fleet.scale(state, 30)
                fleet.resize(0)
            return growing, after

        return clock.run(load())


def observe_strange_fleet(workers: int) -> PoolObservation:
    """What a service sees that has started a moment ago, and does not know how many workers there are."""
    app, fetch = scaled_app()

    with virtual_time(app) as clock:

        async def load() -> PoolObservation:
            await fetch.submit_many([{"n": n} for n in range(100)])
            async with asyncio.TaskGroup() as group:
                fleet = SimulatedFleet(app, group, PoolObserver(app.world, ["default"], 30.0), [])
                fleet.resize(workers)
                for _ in range(10):
                    await app.world.clock.sleep(2)
                    seen = await fleet.observer.observe(SLOTS, 0)
                fleet.resize(0)
            return seen

        return clock.run(load())


def count_everything(*_: object) -> BusyLeases:
    return BusyLeases(occupied=1.0, fed=1.0)


def test_a_fleet_stays_at_what_its_limit_feeds() -> None:
    """Leases that workers take ahead, jobs that wait for permits in their workers, and the leases of killed workers are
    not busy slots. A fleet that counts them creeps on, and each further worker only waits."""
    growing, after = run_fleet()
    assert (max(growing), set(after)) == (FEEDS, {FEEDS})


def test_the_fleet_creeps_without_the_safeguards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test before this one would prove nothing."""
    monkeypatch.setattr(observe, "share_busy", count_everything)
    monkeypatch.setattr(demand, "slots_fed", lambda _, bound: bound.fed_slots)
    growing, after = run_fleet()
    assert max(growing) <= max(after) > FEEDS


def test_workers_that_nobody_has_counted_do_not_feed_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service counts no workers. Six of them share what feeds three, so three are what the pool needs."""
    seen = observe_strange_fleet(6)
    assert seen.running >= 6 * SLOTS
    wanted, busy = workers_wanted(seen, SETTINGS)
    assert 1 < wanted <= FEEDS
    assert str(busy.binding) == "limit maps"
    monkeypatch.setattr(observe, "share_busy", count_everything)
    assert workers_wanted(observe_strange_fleet(6), SETTINGS)[0] > FEEDS


def test_jobs_that_were_leased_ahead_do_not_look_longer() -> None:
    """A worker leases short jobs ahead of its slots. A service time that counts their wait would start workers for load
    that is not there."""
    app = App("memory://")

    @app.job
    async def work(n: int) -> None:
        await asyncio.sleep(0.02)

    with virtual_time(app) as clock:

        async def load() -> PoolObservation:
            observer, world = PoolObserver(app.world, ["default"]), app.world
            await work.submit_many([{"n": n} for n in range(1_500)])
            async with asyncio.TaskGroup() as group:
                fleet = SimulatedFleet(app, group, observer, [])
                fleet.resize(1)
                for _ in range(10):
                    await world.clock.sleep(0.5)
                    seen = await observer.observe(SLOTS, 1)
                fleet.resize(0)
            return seen

        seen = clock.run(load())
    assert seen.running > SLOTS, "no job was leased ahead, so this proves nothing"
    assert seen.groups[0].service_seconds == pytest.approx(0.02, rel=0.25)


def test_a_limit_at_nine_tenths_of_its_rate_stays_used_up() -> None:
    """It has a permit now and then. A fleet that takes this for room grows by a worker each time."""
    flow, bound = ("default", "default"), "limit maps"

    def fed(spent: int, *, was_used_up: bool) -> float:
        at_work = Counter({flow: 8})
        samples = [
            CounterSample(
                number * SECOND_US, {}, at_work, BusyLeases(1.0, 0.5), frozenset({bound} if number < spent else ())
            )
            for number in range(8)
        ]
        return observe.fed_slots(samples, bound, [flow], was_used_up)

    assert [fed(spent, was_used_up=False) for spent in (3, 4)] == [math.inf, 4.0]
    assert [fed(spent, was_used_up=True) for spent in (1, 2, 3)] == [math.inf, 4.0, 4.0]
