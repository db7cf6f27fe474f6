"""Held leases: renewal, checkpoints, progress reports, and the time of the next poll."""

from leaseway.domain.exchange import RECLAIM_MAX, ProgressReport
from leaseway.domain.ids import Token
from leaseway.domain.job import ErrorRecord, State
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import (
    HOUR_US,
    LEASE_US,
    MINUTE_US,
    QUEUES,
    ContractWorker,
    counts,
    done,
    held,
    id_of,
    job_of,
    leased_job,
    new_job,
    retry,
)

GUESSED = Token("guessed")


async def test_a_lease_taken_by_another_cannot_be_renewed(store: Store, clock: FakeClock) -> None:
    """A frozen worker that continues must learn that it lost its lease, and must not extend the new owner's lease."""
    late = await leased_job(store)
    clock.advance_us(LEASE_US)
    await ContractWorker(store, "other").claim_one()
    before = await job_of(store)
    clock.advance(1)
    assert (await store.jobs.renew([held(late)])).lost == (id_of(1),)
    assert await job_of(store) == before


async def test_a_lapsed_lease_cannot_be_renewed(store: Store, clock: FakeClock) -> None:
    """After its end the job may belong to another worker at any moment, so the worker must stop immediately."""
    lease = await leased_job(store)
    clock.advance_us(LEASE_US)
    before = await job_of(store)
    assert (await store.jobs.renew([held(lease)])).lost == (id_of(1),)
    assert await job_of(store) == before


async def test_a_foreign_token_cannot_renew(store: Store, clock: FakeClock) -> None:
    """Otherwise any caller that knows an id could prevent a job from being reclaimed."""
    lease = await leased_job(store)
    before = await job_of(store)
    clock.advance(1)
    assert (await store.jobs.renew([held(lease, token=GUESSED)])).lost == (id_of(1),)
    assert await job_of(store) == before


async def test_a_settled_lease_cannot_be_renewed(store: Store) -> None:
    """A renewal that crosses the settlement must not do harm."""
    lease = await leased_job(store)
    await ContractWorker(store).settle(retry(lease))
    assert (await store.jobs.renew([held(lease)])).lost == (id_of(1),)
    assert (await job_of(store)).lease_until is None


async def test_a_lease_on_an_unknown_job_is_lost(store: Store) -> None:
    """The job was discarded or never existed."""
    lease = await leased_job(store)
    assert (await store.jobs.renew([held(lease, id=id_of(9))])).lost == (id_of(9),)


async def test_a_lease_is_renewed_from_now(store: Store, clock: FakeClock) -> None:
    """Counted from the old end, frequent renewals would move the end hours into the future."""
    lease = await leased_job(store)
    clock.advance(1)
    await store.jobs.renew([held(lease), held(lease)])
    assert (await job_of(store)).lease_until == clock.now_us() + LEASE_US


async def test_a_lease_is_renewed_for_as_long_as_the_worker_says(store: Store, clock: FakeClock) -> None:
    """The worker chooses the length at each renewal."""
    lease = await leased_job(store)
    await store.jobs.renew([held(lease, lease_us=MINUTE_US)])
    assert (await job_of(store)).lease_until == clock.now_us() + MINUTE_US


async def test_renewing_many_tells_the_lost_and_the_cancelled_apart(store: Store) -> None:
    """One renewal covers all jobs of a worker, and the reply must keep their order."""
    await store.jobs.submit([new_job(number) for number in range(1, 6)])
    worker = ContractWorker(store)
    one, two, three, four, five = await worker.claim(5)
    await worker.settle(done(four), done(two))
    await store.operations.cancel(id_of(5))
    await store.operations.cancel(id_of(1))
    answer = await store.jobs.renew([held(lease) for lease in (five, four, three, two, one)])
    assert answer.lost == (id_of(4), id_of(2))
    assert answer.cancelled == (id_of(5), id_of(1))


