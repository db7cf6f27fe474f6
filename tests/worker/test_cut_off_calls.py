"""Calls that end without a reply. The provider may still be working on them, so they count as in flight."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.worker.observe import SOON_SECONDS, eventually, record, working
from tests.worker.test_admission_hazards import put, seats

from leaseway import App, Budget, Context, Limit, State
from leaseway.testing import virtual_time
from leaseway.worker import limiter_client

BUDGET = Budget("spend", usd=9, every="day")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter_client, "RECOUNT_SECONDS", 0.05)


@pytest.mark.parametrize("way", ["cancelled", "timed out"])
def test_a_call_that_was_cut_off_keeps_its_place_until_its_deadline(way: str) -> None:
    """A cancelled job freed its place at once, and the next job called while the provider was still busy with the first
    call: two calls at once for a limit of one."""
    app = App("memory://")
    calling, hold = asyncio.Event(), Limit("phone", concurrency=1)

    @app.job(limits=[hold], attempts=1, timeout=None if way == "cancelled" else 0.2)
    async def slow(ctx: Context) -> None:
        async with ctx.call(deadline=1.0):
            calling.set()
            await asyncio.Event().wait()

    @app.job(limits=[hold], attempts=1)
    async def next_one(ctx: Context) -> None:
        async with ctx.call():
            pass

    async def call_twice() -> float:
        first = await slow.submit()
        async with working(app):
            await calling.wait()
            begun = asyncio.get_running_loop().time()
            if way == "cancelled":
                await (await app.store()).operations.cancel(first.id)
            await eventually(lambda: has_ended(app, first))
            assert await seats(app, "phone") == 1
            second = await next_one.submit()
            await eventually(lambda: has_ended(app, second))
            assert (await record(app, second)).state is State.DONE
            return asyncio.get_running_loop().time() - begun

    with virtual_time(app) as time:
        assert time.run(call_twice()) >= 0.9


def test_the_deadline_of_a_call_that_waited_for_its_permit_begins_when_it_may_be_sent() -> None:
    """The permit expired while the ledger placed the hold, and the next one came a second later. The place was freed
    that second too early, while the provider was still busy."""
    app = App("memory://")

    @app.job(limits=[Limit("maps", "2 per 2 s", concurrency=1)], budget=BUDGET, cost_usd=1, attempts=1, timeout=2.5)
    async def slow(ctx: Context) -> None:
        async with ctx.call(deadline=3):
            await asyncio.Event().wait()

    async def seats_after_timeout() -> int:
        job = await slow.submit()
        async with working(app):
            await eventually(lambda: has_ended(app, job))
            await asyncio.sleep(4 * limiter_client.RECOUNT_SECONDS)
            return await seats(app, "maps")

    with virtual_time(app) as time:
        real = app._world.ledger.post

        async def post(*given: Any, **named: Any) -> Any:
            await asyncio.sleep(0.15)
            return await real(*given, **named)

        put(app, "ledger", post=post)
        assert time.run(seats_after_timeout()) == 1
        assert time.elapsed > timedelta(seconds=3.15), "it did not wait for its permit"


async def test_a_call_that_raised_an_error_frees_its_place_at_once(app: App) -> None:
    """An error is a reply. Keeping the place would slow down every limit with a bad provider."""
    phone = Limit("phone", concurrency=1)

    @app.job(limits=[phone], attempts=1)
    async def broken(ctx: Context) -> None:
        async with ctx.call(deadline=3_600):
            raise ValueError("status 500")

    jobs = await broken.submit_many([{}] * 3)
    async with asyncio.timeout(SOON_SECONDS), working(app):
        for job in jobs:
            await app.wait(job.id, SOON_SECONDS)


async def has_ended(app: App, job: object) -> bool:
    return (await record(app, job)).state not in (State.PENDING, State.LEASED)  # type: ignore[arg-type]
