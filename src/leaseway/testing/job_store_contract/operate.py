"""Commands of operators: cancel, retry, run now, discard, prune. Each is bounded, and workers learn of it."""

from leaseway.domain.ids import JobId
from leaseway.domain.inspection import CancelResult, JobFilter
from leaseway.domain.job import State
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import (
    ALL,
    HOUR_US,
    LEASE_US,
    MINUTE_US,
    ContractWorker,
    cancelled,
    counts,
    done,
    failed,
    id_of,
    ids_in,
    job_of,
    keyed_job,
    leased_job,
    new_job,
    retry,
)


async def finished(store: Store, *numbers: int, **options: object) -> None:
    """Jobs that have failed, one after the other."""
    await store.jobs.submit([new_job(number, **options) for number in numbers])
    worker = ContractWorker(store)
    await worker.settle(*(failed(lease) for lease in await worker.claim(len(numbers))))


# -- cancel -------------------------------------------------------------------------------------------------


async def test_cancelling_an_unknown_job_says_so(store: Store) -> None:
    """A mistyped id must not look like success."""
    assert await store.operations.cancel(JobId("nothing")) is CancelResult.UNKNOWN


async def test_a_finished_job_cannot_be_cancelled(store: Store) -> None:
    """The record must not contradict what happened."""
    lease = await leased_job(store)
    await ContractWorker(store).settle(done(lease))
    before = await job_of(store)
    assert await store.operations.cancel(id_of(1)) is CancelResult.FINISHED
    assert await job_of(store) == before


async def test_a_pending_job_is_cancelled_at_once(store: Store, clock: FakeClock) -> None:
    """A ready or scheduled job must never run after its cancellation."""
    await store.jobs.submit([new_job(1), new_job(2, delay_us=MINUTE_US)])
    clock.advance(1)
    assert await store.operations.cancel(id_of(1)) is CancelResult.CANCELLED
    assert await store.operations.cancel(id_of(2)) is CancelResult.CANCELLED
    job = await job_of(store)
    assert (job.state, job.finished_at) == (State.CANCELLED, clock.now_us())
    clock.advance_us(HOUR_US)
    assert await ContractWorker(store).claim(2) == ()
    assert await counts(store) == {"cancelled": 2}


async def test_a_running_job_is_asked_to_stop(store: Store) -> None:
    """A handler cannot be stopped from outside: the request is stored, and the lease stays."""
    lease = await leased_job(store)
    before = await job_of(store)
    assert await store.operations.cancel(id_of(1)) is CancelResult.REQUESTED
    assert await store.operations.cancel(id_of(1)) is CancelResult.REQUESTED
    job = await job_of(store)
    assert (job.state, job.cancel_requested) == (State.LEASED, True)
    assert job.lease_until == before.lease_until
    assert (await ContractWorker(store).settle(cancelled(lease))).lost == ()


async def test_a_job_to_be_cancelled_is_not_made_pending(store: Store, clock: FakeClock) -> None:
    """A cancelled job must not run again because its worker happened to retry or snooze it."""
    lease = await leased_job(store)
    await store.operations.cancel(id_of(1))
    clock.advance(1)
    await ContractWorker(store).settle(retry(lease))
    job = await job_of(store)
    assert (job.state, job.finished_at) == (State.CANCELLED, clock.now_us())
    assert await counts(store) == {"cancelled": 1}
    assert await ContractWorker(store).claim() == ()


async def test_a_job_to_be_cancelled_may_finish_first(store: Store) -> None:
    """An existing result is worth more than a late cancellation."""
    await store.jobs.submit([new_job(1), new_job(2)])
    worker = ContractWorker(store)
    one, two = await worker.claim(2)
    await store.operations.cancel(id_of(1))
    await store.operations.cancel(id_of(2))
    await worker.settle(done(one), failed(two))
    assert await counts(store) == {"done": 1, "failed": 1}


async def test_a_stopped_job_ends_as_cancelled(store: Store, clock: FakeClock) -> None:
    """The handler stopped as requested, which is neither success nor failure."""
    lease = await leased_job(store)
    await store.operations.cancel(id_of(1))
    await ContractWorker(store).settle(cancelled(lease))
    job = await job_of(store)
    assert (job.state, job.finished_at, job.result) == (State.CANCELLED, clock.now_us(), None)


