"""The guarantees of reads, as tests that every store must pass: pages without gaps, correct counters, notifications
that end. Used like `job_store_contract`, with the same fixtures.
"""

import asyncio
from typing import Any

from leaseway.domain.exchange import ERRORS_MAX, ProgressReport
from leaseway.domain.ids import JobId, Token
from leaseway.domain.inspection import PAGE_MAX, JobFilter
from leaseway.domain.job import State
from leaseway.domain.lane import LaneCount
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import (
    ALL,
    HOUR_US,
    ContractWorker,
    done,
    failed,
    id_of,
    new_job,
    retry,
)


async def numbers(store: Store, which: JobFilter = ALL, **options: object) -> list[int]:
    return [int(job.id) for job in await store.reads.jobs(which, **options)]  # type: ignore[arg-type]


async def test_an_unknown_job_reads_as_nothing(store: Store) -> None:
    """Reading a missing job is not an error."""
    assert await store.reads.job(JobId("nothing")) is None
    assert await store.reads.errors(JobId("nothing")) == []
    assert await store.reads.locked_by(JobId("nothing")) is None
    assert await store.reads.jobs(ALL) == []
    assert list(await store.reads.lanes()) == []


async def test_jobs_are_listed_newest_first(store: Store) -> None:
    """The order is by id, which sorts by time, whatever the order of arrival."""
    await store.jobs.submit([new_job(2), new_job(3), new_job(1)])
    assert await numbers(store) == [3, 2, 1]


async def test_pages_follow_each_other_without_gaps(store: Store) -> None:
    """Jobs that are submitted between two pages must not shift them."""
    await store.jobs.submit([new_job(number) for number in range(1, 6)])
    assert await numbers(store, limit=2) == [5, 4]
    await store.jobs.submit([new_job(6)])
    assert await numbers(store, limit=2, before=id_of(4)) == [3, 2]
    assert await numbers(store, limit=2, before=id_of(2)) == [1]
    assert await numbers(store, limit=2, before=id_of(1)) == []


async def test_a_page_is_bounded(store: Store) -> None:
    """The dashboard must not be able to read a million rows, and a limit of zero must return nothing."""
    await store.jobs.submit([new_job(number) for number in range(1, PAGE_MAX + 2)])
    assert len(await numbers(store)) == 50
    assert len(await numbers(store, limit=10 * PAGE_MAX)) == PAGE_MAX
    assert await numbers(store, limit=0) == []
    assert await numbers(store, limit=-1) == []


async def test_every_condition_of_a_filter_must_hold(store: Store) -> None:
    """A filter that ignores one condition deletes or retries the wrong jobs."""
    await store.jobs.submit(
        [new_job(1, kind="a"), new_job(2, queue="b", shard_key="s"), new_job(3, tenant="c"), new_job(4)]
    )
    worker = ContractWorker(store)
    (lease,) = await worker.claim(1, ("b",))
    await worker.settle(failed(lease))
    assert await numbers(store, JobFilter(kind="a")) == [1]
    assert await numbers(store, JobFilter(queue="b")) == [2]
    assert await numbers(store, JobFilter(tenant="c")) == [3]
    assert await numbers(store, JobFilter(error_code="broken")) == [2]
    assert await numbers(store, JobFilter(shard_key="s")) == [2]
    assert await numbers(store, JobFilter(states=(State.PENDING,))) == [4, 3, 1]
    assert await numbers(store, JobFilter(states=(State.PENDING, State.FAILED), kind="count")) == [4, 3, 2]
    assert await numbers(store, JobFilter(ids=(id_of(1), id_of(4), id_of(9)))) == [4, 1]
    assert await numbers(store, JobFilter(ids=(id_of(1), id_of(4)), kind="a")) == [1]
    assert await numbers(store, JobFilter(ids=())) == []
    assert await numbers(store, JobFilter(states=())) == []
    assert await numbers(store, JobFilter(kind="a", tenant="c")) == []


