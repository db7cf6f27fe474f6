"""Every way in which an attempt can end, tested end to end: submit, worker, store, record."""

import asyncio
import sqlite3
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.worker.observe import codes, eventually, record, worked, working

from leaseway import App, Backoff, Fail, Snooze, State
from leaseway.domain.ids import SECOND_US


async def test_a_handler_that_returns_leaves_its_result(app: App) -> None:
    """The result is what callers of `wait` read."""

    @app.job
    async def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    job = await worked(app, await add.submit(a=2, b=3))
    assert (job.state, job.result, job.attempts, job.fence) == (State.DONE, {"sum": 5}, 1, 1)
    assert job.finished_at is not None
    assert job.lease_owner is None


async def test_nothing_returned_is_null(app: App) -> None:
    """A stored job without a result would look like an unfinished one."""

    @app.job
    async def silent() -> None: ...

    job = await worked(app, await silent.submit())
    stored = await (await app.store()).reads.job(job.id)
    assert stored is not None
    assert (stored.result, job.result) == ("null", None)


async def test_a_failing_job_is_tried_again_until_it_succeeds(app: App) -> None:
    """Retries are the reason to use a job queue."""
    attempts: list[int] = []

    @app.job(backoff=0.01)
    async def shaky() -> str:
        attempts.append(len(attempts) + 1)
        if len(attempts) < 3:
            raise ConnectionError("provider is away")
        return "at last"

    submitted = await shaky.submit()
    job = await worked(app, submitted)
    assert (job.state, job.result, job.attempts) == (State.DONE, "at last", 3)
    assert await codes(app, submitted) == [(1, "ConnectionError"), (2, "ConnectionError")]


async def test_a_job_that_used_up_its_attempts_ends_failed_with_the_error_that_people_need(app: App) -> None:
    """The dead letter is all that an operator has to find the cause."""

    @app.job(attempts=2, backoff=0.01)
    async def broken() -> None:
        raise ValueError("no such street")

    submitted = await broken.submit()
    job = await worked(app, submitted)
    assert (job.state, job.attempts, job.last_error_code) == (State.FAILED, 2, "ValueError")
    error = (await (await app.store()).reads.errors(submitted.id))[-1]
    assert error.message == "no such street"
    assert "async def broken" not in error.traceback
    assert 'raise ValueError("no such street")' in error.traceback


async def test_a_retry_waits_longer_each_time(app: App) -> None:
    """Waiting jobs must not overload a provider that is down."""

    @app.job(backoff=Backoff(first_seconds=60, factor=3, jitter=0))
    async def broken() -> None:
        raise RuntimeError

    submitted = await broken.submit()
    async with working(app):
        await eventually(lambda: codes(app, submitted))
    job = await record(app, submitted)
    assert job.state is State.PENDING
    assert job.last_error_at is not None
    assert job.run_at - job.last_error_at == 60 * SECOND_US


async def test_a_snoozed_job_gets_its_attempt_back(app: App) -> None:
    """Waiting is not a failure, however often it happens."""
    calls: list[int] = []

    @app.job(attempts=1)
    async def waits() -> str:
        calls.append(1)
        if len(calls) < 4:
            raise Snooze(0.01)
        return "ready"

    submitted = await waits.submit()
    job = await worked(app, submitted)
    assert (job.state, job.attempts, job.fence, len(calls)) == (State.DONE, 1, 4, 4)
    assert await codes(app, submitted) == []


