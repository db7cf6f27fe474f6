"""`hold="job"`: the money for all calls of a job is reserved before its first call."""

import asyncio
from typing import Any

import pytest
from tests.worker.observe import SOON_SECONDS, eventually, record, worked, working

from leaseway import App, BadValue, Budget, Context, State

DAILY = Budget("spend", usd=1, every="day")


async def balance(app: App) -> tuple[int, int]:
    """Spent and held today, in cents."""
    today, *_ = await app._world.ledger.reads.balances(["spend"])
    return today.balance.spent_micros // 10_000, today.balance.held_micros // 10_000


async def is_in(app: App, job: Any, state: State) -> bool:
    return (await record(app, job)).state is state


async def test_a_job_is_charged_what_its_calls_have_cost_together(every_app: App) -> None:
    """The estimate is for the whole job, so its calls must not be charged one by one."""
    app, held = every_app, []

    @app.job(budget=DAILY, cost_usd=0.9, hold="job")
    async def thrice(ctx: Context) -> None:
        for _ in range(3):
            async with ctx.call() as call:
                call.settle(usd=0.2)
            held.append(await balance(app))

    await worked(app, await thrice.submit())
    assert held == [(0, 90)] * 3
    assert await balance(app) == (60, 0)


async def test_money_is_not_spread_over_jobs_that_cannot_end(every_app: App) -> None:
    """With holds per call, two jobs of three calls would each begin, and the budget would be spent before either has
    ended."""
    app, begun = every_app, list[str]()

    @app.job(budget=DAILY, cost_usd=0.9, hold="job", attempts=1)
    async def thrice(ctx: Context) -> None:
        for _ in range(3):
            async with ctx.call() as call:
                call.settle(usd=0.3)
                await asyncio.sleep(0)
        begun.append(ctx.id)

    first, second = await thrice.submit(), await thrice.submit()
    async with asyncio.timeout(SOON_SECONDS), working(app, concurrency=2):
        await eventually(lambda: asyncio.sleep(0, begun))
        await eventually(lambda: is_booked(app, first, second))
    assert len(begun) == 1


async def is_booked(app: App, *jobs: Any) -> bool:
    """One of two jobs is done, and the other one waits for the next day without having called."""
    states = sorted([(await record(app, job)).state.value for job in jobs])
    return states == ["done", "pending"] and await balance(app) == (90, 0)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_job_of_which_one_call_does_not_say_its_cost_is_charged_in_full(app: App, is_async: bool) -> None:
    """Whatever may have been spent counts as spent."""

    @app.job(name="waits", budget=DAILY, cost_usd=0.9, hold="job")
    async def twice(ctx: Context) -> None:
        async with ctx.call() as call:
            call.settle(usd=0.1)
        async with ctx.call():
            pass

    @app.job(name="blocks", budget=DAILY, cost_usd=0.9, hold="job")
    def twice_in_a_thread(ctx: Any) -> None:
        with ctx.call() as call:
            call.settle(usd=0.1)
        with ctx.call():
            pass

    await worked(app, await (twice if is_async else twice_in_a_thread).submit())
    assert await balance(app) == (90, 0)


async def test_a_job_that_fails_is_charged_what_it_has_spent(app: App) -> None:
    """The money of the calls that were made is gone, and the rest is free for the next attempt."""

    @app.job(budget=DAILY, cost_usd=0.9, hold="job", attempts=1)
    async def breaks(ctx: Context) -> None:
        async with ctx.call() as call:
            call.settle(usd=0.1)
        raise RuntimeError("no luck")

    await worked(app, await breaks.submit())
    assert await balance(app) == (10, 0)


async def test_a_job_that_makes_no_call_is_charged_nothing(app: App) -> None:
    """Its answer may have been in a cache."""

    @app.job(budget=DAILY, cost_usd=0.9, hold="job")
    async def cached(ctx: Context) -> None: ...

    await worked(app, await cached.submit())
    assert await balance(app) == (0, 0)


async def test_calls_at_once_share_one_hold(app: App) -> None:
    """Each of them is the first call when it starts."""

    @app.job(budget=DAILY, cost_usd=0.9, hold="job")
    async def together(ctx: Context) -> None:
        async def one() -> None:
            async with ctx.call() as call:
                await asyncio.sleep(0.01)
                call.settle(usd=0.2)

        await asyncio.gather(*(one() for _ in range(4)))

    await worked(app, await together.submit())
    assert await balance(app) == (80, 0)


def test_a_hold_that_is_not_known_is_refused() -> None:
    """A typing error would otherwise hold per call, and nobody would notice."""
    app = App("memory://")
    with pytest.raises(BadValue, match="must be 'call' or 'job'"):
        app.job(budget=DAILY, cost_usd=1, hold="jobs")(noop)
    with pytest.raises(BadValue, match="without a budget"):
        app.job(hold="job")(noop)


async def noop() -> None: ...