async def test_a_filter_looks_at_the_last_error_only(store: Store) -> None:
    """`error_code` must match the current reason, not an old failure."""
    await store.jobs.submit([new_job(1)])
    worker = ContractWorker(store)
    await worker.settle(retry(await worker.claim_one()))
    lease = await worker.claim_one()
    other = retry(lease).failure
    assert other is not None
    await worker.settle(failed(lease, failure=type(other)("other", "it broke elsewhere")))
    assert await numbers(store, JobFilter(error_code="broken")) == []
    assert await numbers(store, JobFilter(error_code="other")) == [1]


async def test_names_are_compared_letter_by_letter(store: Store) -> None:
    """Wildcards, case folding and injection must not work."""
    await store.jobs.submit([new_job(1, tenant="Acme"), new_job(2, tenant="acme"), new_job(3, tenant="a%' OR 1=1--")])
    assert await numbers(store, JobFilter(tenant="acme")) == [2]
    assert await numbers(store, JobFilter(tenant="a%")) == []
    assert await numbers(store, JobFilter(tenant="a%' OR 1=1--")) == [3]


async def test_every_lane_is_listed_with_its_counters(store: Store, clock: FakeClock) -> None:
    """The order is by queue and tenant; a lane that is empty again must stay, with zero."""
    await store.jobs.submit([new_job(1, queue="b", tenant="x"), new_job(2, queue="a", tenant="y")])
    await store.jobs.submit([new_job(3, queue="a", tenant="x", delay_us=9), new_job(4, queue="b", tenant="x")])
    worker = ContractWorker(store)
    one, _four = await worker.claim(2, ("b",))
    await worker.settle(done(one))
    await store.operations.discard(ALL, 10)
    zero: dict[str, Any] = {"ready": 0, "scheduled": 0, "leased": 0, "done": 0, "failed": 0, "cancelled": 0}
    assert list(await store.reads.lanes()) == [
        LaneCount(queue="a", tenant="x", **zero | {"scheduled": 1, "bytes": 2}),
        LaneCount(queue="a", tenant="y", **zero | {"ready": 1, "bytes": 2}),
        LaneCount(queue="b", tenant="x", **zero | {"leased": 1, "bytes": 2}),
    ]
    assert [lane.queue for lane in await store.reads.lanes("x")] == ["a", "b"]
    assert list(await store.reads.lanes("z")) == []
    await store.operations.cancel(id_of(2))
    await store.operations.discard(ALL, 10)
    assert (await store.reads.lanes())[1] == LaneCount(queue="a", tenant="y", **zero)


async def stored_bytes(store: Store) -> int:
    return sum(lane.bytes for lane in await store.reads.lanes())


async def test_a_lane_counts_the_bytes_that_its_jobs_keep(store: Store) -> None:
    """Quotas of tenants compare this number. One that drifts would lock a tenant out, or let it fill the disk."""
    payload = '{"text":"é€"}'
    size = len(payload.encode())
    await store.jobs.submit([new_job(number, payload=payload, cursor='"start"') for number in (1, 2, 3)])
    await store.jobs.submit([new_job(3, payload=payload), new_job(4, payload=payload)])  # 3 is a repetition
    assert await stored_bytes(store) == 4 * size + 3 * 7
    worker = ContractWorker(store)
    one, two, three = await worker.claim(3)
    assert await store.jobs.checkpoint(one.id, one.token, '"0123456789"')
    error = len("it broke" + "Traceback: line 1")
    await worker.settle(done(one, result='"ü"', progress='{"done":1}'), done(two), retry(three))
    kept = [4 + 10 + 12, len('"well"') + 7]
    assert await stored_bytes(store) == 4 * size + sum(kept) + 7 + error
    (three,) = await worker.claim(1)
    await worker.settle(failed(three, result='"none"'))
    assert await stored_bytes(store) == 4 * size + sum(kept) + 7 + 2 * error + len('"none"')
    await store.operations.retry(JobFilter(ids=(three.id,)), 1)
    assert await stored_bytes(store) == 4 * size + sum(kept) + 7 + 2 * error