# -- retry ----------------------------------------------------------------------------------------------------------


async def test_only_failed_and_cancelled_jobs_are_replayed(store: Store) -> None:
    """Running a done job again would be exactly the duplicate that leases prevent."""
    await store.jobs.submit([new_job(number) for number in range(1, 6)])
    worker = ContractWorker(store)
    one, two, _three = await worker.claim(3)
    await worker.settle(done(one), failed(two))
    await store.operations.cancel(id_of(5))
    assert await store.operations.retry(ALL, 10) == [id_of(2), id_of(5)]
    assert await counts(store) == {"ready": 3, "leased": 1, "done": 1}


async def test_a_replayed_job_starts_with_fresh_attempts(store: Store, clock: FakeClock) -> None:
    """The job must get all its attempts from now on and keep its cursor."""
    lease = await leased_job(store, attempts_max=1)
    await store.jobs.checkpoint(lease.id, lease.token, '{"page":7}')
    await ContractWorker(store).settle(failed(lease))
    clock.advance_us(HOUR_US)
    assert await store.operations.retry(ALL, 1) == [id_of(1)]
    job = await job_of(store)
    assert (job.state, job.attempts, job.run_at) == (State.PENDING, 0, clock.now_us())
    assert (job.finished_at, job.result, job.cancel_requested) == (None, None, False)
    again = await ContractWorker(store, "next").claim_one()
    assert (again.attempts, again.fence, again.cursor) == (1, 2, '{"page":7}')


async def test_a_replayed_job_keeps_its_errors(store: Store) -> None:
    """The first error is needed when the job fails again."""
    await finished(store, 1)
    await store.operations.retry(ALL, 1)
    assert (await job_of(store)).last_error_code == "broken"
    assert len(await store.reads.errors(id_of(1))) == 1


async def test_a_wish_to_cancel_does_not_survive_the_replay(store: Store, clock: FakeClock) -> None:
    """An operator who retries the job wants it to run."""
    lease = await leased_job(store)
    await store.operations.cancel(id_of(1))
    await ContractWorker(store).settle(cancelled(lease))
    await store.operations.retry(ALL, 1)
    again = await ContractWorker(store, "next").claim_one()
    answer = await ContractWorker(store, "next").settle(retry(again, delay_us=MINUTE_US))
    assert answer.cancelled == ()
    assert (await job_of(store)).state is State.PENDING


async def test_a_worker_of_the_first_life_cannot_settle_the_second(store: Store) -> None:
    """The repeated settlement belongs to an earlier delivery, so "accepted" would be wrong."""
    lease = await leased_job(store)
    await ContractWorker(store).settle(failed(lease))
    await store.operations.retry(ALL, 1)
    assert (await ContractWorker(store).settle(failed(lease))).lost == (id_of(1),)
    assert await counts(store) == {"ready": 1}


async def test_replaying_is_bounded_and_in_order_of_submission(store: Store) -> None:
    """A million dead letters must be retried in steps that an operator can watch."""
    await finished(store, 9, 7, 8)
    assert await store.operations.retry(ALL, 0) == []
    assert await store.operations.retry(ALL, -1) == []
    assert await store.operations.retry(ALL, 2) == [id_of(9), id_of(7)]
    assert await store.operations.retry(ALL, 2) == [id_of(8)]
    assert await store.operations.retry(ALL, 2) == []


async def test_a_filter_that_matches_nothing_replays_nothing(store: Store) -> None:
    """An empty list of ids is not the same as no condition."""
    await finished(store, 1)
    for which in (
        JobFilter(ids=()),
        JobFilter(states=()),
        JobFilter(states=(State.DONE,)),
        JobFilter(kind="other"),
        JobFilter(queue="other"),
        JobFilter(tenant="other"),
        JobFilter(error_code="other"),
        JobFilter(ids=(id_of(1),), error_code="other"),
    ):
        assert await store.operations.retry(which, 10) == [], which
        assert await store.operations.discard(which, 10) == [], which
    everything = JobFilter(
        ids=(id_of(1), id_of(9)),
        states=(State.FAILED,),
        kind="count",
        queue="default",
        tenant="default",
        error_code="broken",
    )
    assert await store.operations.retry(everything, 10) == [id_of(1)]


