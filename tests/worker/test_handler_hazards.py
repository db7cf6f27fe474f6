"""Unusual behaviour of handlers, callers and threads."""

import asyncio
import contextlib
import contextvars
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leaseway import App, BadValue, Fail, LeasewayError, Snooze, State
from leaseway.system import SystemIds


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path}/work.db")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class OddFail(Fail):
    def __init__(self) -> None: ...


class OddSnooze(Snooze):
    def __init__(self) -> None: ...


class Odd(BaseException): ...


class Half(msgspec.Struct):
    x: int


POISONS: dict[str, Any] = {
    "a code that is no text": Fail("gone", code=404),  # type: ignore[arg-type]
    "an error without a text": Mute(),
    "a failure of their own": OddFail(),
    "an end of everything": Odd(),
}


@pytest.mark.parametrize("poison", POISONS)
async def test_a_job_that_raises_something_odd_fails_alone(app: App, poison: str) -> None:
    """The worker must continue, and the results of other jobs must be recorded."""

    @app.job(attempts=1)
    async def odd() -> None:
        raise POISONS[poison]

    @app.job
    async def innocent() -> str:
        return "ok"

    bad, good = await odd.submit(), await innocent.submit()
    await app.run_worker(until_empty=True)
    assert [(await app.wait(bad, 60)).state, (await app.wait(good, 60)).state] == [State.FAILED, State.DONE]
    await app.close()


async def test_a_code_of_several_lines_is_stored_in_one(app: App) -> None:
    """Codes are shown in lists, where a line break would look like another entry."""

    @app.job(attempts=1)
    async def odd() -> None:
        raise Fail("no", code="first\nsecond\x1b[2J")

    job = await odd.submit()
    await app.run_worker(until_empty=True)
    assert (await app.wait(job, 60)).last_error_code == "first\\nsecond\\x1b[2J"
    await app.close()


async def test_a_result_that_cannot_be_read_fails_its_job_alone(app: App) -> None:
    """An object whose fields were never set raises when it is read."""

    @app.job
    async def broken() -> Any:
        half = Half(1)
        del half.x
        return half

    job = await broken.submit()
    await app.run_worker(until_empty=True)
    assert (await app.wait(job, 60)).last_error_code == "bad_result"
    await app.close()


async def test_a_snooze_of_their_own_without_a_time_means_at_once(app: App) -> None:
    """A subclass may forget to call its parent."""

    @app.job
    async def later(ctx: Any) -> int:
        if ctx.fence == 1:
            raise OddSnooze
        return int(ctx.fence)

    job = await later.submit()
    await app.run_worker(until_empty=True)
    assert (await app.wait(job, 60)).result == 2
    await app.close()


async def test_what_fails_while_a_worker_leaves_is_not_the_jobs_failure(app: App) -> None:
    """The handler was stopped, and its cleanup found a closed connection."""
    started = asyncio.Event()

    @app.job(attempts=1)
    async def tidy() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            raise ConnectionError("gone")

    job = await tidy.submit()
    worker = app.worker(grace=0)
    async with asyncio.TaskGroup() as group:
        group.create_task(app.run_worker(worker))
        await started.wait()
        worker.drain()
    record = await app.find(job)
    assert record is not None
    assert (record.state, record.attempts) == (State.PENDING, 0)
    await app.close()


async def test_a_handler_that_cancels_itself_is_settled_at_once(app: App) -> None:
    """Otherwise the job would be blocked until its lease expires."""

    @app.job(attempts=1, lease=3600)
    async def own_end() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    job = await own_end.submit()
    await app.run_worker(until_empty=True)
    assert (await app.wait(job, 60)).last_error_code == "CancelledError"
    await app.close()


secret: contextvars.ContextVar[str | None] = contextvars.ContextVar("secret", default=None)


