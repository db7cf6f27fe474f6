"""Jobs that wait in place, inside a worker, learn that a limit or a budget was changed. Hours pass in milliseconds."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.worker.test_several_calls import is_done, waits_in_place

from leaseway import App, Budget, Context, Limit
from leaseway.domain.budgets.budget import MICRO, BudgetDefinition, Charge
from leaseway.domain.errors import TransientError
from leaseway.domain.ids import SECOND_US
from leaseway.testing import virtual_time
from leaseway.worker.calls import in_place
from leaseway.worker.calls.in_place import RECHECK_SECONDS
from leaseway.worker.definitions import WATCH_SECONDS

BEFORE_SECONDS = 100
SLACK_SECONDS = 3
"""An interval between two looks at the clock, and the call itself."""


def two_calls(app: App, **options: Any) -> Any:
    @app.job(attempts=1, **options)
    async def twice(ctx: Context) -> None:
        for _ in range(2):
            async with ctx.call():
                pass

    return twice


def budget(usd: int) -> Budget:
    return Budget("spend", usd=usd, every="day")


async def raise_budget(app: App) -> None:
    await app.world.ledger.definitions.change(budget(100).definition)


async def raise_limit(app: App) -> None:
    await app.world.limiter.definitions.change(Limit("calls", "7200/hour").definition)


async def pass_time(seconds: float) -> None:
    """In steps: virtual time skips what a worker does while nothing else happens."""
    for _ in range(int(seconds)):
        await asyncio.sleep(1)
    await asyncio.sleep(seconds % 1)


async def continue_after(
    app: App, jobs: Any, change: Callable[[App], Awaitable[None]], seconds: float, before: float = BEFORE_SECONDS
) -> None:
    """Start a worker, change something while all jobs wait in place, and expect that they are done soon after it."""
    worker = app.worker()
    async with asyncio.TaskGroup() as group:
        group.create_task(app.run_worker(worker))
        await pass_time(before)
        assert all([await waits_in_place(app, job) for job in jobs])
        await change(app)
        await pass_time(seconds + SLACK_SECONDS)
        assert await is_done(app, jobs)
        worker.drain()


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({"budget": budget(1), "cost_usd": 1}, raise_budget),
        ({"limits": [Limit("calls", "1/hour", start="full")]}, raise_limit),
    ],
    ids=["budget", "limit"],
)
def test_a_change_reaches_jobs_that_wait_in_place_within_seconds(options: Any, change: Any) -> None:
    """They waited for up to a minute, although the command that raised the budget had said that it had taken effect."""
    app = App("memory://")
    job = two_calls(app, **options)

    async def run() -> None:
        await continue_after(app, [await job.submit()], change, WATCH_SECONDS)

    with virtual_time(app) as time:
        time.run(run())


def test_a_change_before_the_first_reading_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget was raised between the refusal of the call and the first look at the definitions."""
    monkeypatch.setattr(in_place, "STOP_CHECK_SECONDS", 2)
    app = App("memory://")
    job = two_calls(app, budget=budget(1), cost_usd=1)

    async def run() -> None:
        await continue_after(app, [await job.submit()], raise_budget, WATCH_SECONDS, before=1.5)

    with virtual_time(app) as time:
        time.run(run())


def test_room_that_no_change_has_made_is_used_within_a_minute() -> None:
    """Another call has cost less than was held for it. No definition says so."""
    app = App("memory://")
    job = two_calls(app, budget=budget(2), cost_usd=1)

    async def settle(app: App) -> None:
        await app.world.ledger.settle("other", {"usd": 0})

    async def run() -> None:
        ledger = app.world.ledger
        await ledger.definitions.declare([budget(2).definition])
        await ledger.hold("other", [(Charge("spend", "spend"), MICRO)], 3_600 * SECOND_US, dispatch=True)
        await continue_after(app, [await job.submit()], settle, RECHECK_SECONDS)

    with virtual_time(app) as time:
        time.run(run())


def test_one_reading_of_the_definitions_serves_all_jobs_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many jobs may wait in a worker, and many workers share a store. A store that cannot be reached for a while must
    not end the waits, and the change is noticed as soon as it can be reached."""
    app = App("memory://")
    job, readings, is_away = two_calls(app, budget=budget(20), cost_usd=1), 0, True
    # The declaration of the worker is not counted: it happens at the start.

    async def fail_at_first(app: App) -> None:
        nonlocal is_away
        read = app.world.ledger.definitions.all

        async def counted() -> list[tuple[BudgetDefinition, int]]:
            nonlocal readings
            readings += 1
            if is_away:
                raise TransientError("the store is restarting")
            return await read()

        monkeypatch.setattr(app.world.ledger.definitions, "all", counted)
        await raise_budget(app)
        await pass_time(4 * WATCH_SECONDS)
        assert 1 <= readings <= 6
        is_away = False

    async def run() -> None:
        await continue_after(app, await job.submit_many([{}] * 20), fail_at_first, WATCH_SECONDS)

    with virtual_time(app) as time:
        time.run(run())
