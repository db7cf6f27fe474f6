"""Jobs that wait for a later window of a budget: whatever makes room for them brings them forward."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from tests.worker.observe import SOON_SECONDS, codes, eventually, record, stored, worked, working

from leaseway import App, Budget, Context, State
from leaseway.domain.budgets.budget import MICRO, Charge
from leaseway.domain.budgets.rebooking import HoldOwner, hold_id, parse_hold_id
from leaseway.domain.exchange import Admit, Exchange, Gate, Wants
from leaseway.domain.ids import SECOND_US, JobId, Token, WorkerId
from leaseway.domain.inspection import CancelResult, JobFilter
from leaseway.domain.outcome import Deferred
from leaseway.domain.tenant import NAMESPACE_LENGTH_MAX
from leaseway.worker import definitions
from leaseway.worker.definitions import booked_for_job, cancel_job, forget_budget, rebook
from leaseway.worker.maintenance import bring_forward, maintain_budgets


def spending(app: App, usd: float = 1.5) -> Any:
    """A job whose call costs one dollar, under a budget for one of them per day. The rest of a day's budget keeps the
    lane open, so that the next jobs ask for their dollar and are booked."""

    @app.job(budget=Budget("spend", usd=usd, every="day"), cost_usd=1)
    async def spend(ctx: Context) -> None:
        async with ctx.call():
            pass

    return spend


async def states(app: App, jobs: list[Any]) -> list[State]:
    return [(await record(app, job)).state for job in jobs]


async def exhausted(app: App, count: int, usd: float = 1.5) -> list[Any]:
    """Jobs of which the first one has run; each of the others waits for another day."""
    spend = spending(app, usd)
    jobs = [await spend.submit() for _ in range(count)]

    async def others_wait() -> bool:
        found = [await record(app, job) for job in jobs]
        return all(job.state is State.DONE or job.run_at > job.created_at + 60 * SECOND_US for job in found)

    async with asyncio.timeout(SOON_SECONDS), working(app, concurrency=1):
        await eventually(others_wait)
    return jobs


async def raise_budget(app: App, usd: float) -> None:
    await app.world.ledger.definitions.change(Budget("spend", usd=usd, every="day").definition)


async def test_a_raised_budget_brings_forward_the_jobs_that_fit(every_app: App) -> None:
    """56 jobs waited for 47 hours with 4.75 USD free, and no command could bring them forward."""
    app, world = every_app, every_app.world
    jobs = await exhausted(app, 5)
    assert await rebook(world.store, world.ledger, "spend") == 0
    await raise_budget(app, 3.5)
    # Two of them fit into today, and the other two into tomorrow.
    assert await rebook(world.store, world.ledger, "spend") == 4
    assert await rebook(world.store, world.ledger, "spend") == 0, "a second command has nothing to do"
    async with asyncio.timeout(SOON_SECONDS), working(app, concurrency=1):
        await eventually(lambda: all_have(app, jobs, booked=2))
    assert (await states(app, jobs)).count(State.DONE) == 3
    holds = await world.ledger.reads.booked("spend")
    assert len({hold.start for hold in holds}) == 1, "both are booked for tomorrow"
    assert (await world.ledger.reads.audit()).wrong() == []


@pytest.mark.parametrize("step", [1, definitions.STEP])
async def test_only_as_many_jobs_are_brought_forward_as_fit(
    app: App, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Two jobs are booked for tomorrow, and there is room for one of them today. The other one would be claimed, find
    the room taken and go back, and the answer would count it. `step`: also if they are read one after the other."""
    monkeypatch.setattr(definitions, "STEP", step)
    await exhausted(app, 4, usd=2.5)
    await raise_budget(app, 3.5)
    assert await rebook(app.world.store, app.world.ledger, "spend") == 1


async def all_have(app: App, jobs: list[Any], booked: int) -> bool:
    found = [await record(app, job) for job in jobs]
    waiting = [job for job in found if job.state is State.PENDING and job.run_at > job.created_at + 60 * SECOND_US]
    return len(waiting) == booked and all(job.state is State.DONE for job in found if job not in waiting)


