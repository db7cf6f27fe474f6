"""Jobs that the code of a worker cannot run. During a deployment, workers of two versions share a store."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.postgres_tables import empty_schema
from tests.worker.conftest import SCHEMA
from tests.worker.observe import SOON_SECONDS, codes, eventually, record, stored, worked, working

from leaseway import App, State, UsageError
from leaseway.domain.explain.reasons import explain
from leaseway.worker import run_handler
from leaseway.worker.loop import Worker


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_handler, "MISFIT_SECONDS_MIN", 0.05)
    monkeypatch.setattr(run_handler, "MISFITS_PER_SECOND", 10_000)


class Versions(NamedTuple):
    old: App
    new: App
    resize: Any
    resize_with_width: Any
    crop: Any


@pytest.fixture(params=["sqlite", "postgres"])
async def versions(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Versions]:
    """An application and its next version, on one store."""
    url = f"sqlite:///{tmp_path}/work.db"
    if request.param == "postgres":
        server = request.getfixturevalue("server").url
        await empty_schema(server, SCHEMA)
        url = f"{server}?schema={SCHEMA}"
    async with App(url) as old, App(url) as new:

        @old.job(attempts=1)
        async def resize(image: str) -> str:
            return image

        @new.job(name="resize", attempts=1)
        async def resize_with_width(image: str, width: int = 0) -> str:
            return f"{image} {width}"

        @new.job(attempts=1)
        async def crop(image: str) -> str:
            return image

        yield Versions(old, new, resize, resize_with_width, crop)


async def has_ended(app: App, jobs: list[Any]) -> bool:
    return all([(await record(app, job)).state is State.DONE for job in jobs])


async def test_workers_of_two_versions_lose_no_job_and_no_attempt(versions: Versions) -> None:
    """Two applications on one store lost 7 of 60 jobs for good, after 148 attempts by workers that did not know them. A
    job with an argument of the new version failed at once."""
    old, new = versions[:2]
    jobs = []
    for number in range(20):
        jobs.append(await versions.resize.submit(image=f"old {number}"))
        jobs.append(await versions.resize_with_width.submit(image=f"new {number}", width=number))
        jobs.append(await versions.crop.submit(image=f"crop {number}"))
    async with asyncio.timeout(SOON_SECONDS), working(old, concurrency=4), working(new, concurrency=1):
        await eventually(lambda: has_ended(new, jobs))
    assert {(await record(new, job)).attempts for job in jobs} == {1}


async def test_a_rolling_restart_under_load_loses_no_job_and_no_attempt(versions: Versions) -> None:
    """Workers are replaced one by one while jobs of both versions are submitted. Some jobs are leased by a worker that
    drains, and some are known only to the version that has not started yet."""
    jobs: list[Any] = []

    async def submit(count: int) -> None:
        for number in range(count):
            jobs.append(await versions.resize.submit(image=f"old {number}"))
            jobs.append(await versions.resize_with_width.submit(image=f"new {number}", width=number))
            jobs.append(await versions.crop.submit(image=f"crop {number}"))

    async with asyncio.timeout(SOON_SECONDS), asyncio.TaskGroup() as group:
        fleet = deque[Worker]()

        def start(app: App) -> None:
            fleet.append(app.worker(concurrency=4))
            group.create_task(app.run_worker(fleet[-1]))

        for app in (versions.old, versions.old, versions.new, versions.new):
            start(app)
            await submit(25)
            if len(fleet) > 2:
                fleet.popleft().drain()
        await eventually(lambda: has_ended(versions.new, jobs))
        for worker in fleet:
            worker.drain()
    assert {(await record(versions.new, job)).attempts for job in jobs} == {1}


async def test_a_job_waits_for_a_worker_that_knows_it(versions: Versions) -> None:
    """The old version is all there is, for hours perhaps: the job must neither fail nor use attempts."""
    old = versions.old
    strange = await versions.crop.submit(image="x")
    newer = await versions.resize_with_width.submit(image="x", width=1)
    async with asyncio.timeout(SOON_SECONDS), working(old):
        await eventually(lambda: has_tried(old, strange, 3))
        await eventually(lambda: has_tried(old, newer, 3))
    assert {code for _, code in await codes(old, strange)} == {"unknown_kind"}
    assert {code for _, code in await codes(old, newer)} == {"bad_payload"}
    (error, *_) = await old.world.store.reads.errors(newer.id)
    assert "width" in error.message
    assert error.message.endswith("give new fields a default, or run a worker of the version that submitted the job")
    for job in (strange, newer):
        found = await stored(old, job)
        assert (found.state, found.attempts) == (State.PENDING, 0)
        reason = explain(found, None, found.run_at - 1)
        assert reason.code == "misfit"
        assert "attempts" in reason.text


async def has_tried(app: App, job: Any, times: int) -> bool:
    return len(await codes(app, job)) >= times


async def test_a_worker_that_works_until_all_is_done_leaves_what_it_cannot_run(versions: Versions) -> None:
    """It would wait forever for a job that only other code can run."""
    old = versions.old
    strange = await versions.crop.submit(image="x")
    known = await versions.resize.submit(image="x")
    assert (await worked(old, known)).state is State.DONE
    assert (await record(old, strange)).state is State.PENDING


async def test_a_worker_does_not_leave_while_jobs_wait_that_it_can_run(versions: Versions) -> None:
    """Jobs that it gave back must not be mistaken for jobs that are scheduled for a little later."""
    old = versions.old
    for _ in range(3):
        await versions.crop.submit(image="x")
    later = await versions.resize.options(delay=0.5).submit(image="x")
    assert (await worked(old, later)).state is State.DONE


async def test_arguments_that_no_version_took_for_a_day_fail_the_job(
    versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that no worker will ever run has to become a dead letter, which somebody notices."""
    old = versions.old
    newer = await versions.resize_with_width.submit(image="x", width=1)
    monkeypatch.setattr(run_handler, "MISFIT_US_MAX", 0)
    found = await worked(old, newer)
    assert (found.state, found.last_error_code) == (State.FAILED, "bad_payload")


async def test_a_renamed_job_runs_under_its_former_names(tmp_path: Path) -> None:
    """Jobs that were submitted before a deployment would otherwise wait forever."""
    url = f"sqlite:///{tmp_path}/work.db"
    async with App(url) as old, App(url) as new:

        @old.job
        async def resize(image: str) -> str:
            return f"{image} resized"

        @new.job(aliases=["resize", "shrink"])
        async def scale(image: str) -> str:
            return f"{image} scaled"

        before, after = await resize.submit(image="a"), await scale.submit(image="b")
        by_name = await new.submit(new.bind("shrink", {"image": "c"}))
        assert (await worked(new, before)).result == "a scaled"
        assert (await record(new, after)).result == "b scaled"
        assert (await record(new, by_name)).kind == "scale"


@pytest.mark.parametrize("aliases", [["resize"], ["crop", "crop"], ["scale"]])
def test_a_name_belongs_to_one_job(aliases: list[str]) -> None:
    """Which of two functions would run?"""
    app = App("memory://")

    @app.job
    async def resize() -> None: ...

    async def scale() -> None: ...

    with pytest.raises(UsageError, match="there are two jobs named"):
        app.job(aliases=aliases)(scale)
