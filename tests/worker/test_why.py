"""`jobs why` for jobs that a real worker has left waiting: the cause that it names must be the cause."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from msgspec.structs import replace

from leaseway import App, Backoff, Budget, Context, Limit, Snooze, Submitted
from leaseway.domain.exchange import Gate
from leaseway.domain.explain.closures import closed_by_pauses, closed_by_worker
from leaseway.domain.explain.reasons import Reason, explain
from leaseway.domain.ids import SECOND_US
from leaseway.testing import VirtualTime, virtual_time
from leaseway.worker.definitions import booked_for_job
from leaseway.worker.explain_waits import closed_budgets, closed_gates, closed_limits

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def app() -> App:
    return App("memory://")


@pytest.fixture
def time(app: App) -> Iterator[VirtualTime]:
    with virtual_time(app, start=NOON) as time:
        yield time


async def why(app: App, job: Submitted) -> Reason:
    """As the command line asks."""
    world, store = app.world, await app.store()
    record, now = await store.reads.job(job.id), await store.reads.now()
    assert record is not None
    assert store.pauses is not None
    gate, lanes = Gate(record.needs, record.tenant), await store.reads.lanes()
    limits, budgets = partial(closed_limits, world.limiter), partial(closed_budgets, world.ledger, now=now)
    shuts = (await closed_gates(store.tenants, [gate], limits, budgets)).get(gate, [])
    shuts = [*closed_by_pauses(record.queue, record.tenant, await store.pauses.all()), *shuts]
    lane = next(each for each in lanes if (each.tenant, each.needs) == (record.tenant, record.needs))
    shuts += closed_by_worker(lane, now, shuts)
    booked = await booked_for_job(world.ledger, record)
    return explain(record, lane, now, shuts, booked=booked, busy_elsewhere=sum(each.leased for each in lanes))


def when(reason: Reason) -> datetime | None:
    return None if reason.until is None else datetime.fromtimestamp(reason.until / SECOND_US, UTC)


async def test_a_new_job_that_no_worker_has_claimed(app: App, time: VirtualTime) -> None:
    """The store cannot know whether a worker is about to claim it."""

    @app.job
    async def quick() -> None: ...

    reason = await why(app, await quick.submit())
    assert reason.text.startswith("It is ready and waits for a worker that serves queue 'default'.")
    assert "does not know idle workers" in (reason.advice or "")


async def test_a_job_in_a_paused_lane_whose_limit_is_used_up_as_well(app: App, time: VirtualTime) -> None:
    """The pause ends only by a command, so it comes first; resuming alone would not help, so the limit is named."""

    @app.job(limits=[Limit("api", "1/day")])
    async def fetch(ctx: Context) -> None:
        async with ctx.call():
            pass

    await fetch.submit()
    time.run_until_empty()
    job = await fetch.submit()
    pauses = (await app.store()).pauses
    assert pauses is not None
    await pauses.pause("default")
    reason = await why(app, job)
    assert reason.text == "It waits for lane default: it is paused. It waits for limit api as well."
    assert reason.advice == "Resume it: leaseway lanes resume default"


async def test_a_job_behind_a_paused_limit(app: App, time: VirtualTime) -> None:
    """No time helps, and the command that does is named."""

    @app.job(limits=[Limit("api", "100/second")])
    async def fetch(ctx: Context) -> None:
        async with ctx.call():
            pass

    time.run_until_empty()
    definitions = app.world.limiter.definitions
    ((definition, version),) = [each for each in await definitions.all() if each[0].name == "api"]
    await definitions.change(replace(definition, paused=True), expected=version)
    reason = await why(app, await fetch.submit())
    assert (reason.code, reason.until, reason.advice) == ("limit", None, "Resume it: leaseway limits resume api")


async def test_a_job_behind_a_paused_budget(app: App, time: VirtualTime) -> None:
    """Its window has room, and the job would look as if it only waited for a worker."""

    @app.job(budget=Budget("spend", usd=1, every="day"), cost_usd=1)
    async def fetch(ctx: Context) -> None:
        async with ctx.call():
            pass

    time.run_until_empty()
    definition = Budget("spend", usd=1, every="day").definition
    await app.world.ledger.definitions.change(replace(definition, paused=True))
    reason = await why(app, await fetch.submit())
    assert (reason.code, reason.until, reason.advice) == ("budget", None, "Resume it: leaseway budgets resume spend")


@pytest.mark.parametrize("every", ["day", "total"])
async def test_a_job_whose_budget_is_spent(app: App, time: VirtualTime, every: str) -> None:
    """A daily budget has room at midnight. One that never begins again must be raised: a time would be invented."""

    @app.job(budget=Budget("spend", usd=1, every=every), cost_usd=1)
    async def fetch(ctx: Context) -> None:
        async with ctx.call():
            pass

    await fetch.submit()
    time.run_until_empty()
    reason = await why(app, await fetch.submit())
    assert reason.text == "It waits for budget spend: 1 of 1 usd are spent."
    if every == "day":
        assert (when(reason), reason.advice) == (NOON.replace(hour=0) + DAY, None)
    else:
        assert when(reason) is None
        assert reason.advice == "No window has room. Raise it: leaseway budgets set spend --amount AMOUNT"


async def test_a_job_that_is_booked_after_a_failed_attempt(app: App, time: VirtualTime) -> None:
    """The error is history; the budget's window is what it waits for."""

    @app.job(budget=Budget("spend", usd=1, every="day"), cost_usd=0.6, backoff=60)
    async def fetch(ctx: Context) -> None:
        async with ctx.call():
            pass
        if ctx.attempt == 1:
            raise ConnectionError

    job = await fetch.submit()
    time.run_for(3_600)
    reason = await why(app, job)
    assert (reason.code, when(reason)) == ("budget", NOON.replace(hour=0) + DAY)
    assert reason.text.startswith("Attempt 1 of 5 ended with ConnectionError. It waits for budget spend: ")