@pytest.mark.parametrize("plain", [False, True])
async def test_a_job_does_not_see_the_context_of_the_one_before(app: App, plain: bool) -> None:
    """The context may contain another tenant's credentials."""

    def peek() -> str | None:
        seen = secret.get()
        secret.set("mine")
        return seen

    if plain:
        job = app.job(name="peek")(peek)
    else:

        @app.job(name="peek")
        async def job() -> str | None:
            return peek()

    answers = await job.submit_many([{}] * 60)
    await app.run_worker(until_empty=True, concurrency=2)
    assert {(await app.wait(answer, 60)).result for answer in answers} == {None}
    await app.close()


def test_ids_made_by_many_threads_differ() -> None:
    """A known id is treated as a repeated submission, so the second job would be acknowledged and not stored."""
    ids, made = SystemIds(), [[""] * 0 for _ in range(4)]

    def make(into: list[str]) -> None:
        into += [ids.job() for _ in range(30_000)]

    threads = [threading.Thread(target=make, args=(into,)) for into in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [id_ for into in made for id_ in into]
    assert len(set(everything)) == len(everything)
    assert all(into == sorted(into) for into in made)


def test_closing_while_others_submit_ends_in_a_clear_error_or_in_a_stored_job(tmp_path: Path) -> None:
    """`app.work()` closes the app at its end, whatever other threads do."""
    app = App(f"sqlite:///{tmp_path}/work.db")

    @app.job
    async def hi() -> None: ...

    acknowledged: list[str] = []
    until = time.monotonic() + 1.0

    def submit() -> None:
        while time.monotonic() < until:
            with contextlib.suppress(LeasewayError):
                acknowledged.append(hi.submit_sync().id)

    threads = [threading.Thread(target=submit, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    while time.monotonic() < until:
        app.close_sync()
        time.sleep(0.02)
    for thread in threads:
        thread.join(10)
    assert [thread for thread in threads if thread.is_alive()] == []
    assert acknowledged
    assert sum(lane.ready for lane in app.sync(_lanes(app))) == len(acknowledged)
    app.close_sync()


async def _lanes(app: App) -> Any:
    return await (await app.store()).reads.lanes()


def test_first_use_by_many_threads_opens_one_store(tmp_path: Path) -> None:
    """The threads of a web server all start with a submission."""
    app = App(f"sqlite:///{tmp_path}/work.db")

    @app.job
    async def hi() -> None: ...

    before = set(threading.enumerate())
    failures: list[BaseException] = []
    barrier = threading.Barrier(8)

    def submit() -> None:
        barrier.wait()
        try:
            hi.submit_sync()
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert failures == []
    started = [thread.name for thread in set(threading.enumerate()) - before]
    assert started.count("leaseway-write") == 1
    app.close_sync()


def test_a_schedule_whose_fire_time_does_not_fit_is_refused_when_it_is_declared(app: App) -> None:
    """Otherwise the schedule would fail in every worker at every fire."""

    async def daily(fire_time: date) -> None: ...

    with pytest.raises(BadValue, match="fire_time"):
        app.cron("0 6 * * *")(app.job(daily))


@pytest.mark.slow
async def test_a_job_that_ended_keeps_its_lease_until_the_store_knows(app: App) -> None:
    """Another job blocks the event loop for three leases; this job must neither run again nor fail."""

    @app.job(lease=1, attempts=1)
    async def quick() -> str:
        return "ok"

    @app.job(lease=1)
    async def block() -> None:
        time.sleep(3.2)  # noqa: ASYNC251 - that is the point

    jobs = [await quick.submit(), await block.submit()]
    other = App(app.url)
    other.kinds = app.kinds
    stealing = asyncio.to_thread(lambda: asyncio.run(_steal(other)))
    _, _ = await asyncio.gather(app.run_worker(until_empty=True, concurrency=5), stealing)
    records = [await app.wait(job, 60) for job in jobs]
    assert [(record.state, record.attempts) for record in records] == [(State.DONE, 1)] * 2
    await app.close()


async def _steal(other: App) -> None:
    """Claim again and again as another worker would, so that expired leases are reclaimed."""
    await asyncio.sleep(0.3)
    await other.run_worker(until_empty=True)
    await other.close()
