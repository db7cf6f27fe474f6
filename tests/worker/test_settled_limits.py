"""Limits on tokens: the weight of a call depends on its job, and is settled with what the call really used."""

import asyncio
import math
from typing import Any

import pytest
from tests.worker.observe import worked
from tests.worker.test_admission_hazards import put

from leaseway import App, BadValue, Budget, Context, Limit, State, Throttled, UsageError
from leaseway.domain.errors import TransientError
from leaseway.domain.limits.limit import PermitRequest

TPM = Limit("tpm", "100k/minute", unit="tokens", cost_max=4_000, start="full")
REQUEST = PermitRequest("tpm", "tpm")


async def used_and_reserved(app: App) -> tuple[int, int]:
    _, (level,) = await app._world.limiter.levels([REQUEST])
    return sum(use.amount for use in level.used), sum(calls.count for calls in level.in_flight.values())


async def test_each_job_reserves_its_own_estimate_and_settles_what_it_used(app: App) -> None:
    """With one weight for all jobs, most of the limit stayed unused."""
    reserved: list[int] = []

    @app.job(limits=[TPM.cost(lambda text, used: len(text) * 100)])
    async def ask(ctx: Context, text: str, used: int) -> None:
        async with ctx.call() as call:
            reserved.append((await used_and_reserved(app))[1])
            call.settle(tokens=used)

    jobs = [await ask.submit(text="x" * length, used=used) for length, used in ((2, 50), (30, 3_500))]
    for job in jobs:
        assert (await worked(app, job, concurrency=1)).state is State.DONE
    assert sorted(reserved) == [200, 3_000]
    assert await used_and_reserved(app) == (3_550, 0)


@pytest.mark.parametrize(
    ("said", "used"),
    [
        ({}, 1_000),
        ({"tokens": 10.2}, 11),
        ({"tokens": 0}, 0),
        ({"tokens": 7_000}, 7_000),
        ({"input_tokens": 30, "output_tokens": 12}, 42),
    ],
)
async def test_what_a_call_says_is_logged_and_otherwise_its_estimate(app: App, said: dict[str, Any], used: int) -> None:
    """What is not known counts in full: nothing else keeps the promise if the handler forgets or fails."""

    @app.job(limits=[TPM.cost(1_000)])
    async def ask(ctx: Context) -> None:
        async with ctx.call() as call:
            if said:
                call.settle(**said)

    await worked(app, await ask.submit())
    assert await used_and_reserved(app) == (used, 0)


async def test_a_refused_call_uses_nothing(app: App) -> None:
    """The provider does not count the tokens of a call that it throttles."""

    @app.job(limits=[TPM.cost(1_000)])
    async def ask(ctx: Context) -> None:
        async with ctx.call() as call:
            try:
                await call.report(429, {"retry-after": "1"})
            except Throttled:
                return

    await worked(app, await ask.submit())
    assert await used_and_reserved(app) == (0, 0)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"token": 1}, "their units: tokens, usd"),
        ({"tokens": -1}, "between 0 and"),
        ({"tokens": math.nan}, "between 0 and"),
        ({"tokens": "12"}, "between 0 and"),
        ({"tokens": None}, "is missing in the reply; leave it out"),
        ({"input_tokens": 5}, "give both"),
    ],
)
async def test_a_settlement_that_makes_no_sense_is_refused_and_charged_in_full(
    app: App, said: dict[str, Any], expected: str
) -> None:
    """The call was made. An error must say what to write instead, and must not make the call free."""
    errors: list[str] = []

    @app.job(limits=[TPM.cost(1_000)], budget=Budget("spend", usd=10), cost_usd=1, attempts=1)
    async def ask(ctx: Context) -> None:
        async with ctx.call() as call:
            try:
                call.settle(**said)
            except BadValue as error:
                errors.append(str(error))

    await worked(app, await ask.submit())
    assert expected in errors[0]
    (account,) = await app._world.ledger.reads.balances(["spend"])
    assert (account.balance.spent_micros, await used_and_reserved(app)) == (1_000_000, (1_000, 0))


async def test_a_call_is_settled_once_and_while_it_lasts(app: App) -> None:
    """A second settlement would replace the first without a trace, and one after the call would change nothing."""
    errors: list[str] = []

    @app.job(limits=[TPM.cost(1_000)], attempts=1)
    async def ask(ctx: Context) -> None:
        async with ctx.call() as call:
            call.settle(tokens=5)
            with pytest.raises(UsageError) as twice:
                call.settle(tokens=6)
        with pytest.raises(UsageError) as late:
            call.settle(tokens=7)
        errors.extend((str(twice.value), str(late.value)))

    await worked(app, await ask.submit())
    assert "settle it once" in errors[0]
    assert "the call has ended" in errors[1]
    assert await used_and_reserved(app) == (5, 0)


@pytest.mark.parametrize("estimate", [0, -1, math.nan, math.inf, 4_001, "12", None, True])
async def test_an_estimate_that_makes_no_sense_is_refused_when_the_job_is_submitted(app: App, estimate: Any) -> None:
    """Found by a worker, it would fail a job that was accepted; taken as it is, it would exceed the limit."""

    @app.job(limits=[TPM.cost(lambda: estimate)])
    async def ask(ctx: Context) -> None: ...

    with pytest.raises(BadValue, match=r"tpm\.cost: must return a number between 1 and cost_max, which is 4,000"):
        await ask.submit()


async def test_an_estimate_that_fails_is_named(app: App) -> None:
    """The traceback of a lambda says nothing about the job."""

    @app.job(limits=[TPM.cost(lambda text: text["length"])])
    async def ask(ctx: Context, text: str) -> None: ...

    with pytest.raises(BadValue, match=r"job .*ask: limits: tpm\.cost: the function failed .*TypeError"):
        await ask.submit(text="x")


async def test_a_limit_on_tokens_without_a_weight_is_refused(app: App) -> None:
    """One token per call would be a limit that never holds."""
    with pytest.raises(BadValue, match=r"tpm counts tokens; say how many a call takes"):

        @app.job(limits=[TPM])
        async def ask(ctx: Context) -> None: ...


async def test_a_settlement_whose_reply_is_lost_is_logged(app: App) -> None:
    """The tokens were used. If the limiter never hears of it, the next window exceeds the limit."""
    lost: list[str] = []
    real = app._world.limiter.end_calls

    async def losing(*arguments: Any) -> None:
        if not lost:
            lost.append("the request")
            raise TransientError("nothing was heard")
        await real(*arguments)

    @app.job(limits=[TPM.cost(1_000)])
    async def ask(ctx: Context) -> None:
        async with ctx.call() as call:
            call.settle(tokens=600)

    put(app, "limiter", end_calls=losing)
    await worked(app, await ask.submit())
    assert lost
    assert await used_and_reserved(app) == (600, 0)


async def test_calls_wait_for_debt(app: App) -> None:
    """A call that used more than its estimate is paid for by the calls after it."""
    small = Limit("small", "1000 per 2 s", unit="tokens", start="full")
    began: list[float] = []

    @app.job(limits=[small.cost(lambda used: 100)])
    async def ask(ctx: Context, used: int) -> None:
        async with ctx.call() as call:
            began.append(asyncio.get_running_loop().time())
            call.settle(tokens=used)

    await worked(app, await ask.submit(used=1_500))
    _, (level,) = await app._world.limiter.levels([PermitRequest("small", "small")])
    assert sum(use.amount for use in level.used) == 1_500
    await worked(app, await ask.submit(used=1))
    assert began[1] - began[0] >= 2
