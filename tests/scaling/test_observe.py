"""What the autoscaler sees must be what the store holds, and every reason to wait must bound the demand."""

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.postgres_tables import empty_schema

from leaseway import App, Budget, Context, Limit, UsageError
from leaseway.domain.budgets.budget import Charge
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import Notice
from leaseway.domain.scaling.demand import AdmissionBound, PoolObservation, ScalingSettings, workers_wanted
from leaseway.domain.schedule import Schedule
from leaseway.ports.store import require_pauses
from leaseway.scaling import observe as observe_module
from leaseway.scaling.observe import PoolObserver
from leaseway.testing import virtual_time

SCHEMA = "scaling_tests"
SETTINGS = ScalingSettings(workers_max=50)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/work.db"}.get(request.param, "")
    if request.param == "postgres":
        server = request.getfixturevalue("server").url
        await empty_schema(server, SCHEMA)
        url = f"{server}?schema={SCHEMA}"
    async with App(url) as app:
        await app.world.limiter.open()
        yield app


async def observe(app: App, *queues: str, workers: int = 1) -> PoolObservation:
    return await PoolObserver(app.world, queues or ("default",)).observe(4, workers)


async def test_only_the_queues_of_the_pool_are_counted(app: App) -> None:
    """Another pool's backlog must not start workers that do not serve it."""

    @app.job
    async def work(n: int) -> None: ...

    await work.submit_many([{"n": n} for n in range(3)])
    await work.options(queue="other").submit(n=1)
    seen = await observe(app)
    assert (seen.ready, seen.running, seen.slots_per_worker, seen.workers) == (3, 0, 4, 1)
    assert (await observe(app, "default", "other")).ready == 4
    assert (await observe(app, "none")).groups == []


async def test_a_limit_bounds_its_jobs_by_its_rate(app: App) -> None:
    """3,600 jobs behind a limit of one per second need one worker, and the bound has the limit's name."""

    @app.job(limits=[Limit("maps", "60/minute", burst=0)])
    async def fetch(n: int) -> None: ...

    await fetch.submit_many([{"n": n} for n in range(360)])
    await app.run_worker(app.worker(grace=0, queues=["idle"], until_empty=True))  # declares the limit
    seen = await observe(app)
    assert seen.bounds["limit maps"].starts_per_second == pytest.approx(1.0, abs=0.1)
    wanted, busy = workers_wanted(seen, SETTINGS)
    assert (wanted, busy.binding) == (1, seen.bounds["limit maps"])


async def test_an_undefined_or_paused_limit_admits_nothing(app: App) -> None:
    """No worker can start these jobs, however many there are."""

    @app.job(limits=[Limit("maps", "600/minute")])
    async def fetch(n: int) -> None: ...

    await fetch.submit(n=1)
    assert (await observe(app)).bounds["limit maps"].starts_per_second == 0.0
    await app.run_worker(app.worker(queues=["idle"], until_empty=True))
    assert (await observe(app)).bounds["limit maps"].starts_per_second > 1.0
    definitions = app.world.limiter.definitions
    (definition, _), *_ = await definitions.all()
    await definitions.change(replace(definition, paused=True))
    seen = await observe(app)
    assert seen.bounds["limit maps"].starts_per_second == 0.0
    assert workers_wanted(seen, SETTINGS)[0] == 0


async def test_a_spent_budget_admits_nothing(app: App) -> None:
    """Workers that wait for the next window of a budget cost money and do nothing."""

    @app.job(budget=Budget("spend", usd=0.01, every="day"), cost_usd=0.01)
    async def pay(n: int) -> None: ...

    await pay.submit(n=1)
    await app.run_worker(app.worker(queues=["idle"], until_empty=True))
    assert "budget spend" not in (await observe(app)).bounds
    await app.world.ledger.hold("spent", [(Charge("spend", "spend"), 10_000)], 60_000_000, dispatch=True)
    await app.world.ledger.settle("spent", {"spend": 10_000})
    seen = await observe(app)
    assert seen.bounds["budget spend"].starts_per_second == 0.0
    assert workers_wanted(seen, SETTINGS)[0] == 0


