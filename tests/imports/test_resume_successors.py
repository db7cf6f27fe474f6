"""A shard can have had several jobs: a discarded or replaced job has a successor. The sink accepts only the job that
was submitted last, so `resume` must continue with that one. A run that revives an older job instead never ends: the
job is refused, lease after lease, and every further `resume` revives it again.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.imports.apps import import_app
from tests.imports.test_import_faults import Import, things
from tests.postgres_tables import empty_schema

from leaseway.app import App
from leaseway.domain.errors import UsageError
from leaseway.domain.exchange import Exchange, Wants
from leaseway.domain.ids import ALPHABET, SECOND_US, JobId, Token, WorkerId
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import Job, State
from leaseway.imports.domain.guards import Ceilings
from leaseway.imports.domain.run_state import RunState, ShardState
from leaseway.imports.run.shard_jobs import (
    FENCE_BITS,
    SUPERSEDED,
    ImportJobs,
    failed_shard_jobs,
    have_all_failed,
    shard_fence,
    submit_open_shards,
)
from leaseway.system import wall_clock_us
from leaseway.testing.job_store_contract.fixtures import failed

MINUTE_US = 60 * SECOND_US


@pytest.fixture(params=["sqlite", "postgres"])
async def it(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Import]:
    """An import of nine records with one shard, which a guard parked after two pages; its job has failed."""
    one = Import(tmp_path, things(9))
    if request.param == "postgres":
        server = request.getfixturevalue("server")
        await empty_schema(server.url, "successors")
        one.store = f"{server.url}?schema=successors"
    mended = one.parts
    one.changed(page_limit=1, ceilings=Ceilings(pages=2), split=lambda *_: [])
    assert await one.worked() is RunState.PARTIAL
    one.parts = mended
    yield one
    await one.parts.sink.close()


async def jobs_of(app: App) -> list[Job]:
    """The oldest first."""
    return sorted(await (await app.store()).reads.jobs(JobFilter()), key=lambda job: job.id)


class Between:
    """A store in which something happens between the retry of failed jobs and the next read."""

    def __init__(self, inner: Any, happens: Any) -> None:
        self._inner = inner
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def operations(self) -> "Between":
        return Between(self._inner.operations, self._happens)

    async def retry(self, which: JobFilter, limit: int) -> list[JobId]:
        retried: list[JobId] = await self._inner.retry(which, limit)
        await self._happens()
        return retried


async def test_a_job_that_fails_while_the_run_is_resumed_gets_no_second_job(
    it: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job was at work when `resume` looked for failed jobs, and has failed when it looks for open ones."""
    app, handle = import_app(it.parts, it.store)
    async with app:
        store = await app.store()
        await submit_open_shards(it.parts, handle, "run")
        worker = WorkerId("w")
        claimed = await store.jobs.exchange(Exchange(worker, (), Wants((it.parts.queue,), 1, Token("t"))))

        async def fail_now() -> None:
            settled = [failed(lease) for lease in claimed.leases]
            await store.jobs.exchange(Exchange(worker, tuple(settled), None))

        with monkeypatch.context() as patch:
            patch.setattr(app, "store", lambda: as_future(Between(store, fail_now)))
            await submit_open_shards(it.parts, handle, "run")
        assert [job.state for job in await jobs_of(app)] == [State.FAILED]
    assert await it.worked(again=True) is RunState.COMPLETE


async def as_future(value: Any) -> Any:
    return value


async def with_successor(it: Import, app: App, handle: ImportJobs) -> tuple[Job, Job]:
    """A failed job, and its successor, which has begun the shard and has failed as well."""
    (old,) = await jobs_of(app)
    await app.submit_many([handle.bind_shard("run", it.shard.key, f"run:after:{old.id}")])
    it.changed(page_limit=1, ceilings=Ceilings(pages=3), split=lambda *_: [])
    app_now, _ = import_app(it.parts, it.store)
    async with app_now:
        await app_now.run_worker(queues=[it.parts.queue], until_empty=True)
    old, new = await jobs_of(app)
    assert (old.state, new.state) == (State.FAILED, State.FAILED)
    assert (await it.only()).state is ShardState.PARKED
    return old, new