async def test_a_job_of_a_tenant_at_its_cap(app: App, time: VirtualTime) -> None:
    """The cap of a tenant counts jobs, not calls."""

    @app.job
    async def long() -> None:
        await time.sleep(7_200)

    await app.set_tenant("acme", concurrency=1)
    await long.options(tenant="acme").submit()
    seen: list[Reason] = []

    async def main() -> None:
        worker = app.worker()
        async with asyncio.TaskGroup() as group:
            group.create_task(app.run_worker(worker))
            await asyncio.sleep(60)
            seen.append(await why(app, await long.options(tenant="acme").submit()))
            worker.drain(0)

    time.run(main())
    assert (seen[0].code, seen[0].until) == ("tenant", None)
    assert "It waits for tenant acme: its only job is running." in seen[0].text


async def test_a_job_between_two_attempts(app: App, time: VirtualTime) -> None:
    """Nothing else can have set its time: it had one lease and used one attempt."""

    @app.job(backoff=Backoff(first_seconds=3_600, jitter=0))
    async def failing() -> None:
        raise ConnectionError

    job = await failing.submit()
    time.run_for(60)
    reason = await why(app, job)
    assert reason.text == "Attempt 1 of 5 ended with ConnectionError; it waits for attempt 2 of 5."
    assert (reason.code, when(reason) and when(reason) > time.now) == ("retry", True)  # type: ignore[operator]


async def test_a_job_that_was_snoozed_after_a_failed_attempt(app: App, time: VirtualTime) -> None:
    """ "It waits for a retry" would be wrong: the handler asked for tomorrow."""

    @app.job(backoff=1)
    async def moody(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ConnectionError
        raise Snooze(DAY)

    job = await moody.submit()
    time.run_for(60)
    text = (await why(app, job)).text
    assert "The wait is the pause after the error, or was set by a later lease: a snooze, or a limit" in text


async def test_jobs_that_wait_for_their_time(app: App, time: VirtualTime) -> None:
    """Set at the submission, or by the handler: the store can tell these two apart."""

    @app.job
    async def patient() -> None:
        raise Snooze(DAY)

    later, snoozed = await patient.options(delay=DAY).submit(), await patient.submit()
    time.run_for(60)
    assert "set when it was submitted" in (await why(app, later)).text
    assert "set by a lease that used no attempt: a snooze, or" in (await why(app, snoozed)).text


async def test_a_job_of_an_unknown_kind_that_newer_code_has_snoozed(app: App, time: VirtualTime) -> None:
    """First no worker had its code. Then a newer worker ran it, and the old error is no longer the cause."""

    @app.job
    async def newer() -> None:
        raise Snooze(DAY)

    job = await newer.submit()
    kind = app.kinds.pop("newer")
    time.run_for(10)
    assert (await why(app, job)).code == "misfit"
    app.kinds["newer"] = kind
    time.run_for(600)
    assert (await why(app, job)).code == "scheduled"