# -- run now ------------------------------------------------------------------------------------------------


async def test_a_scheduled_job_is_brought_forward(store: Store, clock: FakeClock) -> None:
    """A job that waits for a budget must not wait for its window after the budget was raised."""
    await store.jobs.submit([new_job(1, delay_us=HOUR_US), new_job(2, delay_us=MINUTE_US)])
    assert await store.operations.run_now(JobFilter(ids=(id_of(1),)), 10) == [id_of(1)]
    assert await counts(store) == {"ready": 1, "scheduled": 1}
    assert (await job_of(store)).run_at == clock.now_us()
    assert [lease.id for lease in await ContractWorker(store).claim(2)] == [id_of(1)]
    assert await store.jobs.wait_us(("default",)) == LEASE_US


async def test_a_job_that_waits_for_its_retry_is_brought_forward_with_its_attempts(store: Store) -> None:
    """A job that is brought forward again and again must still run out of attempts."""
    lease = await leased_job(store)
    await ContractWorker(store).settle(retry(lease, delay_us=HOUR_US))
    assert await store.operations.run_now(ALL, 10) == [id_of(1)]
    again = await ContractWorker(store, "next").claim_one()
    assert (again.attempts, (await job_of(store)).last_error_code) == (2, "broken")


async def test_only_jobs_that_wait_for_their_time_are_brought_forward(store: Store, clock: FakeClock) -> None:
    """A ready job would lose its place, and a leased or finished one would run twice."""
    await store.jobs.submit([new_job(1), new_job(2), new_job(3), new_job(4)])
    worker = ContractWorker(store)
    _, second, third = await worker.claim(3)
    await worker.settle(done(second), failed(third))
    before = [await store.reads.job(id_of(number)) for number in range(1, 5)]
    clock.advance(1)
    assert await store.operations.run_now(ALL, 10) == []
    assert [await store.reads.job(id_of(number)) for number in range(1, 5)] == before


async def test_bringing_forward_is_bounded_and_filtered(store: Store) -> None:
    """One tenant must not bring forward the jobs of another, and a step must not block others for long."""
    await store.jobs.submit([new_job(number, delay_us=HOUR_US) for number in (9, 7, 8)])
    await store.jobs.submit([new_job(1, delay_us=HOUR_US, tenant="other")])
    for which in (JobFilter(ids=()), JobFilter(tenant="nobody"), JobFilter(kind="other"), JobFilter(states=())):
        assert await store.operations.run_now(which, 10) == [], which
    assert await store.operations.run_now(JobFilter(ids=(id_of(1),), tenant="default"), 10) == []
    assert await store.operations.run_now(ALL, 0) == []
    assert await store.operations.run_now(JobFilter(tenant="default"), 2) == [id_of(9), id_of(7)]
    assert await store.operations.run_now(JobFilter(tenant="default"), 2) == [id_of(8)]
    assert await store.operations.run_now(JobFilter(tenant="default"), 2) == []
    assert await counts(store, tenant="other") == {"scheduled": 1}


# -- discard and prune --------------------------------------------------------------------------------------


async def test_unfinished_jobs_are_never_discarded(store: Store) -> None:
    """Whatever the filter contains, no accepted submission may be lost."""
    await store.jobs.submit([new_job(1), new_job(2), new_job(3, delay_us=MINUTE_US)])
    await ContractWorker(store).claim()
    assert await store.operations.discard(ALL, 10) == []
    assert await store.operations.discard(JobFilter(states=(State.PENDING, State.LEASED)), 10) == []
    assert await store.operations.prune(0, 10) == 0
    assert await counts(store) == {"ready": 1, "scheduled": 1, "leased": 1}


async def test_a_discarded_job_is_gone_with_its_errors(store: Store) -> None:
    """Data that is deleted, perhaps for legal reasons, must not stay in another table."""
    await finished(store, 1)
    assert await store.operations.discard(ALL, 10) == [id_of(1)]
    assert await store.reads.job(id_of(1)) is None
    assert await store.reads.errors(id_of(1)) == []
    assert await counts(store) == {}


