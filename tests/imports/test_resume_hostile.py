"""A run must be resumable whatever happened to its jobs: store emptied or replaced, jobs discarded, cancelled, done or
forgotten. The sink knows which shards are open, and that is enough.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.imports.apps import import_app
from tests.imports.test_import_faults import Import, things
from tests.sqlite_files import open_sqlite

from leaseway.domain.errors import LeaseLost
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import State
from leaseway.imports.domain.guards import Ceilings
from leaseway.imports.domain.partition import make_shard
from leaseway.imports.domain.run_state import RunState, ShardState
from leaseway.imports.run.shard_jobs import submit_open_shards
from leaseway.imports.run.start import start_planned
from leaseway.system import wall_clock_us


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Import]:
    """An import of nine records: the first two were written, page by page, and then a guard parked it."""
    one = Import(tmp_path, things(9))
    mended = one.parts
    one.changed(page_limit=1, ceilings=Ceilings(pages=2), split=lambda *_: [])
    assert await one.worked() is RunState.PARTIAL
    one.parts = mended
    yield one
    await one.parts.sink.close()


def remove(folder: Path, pattern: str) -> None:
    for file in folder.glob(pattern):
        file.unlink()


async def resumed(it: Import) -> None:
    assert await it.worked(again=True) is RunState.COMPLETE
    row = await it.only()
    assert (row.state, row.rows, row.pages) == (ShardState.DONE, 9, 3), "it goes on where it was"
    assert it.ids() == [str(number) for number in range(9)]


async def test_a_run_goes_on_with_an_empty_job_store(it: Import) -> None:
    """The job store may be emptied or replaced; new jobs start with small fences, which must not be taken for those of
    late workers.
    """
    remove(it.folder, "jobs.db*")
    await resumed(it)


async def test_a_shard_that_had_many_attempts_goes_on_with_an_empty_job_store(it: Import) -> None:
    """Otherwise the new job would lose its lease once per attempt of the old one, fifteen seconds each."""
    for _ in range(3):
        it.changed(page_limit=1, ceilings=Ceilings(pages=2), split=lambda *_: [])
        assert await it.worked(again=True) is RunState.PARTIAL
    it.changed(ceilings=Ceilings())
    it.store = f"sqlite:///{it.folder}/other.db"
    assert await it.worked(again=True) is RunState.COMPLETE


async def test_a_run_goes_on_when_an_operator_has_discarded_its_jobs(it: Import) -> None:
    """The store remembers the idempotency key of a discarded job for a week, so a new job could be refused as a
    repeat.
    """
    app, _ = import_app(it.parts, it.store)
    async with app:
        store = await app.store()
        assert len(await store.operations.discard(JobFilter(states=(State.FAILED,)), 10)) == 1
    await resumed(it)


async def test_a_run_goes_on_when_an_operator_has_cancelled_its_jobs(tmp_path: Path) -> None:
    """A cancelled job must not leave a run that can never be completed."""
    it = Import(tmp_path, things(3))
    await it.parts.sink.open()
    app, handle = import_app(it.parts, it.store)
    async with app:
        await start_planned(it.parts, handle, "run", [it.shard], wall_clock_us())
        store = await app.store()
        (job,) = await store.reads.jobs(JobFilter())
        await store.operations.cancel(job.id)
    assert await it.worked(again=True) is RunState.COMPLETE
    await it.parts.sink.close()


async def test_a_run_goes_on_after_its_keys_were_forgotten(it: Import) -> None:
    """After a week the key is forgotten; the new job owns the shard, and the old one must not write."""
    with open_sqlite(it.folder / "jobs.db") as file:
        assert file.execute("UPDATE keys SET expires_at = 0").rowcount == 1
    await resumed(it)


async def test_a_run_begins_anew_in_a_new_sink_though_its_jobs_are_done(tmp_path: Path) -> None:
    """After the table is deleted to start over under the same run name, the run must not wait for jobs that are
    done.
    """
    it = Import(tmp_path, things(3))
    for _ in range(3):
        assert await it.worked("nightly") is RunState.COMPLETE
        assert it.ids() == ["0", "1", "2"]
        await it.parts.sink.close()
        remove(tmp_path, "data.db*")


async def test_to_resume_twice_makes_no_second_job(it: Import) -> None:
    """Two jobs for one shard would fetch and pay for every page twice."""
    app, handle = import_app(it.parts, it.store)
    async with app:
        store = await app.store()
        await store.operations.discard(JobFilter(states=(State.FAILED,)), 10)
        for _ in range(3):
            await submit_open_shards(it.parts, handle, "run")
        waiting: list[Any] = await store.reads.jobs(JobFilter(states=(State.PENDING,)))
        assert len(waiting) == 1


async def test_a_job_of_a_shard_that_a_later_job_has_ended_ends_as_well(tmp_path: Path) -> None:
    """A key was forgotten while its job still waited; a job that is fenced for good must not return with every
    lease.
    """
    it = await Import(tmp_path, things(3)).begun()
    later, earlier = await it.attempt(2), await it.attempt(1)
    assert (later.state, later.rows) == (earlier.state, earlier.rows) == ("done", 3)
    assert (await it.only()).attempts == 1
    await it.parts.sink.close()


async def test_a_job_of_a_shard_that_a_later_job_is_still_at_is_not_done(it: Import) -> None:
    """A late job that reports success would end the shard while its pages are still being fetched."""
    with pytest.raises(LeaseLost):
        await it.attempt(1)


async def test_a_job_whose_shard_is_in_no_plan_any_more_is_given_up_at_once(tmp_path: Path) -> None:
    """The run was started again in a new sink with another plan; the old job would occupy a worker for a quarter of an
    hour.
    """
    it = Import(tmp_path, things(3))
    await it.parts.sink.open()
    app, handle = import_app(it.parts, it.store)
    async with app:
        await start_planned(it.parts, handle, "run", [make_shard("things", "old", {"part": ["old"]})], wall_clock_us())
    await it.parts.sink.close()
    remove(tmp_path, "data.db*")
    assert await it.worked() is RunState.COMPLETE
    assert it.ids() == ["0", "1", "2"]
    await it.parts.sink.close()
