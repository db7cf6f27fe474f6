"""What can go wrong between a job and a provider: lost replies, cancellation, races, and calls that are never
admitted.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from typing import Any, cast

import pytest
from tests.worker.observe import eventually, record, worked, working

from leaseway import App, BadValue, Budget, Context, Limit, State, Throttled, TransientError
from leaseway.domain.errors import StoreRefused, UnknownOutcome
from leaseway.domain.exchange import Gate, Gated, Wants
from leaseway.domain.ids import SECOND_US, Token, WorkerId
from leaseway.domain.job import Lease
from leaseway.domain.limits import buckets
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.outcome import Deferred, Snooze
from leaseway.domain.requirements import Needs, Requirements, render_needs
from leaseway.testing.job_store_contract.fixtures import new_job
from leaseway.worker import admission, permit_queue
from leaseway.worker.calls.provider_call import ProviderCall
from leaseway.worker.context import CALL_SECONDS
from leaseway.worker.environment import WorkerSettings
from leaseway.worker.ledger_client import UnsettledHolds
from leaseway.worker.limiter_client import LimiterClient
from leaseway.worker.provider_calls import ProviderCalls
from leaseway.worker.settle import Attempt, Settlements
from leaseway.worker.slots import Claim, Slots

FAST = "1000/second"
FOREVER = "1/hour"
"""No permit is granted within a test, because every bucket starts empty."""
LONG = "6000/minute"
"""Permits that are taken before the claim and are available soon."""


class Wrapped:
    """Wraps a part of the environment and overrides a few methods; all other calls pass through."""

    def __init__(self, part: Any, **verbs: Callable[..., Any]) -> None:
        self._part = part
        self._verbs = verbs

    def __getattr__(self, name: str) -> Any:
        return self._verbs.get(name) or getattr(self._part, name)


def put(app: App, part: str, **verbs: Callable[..., Any]) -> None:
    world, (owner, _, port) = app._world, part.partition(".")
    wrapped = cast(Any, Wrapped(attrgetter(part)(world), **verbs))
    if port:
        setattr(getattr(world, owner), port, wrapped)
    else:
        app._world = world._replace(**{part: wrapped})


def counted(app: App, part: str, *names: str) -> Counter[str]:
    """Count the calls of these methods from now on."""
    counts: Counter[str] = Counter()
    real = attrgetter(part)(app._world)

    def counting(name: str) -> Callable[..., Any]:
        async def verb(*given: Any, **named: Any) -> Any:
            counts[name] += 1
            return await getattr(real, name)(*given, **named)

        return verb

    put(app, part, **{name: counting(name) for name in names})
    return counts


async def seats(app: App, name: str) -> int:
    """The number of in-flight calls that the limiter counts."""
    _, (level,) = await app._world.limiter.levels([PermitRequest(name, name)])
    return sum(calls.count for calls in level.in_flight.values())


def lease_of(job: Any, **fields: Any) -> Lease:
    known = {name: getattr(job, name) for name in Lease.__struct_fields__ if hasattr(job, name)}
    return Lease(**{**known, "token": Token("t"), "attempts": 1, "fence": 1, **fields})


# -- concurrency limits ---------------------------------------------------------------------------------------------


async def test_a_job_whose_budget_says_no_frees_its_tenants_seat_once(app: App) -> None:
    """A second release would free the place of a job that still runs, and one job too many would start."""
    spend = Budget("spend", usd=1, every="month", over="fail")
    await app.set_tenant("acme", concurrency=2)
    running = most = 0
    leave = asyncio.Event()

    @app.job
    async def sit() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await leave.wait()
        running -= 1

    @app.job(budget=spend, cost_usd=1, attempts=1)
    async def buy(ctx: Context) -> None:
        async with ctx.call():
            pass

    await worked(app, await buy.submit())
    async with working(app, grace=5):
        await sit.options(tenant="acme").submit()
        await eventually(lambda: truth(running == 1))
        denied = await buy.options(tenant="acme").submit()
        assert (await app.wait(denied, 10)).last_error_code == "over_budget"
        await sit.options(tenant="acme").submit_many([{}] * 4)
        await eventually(lambda: truth(running == 2))
        await asyncio.sleep(0.5)  # long enough for one job too many to start
        leave.set()
        await eventually(lambda: truth(running == 0))
    assert most == 2


async def truth(fact: bool) -> bool:
    return fact


async def test_a_token_that_grew_old_before_its_call_leaves_no_seat_behind(app: App) -> None:
    """Otherwise the worker would report this call as in flight forever, and the limit would stay closed for all
    workers.
    """
    maps = Limit("maps", LONG, concurrency=2, lease=0.5, delay=0.1)

    @app.job(limits=[maps])
    async def slow(ctx: Context) -> None:
        await asyncio.sleep(0.7)
        async with ctx.call():
            pass

    job = await slow.submit()
    worker = app.worker(until_empty=True)
    await app.run_worker(worker)
    assert (await record(app, job)).state is State.DONE
    assert not any(worker._limiter._in_flight.values())
    assert await seats(app, "maps") == 0


@pytest.mark.parametrize("calls", [False, True])
async def test_a_worker_that_leaves_leaves_no_seat_and_no_token_behind(app: App, calls: bool) -> None:
    """Otherwise the next worker would wait for half a minute after every deployment. Only a call that was cut off keeps
    its place, because the provider may still be working on it."""
    await app.set_tenant("acme", concurrency=1)
    maps = Limit("maps", concurrency=1)
    started = asyncio.Event()

    @app.job(limits=[maps])
    async def work(ctx: Context) -> None:
        if calls:
            async with ctx.call():
                started.set()
                await asyncio.sleep(60)
        started.set()
        await asyncio.sleep(60)

    await work.options(tenant="acme").submit_many([{}] * 3)
    slow_down(app)
    async with working(app):
        await started.wait()
    assert (await seats(app, "tenant:acme"), await seats(app, "maps")) == (0, int(calls))


async def test_a_lease_that_the_keeper_gave_back_frees_what_admitted_it(app: App) -> None:
    """The reply came late, so no worker runs the job, and only this worker can release the in-flight call that was
    reserved for it.
    """
    ended: list[Attempt] = []
    settlements = Settlements(WorkerId("w"), app._world, {}, WorkerSettings(), ended.append)
    slots = Slots(app._world, {}, cast(Any, None), settlements, 1)
    claim = Claim(Wants(("default",), 1, Token("t")), 0.0)
    running = Attempt(lease_of(new_job(1)), 0.0)
    assert claim.take("keeper")
    claim.released.add(running.lease)
    slots.put(claim, [running])
    assert ended == [running]


async def test_calls_of_different_weight_share_the_seats_of_one_limit(app: App) -> None:
    """If the second report replaced the first, the limiter would count one call in flight instead of two."""
    maps = Limit("maps", FAST, concurrency=3, cost_max=5)
    both, leave = asyncio.Barrier(3), asyncio.Event()

    @app.job(limits=[maps])
    async def light(ctx: Context) -> None:
        async with ctx.call():
            await both.wait()
            await leave.wait()

    @app.job(limits=[maps.cost(5)])
    async def heavy(ctx: Context) -> None:
        async with ctx.call():
            await both.wait()
            await leave.wait()

    await light.submit()
    await heavy.submit()
    worker = app.worker(grace=5)
    async with asyncio.TaskGroup() as group:
        group.create_task(app.run_worker(worker))
        await both.wait()
        await worker._limiter.report_calls(worker._tenant_calls)
        seen = await seats(app, "maps")
        leave.set()
        worker.drain()
    assert seen == 2


async def test_seats_of_many_limits_are_all_kept(app: App) -> None:
    """There are more names than fit into one call to the limiter, and none of them may be dropped silently."""
    maps = Limit("maps:{n}", concurrency=1)
    together, leave = asyncio.Barrier(31), asyncio.Event()

    @app.job(limits=[maps])
    async def fetch(ctx: Context, n: int) -> None:
        async with ctx.call():
            await together.wait()
            await leave.wait()

    kept: set[str] = set()
    keep = app._world.limiter.renew_calls

    async def keeping(asks: Any, *rest: Any) -> None:
        await keep(asks, *rest)
        kept.update(ask.name for ask in asks)

    put(app, "limiter", renew_calls=keeping)
    await fetch.submit_many([{"n": n} for n in range(30)])
    worker = app.worker(grace=5, concurrency=30)
    async with asyncio.TaskGroup() as group:
        group.create_task(app.run_worker(worker))
        await together.wait()
        await worker._limiter.report_calls(worker._tenant_calls)
        leave.set()
        worker.drain()
    assert kept == {f"maps:{n}" for n in range(30)}


async def test_a_word_about_seats_does_not_take_back_one_that_is_just_granted(app: App) -> None:
    """The report was built before the grant and arrives after it; the limiter would grant the same place twice."""
    maps = Limit("maps", concurrency=5).definition
    ask = (PermitRequest("maps", "maps"),)
    on_its_way, arrives = asyncio.Event(), asyncio.Event()
    keep = app._world.limiter.renew_calls

    async def keeping(*given: Any) -> None:
        on_its_way.set()
        await arrives.wait()
        await keep(*given)

    put(app, "limiter", renew_calls=keeping)
    holder = LimiterClient(app._world, WorkerId("w"), [maps])
    await holder.grant(ask, 1)
    async with asyncio.TaskGroup() as group:
        group.create_task(holder.report_calls(dict))
        await on_its_way.wait()
        second = group.create_task(holder.grant(ask, 1))
        for _ in range(20):
            await asyncio.sleep(0)
        arrives.set()
        await second
    assert await seats(app, "maps") == 2


async def test_calls_side_by_side_free_their_seats_once(app: App) -> None:
    """One handler has two calls open and sends a request in the first. Each call must be released exactly once, by its
    own end.
    """
    maps = Limit("maps", concurrency=2)

    @app.job(limits=[maps])
    async def fetch(ctx: Context) -> None:
        first, second = ctx.call(), ctx.call()
        await first.__aenter__()
        await second.__aenter__()
        pass_ = await ctx._calls.before(1.0)
        await second.__aexit__(None, None, None)
        await ctx._calls.after(pass_, None, cast(Any, None))
        assert await seats(app, "maps") == 1, "the first call is still under way"
        await first.__aexit__(None, None, None)

    job = await worked(app, await fetch.submit())
    assert (job.state, job.attempts) == (State.DONE, 1)


@pytest.mark.parametrize("cap", ["tenant", "limit"])
async def test_a_seat_that_is_free_again_goes_to_the_next_at_once(
    app: App, cap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place that another worker frees is found by polling, but the worker knows its own and must not wait for the
    next poll.
    """
    monkeypatch.setattr(buckets, "IN_FLIGHT_WAIT_US", 60 * SECOND_US)
    limits = [Limit("maps", concurrency=1)] if cap == "limit" else []
    if cap == "tenant":
        await app.set_tenant("acme", concurrency=1)

    @app.job(limits=limits)
    async def fetch(ctx: Context) -> None:
        async with ctx.call():
            await asyncio.sleep(0.06)  # longer than it takes to ask for the next one

    await fetch.options(tenant="acme").submit_many([{}] * 4)
    async with asyncio.timeout(20):
        await app.run_worker(until_empty=True)


