"""Virtual time for users' tests: days in milliseconds, with the same answers as in real time."""

import asyncio
import time as real_time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from leaseway import App, Backoff, BadValue, Budget, Context, HttpReply, Limit, Snooze, State, Submitted
from leaseway.testing import VirtualTime, virtual_time
from leaseway.virtual_time.skipping_loop import SkippingLoop

DAY = timedelta(days=1)
SOON = timedelta(seconds=2)
"""A worker reacts within this time."""
MIDNIGHT = datetime(2025, 3, 1, tzinfo=UTC)


@pytest.fixture
def app() -> App:
    return App("memory://")


@pytest.fixture
def time(app: App) -> Iterator[VirtualTime]:
    with virtual_time(app, start=MIDNIGHT) as time:
        yield time


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Every step of the loop."""
    taken: list[float | None] = []
    select = SkippingLoop.select

    def counted(loop: SkippingLoop, timeout: float | None) -> None:
        taken.append(timeout)
        select(loop, timeout)

    monkeypatch.setattr(SkippingLoop, "select", counted)
    return taken


async def state(app: App, job: Submitted) -> State:
    record = await app.find(job)
    assert record is not None
    return record.state


# -- what waits -------------------------------------------------------------------------------------------------------


async def test_a_limit_per_day_holds_in_every_day(app: App, time: VirtualTime) -> None:
    """A test that skips time must not skip the limit: the provider would see too many calls."""
    calls: list[datetime] = []

    @app.job(limits=[Limit("api", "5/day")])
    async def fetch(ctx: Context) -> None:
        async with ctx.call():
            calls.append(time.now)

    await fetch.submit_many([{}] * 12)
    time.run_until_empty()
    assert len(calls) == 12
    assert max(sum(first <= call < first + DAY for call in calls) for first in calls) <= 5
    assert time.elapsed < 4 * DAY


def seconds_of(jobs: int, calls_per_job: int) -> tuple[float, int]:
    """How long jobs under 10/minute take, and how many calls they make."""
    app, made = App("memory://"), 0

    @app.job(limits=[Limit("api", "10/minute")])
    async def fetch(ctx: Context) -> None:
        nonlocal made
        for _ in range(calls_per_job):
            async with ctx.call():
                made += 1

    with virtual_time(app, start=MIDNIGHT) as time:
        fetch.submit_many_sync([{}] * jobs)
        time.run_until_empty()
        return time.elapsed.total_seconds(), made


def test_jobs_of_several_calls_use_what_the_limiter_grants() -> None:
    """4 jobs of 3 calls made 32 calls instead of 12. A job that waits between its calls must neither repeat them nor
    leave permits unused. If each of its refusals reserved another time to ask, one permit in twenty had no taker."""
    alone_seconds, _ = seconds_of(120, 1)
    together_seconds, made = seconds_of(40, 3)
    assert made == 120
    assert together_seconds <= 1.01 * alone_seconds


async def test_a_budget_per_day_opens_at_midnight(app: App, time: VirtualTime) -> None:
    """Two calls of 40 cents fit into a dollar a day; the others wait for the next days."""
    calls: list[datetime] = []

    @app.job(budget=Budget("spend", usd=1, every="day"), cost_usd=0.4)
    async def fetch(ctx: Context) -> None:
        async with ctx.call():
            calls.append(time.now)

    await fetch.submit_many([{}] * 5)
    time.run_until_empty()
    assert [call.day for call in calls] == [1, 1, 2, 2, 3]
    assert all(call - call.replace(hour=0, minute=0, second=0, microsecond=0) < SOON for call in calls)


async def test_retries_wait_for_their_backoff_and_find_their_checkpoint(app: App, time: VirtualTime) -> None:
    """Backoff over hours and resumption are what users cannot test in real time."""
    seen: list[tuple[int, int, timedelta]] = []

    @app.job(attempts=4, backoff=Backoff(first_seconds=3_600, seconds_max=36_000, jitter=0))
    async def fetch(ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.cursor or 0, time.elapsed))
        await ctx.checkpoint(ctx.attempt)
        if ctx.attempt < 4:
            raise ConnectionError

    job = await fetch.submit()
    time.run_until_empty()
    assert await state(app, job) is State.DONE
    assert [(attempt, cursor) for attempt, cursor, _ in seen] == [(1, 0), (2, 1), (3, 2), (4, 3)]
    pauses = [later[2] - earlier[2] for earlier, later in pairwise(seen)]
    for pause, most in zip(pauses, [1, 2, 4], strict=True):
        assert timedelta(0) <= pause - timedelta(hours=most) < SOON


@pytest.mark.parametrize("seconds", [0.3, 59.9, 86_400, 31_536_000 / 12])
async def test_a_delay_is_exact(app: App, time: VirtualTime, seconds: float) -> None:
    """Skipped time must end at the job's time, not after it."""
    ran: list[timedelta] = []

    @app.job
    async def late() -> None:
        ran.append(time.elapsed)

    await late.options(delay=seconds).submit()
    time.run_until_empty()
    assert timedelta(0) <= ran[0] - timedelta(seconds=seconds) < timedelta(milliseconds=300)


