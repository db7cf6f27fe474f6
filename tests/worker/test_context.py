"""The context API that a running handler uses."""

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from tests.worker.observe import eventually, record, worked, working

from leaseway import App, BadValue, Context, LeaseLost, State, SyncContext
from leaseway.domain.inspection import JobFilter


async def test_a_job_goes_on_where_its_last_attempt_left_off(app: App) -> None:
    """Pages that were fetched and paid for must not be fetched again."""
    pages: list[int] = []

    @app.job(backoff=0.01)
    async def fetch(ctx: Context) -> int:
        first = ctx.cursor or 0
        for page in range(first, 6):
            pages.append(page)
            await ctx.checkpoint(page + 1)
            assert ctx.cursor == page + 1
            if page == 2:
                raise ConnectionError
        return first

    job = await worked(app, await fetch.submit())
    assert pages == [0, 1, 2, 3, 4, 5]
    assert (job.state, job.result, job.cursor) == (State.DONE, 3, 6)


async def test_a_plain_function_checkpoints_without_await(app: App) -> None:
    """A handler in a thread must be able to store its cursor."""

    @app.job(backoff=0.01)
    def fetch(ctx: SyncContext) -> Any:
        if ctx.cursor is None:
            ctx.checkpoint({"page": 7})
            raise ConnectionError
        return ctx.cursor

    assert (await worked(app, await fetch.submit())).result == {"page": 7}


async def test_a_submission_can_bring_the_first_cursor(app: App) -> None:
    """An import starts its shards at a known place."""

    @app.job
    async def fetch(ctx: Context) -> Any:
        return ctx.cursor

    assert (await worked(app, await fetch.options(cursor={"page": 3}).submit())).result == {"page": 3}


async def test_a_cursor_that_is_not_json_is_refused_where_it_is_written(app: App) -> None:
    """The error must point at the checkpoint, not appear in the next attempt."""

    @app.job(attempts=1)
    async def fetch(ctx: Context) -> str:
        with pytest.raises(BadValue, match="cursor"):
            await ctx.checkpoint(object())
        return "went on"

    assert (await worked(app, await fetch.submit())).result == "went on"


async def test_a_checkpoint_without_the_lease_is_refused(app: App) -> None:
    """A worker that was asleep must not move the cursor of the one that took over."""
    lost: list[str] = []

    @app.job(attempts=1)
    async def fetch(ctx: Context) -> None:
        store = await app.store()
        ctx._attempt.lease = type(ctx._attempt.lease)(**{**fields(ctx._attempt.lease), "token": "another"})
        with pytest.raises(LeaseLost):
            await ctx.checkpoint(1)
        lost.append("told")
        assert (await store.reads.job(ctx.id)).cursor is None  # type: ignore[union-attr]

    submitted = await fetch.submit()
    async with working(app):
        await eventually(lambda: truth(lost))
    assert (await record(app, submitted)).cursor is None


async def test_the_call_key_is_the_same_in_every_attempt_and_differs_between_steps(app: App) -> None:
    """The provider recognizes a repeated call by its key and charges once."""
    keys: list[tuple[str, str]] = []

    @app.job(attempts=3, backoff=0.01)
    async def charge(ctx: Context) -> None:
        keys.append((ctx.call_key(), ctx.call_key("capture")))
        raise ConnectionError

    first = await charge.submit()
    await worked(app, first)
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert keys[0][0] != keys[0][1]
    await worked(app, await charge.submit())
    assert len(set(keys)) == 2


async def test_attempt_and_fence_tell_deliveries_apart(app: App) -> None:
    """An outside system can refuse writes of an older delivery only if the fence grows."""
    seen: list[tuple[int, int]] = []

    @app.job(attempts=3, backoff=0.01)
    async def count(ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.fence))
        raise ConnectionError

    await worked(app, await count.submit())
    assert seen == [(1, 1), (2, 2), (3, 3)]


async def test_children_are_submitted_with_success_and_only_with_success(app: App) -> None:
    """A job that fails halfway must not leave children that its next attempt submits again."""
    tries: list[int] = []

    @app.job
    async def child(n: int) -> None: ...

    @app.job(backoff=0.01)
    async def parent(ctx: Context) -> None:
        tries.append(1)
        for n in range(3):
            ctx.submit(child.bind(n=n))
        if len(tries) < 3:
            raise ConnectionError

    await worked(app, await parent.options(tenant="acme").submit())
    children = await (await app.store()).reads.jobs(JobFilter(kind="child"))
    assert sorted(job.payload for job in children) == ['{"n":0}', '{"n":1}', '{"n":2}']
    assert {job.tenant for job in children} == {"acme"}, "a child belongs to its parent's tenant"
    assert {job.state for job in children} == {State.DONE}


async def test_progress_can_be_seen_while_the_job_runs(app: App) -> None:
    """Progress that is stored only at the end does not help a user who watches a long job."""
    go_on = asyncio.Event()

    @app.job
    async def long(ctx: Context) -> None:
        ctx.progress(3, 10, "third page")
        await go_on.wait()
        ctx.progress(10, 10)

    submitted = await long.submit()

    async def said() -> Any:
        job = await record(app, submitted)
        return job.progress if job.state is State.LEASED else None

    async with working(app):
        assert await eventually(said) == {"done": 3, "message": "third page", "total": 10}
        go_on.set()
        job = await app.wait(submitted.id, 60)
    assert job.progress == {"done": 10, "message": None, "total": 10}, "the last word came with the result"


async def test_plain_functions_run_in_threads_and_side_by_side(app: App) -> None:
    """A blocking plain function must not delay other jobs or the event loop."""
    meeting = threading.Barrier(4)

    @app.job(timeout=50)
    def meet(ctx: SyncContext) -> int:
        meeting.wait(45)
        return threading.get_ident()

    jobs = [await meet.submit() for _ in range(4)]
    await worked(app, jobs[0], concurrency=4)
    threads = {(await record(app, job)).result for job in jobs}
    assert len(threads) == 4
    assert threading.get_ident() not in threads


async def test_concurrency_is_kept_for_both_kinds_of_functions(app: App) -> None:
    """More handlers at once than configured could exhaust memory or connections."""
    at_work = 0
    most = 0

    @app.job
    async def task() -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.002)
        at_work -= 1

    jobs = [await task.submit() for _ in range(40)]
    await worked(app, jobs[0], concurrency=3)
    assert most == 3


def fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


async def truth(values: list[str]) -> bool:
    return bool(values)


async def test_threads_of_a_handler_share_its_calls(app: App) -> None:
    """Two records of the calls of one attempt would place two holds under one id, and settle one of them."""
    made: list[int] = []

    @app.job
    def fetch(ctx: SyncContext) -> None:
        make_calls, together = ctx._make_calls, threading.Barrier(2)

        def make_slowly() -> Any:
            made.append(1)
            with contextlib.suppress(threading.BrokenBarrierError):
                together.wait(1)  # passes only if the other thread is here, too
            return make_calls()

        ctx._make_calls = make_slowly
        threads = [threading.Thread(target=ctx.call) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert (await worked(app, await fetch.submit())).state is State.DONE
    assert made == [1]