async def test_the_cap_of_a_tenant_bounds_its_jobs(app: App) -> None:
    """A tenant that may run two jobs at once does not get a fleet for its backlog, also before a worker enforces it."""

    @app.job
    async def work(n: int) -> None: ...

    await app.set_tenant("acme", concurrency=2)
    await work.options(tenant="acme").submit_many([{"n": n} for n in range(100)])
    seen = await observe(app)
    assert seen.bounds["tenant acme"] == AdmissionBound(what="tenant", name="acme", at_once=2.0)
    assert math.isinf(seen.bounds["tenant acme"].starts_per_second)
    assert workers_wanted(seen, SETTINGS)[0] == 1


async def test_a_paused_queue_admits_nothing(app: App) -> None:
    """An operator pauses a queue to stop its work, not to pay for idle workers."""

    @app.job
    async def work(n: int) -> None: ...

    await work.submit(n=1)
    await require_pauses(await app.store()).pause("default")
    seen = await observe(app)
    assert seen.bounds["lane default of default"].starts_per_second == 0.0
    assert workers_wanted(seen, SETTINGS)[0] == 0


async def test_scheduled_jobs_and_schedules_are_counted(app: App) -> None:
    """They are due only if a worker is there, so a pool with them keeps its last worker."""

    @app.job
    async def work(n: int) -> None: ...

    await work.options(delay=3_600).submit(n=1)
    assert (await observe(app)).scheduled == 1
    schedules = (await app.store()).schedules
    await schedules.declare([Schedule(name="nightly", kind="work", cron="0 3 * * *")])
    assert (await observe(app)).scheduled == 2
    await schedules.pause("nightly", True)
    assert (await observe(app)).scheduled == 1


async def test_a_provider_that_asks_for_a_wait_admits_nothing(app: App) -> None:
    """A 429 with a Retry-After of ten minutes closes the limit for all workers, however high its rate is. A provider
    that only throttles slows it down."""

    @app.job(limits=[Limit("maps", "600/minute", burst=0)])
    async def fetch(n: int) -> None: ...

    await fetch.submit(n=1)
    await app.run_worker(app.worker(queues=["idle"], until_empty=True))
    full = (await observe(app)).bounds["limit maps"].starts_per_second
    await app.world.limiter.observe(Notice("maps", "maps", 0, throttled=True))
    assert (await observe(app)).bounds["limit maps"].starts_per_second < 0.9 * full
    await app.world.limiter.observe(Notice("maps", "maps", 1, throttled=True, retry_after_us=600 * SECOND_US))
    assert (await observe(app)).bounds["limit maps"].starts_per_second == 0.0


