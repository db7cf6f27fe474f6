"""Jobs that make several calls. A wait for a limit or a budget must not repeat the calls that were made before it."""

import asyncio
import threading
from collections import Counter
from http import HTTPStatus
from typing import Any

import pytest
from tests.worker.observe import SOON_SECONDS, eventually, record, stored, working

from leaseway import App, Budget, Context, Limit, State
from leaseway.domain.explain.reasons import explain
from leaseway.domain.ids import JobId, Token
from leaseway.domain.job import Lease
from leaseway.testing.provider import Answer, Provider, ReceivedRequest, serving
from leaseway.worker import limiter_client, slots
from leaseway.worker.calls import in_place
from leaseway.worker.settle import Attempt
from leaseway.worker.slots import WaitingPlaces

SLOW = "6/second"
"""A call waits for longer than a handler is patient here, and a test does not take long."""
FAST = "1000/second"
LONG = "300/minute"
"""Its permits last long enough to be taken before a job is claimed."""
JOBS, CALLS = 4, 3


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait for a permit is a long one."""
    monkeypatch.setattr(limiter_client, "PATIENCE_SECONDS", 0.001)
    monkeypatch.setattr(in_place, "WAIT_SECONDS_MIN", 0.01)
    monkeypatch.setattr(in_place, "STOP_CHECK_SECONDS", 0.05)


async def is_done(app: App, jobs: Any) -> bool:
    return all([(await record(app, job)).state is State.DONE for job in jobs])


async def test_no_call_is_repeated_because_of_a_limit(every_app: App) -> None:
    """With 10 calls per minute, 4 jobs of 3 calls made 32 calls instead of 12, and two never ended."""
    app, calls = every_app, Counter[str]()

    @app.job(limits=[Limit("maps", SLOW)], attempts=1)
    async def thrice(ctx: Context) -> None:
        for step in range(CALLS):
            async with ctx.call():
                calls[f"{ctx.id} {step}"] += 1

    jobs = await thrice.submit_many([{}] * JOBS)
    async with asyncio.timeout(SOON_SECONDS), working(app, concurrency=2):
        await eventually(lambda: is_done(app, jobs))
    assert (len(calls), calls.total()) == (JOBS * CALLS, JOBS * CALLS)
    assert [(await record(app, job)).attempts for job in jobs] == [1] * JOBS


async def test_no_call_of_a_plain_function_is_repeated_because_of_a_limit(app: App) -> None:
    """Plain functions wait in threads, which must not deadlock with the loop that grants the permits."""
    calls, lock = Counter[str](), threading.Lock()

    @app.job(limits=[Limit("maps", SLOW)], attempts=1)
    def thrice(ctx: Any) -> None:
        for step in range(CALLS):
            with ctx.call(), lock:
                calls[f"{ctx.id} {step}"] += 1

    jobs = await thrice.submit_many([{}] * JOBS)
    async with asyncio.timeout(SOON_SECONDS), working(app, concurrency=2):
        await eventually(lambda: is_done(app, jobs))
    assert (len(calls), calls.total()) == (JOBS * CALLS, JOBS * CALLS)


async def test_a_timeout_measures_work_and_not_waiting(app: App) -> None:
    """A job that waits for its limit has done nothing wrong; failing it would repeat its calls."""
    loop, begun = asyncio.get_running_loop(), 0.0

    @app.job(limits=[Limit("maps", "1/second")], attempts=1, timeout=0.5)
    async def twice(ctx: Context) -> float:
        nonlocal begun
        async with ctx.call():
            begun = loop.time()
        async with ctx.call():
            return loop.time() - begun

    job = await twice.submit()
    async with asyncio.timeout(SOON_SECONDS), working(app):
        await eventually(lambda: is_done(app, [job]))
    assert (await record(app, job)).result > 0.5, "it did not wait for longer than its timeout"


async def test_a_timeout_still_ends_a_handler_that_works_too_long(app: App) -> None:
    """The timeout continues after a wait, with the time that was left."""

    @app.job(limits=[Limit("maps", SLOW)], attempts=1, timeout=0.2)
    async def endless(ctx: Context) -> None:
        for _ in range(2):
            async with ctx.call():
                pass
        await asyncio.Event().wait()

    job = await endless.submit()
    async with asyncio.timeout(SOON_SECONDS), working(app):
        await eventually(lambda: has_failed(app, job))
    assert (await record(app, job)).last_error_code == "timeout"


async def has_failed(app: App, job: Any) -> bool:
    return (await record(app, job)).state is State.FAILED


async def waits_in_place(app: App, job: Any) -> bool:
    found = await stored(app, job)
    return found.state is State.LEASED and "waiting" in (found.progress or "")


async def test_a_job_that_waits_in_place_lends_its_slot(app: App) -> None:
    """Otherwise jobs that wait for one limit would stop all others."""
    called = asyncio.Event()
    budget = Budget("spend", usd=1, every="day")

    @app.job(budget=budget, cost_usd=1, attempts=1)
    async def twice(ctx: Context) -> None:
        for _ in range(2):
            async with ctx.call():
                called.set()

    @app.job
    async def other() -> None: ...

    waiting = await twice.submit()
    async with asyncio.timeout(SOON_SECONDS), working(app, concurrency=1):
        await called.wait()
        await eventually(lambda: waits_in_place(app, waiting))
        others = await other.submit_many([{}] * 5)
        await eventually(lambda: is_done(app, others))
        found = await stored(app, waiting)
        assert found.state is State.LEASED
        reason = explain(found, None, found.lease_until - 1 if found.lease_until else 0)
        assert "budget spend" in reason.text, reason
        assert "waits where it is" in reason.text


async def test_a_job_that_waits_in_place_continues_when_the_budget_is_raised(
    every_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its second call is booked for tomorrow. The operator who raises the budget wants the job to end today."""
    monkeypatch.setattr("leaseway.worker.definitions.WATCH_SECONDS", 0.05)
    monkeypatch.setattr(in_place, "RECHECK_SECONDS", 3_600)
    app = every_app

    @app.job(budget=Budget("spend", usd=1, every="day"), cost_usd=1, attempts=1)
    async def twice(ctx: Context) -> None:
        for _ in range(2):
            async with ctx.call():
                pass

    job = await twice.submit()
    async with asyncio.timeout(SOON_SECONDS), working(app):
        await eventually(lambda: waits_in_place(app, job))
        await app.world.ledger.definitions.change(Budget("spend", usd=2, every="day").definition)
        await eventually(lambda: is_done(app, [job]))


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_job_that_waits_in_place_can_be_cancelled(app: App, is_async: bool) -> None:
    """A wait can last until tomorrow, and nobody may have to kill the worker to end it."""
    job = await two_payments(app, is_async=is_async).submit()
    async with asyncio.timeout(SOON_SECONDS), working(app):
        await eventually(lambda: waits_in_place(app, job))
        await (await app.store()).operations.cancel(job.id)
        await eventually(lambda: is_in(app, job, State.CANCELLED))


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_job_that_waits_in_place_does_not_hold_up_a_worker_that_stops(app: App, is_async: bool) -> None:
    """The job goes back without using an attempt, as every job of a worker that stops."""
    job = await two_payments(app, is_async=is_async).submit()
    async with asyncio.timeout(SOON_SECONDS), working(app):
        await eventually(lambda: waits_in_place(app, job))
    found = await record(app, job)
    assert (found.state, found.attempts) == (State.PENDING, 0)


