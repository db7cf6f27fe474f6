"""Limits, budgets and tenant caps between the store and a provider."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from leaseway import App, BadValue, Budget, Context, Limit, State, TransientError
from leaseway.domain.exchange import Exchange, ExchangeReply
from leaseway.domain.ids import SECOND_US
from leaseway.domain.job import JobRecord
from leaseway.domain.limits import buckets
from leaseway.domain.limits.buckets import Verdict, Wait
from leaseway.testing.provider import Provider, provider

FAST = "1000/second"


@pytest.fixture
async def api() -> AsyncIterator[Provider]:
    async with provider(["20 per 2 s"]) as it:
        yield it


async def record(app: App, job: Any) -> JobRecord:
    found = await app.find(job)
    assert found is not None
    return found


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the other side is a worker, which tells nobody
        await asyncio.sleep(0.01)


async def until_job(app: App, job: Any, holds: Callable[[JobRecord], bool]) -> None:
    while not holds(await record(app, job)):  # noqa: ASYNC110 - see above
        await asyncio.sleep(0.01)


async def test_a_fleet_never_sends_more_than_the_provider_allows(app: App, api: Provider) -> None:
    """With two workers and one limit, a provider that counts requests in every window must never refuse one, and
    waiting must not use an attempt.
    """
    maps = Limit("maps", "20 per 2 s")

    @app.job(limits=[maps], attempts=1)
    async def fetch(ctx: Context, n: int) -> int:
        return (await ctx.http.get(f"{api.url}/{n}")).status_code

    answers = await fetch.submit_many([{"n": n} for n in range(30)])
    await asyncio.gather(*(app.run_worker(until_empty=True) for _ in range(2)))
    jobs = [await record(app, answer) for answer in answers]
    assert {(job.state, job.result, job.attempts) for job in jobs} == {(State.DONE, 200, 1)}
    assert api.most_in_any_window(2) <= 20
    assert (api.refused, len(api.arrivals)) == (0, 30)


async def test_jobs_behind_a_closed_gate_cost_no_exchange(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand jobs that wait for a limit must not be claimed, released and claimed again."""
    slow = Limit("slow", "1/hour", start="empty")
    ran: list[int] = []

    @app.job(limits=[slow])
    async def rare(n: int) -> None:
        ran.append(n)

    @app.job
    async def often(n: int) -> None:
        ran.append(-n)

    await rare.submit_many([{"n": n} for n in range(1, 10_001)])
    store, exchanges, idle_looks = await app.store(), 0, 0
    exchange, wait_us = store.jobs.exchange, store.jobs.wait_us

    async def counted(call: Exchange) -> ExchangeReply:
        nonlocal exchanges
        exchanges += 1
        return await exchange(call)

    async def looked(*asked: Any) -> int | None:
        nonlocal idle_looks
        wait = await wait_us(*asked)
        idle_looks += wait != 0
        return wait

    monkeypatch.setattr(store.jobs, "exchange", counted)
    monkeypatch.setattr(store.jobs, "wait_us", looked)
    worker = app.worker()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(app.run_worker(worker))
        while not any(lane.closed_until for lane in await store.reads.lanes()):  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)
        idle_looks = 0
        await until(lambda: idle_looks >= 1)  # the reply to the exchange that has closed the gate has arrived
        before, ran_before = exchanges, list(ran)
        await until(lambda: idle_looks >= 4)
        idle = exchanges - before
        await often.submit(n=1)
        await until(lambda: ran != ran_before)
        worker.drain(1)
        await task
    assert idle == 0
    assert len(ran_before) <= 1
    assert ran[-1] == -1


