"""`ctx.call(limits=…, budget=…, cost=…)` and `ctx.http` with `settle=`: one job, several providers, usage in a body."""

import asyncio
import threading
from typing import Any

import pytest
from tests.worker.observe import worked
from tests.worker.test_settled_limits import TPM, used_and_reserved

from leaseway import App, BadValue, Budget, Context, HttpReply, Limit, Snooze, State, SyncContext
from leaseway.domain.limits.limit import PermitRequest
from leaseway.testing import FakeContext
from leaseway.testing.provider import provider

SPEND, OTHER = Budget("spend", usd=10), Budget("other", usd=1)
CALLS = Limit("calls", "1000/minute", start="full")
MAPS = Limit("maps", concurrency=5)


async def spent(app: App, name: str) -> float:
    (account,) = await app._world.ledger.reads.balances([name])
    return account.balance.spent_micros / 1_000_000


async def in_flight(app: App, name: str) -> int:
    """How many calls are in flight under a limit; -1: the limit was never used."""
    try:
        _, (level,) = await app._world.limiter.levels([PermitRequest(name, name)])
    except Exception:  # noqa: BLE001 - it is not declared
        return -1
    return sum(calls.count for calls in level.in_flight.values())


async def test_a_call_takes_its_own_limits_and_budget(app: App) -> None:
    """A job that calls two providers must charge each call to the provider that it calls."""
    seen: list[tuple[int, int]] = []

    @app.job(limits=[TPM.cost(1_000)], budget=SPEND, cost_usd=1)
    async def ask(ctx: Context) -> None:
        async with ctx.call(limits=[MAPS], budget=OTHER, cost=0.25):
            seen.append((await in_flight(app, "maps"), (await used_and_reserved(app))[1]))
        async with ctx.call() as call:
            seen.append((await in_flight(app, "maps"), (await used_and_reserved(app))[1]))
            call.settle(usd=0.5, tokens=70)

    assert (await worked(app, await ask.submit())).state is State.DONE
    assert seen == [(1, 0), (0, 1_000)]
    assert await used_and_reserved(app) == (70, 0)
    assert (await spent(app, "other"), await spent(app, "spend")) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("options", "reserved", "charged"),
    [
        ({"cost": 0.125}, 1_000, 0.125),
        ({"limits": []}, 0, 1.0),
        ({"limits": [TPM.cost(lambda: 300)]}, 300, 1.0),
        ({"budget": []}, 1_000, 0.0),
    ],
)
async def test_what_a_call_does_not_name_stays_as_the_job_has_it(
    app: App, options: dict[str, Any], reserved: int, charged: float
) -> None:
    """An override of one thing must not remove the protection of another."""
    seen: list[int] = []

    @app.job(limits=[TPM.cost(1_000)], budget=SPEND, cost_usd=1)
    async def ask(ctx: Context) -> None:
        async with ctx.call(**options):
            seen.append((await used_and_reserved(app))[1])

    assert (await worked(app, await ask.submit())).state is State.DONE
    assert (seen, await spent(app, "spend")) == ([reserved], charged)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"limits": "maps"}, "ctx.call: limits: must be a list of limits"),
        ({"limits": [TPM]}, "tpm counts tokens; say how many a call takes"),
        ({"budget": 5}, "ctx.call: budget: must be a Budget or a list of them"),
        ({"budget": OTHER, "cost": -1}, "ctx.call: cost"),
        ({"budget": Budget("tokens", tokens=9), "cost": {"usd": 1}}, "has no amount in tokens"),
        ({"budget": [], "cost": 1}, "is given without a budget"),
    ],
)
async def test_options_that_make_no_sense_are_refused_before_anything_is_taken(
    app: App, options: dict[str, Any], expected: str
) -> None:
    """The error must name the option; a call that goes on without its limit is worse than none."""
    errors: list[str] = []

    @app.job(limits=[TPM.cost(1_000)], budget=SPEND, cost_usd=1)
    async def ask(ctx: Context) -> None:
        with pytest.raises(BadValue) as refused:
            ctx.call(**options)
        errors.append(str(refused.value))

    assert (await worked(app, await ask.submit())).state is State.DONE
    assert expected in errors[0]
    assert await used_and_reserved(app) == (0, 0)


async def test_calls_to_two_providers_at_once_keep_their_limits(app: App) -> None:
    """Requests of two blocks that are open at once would otherwise take each other's permits and charges."""
    is_other_open, is_first_sent = asyncio.Event(), asyncio.Event()
    async with provider() as it:

        @app.job(limits=[CALLS], budget=SPEND, cost_usd=1)
        async def ask(ctx: Context) -> None:
            async def first() -> None:
                async with ctx.call(limits=[MAPS], budget=SPEND, cost=0.5):
                    await is_other_open.wait()
                    await ctx.http.get(it.url, settle=lambda _: {"usd": 0.375})
                    is_first_sent.set()

            async def other() -> None:
                async with ctx.call(limits=[MAPS], budget=OTHER, cost=0.25):
                    is_other_open.set()
                    await is_first_sent.wait()
                    await ctx.http.get(it.url, settle=lambda _: {"usd": 0.125})

            await asyncio.gather(first(), other())

        assert (await worked(app, await ask.submit())).state is State.DONE
    assert len(it.arrivals) == 2
    assert (await spent(app, "spend"), await spent(app, "other")) == (0.375, 0.125)