async def test_a_job_can_snooze_until_a_point_in_time(app: App) -> None:
    """Waiting for a known time must neither block a slot nor use an attempt."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)

    @app.job
    async def waits() -> None:
        raise Snooze(tomorrow)

    submitted = await waits.submit()

    async def is_waiting() -> bool:
        return (await record(app, submitted)).fence == 1 and (await record(app, submitted)).state is State.PENDING

    async with working(app):
        await eventually(is_waiting)
    job = await record(app, submitted)
    assert abs(job.run_at - int(tomorrow.timestamp() * SECOND_US)) <= 1
    assert job.attempts == 0


async def test_a_handler_can_say_that_trying_again_will_not_help(app: App) -> None:
    """Retrying a hopeless job wastes calls that cost money."""

    @app.job(attempts=5)
    async def hopeless() -> None:
        raise Fail("the account is closed", code="account_closed")

    submitted = await hopeless.submit()
    job = await worked(app, submitted)
    assert (job.state, job.attempts, job.last_error_code) == (State.FAILED, 1, "account_closed")


async def test_an_attempt_that_takes_too_long_is_ended(app: App) -> None:
    """A handler that hangs would take a slot forever."""
    told: list[str] = []

    @app.job(timeout=0.05, attempts=2, backoff=0.01)
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    submitted = await slow.submit()
    job = await worked(app, submitted)
    assert (job.state, job.attempts, job.last_error_code) == (State.FAILED, 2, "timeout")
    assert told == ["cancelled"] * 2
    assert await codes(app, submitted) == [(1, "timeout"), (2, "timeout")]


async def test_a_timeout_that_the_handler_raises_itself_is_its_own_error(app: App) -> None:
    """A slow provider and a slow attempt have different causes, so their errors must differ."""

    @app.job(timeout=30, attempts=1)
    async def impatient() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    assert (await worked(app, await impatient.submit())).last_error_code == "TimeoutError"


async def test_a_plain_function_that_takes_too_long_is_left_behind(app: App) -> None:
    """The thread cannot be stopped, but the worker must go on without it, and the late result must not count."""

    is_over = threading.Event()

    @app.job(timeout=0.05, attempts=1)
    def slow() -> str:
        is_over.wait(60)
        return "too late"

    @app.job
    def quick() -> str:
        return "in time"

    submitted, other = await slow.submit(), await quick.submit()
    job = await worked(app, submitted, concurrency=2)
    is_over.set()
    assert (job.state, job.last_error_code, job.result) == (State.FAILED, "timeout", None)
    assert (await record(app, other)).result == "in time"


async def test_cancelling_stops_a_running_handler(app: App) -> None:
    """A cancelled job must not continue to spend money."""
    started, told = asyncio.Event(), asyncio.Event()

    @app.job
    async def long() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            told.set()

    submitted = await long.submit()
    async with working(app):
        await asyncio.wait_for(started.wait(), 60)
        assert await (await app.store()).operations.cancel(submitted.id) == "requested"
        await asyncio.wait_for(told.wait(), 60)
        job = await app.wait(submitted.id, 60)
    assert (job.state, job.result) == (State.CANCELLED, None)
    assert await codes(app, submitted) == []


async def test_a_cancelled_job_that_waits_never_runs(app: App) -> None:
    """The user was told that it will not run."""

    @app.job
    async def unwanted() -> None:
        raise AssertionError

    submitted = await unwanted.submit()
    assert await (await app.store()).operations.cancel(submitted.id) == "cancelled"
    job = await worked(app, submitted)
    assert (job.state, job.fence) == (State.CANCELLED, 0)


async def test_a_handler_that_finishes_although_it_was_cancelled_is_done(app: App) -> None:
    """Cancelling and finishing race, and the record must show which one won."""
    started = asyncio.Event()

    @app.job
    async def quick_witted() -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "finished all the same"
        return "slept"

    submitted = await quick_witted.submit()
    async with working(app):
        await asyncio.wait_for(started.wait(), 60)
        await (await app.store()).operations.cancel(submitted.id)
        job = await app.wait(submitted.id, 60)
    assert (job.state, job.result) == (State.DONE, "finished all the same")


@pytest.mark.parametrize("payload", ["not json", "", "[" * 100_000])
async def test_a_payload_that_nobody_can_read_fails_its_own_job_only(file_app: App, payload: str) -> None:
    """A user may edit the database. The worker must neither crash nor retry forever."""

    @file_app.job
    async def count(n: int) -> int:
        return n

    broken, healthy = await count.submit(n=1), await count.submit(n=2)
    edit(file_app, "UPDATE jobs SET payload = ? WHERE id = ?", payload, broken.id)
    job = await worked(file_app, broken)
    assert (job.state, job.attempts, job.last_error_code) == (State.FAILED, 1, "bad_payload")
    assert (await record(file_app, healthy)).result == 2


@pytest.mark.parametrize(
    "result", [object(), float("nan"), {"deep": [float("inf")]}, "x" * 300_000, "\ud800", "\0", {1, 2, object}]
)
async def test_a_result_that_is_not_json_fails_the_job_at_once(app: App, result: Any) -> None:
    """A retry would call the provider again and get the same result again."""

    @app.job(attempts=5)
    async def strange() -> Any:
        return result

    submitted = await strange.submit()
    job = await worked(app, submitted)
    assert (job.state, job.attempts, job.last_error_code) == (State.FAILED, 1, "bad_result")
    assert (await (await app.store()).reads.errors(submitted.id))[0].message.startswith("result")


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration("x"), StopAsyncIteration(), asyncio.CancelledError()])
@pytest.mark.parametrize("plain", [False, True])
async def test_no_exception_of_a_handler_reaches_the_worker(app: App, error: BaseException, plain: bool) -> None:
    """`sys.exit` in a handler must end the attempt, not the worker."""

    @app.job(attempts=1, name="rude")
    async def rude() -> None:
        raise error

    @app.job(attempts=1, name="rude_plain")
    def rude_plain() -> None:
        raise error

    @app.job
    async def polite() -> None: ...

    bad = await (rude_plain if plain else rude).submit()
    good = await polite.submit()
    job = await worked(app, bad)
    assert (job.state, job.attempts) == (State.FAILED, 1)
    assert (await record(app, good)).state is State.DONE


async def test_an_error_text_that_no_store_could_keep_is_kept_readable(app: App) -> None:
    """A message with NUL or surrogates must not make the settlement fail."""

    @app.job(attempts=1)
    async def rude() -> None:
        raise ValueError("nul \0, surrogate \ud800, and a long story: " + "x" * 100_000)

    submitted = await rude.submit()
    assert (await worked(app, submitted)).state is State.FAILED
    error = (await (await app.store()).reads.errors(submitted.id))[0]
    assert len(error.message) < 3_000
    assert len(error.traceback) < 20_000


def edit(app: App, sql: str, *values: object) -> None:
    connection = sqlite3.connect(app.url.removeprefix("sqlite:///"))
    with connection:
        connection.execute(sql, values)
    connection.close()