async def test_jobs_beyond_the_lanes_that_are_read_keep_a_worker(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds are read for the fullest lanes only. The others must not be forgotten when those are paused."""
    monkeypatch.setattr(observe_module, "LANES_MAX", 1)

    @app.job
    async def work(n: int) -> None: ...

    await work.submit_many([{"n": n} for n in range(3)])
    await work.options(queue="other").submit(n=1)
    await require_pauses(await app.store()).pause("default")
    seen = await observe(app, "default", "other")
    assert [group.ready for group in seen.groups] == [3, 1]
    assert workers_wanted(seen, SETTINGS)[0] == 1


async def test_a_service_cannot_be_observed_from_outside() -> None:
    """A worker over HTTP has no database; the error says where to ask."""
    async with App("memory://") as app:
        app.world.store.inspection = None
        with pytest.raises(UsageError, match="use the service's routes"):
            await observe(app)


def test_rates_come_from_the_last_minute() -> None:
    """Two jobs per second of two seconds each: that is what the fleet must be sized for."""
    app = App("memory://")

    @app.job
    async def work(n: int) -> None:
        await asyncio.sleep(2)

    with virtual_time(app) as clock:
        observer = PoolObserver(app.world, ["default"])

        async def load() -> PoolObservation:
            async with asyncio.TaskGroup() as group:
                worker = app.worker(concurrency=20)
                running = group.create_task(app.run_worker(worker))
                for n in range(90):
                    await work.submit(n=2 * n)
                    await work.submit(n=2 * n + 1)
                    if n % 5 == 0:
                        seen = await observer.observe(20, 1)
                    await app.world.clock.sleep(1)
                worker.drain(0)
                await running
            return seen

        seen = clock.run(load())
    (group,) = seen.groups
    assert seen.finished_per_second == pytest.approx(2.0, abs=0.2)
    assert group.arrivals_per_second == pytest.approx(2.0, abs=0.3)
    assert group.service_seconds == pytest.approx(2.0, abs=0.5)


def test_a_pool_that_keeps_up_is_not_idle() -> None:
    """Jobs of 50 ms are never seen running by a look every five seconds. A fleet that takes the empty counters for an
    idle pool ends the workers that serve it."""
    app = App("memory://")

    @app.job
    async def work(n: int) -> None:
        await asyncio.sleep(0.05)

    with virtual_time(app) as clock:
        observer = PoolObserver(app.world, ["default"])

        async def load() -> list[PoolObservation]:
            seen = []
            async with asyncio.TaskGroup() as group:
                worker = app.worker(concurrency=20)
                running = group.create_task(app.run_worker(worker))
                for n in range(120):
                    await work.submit(n=n)
                    await app.world.clock.sleep(0.5)
                    if n % 10 == 9:
                        seen.append(await observer.observe(20, 1))
                worker.drain(0)
                await running
            return seen

        seen = clock.run(load())
    assert {(each.ready, each.running) for each in seen} == {(0, 0)}, "a job was seen, so this run proves nothing"
    (group,) = seen[-1].groups
    assert group.arrivals_per_second == pytest.approx(2.0, abs=0.3)
    assert workers_wanted(seen[-1], SETTINGS)[0] == 1


def test_a_long_job_is_not_taken_for_a_short_one_before_it_ends() -> None:
    """Ten jobs run for a minute and none has ended: they take longer than the assumed second."""
    app = App("memory://")

    @app.job(lease=600)
    async def work(n: int) -> None:
        await asyncio.sleep(500)

    with virtual_time(app) as clock:
        observer = PoolObserver(app.world, ["default"])

        async def load() -> PoolObservation:
            await work.submit_many([{"n": n} for n in range(10)])
            async with asyncio.TaskGroup() as group:
                worker = app.worker(concurrency=20)
                running = group.create_task(app.run_worker(worker))
                for _ in range(6):
                    await app.world.clock.sleep(10)
                    seen = await observer.observe(20, 1)
                worker.drain(0)
                await running
            return seen

        seen = clock.run(load())
    assert seen.running == 10
    assert seen.groups[0].service_seconds >= 60


@pytest.mark.parametrize(("limit", "is_used_up"), [("10/second", True), ("500/second", False)])
def test_jobs_of_many_calls_get_no_more_workers_than_their_limit_feeds(limit: str, is_used_up: bool) -> None:
    """Fifty calls of a job use fifty permits, and the declared rate would admit a fleet fifty times too large. Its
    workers would only wait for permits. A limit with permits left must not hold the fleet back."""
    app = App("memory://")

    @app.job(limits=[Limit("maps", limit)], lease=600)
    async def fetch(ctx: Context, n: int) -> None:
        for _ in range(50):
            async with ctx.call():
                await asyncio.sleep(0.2)

    with virtual_time(app) as clock:
        observer = PoolObserver(app.world, ["default"])

        async def load() -> PoolObservation:
            await fetch.submit_many([{"n": n} for n in range(400)])
            async with asyncio.TaskGroup() as group:
                worker = app.worker(concurrency=20, grace=0)
                running = group.create_task(app.run_worker(worker))
                for _ in range(12):
                    await app.world.clock.sleep(2)
                    seen = await observer.observe(20, 1)
                worker.drain(0)
                await running
            return seen

        seen = clock.run(load())
    wanted, busy = workers_wanted(seen, SETTINGS)
    assert seen.ready > 100
    if is_used_up:
        assert (wanted, busy.binding) == (1, seen.bounds["limit maps"])
    else:
        assert wanted > 5
        assert math.isinf(seen.bounds["limit maps"].fed_slots)