async def test_a_further_request_of_a_call_takes_the_limits_of_that_call(app: App) -> None:
    """A retry that took the limits of the job would reach the other provider without its limit."""
    async with provider() as it:

        @app.job(limits=[CALLS], budget=SPEND, cost_usd=1)
        async def ask(ctx: Context) -> None:
            async with ctx.call(limits=[MAPS], budget=OTHER, cost=0.25):
                await ctx.http.get(it.url)
                await ctx.http.get(it.url)
            await ctx.http.get(it.url)

        assert (await worked(app, await ask.submit())).state is State.DONE
    assert (await spent(app, "other"), await spent(app, "spend")) == (0.5, 1.0)


async def test_a_plain_function_has_the_same_options(app: App) -> None:
    """Its calls run in the event loop, where its thread's block must be known, too."""
    async with provider() as it:

        @app.job(limits=[CALLS], budget=SPEND, cost_usd=1)
        def ask(ctx: SyncContext) -> str:
            with ctx.call(limits=[MAPS], budget=OTHER, cost=0.25):
                ctx.http.get(it.url, settle=lambda _: {"usd": 0.125})
            return threading.current_thread().name

        assert (await worked(app, await ask.submit())).state is State.DONE
    assert (await spent(app, "other"), await spent(app, "spend")) == (0.125, 0.0)


async def test_a_denied_call_with_a_budget_of_its_own_leaves_no_hold_to_other_calls(app: App) -> None:
    """The next call would take over the hold, and its cost would be booked on the wrong budget."""
    daily = Budget("daily", usd=1, every="day")

    @app.job(budget=SPEND, cost_usd=1)
    async def ask(ctx: Context) -> None:
        async with ctx.call(budget=daily, cost=1) as call:
            call.settle(usd=0.75)
        await ctx.checkpoint(1)  # otherwise the next call waits here until tomorrow
        with pytest.raises(Snooze, match="budget daily"):
            async with ctx.call(budget=daily, cost=0.5):
                raise AssertionError("0.5 do not fit into 0.25")
        async with ctx.call() as call:
            call.settle(usd=0.5)

    assert (await worked(app, await ask.submit())).state is State.DONE
    assert await spent(app, "spend") == 0.5
    days = await app._world.ledger.reads.balances(["daily"])
    assert next((each.balance.spent_micros, each.balance.held_micros) for each in days) == (750_000, 0)
    assert sum(each.balance.held_micros for each in days) == 0


# -- settle= ----------------------------------------------------------------------------------------------------------


async def test_usage_in_a_body_is_booked(app: App) -> None:
    """Without it, every request that knows its usage only from the body would be charged its highest cost."""
    async with provider() as it:

        @app.job(limits=[TPM.cost(1_000)], budget=SPEND, cost_usd=1)
        async def ask(ctx: Context) -> None:
            await ctx.http.get(it.url, settle=lambda reply: {"usd": 0.5, "tokens": reply.status_code})

        assert (await worked(app, await ask.submit())).state is State.DONE
    assert await used_and_reserved(app) == (200, 0)
    assert await spent(app, "spend") == 0.5


@pytest.mark.parametrize(
    ("settle", "expected"),
    [
        (lambda reply: reply.json()["usage"], "settle: the function failed on the reply"),
        (lambda _: None, "settle: must return amounts by unit"),
        (lambda _: {"token": 3}, "token: is not a unit"),
        (lambda _: {"tokens": None}, "is missing in the reply"),
    ],
)
async def test_a_settle_function_that_makes_no_sense_is_reported_and_charged_in_full(
    app: App, settle: Any, expected: str
) -> None:
    """The call was made: it must not become free because its usage cannot be read."""
    errors: list[str] = []
    async with provider() as it:

        @app.job(limits=[TPM.cost(1_000)], budget=SPEND, cost_usd=1)
        async def ask(ctx: Context) -> None:
            with pytest.raises(BadValue) as refused:
                await ctx.http.get(it.url, settle=settle)
            errors.append(str(refused.value))

        assert (await worked(app, await ask.submit())).state is State.DONE
    assert expected in errors[0]
    assert await used_and_reserved(app) == (1_000, 0)
    assert await spent(app, "spend") == 1.0


async def test_a_reply_that_is_an_error_is_not_settled(app: App) -> None:
    """Its body has no usage, and the function would hide the provider's error behind its own."""
    async with provider() as it:
        it.answer(500)

        @app.job(limits=[TPM.cost(1_000)])
        async def ask(ctx: Context) -> int:
            return (await ctx.http.get(it.url, retry=False, settle=lambda reply: reply.json()["usage"])).status_code

        job = await worked(app, await ask.submit())
    assert (job.state, job.result) == (State.DONE, 500)
    assert await used_and_reserved(app) == (1_000, 0)


async def test_unit_tests_see_what_a_call_costs_with_its_options() -> None:
    """A test of a job must fail where the worker would."""
    app = App("memory://")

    @app.job(budget=SPEND, cost_usd=1)
    async def ask(ctx: Context) -> None:
        async with ctx.call(budget=OTHER, cost=0.25):
            pass
        await ctx.http.get("http://127.0.0.1:9/", settle=lambda _: {"usd": 0.5})

    ctx = FakeContext(ask, replies=[HttpReply(200)])
    await ask(ctx)
    assert [call.cost for call in ctx.calls] == [{"usd": 0.25}, {"usd": 0.5}]