async def test_a_lost_lease_is_told_apart_from_a_new_one_on_the_same_job(store: Store, clock: FakeClock) -> None:
    """A worker reclaimed a job that it had lost while its old handler still runs: only the old handler must stop."""
    old = await leased_job(store)
    clock.advance_us(LEASE_US)
    new = await ContractWorker(store).claim_one()
    assert (await store.jobs.renew([held(old), held(new)])).lost == (id_of(1),)
    assert (await store.jobs.renew([held(new), held(old)])).lost == (id_of(1),)
    await store.operations.cancel(id_of(1))
    answer = await store.jobs.renew([held(old), held(new)])
    assert (answer.lost, answer.cancelled) == ((id_of(1),), (id_of(1),))


async def test_renewing_nothing_is_no_error(store: Store) -> None:
    """A worker without jobs sends renewals, too."""
    answer = await store.jobs.renew([])
    assert (answer.lost, answer.cancelled) == ((), ())


async def test_a_late_worker_cannot_move_the_cursor(store: Store, clock: FakeClock) -> None:
    """It would move the new holder back, or past pages that were never read."""
    late = await leased_job(store)
    clock.advance_us(LEASE_US)
    await ContractWorker(store, "other").claim_one()
    before = await job_of(store)
    assert await store.jobs.checkpoint(late.id, late.token, '{"page":2}') is False
    assert await job_of(store) == before


async def test_a_lapsed_lease_cannot_move_the_cursor(store: Store, clock: FakeClock) -> None:
    """The checkpoint tells the handler that it must stop before another one starts."""
    lease = await leased_job(store)
    clock.advance_us(LEASE_US)
    assert await store.jobs.checkpoint(lease.id, lease.token, '{"page":2}') is False
    assert (await job_of(store)).cursor is None


async def test_a_foreign_token_cannot_move_the_cursor(store: Store) -> None:
    """The same holds for a job without a lease and for an unknown job."""
    lease = await leased_job(store)
    assert await store.jobs.checkpoint(lease.id, GUESSED, "1") is False
    assert await store.jobs.checkpoint(id_of(9), lease.token, "1") is False
    await ContractWorker(store).settle(retry(lease))
    assert await store.jobs.checkpoint(lease.id, lease.token, "1") is False
    assert (await job_of(store)).cursor is None


async def test_a_cursor_survives_the_attempt(store: Store, clock: FakeClock) -> None:
    """An import must continue at the last committed page, not at the first."""
    lease = await leased_job(store, cursor='{"page":1}')
    clock.advance_us(LEASE_US - 1)
    assert await store.jobs.checkpoint(lease.id, lease.token, '{"page":2}') is True
    assert await store.jobs.checkpoint(lease.id, lease.token, '{"page":3}') is True
    await ContractWorker(store).settle(retry(lease))
    assert (await ContractWorker(store, "other").claim_one()).cursor == '{"page":3}'


async def test_reports_of_lost_leases_are_dropped(store: Store, clock: FakeClock) -> None:
    """Progress that alternates between two workers would mislead the user."""
    late = await leased_job(store)
    clock.advance_us(LEASE_US)
    current = await ContractWorker(store, "other").claim_one()
    await store.jobs.report(
        [ProgressReport(current.id, current.token, '"half"'), ProgressReport(late.id, late.token, '"quarter"')]
    )
    assert (await job_of(store)).progress == '"half"'
    await store.jobs.report(
        [ProgressReport(id_of(9), current.token, '"all"'), ProgressReport(current.id, GUESSED, '"none"')]
    )
    assert (await job_of(store)).progress == '"half"'


async def test_a_report_is_stored_and_the_newest_counts(store: Store) -> None:
    """Reports are collected and sent in batches, in order."""
    lease = await leased_job(store)
    await store.jobs.report(
        [ProgressReport(lease.id, lease.token, '"1 of 2"'), ProgressReport(lease.id, lease.token, '"2 of 2"')]
    )
    await store.jobs.report([])
    assert (await job_of(store)).progress == '"2 of 2"'


async def test_an_empty_store_has_nothing_to_wait_for(store: Store) -> None:
    """Nothing is scheduled; only a submission can change that."""
    assert await store.jobs.wait_us(QUEUES) is None


async def test_finished_jobs_are_nothing_to_wait_for(store: Store) -> None:
    """A worker that waited for them would never sleep."""
    lease = await leased_job(store)
    await ContractWorker(store).settle(done(lease))
    assert await store.jobs.wait_us(QUEUES) is None