async def test_schedules_fire_at_their_times(app: App, time: VirtualTime) -> None:
    """A schedule that fires at night can be tested at noon."""
    fires: list[str] = []

    @app.cron("30 2 * * *")
    @app.job
    async def nightly(fire_time: str) -> None:
        fires.append(f"{fire_time} {time.now:%d %H:%M}")

    time.run_for(3 * DAY)
    days = ["01", "02", "03"]
    assert fires == [f"2025-03-{day}T02:30:00+00:00 {day} 02:30" for day in days]
    assert time.elapsed - 3 * DAY < SOON


async def test_a_snoozed_job_comes_back_at_its_time(app: App, time: VirtualTime) -> None:
    """A snooze uses no attempt, however often it happens."""
    runs: list[timedelta] = []

    @app.job(attempts=1)
    async def patient() -> None:
        runs.append(time.elapsed)
        if len(runs) < 3:
            raise Snooze(DAY)

    job = await patient.submit()
    time.run_until_empty()
    assert await state(app, job) is State.DONE
    assert [round(at / DAY, 3) for at in runs] == [0, 1, 2]


# -- handlers that take long ------------------------------------------------------------------------------------------


async def test_a_handler_that_sleeps_for_a_day_keeps_its_lease(app: App, time: VirtualTime) -> None:
    """Nothing renews a lease in the time that is skipped; the job must not run twice for that."""
    runs: list[int] = []

    @app.job(lease=2)
    async def long(ctx: Context) -> None:
        runs.append(ctx.attempt)
        await asyncio.sleep(86_400)
        await ctx.checkpoint("after the sleep")

    job = await long.submit()
    summary = time.run_until_empty()
    assert (await state(app, job), runs, summary.lost) == (State.DONE, [1], 0)


async def test_a_place_under_a_concurrency_limit_is_kept_while_time_is_skipped(app: App, time: VirtualTime) -> None:
    """The limiter forgets calls that nobody reports, and nobody reports them in the time that is skipped."""
    in_flight: list[int] = []

    @app.job(limits=[Limit("api", concurrency=1)])
    async def long(ctx: Context) -> None:
        async with ctx.call():
            in_flight.append(len(in_flight) + 1)
            await asyncio.sleep(7_200)
            in_flight.append(-1)

    await long.submit_many([{}] * 3)
    await long.options(delay=3_600).submit()  # time stops here, and the gate is tried
    time.run_until_empty()
    assert [number > 0 for number in in_flight] == [True, False] * 4
    assert time.elapsed >= timedelta(hours=8)


async def test_a_timeout_ends_a_handler_at_its_time(app: App, time: VirtualTime) -> None:
    """Timeouts of minutes are otherwise never tested."""

    @app.job(attempts=1, timeout=600)
    async def hangs() -> None:
        await asyncio.sleep(100_000)

    job = await hangs.submit()
    time.run_until_empty()
    record = await app.find(job)
    assert record is not None
    assert record.last_error_code == "timeout"
    assert timedelta(seconds=600) <= time.elapsed < timedelta(seconds=610)


async def test_a_cancelled_job_stops_soon_although_its_handler_sleeps_long(app: App, time: VirtualTime) -> None:
    """The worker learns of a cancellation by checking. The checks must not be skipped then."""

    @app.job
    async def long() -> None:
        await asyncio.sleep(86_400)

    async def main() -> Submitted:
        job = await long.submit()
        async with asyncio.TaskGroup() as group:
            group.create_task(app.run_worker(until_empty=True, concurrency=1))  # too busy to poll
            await asyncio.sleep(100)
            await (await app.store()).operations.cancel(job.id)
        return job

    job = time.run(main())
    assert await state(app, job) is State.CANCELLED
    assert time.elapsed < timedelta(seconds=110)


# -- plain functions --------------------------------------------------------------------------------------------------


