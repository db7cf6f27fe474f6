"""Texts that are too large for a row are in the blob store, for exactly as long as a job refers to them."""

import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.blobs.jobs import LONG, make_app

from leaseway import AesGcm, App, BadValue, Context
from leaseway.domain.blob import is_reference
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import Job, NewJob, State
from leaseway.stores.blobs.files import FileBlobs
from leaseway.worker.blobs import JobBlobs
from leaseway.worker.blobs.sweep import ORPHAN_US, sweep

DAY_US = 86_400 * SECOND_US


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with make_app(tmp_path) as app:
        yield app


async def raw_job(app: App, id_: JobId) -> Job:
    job = await (await app.store()).reads.job(id_)
    assert job is not None
    return job


def files(folder: Path) -> list[str]:
    return sorted(each.name for each in (folder / "blobs").rglob("*") if each.is_file())


async def sweep_later(app: App, later_us: int = ORPHAN_US + 60 * SECOND_US) -> int:
    return await sweep(app.world.blobs, await app.store(), app.world.clock.wall_us() + later_us)


async def test_long_arguments_cursors_and_results_arrive_as_they_were(app: App) -> None:
    """Handlers and callers must not see where a text is kept, and the row must stay short."""
    job = await app.submit(app.bind("double", {"text": LONG}))
    await app.run_worker(until_empty=True)
    record = await app.wait(job)
    assert (record.payload, record.cursor, record.result) == ({"text": LONG}, LONG + "!", LONG * 2)
    raw = await raw_job(app, job.id)
    assert all(map(is_reference, (raw.payload, raw.cursor, raw.result)))
    assert sum(lane.bytes for lane in await (await app.store()).reads.lanes()) < 1_000


async def test_every_way_of_submitting_keeps_long_arguments(app: App) -> None:
    """Bulk, children and plain code have paths of their own into the store."""
    import asyncio

    bound = app.bind("double", {"text": LONG})
    many = await app.submit_many([bound, app.bind("double", {"text": "short"}), bound])
    plain = await asyncio.to_thread(plain_submission, app)
    await app.submit(app.bind("parent", {}))
    await app.run_worker(until_empty=True)
    done = await (await app.store()).reads.jobs(JobFilter(kind="double", states=(State.DONE,)))
    assert len(done) == 5
    assert sum(is_reference(job.payload) for job in done) == 4
    assert plain.id in {job.id for job in done}
    assert many[1].id in {job.id for job in done}


def plain_submission(app: App) -> Any:
    """Code without an event loop has an app of its own."""
    folder = Path(app.url.removeprefix("sqlite:///")).parent
    other = make_app(folder)
    try:
        return other.submit_sync(other.bind("double", {"text": LONG}))
    finally:
        other.close_sync()


async def test_without_a_blob_store_the_error_names_the_way_out(tmp_path: Path) -> None:
    """The user must learn the bound, the size and what to do."""
    app = make_app(tmp_path, blobs=None)
    with pytest.raises(BadValue, match=r"400,0\d\d bytes.*262,144.*blobs="):
        app.bind("double", {"text": LONG})


async def test_a_worker_without_the_blob_store_keeps_the_attempt(app: App, tmp_path: Path) -> None:
    """A deployment that forgets a setting must not turn jobs into dead letters."""
    job = await app.submit(app.bind("double", {"text": LONG}))
    async with make_app(tmp_path, blobs=None) as other:
        worker = other.worker()
        store = await other.store()
        import asyncio

        async with asyncio.TaskGroup() as group:
            group.create_task(other.run_worker(worker))
            while (await raw_job(other, job.id)).last_error_code is None:
                await store.notifications.wait(0.05)
            worker.drain()
    found = await raw_job(app, job.id)
    assert (found.state, found.attempts, found.last_error_code) == (State.PENDING, 0, "blob_unavailable")


async def test_a_lost_or_changed_blob_fails_its_job_for_good(app: App, tmp_path: Path) -> None:
    """A job must not run with other arguments, and repeating does not bring them back."""
    lost, changed = [await app.submit(app.bind("double", {"text": LONG})) for _ in range(2)]
    for name in files(tmp_path):
        (file,) = (tmp_path / "blobs").rglob(name)
        if name.startswith(lost.id):
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[::-1])
    await app.run_worker(until_empty=True)
    for job in (lost, changed):
        found = await raw_job(app, job.id)
        assert (found.state, found.attempts, found.last_error_code) == (State.FAILED, 1, "blob_missing")


async def test_a_reference_reaches_no_blob_of_another_job(app: App) -> None:
    """A tenant that knows the reference of another tenant's job must not read what it names."""
    secret = await app.submit(app.bind("double", {"text": LONG}))
    forged = NewJob(id=app.world.ids.job(), kind="double", payload=(await raw_job(app, secret.id)).payload, tenant="b")
    await (await app.store()).jobs.submit([forged])
    await app.run_worker(until_empty=True)
    found = await raw_job(app, forged.id)
    assert (found.state, found.last_error_code) == (State.FAILED, "blob_missing")


async def test_a_result_that_looks_like_a_reference_is_refused(app: App) -> None:
    """It would be read as a reference by everyone who asks for the result."""

    @app.job
    async def pretend() -> dict[str, str]:
        return {"$blob": "result-0123456789abcdef"}

    job = await pretend.submit()
    await app.run_worker(until_empty=True)
    found = await raw_job(app, job.id)
    assert (found.state, found.last_error_code) == (State.FAILED, "bad_result")