# -- gates -----------------------------------------------------------------------------------------------------------


async def test_a_tenants_caps_are_in_force_with_the_next_claim(app: App) -> None:
    """The worker's cached tenant settings may be some seconds old, so the store must tell it about the new gate."""
    await app.set_tenant("other", concurrency=1)
    running = most = others = 0

    @app.job
    async def work(ctx: Context) -> None:
        nonlocal running, most, others
        if ctx.tenant == "other":
            others += 1
            return
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1

    async with working(app, grace=5):
        await work.options(tenant="other").submit()
        await eventually(lambda: truth(others == 1))  # now it has read the tenant settings
        await app.set_tenant("acme", concurrency=1)
        answers = await work.options(tenant="acme").submit_many([{}] * 6)
        for answer in answers:
            await app.wait(answer, 20)
    assert most == 1


async def test_nobody_starts_while_the_caps_of_tenants_cannot_be_read(app: App) -> None:
    """If the caps are unknown, they must not be ignored."""
    await app.set_tenant("acme", concurrency=1)
    running = most = 0
    failures = 3
    all_tenants = app._world.store.tenants.all

    async def failing() -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise TransientError("the store is away")
        return await all_tenants()

    @app.job(limits=[Limit("maps", FAST)])
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1

    await work.options(tenant="acme").submit_many([{}] * 6)
    put(app, "store.tenants", all=failing)
    async with asyncio.timeout(20):
        await app.run_worker(until_empty=True)
    assert most == 1