async def test_ready_work_is_not_waited_for(store: Store) -> None:
    """Zero means to poll now."""
    await store.jobs.submit([new_job(1), new_job(2, delay_us=HOUR_US)])
    assert await store.jobs.wait_us(QUEUES) == 0
    assert await store.jobs.wait_us(["elsewhere", *QUEUES]) == 0


async def test_ready_work_of_other_queues_is_nothing_to_us(store: Store) -> None:
    """A worker that cannot serve a queue must not poll in a tight loop because that queue is full."""
    await store.jobs.submit([new_job(1, queue="elsewhere")])
    assert await store.jobs.wait_us(QUEUES) is None
    await store.jobs.submit([new_job(2, delay_us=MINUTE_US)])
    assert await store.jobs.wait_us(QUEUES) == MINUTE_US


async def test_the_next_job_or_the_next_expiry_ends_the_wait(store: Store, clock: FakeClock) -> None:
    """The earlier of the two counts; an instant in the past means now."""
    await store.jobs.submit([new_job(1, delay_us=MINUTE_US), new_job(2)])
    assert await store.jobs.wait_us(QUEUES) == 0
    await ContractWorker(store).claim_one()
    assert await store.jobs.wait_us(QUEUES) == LEASE_US
    clock.advance(1)
    assert await store.jobs.wait_us(QUEUES) == LEASE_US - 1_000_000
    clock.advance_us(HOUR_US)
    assert await store.jobs.wait_us(QUEUES) == 0


async def test_somebody_else_s_expiry_ends_the_wait_too(store: Store) -> None:
    """Every worker must reclaim expired leases, because the workers of that queue may all be dead."""
    await store.jobs.submit([new_job(1, queue="elsewhere")])
    await ContractWorker(store).claim(1, ("elsewhere",))
    assert await store.jobs.wait_us(QUEUES) == LEASE_US


async def test_a_lease_lasts_exactly_as_long_as_promised(store: Store, clock: FakeClock) -> None:
    """If it ended one microsecond early, two workers could run the same job."""
    await leased_job(store)
    clock.advance_us(LEASE_US - 1)
    assert await ContractWorker(store, "other").claim() == ()
    clock.advance_us(1)
    again = await ContractWorker(store, "other").claim_one()
    assert (again.id, again.attempts, again.fence) == (id_of(1), 2, 2)


async def test_the_last_attempt_that_expires_fails_the_job(store: Store, clock: FakeClock) -> None:
    """A job that crashes every worker must become a dead letter, where an operator finds it."""
    await leased_job(store, attempts_max=1)
    clock.advance_us(LEASE_US)
    await ContractWorker(store, "other").settle()
    job = await job_of(store)
    assert (job.state, job.finished_at) == (State.FAILED, clock.now_us())
    assert (job.last_error_code, job.last_error_at) == ("lease_expired", clock.now_us())
    assert (job.lease_owner, job.lease_until) == (None, None)
    assert await counts(store) == {"failed": 1}


async def test_an_expired_job_to_be_cancelled_is_cancelled(store: Store, clock: FakeClock) -> None:
    """Its worker crashed before it could stop; the cancellation still applies, and the job has not failed."""
    await leased_job(store)
    await store.operations.cancel(id_of(1))
    clock.advance_us(LEASE_US)
    await ContractWorker(store, "other").settle()
    job = await job_of(store)
    assert (job.state, job.finished_at) == (State.CANCELLED, clock.now_us())
    assert (job.last_error_code, await store.reads.errors(id_of(1))) == (None, [])
    assert await counts(store) == {"cancelled": 1}


async def test_an_expired_lease_is_remembered_as_an_error(store: Store, clock: FakeClock) -> None:
    """Without the error, a user would see two attempts and no reason."""
    await leased_job(store)
    clock.advance_us(LEASE_US)
    await ContractWorker(store, "other").settle()
    assert await store.reads.errors(id_of(1)) == [
        ErrorRecord(
            job=id_of(1),
            attempt=1,
            at=clock.now_us(),
            code="lease_expired",
            message="worker worker-1 stopped renewing its lease",
            traceback="",
        )
    ]