async def test_the_texts_of_unfinished_jobs_are_counted_when_they_are_written(store: Store, clock: FakeClock) -> None:
    """A job need not finish: a tenant could keep gigabytes of cursors, progress and errors beside its quota."""
    await store.jobs.submit([new_job(1, payload="{}", attempts_max=99)])
    worker = ContractWorker(store)
    lease = await worker.claim_one()
    for cursor in ('"0123456789"', '"é"', '"' + "x" * 5_000 + '"'):
        assert await store.jobs.checkpoint(lease.id, lease.token, cursor)
        assert await stored_bytes(store) == 2 + len(cursor.encode())
    assert not await store.jobs.checkpoint(lease.id, Token("stale"), '"stale"')
    await store.jobs.report(
        [ProgressReport(lease.id, lease.token, '{"done":1}'), ProgressReport(lease.id, Token("stale"), "[]")]
    )
    assert await stored_bytes(store) == 2 + 5_002 + 10
    await worker.settle(retry(lease, progress='"more than before"'))
    error = len("it broke" + "Traceback: line 1")
    assert await stored_bytes(store) == 2 + 5_002 + 18 + error
    for _ in range(ERRORS_MAX + 1):
        await worker.settle(retry(await worker.claim_one()))
    assert await stored_bytes(store) == 2 + 5_002 + 18 + ERRORS_MAX * error
    await worker.claim_one()
    clock.advance_us(HOUR_US)
    await worker.settle()
    expired = len("worker worker-1 stopped renewing its lease")
    assert await stored_bytes(store) == 2 + 5_002 + 18 + (ERRORS_MAX - 1) * error + expired


async def test_the_bytes_of_deleted_jobs_are_subtracted(store: Store) -> None:
    """A tenant at its quota deletes jobs to make room."""
    await store.jobs.submit([new_job(number, payload='{"n":1}', cursor="7") for number in range(1, 5)])
    worker = ContractWorker(store)
    one, two = await worker.claim(2)
    await worker.settle(done(one), failed(two))
    await store.operations.cancel(id_of(3))
    await store.operations.discard(JobFilter(ids=(one.id,)), 10)
    await store.operations.prune(0, 10)
    assert await stored_bytes(store) == 7 + 1
    await store.operations.cancel(id_of(4))
    await store.operations.discard(ALL, 10)
    assert await stored_bytes(store) == 0


async def test_the_clock_of_the_store_can_be_read(store: Store, clock: FakeClock) -> None:
    """A display such as "in five minutes" must count from the store's time."""
    clock.advance(7)
    assert await store.reads.now() == clock.now_us()


async def test_whoever_waits_is_woken_by_a_submission(store: Store) -> None:
    """A job should start at once, not with the next poll. A notification may be lost, so the test submits until one
    arrives.
    """
    async with asyncio.TaskGroup() as tasks:
        waiter = tasks.create_task(store.notifications.wait(30))
        for number in range(1, 1_001):
            await store.jobs.submit([new_job(number)])
            done_waiting, _ = await asyncio.wait({waiter}, timeout=0.01)
            if done_waiting:
                break
        assert waiter.done(), "a thousand submissions woke no waiter"
    assert waiter.result() is True


async def test_whoever_waits_for_nothing_is_let_go(store: Store) -> None:
    """The result must be false after this time at the latest. A first notification may be spurious, but not
    every one.
    """
    answers = [await store.notifications.wait(0.005) for _ in range(3)]
    assert answers[-1] is False
    assert [await store.notifications.wait(0) for _ in range(3)][-1] is False


async def test_a_new_task_waits_as_long_as_an_old_one(store: Store) -> None:
    """The service waits in a new task for each request. If the first wait of a task ended at once, idle workers would
    ask hundreds of times per second.
    """
    await store.jobs.submit([new_job(1)])
    async with asyncio.TaskGroup() as tasks:
        answers = [await tasks.create_task(store.notifications.wait(0.005)) for _ in range(3)]
    assert answers[-1] is False