@pytest.mark.parametrize("command", ["rebook", "forget"])
async def test_more_jobs_than_one_reading_returns_are_brought_forward(
    app: App, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Otherwise a budget with thousands of waiting jobs would need the command several times, and no operator would
    know of it."""
    monkeypatch.setattr(definitions, "STEP", 2)
    world = app.world
    await exhausted(app, 6)
    if command == "forget":
        assert await forget_budget(world.store, world.ledger, "spend") == 5
    else:
        await raise_budget(app, 100)
        assert await rebook(world.store, world.ledger, "spend") == 5


async def test_what_makes_room_without_a_command_brings_jobs_forward(app: App) -> None:
    """A declared cost is a maximum, and new code may declare a higher budget. Jobs must not wait for tomorrow while
    today's budget is not spent."""
    _, second = await exhausted(app, 2)
    await bring_forward(app.world)
    assert (await record(app, second)).run_at > await app.world.store.reads.now()
    await raise_budget(app, 2)
    await maintain_budgets(app.world)
    assert (await worked(app, second)).state is State.DONE


async def test_a_paused_budget_brings_no_job_forward(app: App) -> None:
    """The job would be claimed, find its budget paused and go back, again and again."""
    _, second = await exhausted(app, 2)
    definition = Budget("spend", usd=2, every="day").definition
    await app.world.ledger.definitions.change(replace(definition, paused=True))
    await maintain_budgets(app.world)
    assert (await record(app, second)).run_at > await app.world.store.reads.now()
    await app.world.ledger.definitions.change(definition)
    await maintain_budgets(app.world)
    assert (await record(app, second)).run_at <= await app.world.store.reads.now()


async def test_a_cancelled_job_releases_its_booking_at_once(every_app: App) -> None:
    """The amount stayed reserved until its window had begun, for a job that would never run."""
    app, world = every_app, every_app.world
    _, second, third = await exhausted(app, 3)
    before = {hold.id for hold in await world.ledger.reads.booked("spend")}
    assert await cancel_job(world.store, world.ledger, second.id) is CancelResult.CANCELLED
    (left,) = await world.ledger.reads.booked("spend")
    assert parse_hold_id(left.id) == HoldOwner("default/", third.id)
    assert len(before) == 2
    # A retry starts afresh, and asks for the first window with room.
    await raise_budget(app, 2)
    await world.store.operations.retry(JobFilter(ids=(second.id,)), 1)
    async with asyncio.timeout(SOON_SECONDS), working(app):
        await eventually(lambda: is_in(app, second, State.DONE))


async def test_a_cancelled_job_whose_worker_died_releases_its_booking_at_once(app: App) -> None:
    """Nobody else releases it: the next claim ends the job, and no worker runs it again."""
    _, second = await exhausted(app, 2)
    world = app.world
    await world.store.operations.run_now(JobFilter(ids=(second.id,)), 1)
    job = await stored(app, second)
    wants = Wants((job.queue,), 1, Token("t"), (Admit(Gate(job.needs, job.tenant), 1),))
    await world.store.jobs.exchange(Exchange(WorkerId("dead"), wants=wants))
    assert (await record(app, second)).state is State.LEASED
    assert await cancel_job(world.store, world.ledger, second.id) is CancelResult.REQUESTED
    assert await nothing_booked(app)


async def test_a_forgotten_budget_brings_forward_all_jobs_that_wait_for_it(app: App) -> None:
    """There is no window any more for which they could wait."""
    world, jobs = app.world, await exhausted(app, 3)
    assert await forget_budget(world.store, world.ledger, "spend") == 2
    now = await world.store.reads.now()
    assert max([(await record(app, job)).run_at for job in jobs]) <= now
    async with asyncio.timeout(SOON_SECONDS), working(app, concurrency=1):
        await eventually(lambda: all_have(app, jobs, booked=1))


async def test_a_hold_cannot_bring_forward_the_job_of_another_tenant(app: App) -> None:
    """A worker of one tenant chooses the ids of its holds within its namespace."""
    spend, world = spending(app), app.world
    foreign = await spend.options(delay=3_600, tenant="acme").submit()
    await world.ledger.definitions.declare([Budget("spend", usd=1, every="day").definition])
    lines = [(Charge("spend", "spend"), MICRO)]
    await world.ledger.hold("call", lines, SECOND_US, dispatch=True)
    await world.ledger.hold(hold_id("evil", foreign.id, 1, 1), lines, SECOND_US, dispatch=True)
    await raise_budget(app, 5)
    assert await rebook(world.store, world.ledger, "spend") == 0
    assert (await record(app, foreign)).run_at > await world.store.reads.now()


async def test_a_job_that_waits_in_place_releases_its_booking_when_it_is_cancelled(app: App) -> None:
    """Its worker stops it, and what it had booked must not stay reserved until tomorrow."""
    called = asyncio.Event()

    @app.job(budget=Budget("spend", usd=1, every="day"), cost_usd=1)
    async def twice(ctx: Context) -> None:
        for _ in range(2):
            async with ctx.call():
                called.set()

    world, job = app.world, await twice.submit()
    async with asyncio.timeout(SOON_SECONDS), working(app):
        await called.wait()
        await eventually(lambda: world.ledger.reads.booked("spend"))
        await cancel_job(world.store, world.ledger, job.id)
        await eventually(lambda: is_in(app, job, State.CANCELLED))
        await eventually(lambda: nothing_booked(app))


def parallel(app: App, name: str, calls: int, *, fails: bool) -> Any:
    """A job that makes its calls at once, under a budget for one of them per day."""

    @app.job(name=name, budget=Budget("spend", usd=1.5, every="day"), cost_usd=1, attempts=1)
    async def call_at_once(ctx: Context) -> None:
        async def call() -> None:
            async with ctx.call():
                pass

        async def fail() -> None:
            await eventually(lambda: app.world.ledger.reads.booked("spend"))
            raise ValueError("one of them failed")

        if fails:  # the calls that are waiting are not cancelled
            tasks = [asyncio.create_task(call()) for _ in range(calls)]
            await fail()
            await asyncio.gather(*tasks)
        async with asyncio.TaskGroup() as group:
            for _ in range(calls):
                group.create_task(call())

    return call_at_once


async def test_an_attempt_that_fails_releases_what_its_calls_had_booked(every_app: App) -> None:
    """The other calls of the job waited in place. What they had booked stayed reserved until tomorrow, for a job that
    would never run again."""
    app = every_app
    job = await parallel(app, "failing", 3, fails=True).submit()
    async with asyncio.timeout(SOON_SECONDS), working(app):
        await eventually(lambda: is_in(app, job, State.FAILED))
        await eventually(lambda: nothing_booked(app))
    assert (await app.world.ledger.reads.audit()).wrong() == []


async def test_a_call_that_is_booked_after_its_attempt_had_ended_is_released(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler did not wait for its task. No delivery knows of what that task has booked."""
    await worked(app, await spending(app).submit())
    asked, may_answer, post = asyncio.Event(), asyncio.Event(), app.world.ledger.post
    tasks = []

    async def answer_late(*given: Any, **named: Any) -> Any:
        asked.set()
        await may_answer.wait()
        return await post(*given, **named)

    @app.job(budget=Budget("spend", usd=1.5, every="day"), cost_usd=1)
    async def forgets_its_task(ctx: Context) -> None:
        async def call() -> None:
            async with ctx.call():
                pass

        tasks.append(asyncio.create_task(call()))
        await asked.wait()

    monkeypatch.setattr(app.world.ledger, "post", answer_late)
    async with asyncio.timeout(SOON_SECONDS), working(app):
        await app.wait(await forgets_its_task.submit())
        may_answer.set()
        with pytest.raises(Deferred):
            await tasks[0]
        assert len(await app.world.ledger.reads.journal("spend", 10)) > 2, "the task has booked"
        await eventually(lambda: nothing_booked(app))


async def test_calls_in_a_task_group_that_do_not_fit_defer_the_job(every_app: App) -> None:
    """A task group raises a group of errors. If that counted as a failure, a budget that is used up would use up the
    attempts of the job."""
    app = every_app
    await worked(app, await spending(app).submit())
    job = await parallel(app, "grouped", 2, fails=False).submit()
    async with asyncio.timeout(SOON_SECONDS), working(app):
        await eventually(lambda: waits_for_a_window(app, job))
    assert await codes(app, job) == []


async def waits_for_a_window(app: App, job: Any) -> bool:
    found = await record(app, job)
    assert not found.state.is_final, found
    return found.run_at > found.created_at + 60 * SECOND_US


async def is_in(app: App, job: Any, state: State) -> bool:
    return (await record(app, job)).state is state


async def nothing_booked(app: App) -> bool:
    return not await app.world.ledger.reads.booked("spend")


async def test_the_holds_of_a_job_are_found_by_its_tenant_and_id(app: App) -> None:
    """A tenant whose name is long or contains a slash has holds, too."""
    _, second = await exhausted(app, 2)
    job = await stored(app, second)
    assert [hold.start for hold in await booked_for_job(app.world.ledger, job)] == [job.run_at]
    assert await booked_for_job(app.world.ledger, replace(job, tenant="other")) == []
    lines = [(Charge("spend", "spend"), MICRO)]
    await app.world.ledger.hold(hold_id("default", JobId(f"{job.id}:x"), 1, 1), lines, SECOND_US, dispatch=True)
    assert len(await app.world.ledger.reads.booked("spend")) == 2
    assert len(await booked_for_job(app.world.ledger, job)) == 1, "a name that only begins like the job's"
    assert await booked_for_job(app.world.ledger, replace(job, needs="")) == ()


@pytest.mark.parametrize("tenant", ["acme", "a/b", "~x", "t" * (NAMESPACE_LENGTH_MAX + 1), "a:1"])
def test_the_job_is_read_from_the_id_of_a_hold(tenant: str) -> None:
    """Budgets find the jobs that wait for them by the ids of their holds."""
    for job in ("01jd", "acme/x", "a:1:2"):
        owner = parse_hold_id(hold_id(tenant, JobId(job), 3, 14))
        assert owner is not None
        assert owner.job == job
        assert owner == parse_hold_id(hold_id(tenant, JobId(job), 1, 1))


@pytest.mark.parametrize("text", ["", "call-1", "acme/x", "acme/x:1", "acme/:1:1", "acme/x:a:1", "x:1:1"])
def test_a_hold_that_no_worker_placed_has_no_job(text: str) -> None:
    """An id that an operator's script chose must not bring forward a job."""
    assert parse_hold_id(text) is None