async def test_a_gate_that_cannot_be_asked_for_stops_no_other_and_does_not_spin(app: App) -> None:
    """After a budget was deleted, its jobs must wait, all other jobs must run, and the worker must not query the budget
    forty times a second.
    """
    spend = Budget("spend", usd=1, every="month")

    @app.job(budget=spend, cost_usd=1)
    async def buy(ctx: Context) -> None: ...

    @app.job(limits=[Limit("maps", FAST)])
    async def fetch() -> None: ...

    counts = counted(app, "ledger.reads", "wait_us")
    told = heard(app, "gate_closed")
    async with working(app):
        await eventually(lambda: app._world.ledger.definitions.forget("spend"))  # as soon as the worker has declared it
        waiting = await buy.submit()
        await eventually(lambda: truth(counts["wait_us"] > 0))
        await app.wait(await fetch.submit(), 10)
        await asyncio.sleep(1)
    assert (await record(app, waiting)).state is State.PENDING
    assert counts["wait_us"] <= 5
    assert "spend" in str(told)


async def test_a_limiter_that_refuses_us_is_told_of_and_not_hammered(app: App) -> None:
    """An error that lasts must be logged, and retrying it without a pause would load the limiter."""
    asked = 0

    async def refusing(*_: Any, **__: Any) -> None:
        nonlocal asked
        asked += 1
        raise StoreRefused("it would forget without telling")

    put(app, "limiter", acquire=refusing)
    told = heard(app, "gate_closed")

    @app.job(limits=[Limit("maps", LONG)])
    async def fetch() -> None: ...

    job = await fetch.submit()
    async with working(app):
        await eventually(lambda: truth(bool(told)))
        await asyncio.sleep(1)
    assert asked <= 5
    assert "forget without telling" in str(told)
    assert (await record(app, job)).attempts == 0