async def test_time_stands_still_while_a_plain_function_works(app: App, time: VirtualTime) -> None:
    """Its thread works in real time; virtual timers that run on meanwhile would time it out."""

    @app.job(timeout=1, attempts=1)
    def work() -> str:
        real_time.sleep(0.1)
        return "done"

    job = await work.submit()
    time.run_until_empty()
    assert await state(app, job) is State.DONE
    assert time.elapsed < SOON


async def test_a_plain_function_waits_for_a_limit_in_virtual_time(app: App, time: VirtualTime) -> None:
    """While its thread waits for the loop, time must go on, or both wait for ever."""
    calls: list[timedelta] = []

    @app.job(limits=[Limit("api", "1/second")])
    def fetch(ctx: Any) -> None:
        for page in range(ctx.cursor or 0, 3):
            with ctx.call():
                calls.append(time.elapsed)
            ctx.checkpoint(page + 1)

    job = await fetch.submit()
    time.run_until_empty()
    assert await state(app, job) is State.DONE
    assert len(calls) == 3
    assert calls[2] - calls[0] >= timedelta(seconds=2)


@pytest.mark.parametrize("is_plain", [False, True])
async def test_a_job_that_waits_in_place_for_days_takes_few_steps(
    app: App, time: VirtualTime, steps: list[float | None], is_plain: bool
) -> None:
    """It checks every second whether it is to stop, which would be a million steps."""
    calls: list[timedelta] = []

    @app.job(name="async", limits=[Limit("api", "1/day")], attempts=1)
    async def fetch(ctx: Context) -> None:
        for _ in range(5):
            async with ctx.call():
                calls.append(time.elapsed)

    @app.job(name="plain", limits=[Limit("api", "1/day")], attempts=1)
    def block(ctx: Any) -> None:
        for _ in range(5):
            with ctx.call():
                calls.append(time.elapsed)

    job = await (block if is_plain else fetch).submit()
    time.run_until_empty()
    assert await state(app, job) is State.DONE
    assert len(calls) == 5
    assert all(later - earlier >= DAY for earlier, later in pairwise(calls))
    assert time.elapsed < 7 * DAY
    assert len(steps) < 5_000


# -- the block --------------------------------------------------------------------------------------------------------


def test_it_works_in_a_plain_test(app: App, time: VirtualTime) -> None:
    """Not every test suite is async."""

    @app.job
    async def double(x: int) -> int:
        return 2 * x

    job = double.options(delay=DAY).submit_sync(x=21)
    time.run_until_empty()
    record = time.run(app.find(job))
    assert record is not None
    assert record.state is State.DONE