@pytest.mark.parametrize("rate", [FAST, "6000/minute"])
async def test_what_is_paused_waits_and_loses_no_attempt(app: App, rate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permits of short windows are taken by the handler and those of long windows before the claim. Both must wait and
    both must go on when the limit is resumed.
    """
    monkeypatch.setattr(buckets, "PAUSED_US", SECOND_US // 20)
    maps, ran, waits = Limit("maps", rate), [], []
    limiter = app.world.limiter
    await limiter.open()
    await limiter.definitions.change(replace(maps.definition, paused=True))
    take = limiter.acquire

    async def watched(*args: Any, **options: Any) -> Verdict:
        verdict = await take(*args, **options)
        waits.extend([verdict] if isinstance(verdict, Wait) else [])
        return verdict

    monkeypatch.setattr(limiter, "acquire", watched)

    @app.job(limits=[maps], attempts=1)
    async def fetch(ctx: Context, n: int) -> None:
        async with ctx.call():
            ran.append(n)

    answers = await fetch.submit_many([{"n": n} for n in range(3)])
    async with asyncio.TaskGroup() as group:
        group.create_task(app.run_worker(until_empty=True))
        await until(lambda: len(waits) >= 3)
        assert (ran, {wait.why for wait in waits}) == ([], {buckets.PAUSED})
        await limiter.definitions.change(maps.definition)
    jobs = [await record(app, answer) for answer in answers]
    assert (sorted(ran), {(job.state, job.attempts) for job in jobs}) == ([0, 1, 2], {(State.DONE, 1)})


async def test_one_refusal_closes_the_limit_for_everybody_and_uses_no_attempt(app: App, api: Provider) -> None:
    """A throttled call must slow the whole fleet, and waiting for the provider must not use up attempts."""
    maps = Limit("maps", FAST)
    api.answer(429, {"Retry-After": "2"})

    @app.job(limits=[maps], attempts=1)
    async def fetch(ctx: Context, n: int) -> int:
        return (await ctx.http.get(api.url)).status_code

    answers = await fetch.submit_many([{"n": n} for n in range(5)])
    await app.run_worker(until_empty=True, concurrency=1)
    jobs = [await record(app, answer) for answer in answers]
    assert {(job.state, job.result, job.attempts) for job in jobs} == {(State.DONE, 200, 1)}
    first, second = api.arrivals[0], api.arrivals[1]
    assert first.status == 429
    assert second.at_ns - first.at_ns >= 1_900_000_000


async def test_a_long_retry_after_sends_the_job_back_to_its_lane(app: App, api: Provider) -> None:
    """A handler must not sleep for an hour in its slot, and the job must not lose its attempt."""
    maps = Limit("maps", FAST)
    api.answer(429, {"Retry-After": "3600"})

    @app.job(limits=[maps], attempts=1)
    async def fetch(ctx: Context) -> None:
        await ctx.http.get(api.url)

    job = await fetch.submit()
    worker = app.worker()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(app.run_worker(worker))
        await api.has_seen(1)
        await until_job(app, job, lambda found: found.state is State.PENDING)
        worker.drain(1)
        await task
    found = await record(app, job)
    assert found.attempts == 0
    assert found.run_at - found.created_at > 3_000 * SECOND_US


async def test_a_job_over_the_budget_waits_for_the_window_in_which_it_fits(app: App) -> None:
    """Small jobs use the rest of the budget, the large job gets a place in the next window, and no attempt is used."""
    spend = Budget("spend", usd=10, every="month")
    ran: list[float] = []

    @app.job(budget=spend, cost=lambda usd: usd, attempts=1)
    async def buy(ctx: Context, usd: float) -> None:
        async with ctx.call() as call:
            ran.append(usd)
            call.settle(usd=usd)

    first = await buy.submit(usd=6)
    await app.run_worker(until_empty=True)
    big, small = await buy.submit(usd=7), await buy.submit(usd=3)
    worker = app.worker()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(app.run_worker(worker))
        await app.wait(small)
        soon = (await record(app, small)).created_at + SECOND_US
        await until_job(app, big, lambda found: found.run_at > soon)
        worker.drain(1)
        await task
    waiting = await record(app, big)
    assert (sorted(ran), waiting.state, waiting.attempts) == ([3, 6], State.PENDING, 0)
    assert (await record(app, first)).state is State.DONE
    (now_, next_) = await app._world.ledger.reads.balances(["spend"])
    assert (now_.balance.spent_micros, next_.balance.held_micros) == (9_000_000, 7_000_000)
    assert waiting.run_at == next_.window.start


async def test_a_job_over_the_budget_fails_if_that_is_wanted(app: App) -> None:
    """With over="fail" the user wants an error now instead of a job that waits for the next window."""
    spend = Budget("spend", usd=1, every="month", over="fail")

    @app.job(budget=spend, cost_usd=0.6, attempts=5)
    async def buy(ctx: Context) -> None:
        async with ctx.call():
            pass

    answers = [await buy.submit(), await buy.submit()]
    await app.run_worker(until_empty=True)
    jobs = [await record(app, answer) for answer in answers]
    assert sorted(job.state for job in jobs) == [State.DONE, State.FAILED]
    assert {job.last_error_code for job in jobs} == {None, "over_budget"}


async def test_a_call_that_nobody_settles_is_charged_in_full(app: App) -> None:
    """A handler that fails after its request left has spent the money."""
    spend = Budget("spend", usd=10, every="month")

    @app.job(budget=spend, cost_usd=2, attempts=1)
    async def buy(ctx: Context, fails: bool) -> None:
        async with ctx.call():
            if fails:
                raise RuntimeError("the reply made no sense")

    await buy.submit_many([{"fails": True}, {"fails": False}])
    await app.run_worker(until_empty=True)
    (account,) = await app._world.ledger.reads.balances(["spend"])
    assert (account.balance.spent_micros, account.balance.held_micros) == (4_000_000, 0)


async def test_a_request_that_never_left_costs_nothing(app: App) -> None:
    """Charging calls that were never sent would use up the budget without any result."""
    spend = Budget("spend", usd=10, every="month")

    @app.job(budget=spend, cost_usd=2, attempts=1)
    async def buy(ctx: Context) -> None:
        await ctx.http.get("http://127.0.0.1:9/", retry=False)

    await buy.submit()
    await app.run_worker(until_empty=True)
    (account,) = await app._world.ledger.reads.balances(["spend"])
    assert (account.balance.spent_micros, account.balance.held_micros) == (0, 0)


async def test_a_request_inside_a_call_is_that_call(app: App, api: Provider) -> None:
    """One request must cost one permit and one hold, also when `ctx.call()` and `ctx.http` are combined."""
    spend = Budget("spend", usd=10, every="month")

    @app.job(limits=[Limit("maps", FAST)], budget=spend, cost_usd=2)
    async def buy(ctx: Context) -> None:
        async with ctx.call() as call:
            await ctx.http.get(api.url)
            call.settle(usd=0.5)

    await buy.submit()
    await app.run_worker(until_empty=True)
    (account,) = await app._world.ledger.reads.balances(["spend"])
    assert account.balance.spent_micros == 500_000


async def test_plain_functions_call_without_awaiting(app: App, api: Provider) -> None:
    """A handler in a thread cannot await; its calls must take permits and holds all the same."""
    spend = Budget("spend", usd=10, every="month")

    @app.job(limits=[Limit("maps", FAST)], budget=spend, cost_usd=2)
    def buy(ctx: Any) -> int:
        with ctx.call() as call:
            reply = ctx.http.get(api.url)
            call.settle(usd=0.5)
        return int(reply.status_code)

    job = await buy.submit()
    await app.run_worker(until_empty=True)
    assert (await record(app, job)).result == 200
    (account,) = await app._world.ledger.reads.balances(["spend"])
    assert account.balance.spent_micros == 500_000


async def test_an_unreachable_limiter_stops_everything_and_fails_nothing(
    app: App, api: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a limiter no call may start, and no attempt, job or worker may be lost."""
    limiter, failures = app._world.limiter, 5
    take = limiter.acquire

    async def failing(*asks: Any, **numbers: Any) -> Verdict:
        nonlocal failures
        failures -= 1
        if failures > 0:
            raise TransientError("the limiter is away")
        return await take(*asks, **numbers)

    monkeypatch.setattr(limiter, "acquire", failing)

    @app.job(limits=[Limit("maps", FAST)], attempts=1)
    async def fetch(ctx: Context) -> None:
        await ctx.http.get(api.url)

    job = await fetch.submit()
    await app.run_worker(until_empty=True)
    found = await record(app, job)
    assert (found.state, found.attempts, failures < 1) == (State.DONE, 1, True)


async def test_a_tenant_never_runs_more_at_once_than_agreed(app: App) -> None:
    """The cap is counted across all workers with a concurrency limit instead of counting rows that change
    concurrently.
    """
    await app.set_tenant("acme", concurrency=2)
    running = most = others = 0
    are_two = asyncio.Event()

    @app.job
    async def work(ctx: Context) -> None:
        nonlocal running, most, others
        if ctx.tenant != "acme":
            others += 1
            return
        running += 1
        most = max(most, running)
        if running == 2:
            are_two.set()
        await are_two.wait()  # this many must run at the same time; any excess job would run beside them
        await asyncio.sleep(0.02)
        running -= 1

    await work.options(tenant="acme").submit_many([{}] * 12)
    await work.submit_many([{}] * 12)
    await asyncio.gather(*(app.run_worker(until_empty=True) for _ in range(3)))
    assert (most, others) == (2, 12)


async def test_a_tenants_starts_are_counted_across_workers(app: App) -> None:
    """If each worker counted alone, a tenant would get its cap once per worker."""
    await app.set_tenant("acme", starts="5 per 2 s")
    started: list[float] = []
    clock = asyncio.get_running_loop().time

    @app.job
    async def work() -> None:
        started.append(clock())

    await work.options(tenant="acme").submit_many([{}] * 7)
    await asyncio.gather(*(app.run_worker(until_empty=True) for _ in range(2)))
    assert len(started) == 7
    assert max(sum(0 <= other - at < 1.8 for other in started) for at in started) <= 5


async def test_limits_can_be_told_apart_by_tenant_and_argument(app: App) -> None:
    """One customer's limit is exhausted, and the other customer's limit must not be affected."""
    per_key = Limit("maps:{account}", "1/hour")
    ran: list[str] = []

    @app.job(limits=[per_key])
    async def fetch(ctx: Context, account: str) -> None:
        ran.append(account)

    await fetch.submit_many([{"account": account} for account in ("a", "a", "b", "b")])
    names = {lane.needs for lane in await (await app.store()).reads.lanes()}
    assert len(names) == 2
    assert any("maps:a" in name for name in names)


def test_what_cannot_work_is_refused_when_it_is_written(app: App) -> None:
    """A mistake in limits or budgets must show when the app starts, not when the first job waits forever."""
    maps, spend = Limit("maps", "10/second"), Budget("spend", usd=1)

    def register(**options: Any) -> Any:
        return app.job(name=f"job-{len(app.kinds)}", **options)(lambda ctx: None)

    with pytest.raises(BadValue, match="cost: is required with a budget"):
        register(budget=spend)
    with pytest.raises(BadValue, match="is given without a budget"):
        register(cost_usd=1)
    with pytest.raises(BadValue, match="cost"):
        register(budget=spend, cost_usd=2)
    with pytest.raises(BadValue, match="must be a list of limits"):
        register(limits="maps")
    with pytest.raises(BadValue, match="twice"):
        register(limits=[maps, maps])


async def test_an_impossible_cost_is_refused_at_submit(app: App) -> None:
    """A job that costs more than any window holds would wait forever."""
    spend = Budget("spend", usd=10, every="day")

    @app.job(budget=spend, cost=lambda usd: usd)
    async def buy(ctx: Context, usd: float) -> None: ...

    with pytest.raises(BadValue, match="spend"):
        await buy.submit(usd=11)
    assert await (await app.store()).reads.lanes() == []


async def test_a_name_without_its_argument_is_refused_at_submit(app: App) -> None:
    """Without the argument there is no limit to wait for, and the worker could only fail the job."""

    @app.job(limits=[Limit("maps:{account}", "1/hour")])
    async def fetch(ctx: Context, account: str | None = None) -> None: ...

    with pytest.raises(BadValue, match="account"):
        await fetch.submit()


async def test_needs_that_no_store_could_keep_are_refused_at_submit(app: App) -> None:
    """The requirements of a lane are part of a database key, and a database refuses long keys with an obscure error."""

    @app.job(limits=[Limit(f"{n}:{{account}}", "1/hour") for n in range(10)])
    async def fetch(ctx: Context, account: str) -> None: ...

    with pytest.raises(BadValue, match="too many or too long names"):
        await fetch.submit(account="x" * 100)


async def test_a_worker_that_loses_the_limiter_goes_on_with_the_share_that_was_set_aside(
    app: App, api: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may continue without the limiter only if the user configured a share, and only within that share."""
    limiter = app._world.limiter
    take, is_away = limiter.acquire, False

    async def sometimes_away(*asks: Any, **numbers: Any) -> Verdict:
        if is_away:
            raise TransientError("the limiter is away")
        return await take(*asks, **numbers)

    monkeypatch.setattr(limiter, "acquire", sometimes_away)
    maps = Limit("maps", "3200/minute", degraded_share=0.5)

    @app.job(limits=[maps], attempts=1)
    async def fetch(ctx: Context) -> None:
        nonlocal is_away
        is_away = True
        await ctx.http.get(api.url)

    answers = [await fetch.submit() for _ in range(3)]
    await app.run_worker(until_empty=True, concurrency=1)
    jobs = [await record(app, answer) for answer in answers]
    assert {(job.state, job.attempts) for job in jobs} == {(State.DONE, 1)}


async def test_limits_that_set_too_little_aside_are_refused() -> None:
    """A share of less than one call would let nothing through while the limiter is away."""
    with pytest.raises(BadValue, match="degraded_share"):
        Limit("maps", "10/minute", degraded_share=0.5)
    with pytest.raises(BadValue, match="degraded_share"):
        Limit("maps", "1000/minute", degraded_share=0.9)
    with pytest.raises(BadValue, match="combined with concurrency"):
        Limit("maps", "10_000/minute", degraded_share=0.5, concurrency=5)