def heard(app: App, event: str) -> list[dict[str, Any]]:
    """The events of this name from now on."""
    told: list[dict[str, Any]] = []

    class Ear:
        def emit(self, name: str, /, **facts: Any) -> None:
            if name == event:
                told.append(facts)

    app._world = app._world._replace(events=Ear())
    return told


async def test_more_gates_than_one_exchange_tells_of_keep_nobody_out(app: App) -> None:
    """150 tenants have exhausted their limits. The tenant behind them has not and must run, and the worker must not
    poll in a tight loop.
    """
    shut, free = Limit("shut:{tenant}", FOREVER), Limit("free:{tenant}", concurrency=1)

    @app.job(limits=[shut])
    async def wait() -> None: ...

    @app.job(limits=[free])
    async def run() -> None: ...

    await app.submit_many([wait.options(tenant=f"t{n:03}").bind() for n in range(150)])
    last = await run.options(tenant="zz").submit()
    store = counted(app, "store.jobs", "exchange", "wait_us")
    async with working(app):
        await app.wait(last, 20)
        await asyncio.sleep(1)
        before, began = store.copy(), asyncio.get_running_loop().time()
        await asyncio.sleep(1)
        seconds = asyncio.get_running_loop().time() - began
    assert sum((store - before).values()) <= 20 * seconds


async def test_a_tenant_with_many_jobs_behind_a_limit_does_not_keep_another_out(app: App) -> None:
    """Both tenants may be admitted. The one that asks first for permits must not take all of them every time."""
    order: list[str] = []

    @app.job(limits=[Limit("maps", FAST)])
    async def fetch(ctx: Context) -> None:
        order.append(ctx.tenant)
        await asyncio.sleep(0.001)

    await fetch.options(tenant="loud").submit_many([{}] * 300)
    await fetch.options(tenant="small").submit_many([{}] * 5)
    await app.run_worker(until_empty=True, concurrency=5)
    last = max(place for place, tenant in enumerate(order) if tenant == "small")
    assert len(order) == 305
    assert last < 100