async def test_blobs_are_encrypted_like_rows(tmp_path: Path) -> None:
    """Who can read the bucket must learn as little as who can read the database."""
    async with make_app(tmp_path, codec=AesGcm({"k": AesGcm.new_key()})) as app:
        job = await app.submit(app.bind("double", {"text": LONG}))
        await app.run_worker(until_empty=True)
        assert (await app.wait(job)).result == LONG * 2
    contents = [each.read_bytes() for each in (tmp_path / "blobs").rglob("*") if each.is_file()]
    assert len(contents) == 3
    assert all(each.startswith(b'{"$encrypted"') and "éé".encode() not in each for each in contents)


# -- the same lifetime as the job -------------------------------------------------------------------------------------


async def test_blobs_of_living_jobs_are_never_deleted(app: App, tmp_path: Path) -> None:
    """A job may wait for a year, and its result be read after that."""
    await app.submit(app.bind("double", {"text": LONG}))
    assert await sweep_later(app, 400 * DAY_US) == 0
    await app.run_worker(until_empty=True)
    assert await sweep_later(app, 400 * DAY_US) == 0
    assert len(files(tmp_path)) == 3


async def test_blobs_of_discarded_and_pruned_jobs_are_deleted(app: App, tmp_path: Path) -> None:
    """A user who deletes a job expects that its arguments are gone."""
    jobs = [await app.submit(app.bind("double", {"text": LONG})) for _ in range(3)]
    await app.run_worker(until_empty=True)
    store = await app.store()
    await store.operations.discard(JobFilter(ids=(jobs[0].id,)), 1)
    assert await sweep_later(app) == 3
    assert not [name for name in files(tmp_path) if name.startswith(jobs[0].id)]
    await store.operations.prune(0, 10)
    assert await sweep_later(app) == 6
    assert files(tmp_path) == []


async def test_a_replaced_cursor_is_deleted(tmp_path: Path) -> None:
    """A job with a checkpoint per page would leave one blob per page."""
    app = App(f"sqlite:///{tmp_path}/work.db", blobs=f"file://{tmp_path}/blobs")

    @app.job
    async def walk(ctx: Context) -> None:
        for page in range(3):
            await ctx.checkpoint({"page": page, "seen": LONG})

    async with app:
        await walk.submit()
        await app.run_worker(until_empty=True)
        assert len(files(tmp_path)) == 3
        assert await sweep_later(app) == 2
        assert len(files(tmp_path)) == 1


async def test_a_young_blob_is_not_an_orphan(app: App, tmp_path: Path) -> None:
    """The job of a blob may be in a transaction that is not committed yet."""
    await app.world.blobs.keep(app.world.ids.job(), "payload", LONG)
    assert await sweep_later(app, ORPHAN_US - 60 * SECOND_US) == 0
    assert len(files(tmp_path)) == 1
    assert await sweep_later(app) == 1


KILLED = """
import asyncio, os, signal, sys
from leaseway.stores.blobs.files import FileBlobs
from tests.blobs.test_blobs_of_jobs import *
from tests.blobs.jobs import LONG, make_app

def kill_after(name):
    verb = getattr(FileBlobs, name)
    async def run(self, *args):
        await verb(self, *args)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(FileBlobs, name, run)

async def main(folder, name):
    async with make_app(folder) as app:
        if name == "put":
            kill_after("put")
            await app.submit(app.bind("double", {"text": LONG}))
        store = await app.store()
        await store.operations.prune(0, 10)
        kill_after("page")
        await sweep_later(app)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


def run_until_killed(folder: Path, verb: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(folder), verb], cwd=Path(__file__).parents[2]
    )
    assert ran.returncode == -signal.SIGKILL


async def test_a_submitter_killed_between_blob_and_job_leaves_an_orphan_that_is_swept(app: App, tmp_path: Path) -> None:
    """The blob is written first, so a crash leaves a blob without a job, never a job without a blob."""
    run_until_killed(tmp_path, "put")
    assert len(files(tmp_path)) == 1
    assert await (await app.store()).reads.jobs(JobFilter()) == []
    assert await sweep_later(app) == 1
    assert files(tmp_path) == []


async def test_a_crash_between_job_and_blob_delete_is_swept_later(app: App, tmp_path: Path) -> None:
    """The rows are gone; the next sweep must find the blobs without them."""
    await app.submit(app.bind("double", {"text": LONG}))
    await app.run_worker(until_empty=True)
    run_until_killed(tmp_path, "delete")
    assert await (await app.store()).reads.jobs(JobFilter()) == []
    assert len(files(tmp_path)) == 3
    assert await sweep_later(app) == 3
    assert files(tmp_path) == []


async def test_a_job_that_moves_during_a_sweep_keeps_its_blobs(app: App) -> None:
    """A store may look in two tables, and the job may move from one to the other between the two looks."""
    job = await app.submit(app.bind("double", {"text": LONG}))
    store = await app.store()

    class Blink:
        """Reads that miss every job the first time."""

        looks = 0

        async def jobs(self, which: JobFilter, **options: Any) -> list[Job]:
            self.looks += 1
            return [] if self.looks == 1 else await store.reads.jobs(which, **options)

    blinking = type("Blinking", (), {"reads": Blink(), "inspection": store.inspection})()
    now = app.world.clock.wall_us() + DAY_US
    assert await sweep(app.world.blobs, blinking, now) == 0
    assert (await app.find(job)) is not None


async def test_a_store_that_cannot_be_asked_deletes_nothing(tmp_path: Path) -> None:
    """A worker over HTTP sees the jobs of its tenant only. All others would seem to be gone."""
    blobs = JobBlobs(FileBlobs(str(tmp_path), lambda: 0))
    remote = type("Remote", (), {"inspection": None})()
    assert await sweep(blobs, remote, DAY_US) == 0