async def test_a_job_taken_back_keeps_its_turn_and_its_place(store: Store, clock: FakeClock) -> None:
    """The job has waited once already; its cursor and its progress must be kept."""
    lease = await leased_job(store)
    run_at = (await job_of(store)).run_at
    await store.jobs.checkpoint(lease.id, lease.token, '{"page":7}')
    await store.jobs.submit([new_job(2, run_at=run_at + 1)])
    clock.advance_us(LEASE_US)
    again = await ContractWorker(store, "other").claim_one()
    assert (again.id, again.cursor) == (id_of(1), '{"page":7}')
    assert (await job_of(store)).run_at == run_at


async def test_any_exchange_takes_back_what_expired(store: Store, clock: FakeClock) -> None:
    """This includes an exchange without a claim or for other queues, because the only worker of a queue may have
    crashed.
    """
    await leased_job(store)
    clock.advance_us(LEASE_US)
    worker = ContractWorker(store, "other")
    assert (await worker.exchange(wants=worker.wants(queues=("elsewhere",)))).leases == ()
    assert await counts(store) == {"ready": 1}


async def test_reading_takes_nothing_back(store: Store, clock: FakeClock) -> None:
    """An observer must not take a job from a worker that is merely late."""
    await leased_job(store)
    clock.advance_us(HOUR_US)
    assert (await job_of(store)).state is State.LEASED
    assert await counts(store) == {"leased": 1}


async def test_taking_back_is_bounded_and_starts_with_the_oldest(store: Store, clock: FakeClock) -> None:
    """After a power failure, one exchange must not process the leases of the whole fleet."""
    await store.jobs.submit([new_job(number) for number in range(RECLAIM_MAX + 1)])
    await ContractWorker(store).claim(1)
    clock.advance(1)
    await ContractWorker(store).claim_all(RECLAIM_MAX - 1)
    clock.advance(1)
    await ContractWorker(store).claim(1)
    clock.advance_us(HOUR_US)
    await ContractWorker(store).settle()
    assert await counts(store) == {"ready": RECLAIM_MAX, "leased": 1}
    assert (await job_of(store, RECLAIM_MAX)).state is State.LEASED
    await ContractWorker(store).settle()
    assert await counts(store) == {"ready": RECLAIM_MAX + 1}


async def test_only_what_expired_is_taken_back(store: Store, clock: FakeClock) -> None:
    """Each kind of job has its own lease length."""
    await store.jobs.submit([new_job(1, lease_us=MINUTE_US), new_job(2)])
    await ContractWorker(store).claim(2)
    clock.advance_us(LEASE_US)
    await ContractWorker(store, "other").settle()
    assert (await job_of(store, 1)).state is State.LEASED
    assert (await job_of(store, 2)).state is State.PENDING


async def test_a_settlement_comes_before_taking_back(store: Store, clock: FakeClock) -> None:
    """A worker that is slightly late may send its result in the very exchange that would reclaim the job."""
    lease = await leased_job(store)
    clock.advance_us(LEASE_US)
    worker = ContractWorker(store)
    answer = await worker.exchange(done(lease), wants=worker.wants())
    assert (answer.lost, answer.leases) == ((), ())
    assert await counts(store) == {"done": 1}


async def test_an_attempt_spent_in_silence_counts(store: Store, clock: FakeClock) -> None:
    """Two crashes and one failure are three attempts."""
    await store.jobs.submit([new_job(1, attempts_max=3)])
    for _ in range(2):
        await ContractWorker(store).claim_one()
        clock.advance_us(LEASE_US)
    lease = await ContractWorker(store).claim_one()
    assert lease.attempts == 3
    await ContractWorker(store).settle(retry(lease))
    codes = [error.code for error in await store.reads.errors(id_of(1))]
    assert codes == ["lease_expired", "lease_expired", "broken"]


async def test_a_renewed_lease_is_not_taken_back(store: Store, clock: FakeClock) -> None:
    """Renewal is what keeps a long job alive."""
    lease = await leased_job(store)
    for _ in range(5):
        clock.advance_us(LEASE_US - 1)
        assert (await store.jobs.renew([held(lease)])).lost == ()
        assert await ContractWorker(store, "other").claim() == ()
