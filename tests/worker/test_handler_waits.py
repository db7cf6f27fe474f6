"""Handlers that wait for a limiter or a ledger that does not answer. A handler that waits keeps its slot."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

import pytest
from tests.worker.observe import SOON_SECONDS, eventually, record, working
from tests.worker.test_admission_hazards import FAST, LONG, heard, put, seats

from leaseway import App, Budget, Context, Limit, State, TransientError
from leaseway.domain.errors import UnknownOutcome
from leaseway.domain.job import Submitted
from leaseway.domain.limits.limit import PermitRequest
from leaseway.testing import virtual_time
from leaseway.worker import limiter_client, limiter_fallback, permit_queue, provider_calls

SLOTS = 3
PATIENCE_SECONDS = 0.2


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter_client, "PATIENCE_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(provider_calls, "LEDGER_SECONDS_MAX", PATIENCE_SECONDS)


class Outage:
    """While it lasts, these methods of a port fail; `happens`: they are executed, and their reply is lost."""

    def __init__(self, app: App, part: str, *names: str, happens: bool = False) -> None:
        self.lasts = False
        self._happens = happens
        real = attrgetter(part)(app._world)
        put(app, part, **{name: self._failing(real, name) for name in names})

    def _failing(self, real: Any, name: str) -> Callable[..., Any]:
        async def verb(*given: Any, **named: Any) -> Any:
            if not self.lasts:
                return await getattr(real, name)(*given, **named)
            if self._happens:
                await getattr(real, name)(*given, **named)
                raise UnknownOutcome("the reply was lost")
            raise TransientError("the server is away")

        return verb


async def is_done(app: App, jobs: Any) -> bool:
    return all([(await record(app, job)).state is State.DONE for job in jobs])


async def test_handlers_that_wait_for_an_absent_limiter_give_their_slots_to_other_jobs(every_app: App) -> None:
    """With every slot held by a handler that waits, a worker ran none of 20 jobs that need no limit, and no log line
    said why."""
    app, begun, go = every_app, list[str](), asyncio.Event()
    told = heard(app, "limiter_unavailable")
    outage = Outage(app, "limiter", "acquire", "levels")

    @app.job(limits=[Limit("maps", FAST)], attempts=1)
    async def limited(ctx: Context) -> None:
        begun.append(ctx.id)
        await go.wait()
        async with ctx.call():
            pass

    @app.job
    async def unlimited(n: int) -> None: ...

    waiting = await limited.submit_many([{}] * SLOTS)
    async with asyncio.timeout(SOON_SECONDS), working(app, concurrency=SLOTS):
        await eventually(lambda: asyncio.sleep(0, len(begun) == SLOTS))
        outage.lasts = True
        go.set()
        others = await unlimited.submit_many([{"n": n} for n in range(20)])
        await eventually(lambda: is_done(app, others))
        assert [(await record(app, job)).attempts for job in waiting] == [0] * SLOTS, "waiting uses no attempt"
        assert "maps" in {fact.get("limit") for fact in told}
        outage.lasts = False
        await eventually(lambda: is_done(app, waiting))
    assert [(await record(app, job)).attempts for job in waiting] == [1] * SLOTS


async def test_one_handler_waits_for_an_absent_limiter_not_each_in_turn(app: App) -> None:
    """Calls that need the same limits wait in one queue. If each of them waited in turn, the last slot would be free
    after as many waits as there are slots."""
    tries, outage = 0, Outage(app, "limiter", "acquire")
    real = app._world.limiter.acquire

    async def counting(*given: Any, **named: Any) -> Any:
        nonlocal tries
        tries += 1
        return await real(*given, **named)

    put(app, "limiter", acquire=counting)
    holder = limiter_client.LimiterClient(app._world, app._world.ids.worker(), [Limit("maps", FAST).definition])
    await holder.opened()
    outage.lasts = True
    asks = (PermitRequest("maps", "maps"),)
    first = asyncio.ensure_future(holder.take(asks, 0.0))
    others = [asyncio.ensure_future(holder.take(asks, SOON_SECONDS)) for _ in range(5)]
    answers = await asyncio.gather(first, *others, return_exceptions=True)
    assert {str(answer) for answer in answers} == {"limit maps: the limiter cannot be reached"}
    assert tries == 1


async def used_no_attempt(app: App, jobs: Sequence[Submitted]) -> bool:
    """All of them are back in their lanes, and may be attempted as often as before."""
    return all([(await record(app, job)).attempts == 0 for job in jobs])


async def test_handlers_that_wait_for_an_absent_ledger_give_their_slots_to_other_jobs(every_app: App) -> None:
    """A hold cannot be placed, so the call must not be made; but jobs without a budget must go on."""
    app, begun, go = every_app, list[str](), asyncio.Event()
    told = heard(app, "ledger_unavailable")
    outage = Outage(app, "ledger", "post", "hold", happens=True)
    gate = Outage(app, "ledger.reads", "wait_us", happens=True)

    @app.job(budget=Budget("spend", usd=100, every="month"), cost_usd=1, attempts=1)
    async def paid(ctx: Context) -> None:
        begun.append(ctx.id)
        await go.wait()
        async with ctx.call() as call:
            call.settle(usd=0.5)

    @app.job
    async def free(n: int) -> None: ...

    waiting = await paid.submit_many([{}] * SLOTS)
    async with asyncio.timeout(SOON_SECONDS), working(app, concurrency=SLOTS):
        await eventually(lambda: asyncio.sleep(0, len(begun) == SLOTS))
        outage.lasts = gate.lasts = True
        go.set()
        others = await free.submit_many([{"n": n} for n in range(20)])
        await eventually(lambda: is_done(app, others))
        await eventually(lambda: used_no_attempt(app, waiting))
        assert told
        outage.lasts = gate.lasts = False
        await eventually(lambda: is_done(app, waiting))
    (account,) = await app._world.ledger.reads.balances(["spend"])
    spent = (account.balance.spent_micros, account.balance.held_micros)
    assert spent == (SLOTS * 500_000, 0), "holds whose reply was lost are free, because no call was made under them"


async def test_a_cost_that_the_ledger_cannot_book_now_is_booked_later_and_holds_no_slot(every_app: App) -> None:
    """The call was made, so its handler is done; waiting for the ledger would keep its slot, and giving up would charge
    the whole estimate."""
    app = every_app
    outage = Outage(app, "ledger", "post", "settle", happens=True)

    @app.job(budget=Budget("spend", usd=100, every="month"), cost_usd=1, attempts=1)
    async def paid(ctx: Context) -> None:
        async with ctx.call() as call:
            outage.lasts = True
            call.settle(usd=0.25)

    job = await paid.submit()
    async with asyncio.timeout(SOON_SECONDS), working(app):
        await eventually(lambda: is_done(app, [job]))
        outage.lasts = False

        async def is_booked() -> bool:
            (account,) = await app._world.ledger.reads.balances(["spend"])
            return (account.balance.spent_micros, account.balance.held_micros) == (250_000, 0)

        await eventually(is_booked)


async def test_permits_that_always_arrive_too_late_do_not_hold_a_slot_forever(app: App) -> None:
    """A limiter that answers slower than its permits are valid never admits a call; the log says so, and the job goes
    back to its lane."""
    told, begun = heard(app, "permits_late"), list[str]()
    limit = Limit("maps", FAST)

    @app.job(limits=[limit], attempts=1)
    async def limited(ctx: Context) -> None:
        begun.append(ctx.id)
        async with ctx.call():
            pass

    job = await limited.submit()
    async with asyncio.timeout(SOON_SECONDS):
        worker = app.worker(grace=0)
        worker._limiter.is_valid = lambda permit: permit is permit_queue.NO_PERMIT  # type: ignore[method-assign]
        async with asyncio.TaskGroup() as group:
            group.create_task(app.run_worker(worker))
            await eventually(lambda: asyncio.sleep(0, len(begun) >= 2))
            worker.drain()
    assert told
    assert (await record(app, job)).attempts == 0


def test_a_ledger_slower_than_the_permits_does_not_waste_every_permit() -> None:
    """Permits of short windows are valid for a tenth of a second. They expired while the ledger placed the hold, the
    next permit was too far away to wait for, and each try used up another one: no call was ever made."""
    app, calls = App("memory://"), list[datetime]()

    @app.job(limits=[Limit("maps", "2 per 2 s", "60/hour")], budget=Budget("spend", usd=9, every="day"), cost_usd=1)
    async def fetch(ctx: Context) -> None:
        async with ctx.call():
            calls.append(time.now)

    with virtual_time(app, at_most=timedelta(hours=1)) as time:
        real = app._world.ledger.post

        async def slow(*given: Any, **named: Any) -> Any:
            await asyncio.sleep(0.15)
            return await real(*given, **named)

        put(app, "ledger", post=slow)
        time.run(fetch.submit_many([{}] * 5))
        time.run_until_empty()
        (account,) = time.run(app._world.ledger.reads.balances(["spend"]))
    assert len(calls) == 5
    assert time.elapsed < timedelta(minutes=15)
    assert (account.balance.spent_micros, account.balance.held_micros) == (5_000_000, 0)


async def test_a_limiter_that_hangs_does_not_keep_the_slot_of_a_call_that_has_ended(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call under a concurrency limit reports its end, one after the other. Behind a limiter that does not answer,
    each of them would wait for the timeouts of all before it."""
    monkeypatch.setattr(limiter_fallback, "ANSWER_SECONDS_MAX", 0.1)
    hangs, real = False, app._world.limiter.end_calls

    async def hanging(*given: Any) -> None:
        if hangs:
            await asyncio.Event().wait()
        await real(*given)

    put(app, "limiter", end_calls=hanging)

    @app.job(limits=[Limit("maps", LONG, concurrency=5)], attempts=1)
    async def limited(ctx: Context) -> None:
        nonlocal hangs
        async with ctx.call():
            await together.wait()
            hangs = True

    together = asyncio.Barrier(3)
    jobs = await limited.submit_many([{}] * 3)
    async with asyncio.timeout(SOON_SECONDS), working(app):
        await eventually(lambda: is_done(app, jobs))
        hangs = False

        async def is_free() -> bool:
            return await seats(app, "maps") == 0

        monkeypatch.setattr(limiter_client, "RECOUNT_SECONDS", 0.05)
        await eventually(is_free)