async def test_the_successor_of_a_failed_job_is_the_one_that_is_retried(it: Import) -> None:
    """However the shard got two jobs: only the later one can work."""
    right = it.parts
    app, handle = import_app(it.parts, it.store)
    async with app:
        old, new = await with_successor(it, app, handle)
        it.parts = right
        await submit_open_shards(it.parts, handle, "run")
        states = {job.id: job.state for job in await jobs_of(app)}
        assert states == {old.id: State.FAILED, new.id: State.PENDING}
    assert await it.worked(again=True) is RunState.COMPLETE


async def test_a_shard_whose_successor_is_pending_is_not_reported_as_failed(it: Import) -> None:
    """`status` would show the failure of the old job, and the service would end the run, while the new one works."""
    right = it.parts
    app, handle = import_app(it.parts, it.store)
    async with app:
        _, new = await with_successor(it, app, handle)
        it.parts, store = right, await app.store()
        shards = await it.parts.sink.shards.find_all("run")
        assert [job.id for job in (await failed_shard_jobs(store, "things", "run", shards)).values()] == [new.id]
        await submit_open_shards(it.parts, handle, "run")
        assert await failed_shard_jobs(store, "things", "run", shards) == {}
        assert not await have_all_failed(store, "things", "run", shards)


async def test_an_older_job_that_an_operator_retries_ends_at_once(it: Import) -> None:
    """The sink refuses the job. Otherwise it would occupy a worker with every attempt, and wait for its lease to expire
    in between.
    """
    right = it.parts
    app, handle = import_app(it.parts, it.store)
    async with app:
        old, new = await with_successor(it, app, handle)
        it.parts = right
        store = await app.store()
        assert await store.operations.retry(JobFilter(ids=(old.id,)), 1) == [old.id]
        await app.run_worker(queues=[it.parts.queue], until_empty=True)
        ended = {job.id: job for job in await jobs_of(app)}
        assert (ended[old.id].state, ended[old.id].attempts) == (State.DONE, 1)
        assert ended[old.id].result == f'{{"state":"{SUPERSEDED}"}}'
        assert ended[new.id].state is State.FAILED
    assert await it.worked(again=True) is RunState.COMPLETE


async def test_a_run_resumed_on_a_machine_whose_clock_is_behind_says_so(it: Import) -> None:
    """The id of a job contains the time. A successor with an earlier time than its predecessor would be refused by the
    sink for ever; with a clear message the operator can correct the clock.
    """
    app, handle = import_app(it.parts, it.store)
    ahead = (wall_clock_us() + 10 * MINUTE_US) // 1_000 << FENCE_BITS
    assert await it.parts.sink.shards.begin("run", it.shard.key, ahead) is not None
    async with app:
        with pytest.raises(UsageError, match="this machine's clock is behind"):
            await submit_open_shards(it.parts, handle, "run")


def test_the_fence_of_a_shard_grows_with_claims_promotions_and_jobs() -> None:
    """A worker that lost its lease must be refused by the sink, also after a failover of the job store, where fences
    continue far above all earlier ones.
    """
    first, later = JobId("01m7pn5tg7ksdqh1wvmqb20001"), JobId("01m7pn5tg8ksdqh1wvmqb20001")
    own = [1, 2, 50, 20_000, (1 << 32) + 1, (1 << 32) + 2, (2 << 32) + 1, (60 << 32) + 7]
    fences = [shard_fence(job, fence) for job in (first, later) for fence in own]
    assert fences == sorted(set(fences))
    last_day = JobId("0" + encoded((1 << 42) - 1) + "ksdqh1wvmqb20001")
    assert shard_fence(last_day, (63 << 32) + (1 << 31)) < 1 << 63, "a column of 64 bits contains it"


def encoded(millisecond: int) -> str:
    """As in a job id, in nine letters."""
    return "".join(ALPHABET[millisecond >> 5 * place & 31] for place in range(8, -1, -1))