async def test_an_id_used_again_after_discarding_is_a_new_job(store: Store) -> None:
    """No part of the old record may remain visible."""
    await finished(store, 1)
    await store.operations.discard(ALL, 10)
    await store.jobs.submit([new_job(1)])
    job = await job_of(store)
    assert (job.attempts, job.fence, job.last_error_code) == (0, 0, None)
    assert await store.reads.errors(id_of(1)) == []


async def test_discarding_is_bounded_and_in_order_of_submission(store: Store) -> None:
    """Like retrying, it must work in steps."""
    await finished(store, 9, 7, 8)
    assert await store.operations.discard(ALL, 0) == []
    assert await store.operations.discard(ALL, -1) == []
    assert await store.operations.discard(ALL, 2) == [id_of(9), id_of(7)]
    assert await ids_in(store) == [id_of(8)]


async def test_done_failed_and_cancelled_jobs_can_be_discarded(store: Store) -> None:
    """All final states can be discarded, and the counters must decrease with them."""
    await store.jobs.submit([new_job(number) for number in range(1, 5)])
    worker = ContractWorker(store)
    one, two = await worker.claim(2)
    await worker.settle(done(one), failed(two))
    await store.operations.cancel(id_of(3))
    assert await store.operations.discard(ALL, 10) == [id_of(1), id_of(2), id_of(3)]
    assert await counts(store) == {"ready": 1}


async def test_pruning_keeps_what_is_young_enough(store: Store, clock: FakeClock) -> None:
    """History must be kept for the promised time, counted from the end of the job."""
    await store.jobs.submit([new_job(1), new_job(2)])
    await store.operations.cancel(id_of(1))
    clock.advance_us(1)
    await store.operations.cancel(id_of(2))
    clock.advance_us(HOUR_US - 1)
    assert await store.operations.prune(HOUR_US, 10) == 1
    assert await ids_in(store) == [id_of(2)]
    assert await counts(store) == {"cancelled": 1}


async def test_pruning_is_bounded_and_starts_with_the_oldest(store: Store, clock: FakeClock) -> None:
    """One prune must not block the store for minutes."""
    await store.jobs.submit([new_job(number) for number in (1, 2, 3, 4)])
    for number in (4, 1, 3):
        await store.operations.cancel(id_of(number))
        clock.advance_us(1)
    assert await store.operations.prune(0, 0) == 0
    assert await store.operations.prune(0, -1) == 0
    assert await store.operations.prune(0, 2) == 2
    assert await ids_in(store) == [id_of(2), id_of(3)]


async def test_pruned_jobs_are_gone_with_their_errors(store: Store, clock: FakeClock) -> None:
    """Errors without a job would stay forever."""
    await finished(store, 1)
    clock.advance(1)
    assert await store.operations.prune(0, 10) == 1
    assert await store.reads.job(id_of(1)) is None
    assert await store.reads.errors(id_of(1)) == []


async def test_pruning_forgets_no_living_key(store: Store, clock: FakeClock) -> None:
    """Expired keys are deleted in bounded steps, like jobs; a key that is deleted early would admit a duplicate."""
    await store.jobs.submit([keyed_job(1, key="short", key_keep_us=MINUTE_US), keyed_job(2, key="long")])
    clock.advance_us(MINUTE_US)
    await store.operations.prune(0, 10)
    await store.operations.prune(0, 10)
    short, long = await store.jobs.submit([keyed_job(3, key="short"), keyed_job(4, key="long")])
    assert (short.replayed, long.replayed) == (False, True)


async def test_a_lease_that_ends_after_pruning_is_lost(store: Store, clock: FakeClock) -> None:
    """A very late worker settles a job whose record is gone."""
    lease = await leased_job(store, attempts_max=1)
    clock.advance_us(LEASE_US)
    await ContractWorker(store, "other").settle()
    assert await store.operations.prune(0, 10) == 1
    assert (await ContractWorker(store).settle(done(lease))).lost == (id_of(1),)
    assert await ids_in(store) == []
