"""The order in which a worker runs jobs, the queues it serves, and when it stops."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from tests.worker.observe import SOON_SECONDS, eventually, record, worked, working

from leaseway import App, BadValue, Context, State, UsageError
from leaseway.domain.ids import SECOND_US
from leaseway.domain.inspection import JobFilter
from leaseway.worker.environment import Prefetch
from leaseway.worker.maintenance import prune_jobs
from leaseway.worker.poll import EMPTY_POLL_SECONDS


async def test_a_worker_until_empty_ends_when_everything_is_done(app: App) -> None:
    """Retries and children are included: a batch job in a container must not stop before its work is done."""
    tries: list[int] = []

    @app.job
    async def child() -> None: ...

    @app.job(backoff=0.2)
    async def parent(ctx: Context) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError
        ctx.submit(child.options(delay=0.2).bind())

    await parent.submit()
    done = await app.run_worker(until_empty=True)
    assert (done.lost, done.released, done.is_clean) == (0, 0, True)
    assert {job.state for job in await (await app.store()).reads.jobs(JobFilter())} == {State.DONE}
    assert len(await (await app.store()).reads.jobs(JobFilter())) == 2


async def test_a_worker_until_empty_without_work_ends_at_once(app: App) -> None:
    """Scripts that drain a queue must not hang on an empty one."""
    async with asyncio.timeout(SOON_SECONDS):
        assert (await app.run_worker(until_empty=True)).settled == 0


async def test_a_worker_until_empty_looks_often_for_its_end(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """No notification is sent when the last job ends, perhaps at another worker, so a run would end up to a second
    late.
    """
    store = await app.store()
    waits: list[float] = []
    has_waited = asyncio.Event()

    async def wait(seconds: float) -> bool:
        waits.append(seconds)
        has_waited.set()
        await asyncio.sleep(0)
        return False

    @app.job
    async def task() -> None:
        await has_waited.wait()  # a worker with free slots polls for more meanwhile

    monkeypatch.setattr(store.notifications, "wait", wait)
    await task.submit()
    await app.run_worker(until_empty=True)
    assert max(waits) <= EMPTY_POLL_SECONDS


async def test_a_job_does_not_start_before_its_time(app: App) -> None:
    """A delay that is not kept may call a provider too early."""
    started: dict[str, float] = {}

    @app.job
    async def task(name: str) -> None:
        started[name] = time.time()

    await task.options(run_at=datetime.now(UTC) - timedelta(days=1)).submit(name="past")
    delayed = await task.options(delay=0.2).submit(name="delayed")
    at = datetime.now(UTC) + timedelta(seconds=0.4)
    submitted = await task.options(run_at=at).submit(name="at")
    await worked(app, submitted)
    assert started["at"] >= at.timestamp()
    assert started["delayed"] * SECOND_US >= (await record(app, delayed)).run_at
    assert list(started) == ["past", "delayed", "at"]


async def test_higher_priority_goes_first_then_the_earlier_submission(app: App) -> None:
    """Urgent jobs would wait behind a backlog."""
    order: list[str] = []

    @app.job(priority=1)
    async def task(name: str) -> None:
        order.append(name)

    first = await task.submit(name="usual 1")
    await task.submit(name="usual 2")
    await task.options(priority=-5).submit(name="low")
    await task.options(priority=10).submit(name="high")
    await task.options(priority=0).submit(name="zero")
    await worked(app, first, concurrency=1)
    assert order == ["high", "usual 1", "usual 2", "zero", "low"]


async def test_a_worker_serves_the_queues_that_it_was_given(app: App) -> None:
    """Jobs of other queues may need other machines."""

    @app.job(queue="mail")
    async def mail() -> None: ...

    @app.job
    async def report() -> None: ...

    mailed, reported = await mail.submit(), await report.submit()
    moved = await report.options(queue="mail").submit()
    await worked(app, mailed, queues=["mail"])
    assert (await record(app, mailed)).state is State.DONE
    assert (await record(app, moved)).state is State.DONE
    assert (await record(app, reported)).state is State.PENDING
    await worked(app, reported)
    assert (await record(app, reported)).state is State.DONE, "by default a worker serves every queue of its app"


async def test_tenants_take_turns(app: App) -> None:
    """A tenant with a thousand jobs must not keep one with two waiting."""
    order: list[str] = []

    @app.job
    async def task(ctx: Context) -> None:
        order.append(ctx.tenant)

    first = await task.options(tenant="large").submit()
    for _ in range(200):
        await task.options(tenant="large").submit()
    for _ in range(2):
        await task.options(tenant="small").submit()
    await worked(app, first, concurrency=2)
    assert [place for place, tenant in enumerate(order) if tenant == "small"][-1] < 20


def test_a_worker_prefetches_enough_for_a_store_that_is_far_away() -> None:
    """Otherwise few jobs are leased at a time, few jobs finish, and even fewer are leased the next time."""

    def prefetched(exchange_seconds: float) -> int:
        prefetch, slots, now = Prefetch(0.0), 20, 0.0
        for _ in range(50):
            finished, now = slots + prefetch.count, now + exchange_seconds
            prefetch.learn(finished, exchange_seconds, now)
        return prefetch.count

    assert prefetched(0.2) > 100
    assert prefetched(60.0) < 20, "a store that hangs"


async def test_a_worker_that_waits_is_woken_by_a_submission_in_its_own_process(app: App) -> None:
    """Without the notification a job waits for the next poll."""

    @app.job(lease=600)  # a long lease, because a worker polls when a lease may expire
    async def task() -> None: ...

    async with working(app, poll_seconds=60):
        for _ in range(5):
            await app.wait((await task.submit()).id, 25)  # the next poll is half a minute away, or more


async def test_a_drained_worker_gives_back_what_it_did_not_finish(app: App) -> None:
    """Otherwise these jobs would wait until their leases expire, and lose an attempt."""
    started = asyncio.Event()

    @app.job
    async def long() -> None:
        started.set()
        await asyncio.sleep(60)

    submitted = await long.submit()
    worker = app.worker(grace=0)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(app.run_worker(worker))
        await asyncio.wait_for(started.wait(), SOON_SECONDS)
        worker.drain()
    job = await record(app, submitted)
    assert (job.state, job.attempts, job.fence) == (State.PENDING, 0, 1)
    assert task.result().released == 1
    assert task.result().is_clean


async def test_a_cancelled_worker_takes_its_handlers_with_it(app: App) -> None:
    """A program that owns its loop may cancel the worker like any other task."""
    started, ended = asyncio.Event(), asyncio.Event()

    @app.job
    async def long() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    await long.submit()
    task = asyncio.ensure_future(app.run_worker())
    await asyncio.wait_for(started.wait(), SOON_SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(ended.wait(), SOON_SECONDS)


async def test_old_jobs_are_pruned_and_young_and_unfinished_ones_stay(app: App) -> None:
    """Pruning too much loses jobs, pruning too little fills the store."""

    @app.job
    async def task() -> None: ...

    done = await task.submit()
    await worked(app, done)
    waiting = await task.submit()
    assert await prune_jobs(app._world, 3_600_000_000) == 0
    assert await prune_jobs(app._world, 0) == 1
    assert await app.find(done.id) is None
    assert (await record(app, waiting)).state is State.PENDING
    (lane,) = await (await app.store()).reads.lanes()
    assert (lane.ready, lane.done) == (1, 0), "the counters forget what was pruned"


@pytest.mark.parametrize(
    ("setting", "value"), [("concurrency", 0), ("concurrency", 10_001), ("queues", []), ("grace", -1)]
)
async def test_impossible_settings_of_a_worker_are_refused_by_name(app: App, setting: str, value: object) -> None:
    """A worker with such settings would run without ever working."""
    with pytest.raises(BadValue) as refusal:
        app.worker(**{setting: value})  # type: ignore[arg-type]
    assert refusal.value.field == setting


async def test_two_jobs_cannot_have_one_name(app: App) -> None:
    """Stored jobs of one function would be run by the other."""

    @app.job(name="task")
    async def first() -> None: ...

    with pytest.raises(UsageError, match="'task'"):

        @app.job(name="task")
        async def second() -> None: ...


async def test_a_file_outlives_its_app(tmp_path: object) -> None:
    """Jobs that were submitted before a restart must run after it."""
    url = f"sqlite:///{tmp_path}/work.db"

    def declared() -> tuple[App, object]:
        app = App(url)

        @app.job
        async def task(n: int) -> int:
            return n

        return app, task

    before, task = declared()
    async with before:
        submitted = await task.submit(n=7)  # type: ignore[attr-defined]
    after, _ = declared()
    async with after:
        assert (await worked(after, submitted)).result == 7


async def test_many_quick_jobs_are_all_done_once(app: App) -> None:
    """Prefetching and batched settling must neither lose nor repeat a job."""
    runs: list[int] = []

    @app.job
    async def task(n: int) -> None:
        runs.append(n)

    answers = await task.submit_many([{"n": n} for n in range(1_000)])
    await worked(app, answers[0])
    assert sorted(runs) == list(range(1_000))
    (lane,) = await (await app.store()).reads.lanes()
    assert (lane.ready, lane.leased, lane.done) == (0, 0, 1_000)
    await eventually(lambda: asyncio.sleep(0, True))