async def test_a_limit_that_was_raised_opens_its_gate(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise jobs would wait for the old limit until the worker is restarted."""
    monkeypatch.setattr(admission, "CLOSED_SECONDS_MAX", 0.2)
    monkeypatch.setattr(permit_queue, "BELIEVE_SECONDS", 0.2)

    @app.job(limits=[Limit("maps", FOREVER, start="empty")])
    async def fetch(ctx: Context) -> None:
        async with ctx.call():
            pass

    job = await fetch.submit()
    told = heard(app, "gate_closed")
    async with working(app, grace=5):
        await eventually(lambda: truth(bool(told)))
        await app._world.limiter.definitions.change(Limit("maps", FAST).definition)
        assert (await app.wait(job, 20)).state is State.DONE


async def test_a_limit_that_was_raised_is_asked_again_before_its_old_time(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cached wait of one hour would send every job away for an hour, whatever has changed since."""
    monkeypatch.setattr(permit_queue, "BELIEVE_SECONDS", 0.0)
    maps = Limit("maps", FOREVER, start="empty")
    holder = LimiterClient(app._world, WorkerId("w"), [maps.definition])
    asks = (PermitRequest("maps", "maps"),)
    with pytest.raises(Deferred):
        await holder.take(asks)
    await app._world.limiter.definitions.change(Limit("maps", FAST).definition)
    # Usage is counted at the new rate in a bucket of its own.
    token = await holder.take(asks)
    assert holder.is_valid(token)


async def test_a_limit_that_was_forgotten_is_declared_again(app: App) -> None:
    """A limiter that lost its state must not stop the jobs of a running worker."""

    @app.job(limits=[Limit("maps", FAST)])
    async def fetch(ctx: Context) -> None:
        async with ctx.call():
            pass

    async with working(app, grace=5):
        await app.wait(await fetch.submit(), 10)
        assert await app._world.limiter.definitions.forget("maps")
        assert (await app.wait(await fetch.submit(), 10)).state is State.DONE


async def test_a_tenant_whose_caps_are_removed_starts_again(app: App) -> None:
    """Its jobs must not stay behind a gate that no longer exists."""
    await app.set_tenant("acme", starts=FOREVER)
    await app.store()
    await app._world.limiter.acquire([PermitRequest("tenant:acme", "tenant:acme")])

    @app.job
    async def work() -> None: ...

    job = await work.options(tenant="acme").submit()
    told = heard(app, "gate_closed")
    async with working(app, grace=5):
        await eventually(lambda: truth(bool(told)))
        await app.set_tenant("acme")
        assert (await app.wait(job, 20)).state is State.DONE


async def test_a_limiter_that_was_emptied_learns_a_tenants_caps_again(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its caps the tenant's jobs would never start. The worker asks again at once: a limiter that loses its
    state must not delay every capped tenant."""
    monkeypatch.setattr(admission, "UNKNOWN_SECONDS", 3_600.0)
    await app.set_tenant("acme", concurrency=1)

    @app.job
    async def work() -> None: ...

    @app.job(limits=[Limit("maps", LONG)])
    async def fetch(ctx: Context) -> None:
        async with ctx.call():
            pass

    for kind in (work, fetch):
        assert await app._world.limiter.definitions.forget("tenant:acme")
        job = await worked(app, await kind.options(tenant="acme").submit())
        assert job.state is State.DONE
    assert "tenant:acme" in {each.name for each, _ in await app._world.limiter.definitions.all()}


async def test_jobs_that_wait_for_a_slow_limit_cost_few_looks(app: App) -> None:
    """One job is about to call and takes its time. The others behind it must not be polled forty times a second."""
    started = asyncio.Event()

    @app.job(limits=[Limit("maps", "1/second")])
    async def prepare(ctx: Context) -> None:
        started.set()
        await asyncio.sleep(60)

    limiter = counted(app, "limiter", "levels", "acquire")
    await prepare.submit_many([{}] * 10)
    async with working(app):
        await started.wait()
        await asyncio.sleep(0.5)
        before, began = limiter.copy(), asyncio.get_running_loop().time()
        await asyncio.sleep(1)
        spent, seconds = sum((limiter - before).values()), asyncio.get_running_loop().time() - began
    assert spent <= 20 * seconds


async def test_a_worker_without_limits_never_asks_the_limiter_or_the_ledger(app: App) -> None:
    """A job without requirements must not pay for limits and budgets."""
    limiter = counted(app, "limiter", "open", "acquire", "levels", "renew_calls", "end_calls", "return_unused")
    ledger = counted(app, "ledger", "post", "hold", "settle", "expire")
    reads = counted(app, "ledger.reads", "wait_us")
    definitions = counted(app, "limiter.definitions", "declare", "all") + counted(app, "ledger.definitions", "declare")
    store = counted(app, "store.tenants", "all")

    @app.job
    async def work() -> None: ...

    await work.submit_many([{}] * 50)
    await app.run_worker(until_empty=True)
    assert (limiter, ledger, reads, definitions, store) == (Counter(),) * 5


async def test_names_do_not_gather_in_a_workers_memory(app: App) -> None:
    """A limit per customer has one name per customer, and there may be millions."""
    maps = Limit("maps:{n}", concurrency=1).definition
    holder = LimiterClient(app._world, WorkerId("w"), [maps])
    for n in range(3_000):
        asks = (PermitRequest(f"maps:{n}", maps.name),)
        token = await holder.take(asks)
        await holder.end_calls(token.granted.asks)
    assert len(holder._queues) <= 1_100
    assert not holder._in_flight


def test_two_limits_that_become_one_name_are_refused_at_submit() -> None:
    """The limiter would refuse the pair at every attempt, and the job would wait forever."""
    limits = tuple(use_of(name) for name in ("maps:{origin}", "maps:{target}"))
    requirements = Requirements("route", limits, (), None)
    with pytest.raises(BadValue, match="maps:zurich"):
        requirements.needs({"origin": "zurich", "target": "zurich"}, "default")


def use_of(name: str) -> Any:
    return Limit(name, FAST).cost(1)


# -- budgets ---------------------------------------------------------------------------------------------------------


async def test_a_handler_that_asks_again_books_the_next_window_once(app: App) -> None:
    """Handlers catch all exceptions and retry. Each retry must not reserve another part of the next window, and a job
    that is done reserves nothing."""
    spend = Budget("spend", usd=10, every="month")
    held = []

    @app.job(budget=spend, cost_usd=8, attempts=1)
    async def buy(ctx: Context) -> None:
        for step in range(3):
            try:
                async with ctx.call():
                    pass
                await ctx.checkpoint(step)  # otherwise the second call would wait in place
            except Exception:  # noqa: BLE001 - as users write it
                held.append([each.balance.held_micros for each in await app._world.ledger.reads.balances(["spend"])])

    await worked(app, await buy.submit())
    now, later = await app._world.ledger.reads.balances(["spend"])
    assert now.balance.spent_micros == 8_000_000
    assert held == [[0, 8_000_000]] * 2
    assert later.balance.held_micros == 0


async def test_jobs_of_a_budget_that_is_used_up_for_good_are_not_claimed_again_and_again(app: App) -> None:
    """Ten thousand such jobs would be claimed and released each minute."""
    spend = Budget("spend", usd=1)
    runs = 0

    @app.job(budget=spend, cost_usd=1)
    async def buy(ctx: Context) -> None:
        nonlocal runs
        runs += 1
        async with ctx.call():
            pass

    await worked(app, await buy.submit())
    runs = 0
    await buy.submit_many([{}] * 200)
    told = heard(app, "gate_closed")
    async with working(app):
        await eventually(lambda: truth(bool(told)))
        await asyncio.sleep(1)
    assert runs == 0


async def test_a_cost_function_that_fails_fails_the_attempt_and_frees_all(app: App) -> None:
    """An error in the user's cost function must not keep permits or places that other jobs need."""
    spend = Budget("spend", usd=10, every="month")
    maps = Limit("maps", concurrency=1)
    fails = False

    def cost(n: int) -> int:
        if fails:
            raise KeyError("no price today")
        return 1

    @app.job(limits=[maps], budget=spend, cost=cost, attempts=1)
    async def buy(ctx: Context, n: int) -> None: ...

    answer = await buy.submit(n=1)
    fails = True
    job = await worked(app, answer)
    assert (job.state, job.last_error_code) == (State.FAILED, "BadValue")
    assert await seats(app, "maps") == 0


async def test_a_job_cancelled_at_any_moment_of_its_call_never_calls_without_a_charge(app: App) -> None:
    """At every await on the way: a sent request must be charged, and if nothing was sent, no hold and no in-flight call
    may remain.
    """
    maps, spend = Limit("maps", concurrency=100), Budget("spend", usd=1_000, every="month")
    requirements = Requirements("buy", (maps.cost(1),), (spend,), {"usd": 1})
    await app._world.ledger.definitions.declare([spend.definition])
    slow_down(app)
    holder = LimiterClient(app._world, WorkerId("w"), [maps.definition])
    needs = render_needs(requirements.needs({}, "default"))
    unsettled = UnsettledHolds(app._world)
    sent: list[int] = []

    async def one_call(number: int) -> None:
        running = Attempt(lease_of(new_job(number), needs=needs), app._world.clock.monotonic())
        calls = ProviderCalls(running, requirements, {}, holder, app._world, unsettled)
        async with ProviderCall(calls, CALL_SECONDS):
            sent.append(number)
            await asyncio.sleep(0)

    await holder.opened()
    steps = 0
    for number in range(1, 200):
        task = asyncio.ensure_future(one_call(number))
        for _ in range(number):
            await asyncio.sleep(0)
        if task.done():
            break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        steps = number
    assert steps > 5, "there must be something to cancel"
    await unsettled.leave(60)
    (account,) = await app._world.ledger.reads.balances(["spend"])
    assert (account.balance.spent_micros, account.balance.held_micros) == (len(sent) * 1_000_000, 0)
    assert sum(holder._in_flight.values()) == len(holder._cut_off), "only calls that were cut off keep their places"


def slow_down(app: App) -> None:
    """Each call to the limiter and the ledger yields to other tasks before and after it runs."""

    def slow(part: Any, name: str) -> Callable[..., Any]:
        async def verb(*given: Any, **named: Any) -> Any:
            await asyncio.sleep(0)
            answer = await getattr(part, name)(*given, **named)
            await asyncio.sleep(0)
            return answer

        return verb

    limiter, ledger = app._world.limiter, app._world.ledger
    put(app, "limiter", **{name: slow(limiter, name) for name in ("acquire", "return_unused", "end_calls")})
    put(app, "ledger", **{name: slow(ledger, name) for name in ("post", "hold", "settle")})


# -- lost replies ----------------------------------------------------------------------------------------------------

VERBS = [
    *(("limiter", verb) for verb in ("open", "acquire", "levels", "return_unused", "end_calls")),
    *(("limiter.definitions", verb) for verb in ("declare", "all")),
    ("ledger", "post"),
    ("ledger.reads", "wait_us"),
    *(("store.jobs", verb) for verb in ("exchange", "wait_us")),
    ("store.tenants", "all"),
    ("store.reads", "lanes"),
]


@pytest.mark.parametrize("happened", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize(("part", "verb"), VERBS, ids=[f"{part} {verb}" for part, verb in VERBS])
async def test_a_lost_reply_costs_no_job_no_attempt_and_no_money(part: str, verb: str, happened: bool) -> None:
    """Every other call of one method gets no reply, whether or not it was executed."""
    async with App("memory://") as app:
        spend = Budget("spend", usd=100, every="month")
        await app.set_tenant("acme", concurrency=2)
        sent = 0

        @app.job(
            limits=[Limit("maps", LONG, concurrency=3), Limit("brief", FAST)], budget=spend, cost_usd=2, attempts=1
        )
        async def buy(ctx: Context) -> None:
            nonlocal sent
            for _ in range(2):
                async with ctx.call() as call:
                    sent += 1
                    call.settle(usd=1)

        real, tries = attrgetter(f"{part}.{verb}")(app._world), 0

        async def failing(*given: Any, **named: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries % 2 == 0:
                return await real(*given, **named)
            if happened:
                await real(*given, **named)
            raise UnknownOutcome("the reply was lost")

        put(app, part, **{verb: failing})
        answers = await buy.options(tenant="acme").submit_many([{}] * 3)
        async with asyncio.timeout(60):
            await app.run_worker(until_empty=True)
        jobs = [await record(app, answer) for answer in answers]
        assert {(job.state, job.attempts) for job in jobs} == {(State.DONE, 1)}
        (account,) = await app._world.ledger.reads.balances(["spend"])
        assert (sent, account.balance.spent_micros, account.balance.held_micros) == (6, 6_000_000, 0)


# -- other submitters -----------------------------------------------------------------------------------------------


async def test_a_child_waits_for_its_own_limits_under_the_tenant_of_its_parent(app: App) -> None:
    """A child without needs or tenant would bypass limits and caps."""
    order: list[str] = []

    @app.job(limits=[Limit("maps:{tenant}", concurrency=1)])
    async def child(ctx: Context) -> None:
        async with ctx.call():
            order.append(ctx._attempt.lease.needs)

    @app.job
    async def parent(ctx: Context) -> None:
        ctx.submit(child.bind())

    await worked(app, await parent.options(tenant="acme").submit())
    assert "maps:acme" in order[0]


async def test_a_scheduled_job_waits_for_its_limits(app: App) -> None:
    """Schedules submit jobs, too, and must not bypass limits."""

    @app.cron("* * * * *")
    @app.job(limits=[Limit("maps", FOREVER)])
    async def tick() -> None: ...

    from leaseway.worker.maintenance import scheduled_job

    job = scheduled_job(app.schedules["tick"], tick.kind, 60 * SECOND_US, app._world.ids)
    assert "maps" in job.needs


async def test_a_plain_function_that_is_given_up_leaves_no_seat(app: App) -> None:
    """Its thread goes on after the timeout, and its in-flight call must be released when the call ends."""
    maps = Limit("maps", concurrency=1)
    import threading

    go = threading.Event()

    @app.job(limits=[maps], timeout=1, attempts=1)
    def stuck(ctx: Any) -> None:
        with ctx.call():
            go.wait(20)

    job = await stuck.submit()
    async with working(app, grace=5):
        assert (await app.wait(job, 20)).last_error_code == "timeout"
        assert await seats(app, "maps") == 1, "the call is under way"
        go.set()
        await eventually(lambda: no_seats(app, "maps"))


async def no_seats(app: App, name: str) -> bool:
    return await seats(app, name) == 0


def test_a_limit_does_not_take_the_name_of_a_tenants_caps() -> None:
    """The limiter refuses two requests for one name, so jobs of a capped tenant would never start."""
    with pytest.raises(BadValue, match="caps of tenants"):
        Limit("tenant:{tenant}", FAST)


async def test_a_job_that_comes_back_does_not_walk_through_all_its_earlier_calls(app: App) -> None:
    """A job with ten thousand calls that waits for its budget every day would query the ledger ten thousand times."""
    spend = Budget("spend", usd=1_000, every="month")
    deliveries = 0

    @app.job(budget=spend, cost_usd=1)
    async def buy(ctx: Context) -> None:
        nonlocal deliveries
        deliveries += 1
        for _ in range(30 if deliveries == 1 else 1):
            async with ctx.call():
                pass
        if deliveries == 1:
            raise Snooze(0.01)

    ledger = counted(app, "ledger", "post")
    await worked(app, await buy.submit())
    assert deliveries == 2
    assert ledger["post"] <= 2 * 35


# -- cached state ---------------------------------------------------------------------------------------------------


async def test_a_gate_of_which_nothing_is_known_is_looked_at_again(app: App) -> None:
    """A late reply may report that no job waits behind a gate although one does. A single worker that trusted it
    forever would never claim again.
    """
    await app.store()
    gate = Gate(render_needs(Needs((PermitRequest("maps", "maps"),))), "default")
    admitting = admission.Admission(app._world, LimiterClient(app._world, WorkerId("w"), ()))
    admitting.learn([Gated(gate, 3)])
    assert admitting.known() == (gate,)
    admitting._gates[gate].permits.append(cast(Any, object()))  # a held permit keeps the gate in the table
    admitting.learn([])
    assert admitting.known() == ()


# -- jobs that claim to need nothing --------------------------------------------------------------------------------


@pytest.mark.parametrize("needs", ["", '{"limits":[{"name":"mail:other","limit":"mail:{tenant}"}]}'])
async def test_limits_and_budgets_of_the_code_hold_for_every_job(app: App, needs: str) -> None:
    """A service without the app, or a client that lies, submits jobs without the needs of their kind. The worker knows
    the kind: each call takes the permits and the money that its code declares.
    """
    mail, spend = Limit("mail:{tenant}", FAST), Budget("spend", usd=3, every="month", over="fail")

    @app.job(limits=[mail], budget=spend, cost_usd=1, attempts=1)
    async def send(ctx: Context) -> None:
        async with ctx.call():
            pass

    store = await app.store()
    asked: Counter[str] = Counter()
    real = app._world.limiter

    async def acquire(asks: Any, *given: Any, **named: Any) -> Any:
        asked.update(ask.name for ask in asks)
        return await real.acquire(asks, *given, **named)

    put(app, "limiter", acquire=acquire)
    jobs = [new_job(number, kind="send", tenant="acme", needs=needs) for number in range(1, 6)]
    await store.jobs.submit(jobs)
    await app.run_worker(until_empty=True, concurrency=1)
    states = [(await app.wait(job.id, 30)).state for job in jobs]
    assert states.count(State.DONE) == 3, "the budget pays for three calls"
    assert asked["mail:acme"] >= 3


async def test_a_refusal_of_the_provider_reaches_a_limiter_that_has_lost_its_definitions(app: App) -> None:
    """The limiter was restarted during the call. It dropped what the provider said, and every worker went on calling
    for as long as the provider had asked to stay away."""
    limiter = app._world.limiter

    @app.job(limits=[Limit("maps", FAST)], attempts=1)
    async def refused(ctx: Context) -> None:
        async with ctx.call() as call:
            await limiter.definitions.forget("maps")
            with contextlib.suppress(Throttled):
                await call.report(429, {"retry-after": "600"})

    await worked(app, await refused.submit())
    verdict = await limiter.acquire([PermitRequest("maps", "maps")])
    assert isinstance(verdict, buckets.Wait)
    assert verdict.wait_us > 500 * SECOND_US
