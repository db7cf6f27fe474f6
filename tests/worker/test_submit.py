"""Submission: keys, options, batches, and the synchronous and asynchronous calls."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.worker.observe import eventually, record, worked

from leaseway import App, BadValue, KeyConflict, State, UnknownKind, UsageError
from leaseway.domain.ids import SECOND_US
from leaseway.domain.inspection import JobFilter


async def test_a_key_that_comes_again_names_the_first_job(app: App) -> None:
    """A caller that did not receive the reply may repeat the call, and the job must run once."""

    @app.job
    async def pay(amount: int) -> int:
        return amount

    first = await pay.options(key="order-1").submit(amount=5)
    again = await pay.options(key="order-1").submit(amount=5)
    assert (first.replayed, again.replayed, again.id) == (False, True, first.id)
    await worked(app, first)
    late = await pay.options(key="order-1").submit(amount=5)
    assert (late.replayed, late.id) == (True, first.id), "a finished job still holds its key"
    assert len(await (await app.store()).reads.jobs(JobFilter())) == 1


async def test_a_key_that_comes_again_with_other_arguments_is_refused(app: App) -> None:
    """One of the two callers is wrong, and guessing which one costs money."""

    @app.job
    async def pay(amount: int) -> None: ...

    @app.job
    async def refund(amount: int) -> None: ...

    first = await pay.options(key="order-1").submit(amount=5)
    with pytest.raises(KeyConflict, match="order-1"):
        await pay.options(key="order-1").submit(amount=6)
    with pytest.raises(KeyConflict, match=first.id):
        await refund.options(key="order-1").submit(amount=5)
    assert (await pay.options(key="order-1", tenant="another").submit(amount=6)).replayed is False, (
        "keys belong to a tenant"
    )
    assert len(await (await app.store()).reads.jobs(JobFilter())) == 2


async def test_a_key_is_forgotten_after_its_retention(url: str) -> None:
    """Keys that are kept forever would fill the store."""
    async with App(url, key_retention=timedelta(milliseconds=80)) as app:

        @app.job
        async def pay(amount: int) -> None: ...

        first = await pay.options(key="order-1").submit(amount=5)

        async def is_free() -> bool:
            return not (await pay.options(key="order-1").submit(amount=5)).replayed

        await eventually(is_free)
        assert len(await (await app.store()).reads.jobs(JobFilter())) == 2
        assert (await record(app, first)).state is State.PENDING


async def test_a_batch_with_a_conflict_stores_nothing(app: App) -> None:
    """A half-stored batch could not be repeated safely."""

    @app.job
    async def pay(amount: int) -> None: ...

    await pay.options(key="one").submit(amount=1)
    with pytest.raises(KeyConflict):
        await app.submit_many([pay.options(key="two").bind(amount=2), pay.options(key="one").bind(amount=3)])
    assert len(await (await app.store()).reads.jobs(JobFilter())) == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("key", ""),
        ("key", "x" * 201),
        ("key", 5),
        ("tenant", "a\nb"),
        ("queue", ""),
        ("shard_key", b"x"),
        ("priority", 1_001),
        ("priority", 0.5),
        ("priority", True),
        ("run_at", 12),
        ("run_at", datetime(2030, 1, 1)),  # noqa: DTZ001 - that is the mistake
        ("delay", -1),
        ("delay", float("nan")),
        ("delay", "soon"),
        ("attempts", 0),
        ("attempts", 1_001),
        ("timeout", 0),
        ("timeout", float("inf")),
        ("cursor", object()),
    ],
)
async def test_an_impossible_option_is_refused_by_its_name(app: App, option: str, value: Any) -> None:
    """The caller must see which option is wrong."""

    @app.job
    async def task() -> None: ...

    with pytest.raises(BadValue) as refusal:
        await task.options(**{option: value}).submit()
    assert refusal.value.field == option
    assert str(refusal.value).startswith(f"{option}: ")
    assert await (await app.store()).reads.jobs(JobFilter()) == []


async def test_run_at_and_delay_exclude_each_other(app: App) -> None:
    """With both, one of them would be ignored silently."""

    @app.job
    async def task() -> None: ...

    with pytest.raises(BadValue, match="delay"):
        await task.options(run_at=datetime.now(UTC), delay=5).submit()


@pytest.mark.parametrize(
    ("arguments", "blamed"),
    [
        ({"n": "many"}, "task: n"),
        ({}, "n"),
        ({"n": 1, "m": 2}, "m"),
        ({"n": float("nan")}, "n"),
    ],
)
async def test_impossible_arguments_are_refused_by_their_name_when_submitted(
    app: App, arguments: dict[str, Any], blamed: str
) -> None:
    """An hour later, in a worker, it is hard to find out which caller sent them."""

    @app.job
    async def task(n: int) -> None: ...

    with pytest.raises(BadValue, match=rf"\b{blamed}\b"):
        await task.submit(**arguments)


@pytest.mark.parametrize(
    "declare",
    [
        {"queue": ""},
        {"attempts": 0},
        {"timeout": 0},
        {"lease": 0.5},
        {"lease": 100_000},
        {"priority": 5_000},
        {"backoff": -1},
    ],
)
async def test_an_impossible_default_is_refused_where_it_is_declared(app: App, declare: dict[str, Any]) -> None:
    """A wrong default would otherwise fail at every submission."""
    (option,) = declare
    with pytest.raises(BadValue, match=option):
        app.job(**declare)(lambda: None)


async def test_a_job_by_a_name_that_nobody_registered_is_refused(app: App) -> None:
    """A misspelled name would become a job that no worker can run."""

    @app.job
    async def task() -> None: ...

    with pytest.raises(UnknownKind, match=r"'tusk'.*task"):
        app.bind("tusk", {})


async def test_an_error_in_a_batch_names_its_item(app: App) -> None:
    """In a batch of ten thousand, the caller must learn which item is invalid."""

    @app.job
    async def task(n: int) -> None: ...

    with pytest.raises(BadValue, match=r"\b2\b.*n"):
        await task.submit_many([{"n": 0}, {"n": 1}, {"n": "two"}, {"n": 3}])
    assert await (await app.store()).reads.jobs(JobFilter()) == []


async def test_one_key_cannot_stand_for_many_jobs(app: App) -> None:
    """All jobs but the first would be dropped as replays."""

    @app.job
    async def task(n: int) -> None: ...

    with pytest.raises(BadValue, match="key"):
        await task.options(key="both").submit_many([{"n": 0}, {"n": 1}])


async def test_a_large_batch_is_stored_in_order(app: App) -> None:
    """A batch that needs more than one transaction must keep its order."""

    @app.job
    async def task(n: int) -> None: ...

    answers = await task.submit_many([{"n": n} for n in range(11_000)])
    assert len({answer.id for answer in answers}) == 11_000
    assert [answer.id for answer in answers] == sorted(answer.id for answer in answers)
    lanes = await (await app.store()).reads.lanes()
    assert [lane.ready for lane in lanes] == [11_000]
    assert (await record(app, answers[10_500])).payload == {"n": 10_500}


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")
async def test_first_submissions_at_the_same_time_open_the_store_once(tmp_path: Path) -> None:
    """A connection that is never closed prevents SQLite from truncating its write-ahead log."""
    app = App(f"sqlite:///{tmp_path}/work.db")

    @app.job
    async def task(n: int) -> None: ...

    answers = await asyncio.gather(*[task.submit(n=n) for n in range(20)])
    assert len({answer.id for answer in answers}) == 20
    assert [lane.ready for lane in await (await app.store()).reads.lanes()] == [20]
    await app.close()
    assert open_files(tmp_path) == []


def open_files(folder: Path) -> list[str]:
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [link for link in links if link.startswith(str(folder))]


def test_code_without_a_loop_submits_and_waits(tmp_path: Path) -> None:
    """Scripts and web handlers that are not async must be able to submit."""
    app = App(f"sqlite:///{tmp_path}/work.db")

    @app.job
    async def add(a: int, b: int) -> int:
        return a + b

    first = add.submit_sync(a=1, b=2)
    many = add.submit_many_sync([{"a": n, "b": n} for n in range(3)])
    app.sync(app.run_worker(until_empty=True))
    assert app.wait_sync(first.id, 5).result == 3
    assert [app.wait_sync(answer.id, 5).result for answer in many] == [0, 2, 4]
    app.close_sync()


def test_several_threads_submit_at_once(tmp_path: Path) -> None:
    """A threaded web server does exactly this."""
    app = App(f"sqlite:///{tmp_path}/work.db")
    ids: list[str] = []

    @app.job
    async def task(n: int) -> None: ...

    threads = [
        threading.Thread(target=lambda: ids.extend(task.submit_sync(n=n).id for n in range(25))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 200

    async def ready() -> int:
        return sum(lane.ready for lane in await (await app.store()).reads.lanes())

    assert app.sync(ready()) == 200
    app.close_sync()


async def test_waiting_calls_are_refused_inside_a_running_loop(app: App) -> None:
    """They would block the event loop and every other task in it."""

    @app.job
    async def task() -> None: ...

    with pytest.raises(UsageError, match="await"):
        task.submit_sync()
    with pytest.raises(UsageError, match="await"):
        app.wait_sync("any")
    assert await (await app.store()).reads.jobs(JobFilter()) == []


async def test_waiting_for_a_job_that_never_was_says_so(app: App) -> None:
    """Waiting forever for a wrong id hides the mistake."""
    with pytest.raises(UsageError, match="no job"):
        await app.wait("01" * 13)


async def test_waiting_has_an_end(app: App) -> None:
    """A caller with a timeout must get control back."""

    @app.job
    async def task() -> None: ...

    submitted = await task.submit()
    with pytest.raises(TimeoutError):
        await app.wait(submitted.id, 0.05)


async def test_a_job_can_be_called_like_the_function_that_it_is(app: App) -> None:
    """Users test their functions without a store."""

    @app.job
    async def double(n: int) -> int:
        return 2 * n

    assert await double(4) == 8


async def test_times_to_start_are_stored_as_given(app: App) -> None:
    """A rounding or time zone error would start jobs at the wrong time."""

    @app.job
    async def task() -> None: ...

    at = datetime(2040, 5, 6, 7, 8, 9, tzinfo=UTC)
    fixed, later = await task.options(run_at=at).submit(), await task.options(delay=timedelta(hours=1)).submit()
    assert (await record(app, fixed)).run_at == at.timestamp() * SECOND_US
    job = await record(app, later)
    assert job.run_at - job.created_at == 3_600 * SECOND_US
    (lane,) = await (await app.store()).reads.lanes()
    assert (lane.ready, lane.scheduled) == (0, 2)