async def test_a_job_goes_back_to_its_lane_after_a_checkpoint(app: App) -> None:
    """A restart repeats nothing then, so the job need not occupy a worker while it waits."""
    calls: list[int] = []

    @app.job(budget=Budget("spend", usd=1, every="day"), cost_usd=1, attempts=1)
    async def steps(ctx: Context) -> None:
        for step in range(ctx.cursor or 0, 2):
            async with ctx.call():
                calls.append(step)
            await ctx.checkpoint(step + 1)

    job = await steps.submit()
    async with asyncio.timeout(SOON_SECONDS), working(app):
        await eventually(lambda: is_in(app, job, State.PENDING))
        await eventually(lambda: asyncio.sleep(0, calls))
        await eventually(lambda: is_in(app, job, State.PENDING))
    assert calls == [0]


def two_payments_per_account(app: App, begun: list[str]) -> Any:
    """Jobs that can be begun without end, and wait in place after their first call."""

    @app.job(limits=[Limit("maps", FAST)], budget=Budget("spend-{n}", usd=1, every="day"), cost_usd=1, attempts=1)
    async def twice(ctx: Context, n: int) -> None:
        begun.append(ctx.id)
        for _ in range(2):
            async with ctx.call():
                pass

    return twice


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four places for each slot, of which one tenant uses half."""
    monkeypatch.setattr(slots, "PLACES_MAX", 0)


@pytest.mark.usefixtures("few_places")
async def test_a_worker_begins_no_more_jobs_than_can_wait_in_it(app: App) -> None:
    """Otherwise a worker would begin all jobs of a lane and end none, its memory would have no bound, and jobs without
    a place to wait would repeat their calls."""
    begun: list[str] = []
    jobs = await two_payments_per_account(app, begun).submit_many([{"n": n} for n in range(12)])
    async with asyncio.timeout(SOON_SECONDS), working(app, concurrency=2):
        await eventually(lambda: asyncio.sleep(0, len(begun) >= 4))
        await asyncio.sleep(0.3)
        assert len(begun) == 4
    assert not await is_done(app, jobs)


@pytest.mark.usefixtures("few_places")
async def test_jobs_of_one_tenant_that_wait_in_place_do_not_stop_other_tenants(every_app: App) -> None:
    """A few jobs whose budget is used up until tomorrow would stop a worker for all tenants until tomorrow."""
    app, begun = every_app, list[str]()
    twice = two_payments_per_account(app, begun)

    @app.job
    async def other() -> None: ...

    await twice.options(tenant="acme").submit_many([{"n": n} for n in range(12)])
    async with asyncio.timeout(SOON_SECONDS), working(app, concurrency=2):
        await eventually(lambda: asyncio.sleep(0, len(begun) >= 4))
        others = await other.options(tenant="globex").submit_many([{}] * 5)
        await eventually(lambda: is_done(app, others))
        await twice.options(tenant="globex").submit(n=100)
        await eventually(lambda: asyncio.sleep(0, len(begun) >= 5))


class Throttling(Provider):
    """Answers each job once, and then throttles it for an hour."""

    def usual(self, request: ReceivedRequest) -> Answer:
        if request.path.endswith("/first"):
            return super().usual(request)
        return Answer(HTTPStatus.TOO_MANY_REQUESTS, b"", {"Retry-After": "3600"})


@pytest.mark.usefixtures("few_places")
async def test_a_job_without_a_place_to_wait_goes_back_to_its_lane(app: App) -> None:
    """Jobs without limits can be throttled by their provider. A worker does not know before how many will wait."""
    async with serving(Throttling([])) as it:

        @app.job(attempts=1)
        async def twice(ctx: Context) -> None:
            await ctx.http.get(f"{it.url}/first")
            await ctx.http.get(f"{it.url}/second")

        jobs = await twice.submit_many([{}] * 7)
        async with asyncio.timeout(SOON_SECONDS), working(app, concurrency=2):
            await eventually(lambda: have_called_and_wait(app, jobs, in_place=4, in_lane=3))


async def have_called_and_wait(app: App, jobs: Any, *, in_place: int, in_lane: int) -> bool:
    found, now = [await stored(app, job) for job in jobs], await (await app.store()).reads.now()
    leased = sum(job.state is State.LEASED and "waiting" in (job.progress or "") for job in found)
    return (leased, sum(job.state is State.PENDING and job.run_at > now for job in found)) == (in_place, in_lane)


def test_tenants_share_the_places_to_wait() -> None:
    """Half of the places that the others leave: no tenant takes the last place, and one alone has most of them."""
    places = WaitingPlaces(50)
    acme = [waiting_attempt("acme", number) for number in range(501)]
    assert [places.enter(each) for each in acme].count(True) == 500
    assert places.share("globex") == 250
    assert [places.enter(waiting_attempt("globex", number)) for number in range(300)].count(True) == 250
    for each in acme:
        places.forget(each)
    assert (len(places), places.share("acme")) == (250, 375)


def test_jobs_that_continue_after_a_wait_use_slots_of_their_own() -> None:
    """A budget that begins anew at midnight wakes all of its jobs at once. One job of each tenant continues in any
    case, or the long jobs of another tenant could hold up all that waited."""
    places = WaitingPlaces(2)
    acme = [waiting_attempt("acme", number) for number in range(3)]
    globex = waiting_attempt("globex", 0)
    assert all(map(places.enter, [*acme, globex]))
    for each in acme[:2]:
        assert places.may_leave(each)
        places.leave(each)
    assert not places.may_leave(acme[2])
    assert places.may_leave(globex)
    places.forget(acme[0])
    assert places.may_leave(acme[2])


def waiting_attempt(tenant: str, number: int) -> Attempt:
    names = {"id": JobId(str(number)), "token": Token("t"), "kind": "pay", "queue": "default", "tenant": tenant}
    numbers = {"fence": 1, "attempts": 1, "attempts_max": 1, "lease_us": 1, "timeout_us": None}
    return Attempt(Lease(**names, **numbers, payload="{}", shard_key=None, cursor=None), 0.0)  # type: ignore[arg-type]


async def test_a_limit_that_begun_jobs_wait_for_starts_no_other_jobs(app: App) -> None:
    """If all jobs began and none could end, a budget would be spread over half-done jobs."""
    order: list[tuple[int, int]] = []

    @app.job(limits=[Limit("maps", LONG)], attempts=1)
    async def thrice(ctx: Context, n: int) -> None:
        for step in range(CALLS):
            async with ctx.call():
                order.append((n, step))

    jobs = await thrice.submit_many([{"n": n} for n in range(8)])
    async with asyncio.timeout(SOON_SECONDS), working(app, concurrency=3):
        await eventually(lambda: is_done(app, jobs))
    begun_at_once = max(
        len({n for n, _ in order[: index + 1]}) - sum(step == CALLS - 1 for _, step in order[:index])
        for index in range(len(order))
    )
    assert begun_at_once <= 4, order


async def is_in(app: App, job: Any, state: State) -> bool:
    return (await record(app, job)).state is state


def two_payments(app: App, *, is_async: bool = True) -> Any:
    """A job whose budget is spent after its first call."""
    budget = Budget("spend", usd=1, every="day")
    if is_async:

        @app.job(budget=budget, cost_usd=1, attempts=1)
        async def twice(ctx: Context) -> None:
            for _ in range(2):
                async with ctx.call():
                    pass

        return twice

    @app.job(budget=budget, cost_usd=1, attempts=1)
    def twice_in_a_thread(ctx: Any) -> None:
        for _ in range(2):
            with ctx.call():
                pass

    return twice_in_a_thread


async def test_calls_that_a_handler_makes_at_once_are_paid_one_by_one(every_app: App) -> None:
    """Two calls under one hold would spend twice what is booked: the budget would be exceeded unnoticed."""
    app, spend = every_app, Budget("spend", usd=100, every="month")

    @app.job(budget=spend, cost_usd=1, attempts=1)
    async def together(ctx: Context) -> None:
        async def call() -> None:
            async with ctx.call():
                await asyncio.sleep(0.01)

        await asyncio.gather(*(call() for _ in range(5)))

    job = await together.submit()
    await app.run_worker(until_empty=True)
    (account,) = await app._world.ledger.reads.balances()
    assert ((await record(app, job)).state, account.balance.spent_micros) == (State.DONE, 5_000_000)