async def test_the_loop_of_the_test_goes_on_afterwards(app: App, time: VirtualTime) -> None:
    """A run happens inside a task of another loop, which must find its state again."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()

    async def inside() -> bool:
        return asyncio.get_running_loop() is not loop and asyncio.current_task() is not task

    assert time.run(inside())
    assert asyncio.get_running_loop() is loop
    assert asyncio.current_task() is task
    await asyncio.sleep(0.001)
    async with asyncio.timeout(1):
        assert await asyncio.to_thread(lambda: 1) == 1


async def test_the_store_of_the_app_is_not_touched(tmp_path: Path) -> None:
    """A test of a job that is declared for the production database must not write there."""
    app = App(f"sqlite:///{tmp_path}/work.db")

    @app.job
    async def quick() -> None: ...

    for _ in range(2):
        with virtual_time(app) as time:
            await quick.options(key="the same").submit()
            assert time.run_until_empty().settled == 1  # each block starts with an empty store
            await app.close()
    assert not (tmp_path / "work.db").exists()
    await quick.submit()
    assert (tmp_path / "work.db").exists()
    await app.close()


async def test_the_same_seed_gives_the_same_times(app: App) -> None:
    """A test that fails only sometimes is worse than none."""

    @app.job(attempts=3, backoff=60)
    async def failing() -> None:
        raise ValueError

    async def run(seed: int) -> timedelta:
        with virtual_time(app, seed=seed) as time:
            await failing.submit()
            time.run_until_empty()
            return time.elapsed

    assert await run(1) == await run(1) != await run(2)


async def test_advance_lets_time_pass_between_runs(app: App, time: VirtualTime) -> None:
    """A test can be sure that nothing runs meanwhile."""
    ran: list[datetime] = []

    @app.job
    async def note() -> None:
        ran.append(time.now)

    await note.options(delay=3_600).submit()
    time.advance(DAY)
    assert ran == []
    time.run_until_empty()
    assert MIDNIGHT + DAY <= ran[0] < MIDNIGHT + DAY + SOON


async def test_a_start_without_a_time_zone_is_refused(app: App) -> None:
    """It would mean another instant on every machine."""
    naive = MIDNIGHT.replace(tzinfo=None)
    with pytest.raises(BadValue, match="start: needs a time zone"), virtual_time(app, start=naive):
        pass


async def test_tasks_that_are_left_behind_end_with_the_block(app: App) -> None:
    """A pending task of a closed loop is a warning in an unrelated test."""
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.sleep(10**9)
        finally:
            ended.append("cancelled")

    async def main() -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(endless())
        await asyncio.sleep(1)
        return task

    with virtual_time(app) as time:
        left = time.run(main())
    assert ended == ["cancelled"]
    assert left.cancelled()


# -- what cannot end --------------------------------------------------------------------------------------------------


async def test_a_run_that_cannot_end_says_which_jobs_wait_for_what(app: App, time: VirtualTime) -> None:
    """A test that hangs tells nothing."""

    @app.job(budget=Budget("trial", usd=1), cost_usd=0.5)
    async def fetch(ctx: Context) -> None:
        async with ctx.call():
            pass

    await fetch.submit_many([{}] * 10)
    with pytest.raises(TimeoutError) as caught:
        time.run_until_empty()
    text = str(caught.value)
    assert "not done after 100 days of virtual time\n  job " in text
    assert "(fetch): It waits for budget trial: 1 of 1 usd are spent." in text
    assert "and 3 more" in text


async def test_a_paused_lane_does_not_hang_the_test(app: App, time: VirtualTime) -> None:
    """Nothing resumes it, so no amount of time helps."""

    @app.job
    async def quick() -> None: ...

    await quick.submit()
    pauses = (await app.store()).pauses
    assert pauses is not None
    await pauses.pause("default")
    with pytest.raises(TimeoutError, match="It waits for lane default: it is paused"):
        time.run_until_empty()


# -- requests ---------------------------------------------------------------------------------------------------------


async def test_requests_are_answered_by_the_given_transport(app: App) -> None:
    """A 429 for a quarter of an hour is over in no time, and its job needs no second attempt."""
    answers = [HttpReply(429, headers={"Retry-After": "900"}), HttpReply(200, json=7)]

    @app.job(limits=[Limit("api", "10/second")])
    async def fetch(ctx: Context) -> Any:
        return (await ctx.http.get("https://api.example/")).json()

    with virtual_time(app, transport=lambda request: answers.pop(0)) as time:
        job = await fetch.submit()
        time.run_until_empty()
        record = await app.find(job)
        assert record is not None
        assert (record.state, record.attempts) == (State.DONE, 1)
        assert timedelta(seconds=900) <= time.elapsed < timedelta(seconds=960)


async def test_a_limit_that_is_slowed_down_still_opens(app: App) -> None:
    """The limiter gives requests that wait their turns. A request that is a microsecond early gets a later one, and its
    lane is closed for longer than the limit is."""
    answers = [503, 503, 503, 200]

    @app.job(limits=[Limit("api", "5/day")], attempts=2)
    async def fetch(ctx: Context) -> int:
        return (await ctx.http.get("https://api.example/")).status_code

    with virtual_time(app, transport=lambda request: HttpReply(answers.pop(0))) as time:
        job = await fetch.submit()
        time.run_until_empty()
        assert await state(app, job) is State.DONE
        assert time.elapsed < 10 * DAY


async def test_there_is_no_network(app: App, time: VirtualTime) -> None:
    """A real request takes real time, in which virtual time would run for hours. The error says what to do."""

    @app.job(attempts=1)
    async def fetch(ctx: Context) -> None:
        await ctx.http.get("http://127.0.0.1:9/")

    job = await fetch.submit()
    time.run_until_empty()
    (error,) = await (await app.store()).reads.errors(job.id)
    assert "virtual time has no network; give ctx.http its replies with virtual_time(app, transport=" in error.message


# -- how much it costs ------------------------------------------------------------------------------------------------


async def test_a_year_of_waiting_takes_few_steps(app: App, steps: list[float | None]) -> None:
    """The worker's own timers would be a hundred million steps. Steps are counted here, because timings vary."""

    @app.job(attempts=12, backoff=Backoff(first_seconds=30 * 86_400, seconds_max=10**7), limits=[Limit("api", "1/day")])
    async def rare(ctx: Context) -> None:
        async with ctx.call():
            if ctx.attempt < 4:
                raise ConnectionError

    with virtual_time(app, at_most=timedelta(days=400)) as time:
        await rare.submit_many([{}] * 3)
        time.run_until_empty()
        assert time.elapsed > 60 * DAY
    assert len(steps) < 5_000
