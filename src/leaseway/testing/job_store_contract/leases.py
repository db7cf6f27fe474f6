"""While a lease is held: renewing, checkpoints, reports, and knowing when to look again."""

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
    """A frozen worker that wakes up must learn that it lost, and must not prolong the other's lease."""
    late = await leased_job(store)
    clock.advance_us(LEASE_US)
    await ContractWorker(store, "other").claim_one()
    before = await job_of(store)
    clock.advance(1)
    assert (await store.jobs.renew([held(late)])).lost == (id_of(1),)
    assert await job_of(store) == before


async def test_a_lapsed_lease_cannot_be_renewed(store: Store, clock: FakeClock) -> None:
    """From its end on the job may be another's at any moment: the worker must stop now, not perhaps."""
    lease = await leased_job(store)
    clock.advance_us(LEASE_US)
    before = await job_of(store)
    assert (await store.jobs.renew([held(lease)])).lost == (id_of(1),)
    assert await job_of(store) == before


async def test_a_foreign_token_cannot_renew(store: Store, clock: FakeClock) -> None:
    """Otherwise anybody who knows an id could keep a job from ever being taken back."""
    lease = await leased_job(store)
    before = await job_of(store)
    clock.advance(1)
    assert (await store.jobs.renew([held(lease, token=GUESSED)])).lost == (id_of(1),)
    assert await job_of(store) == before


async def test_a_settled_lease_cannot_be_renewed(store: Store) -> None:
    """A heartbeat that crosses the settlement on its way must do no harm."""
    lease = await leased_job(store)
    await ContractWorker(store).settle(retry(lease))
    assert (await store.jobs.renew([held(lease)])).lost == (id_of(1),)
    assert (await job_of(store)).lease_until is None


async def test_a_lease_on_an_unknown_job_is_lost(store: Store) -> None:
    """It was discarded, or never was."""
    lease = await leased_job(store)
    assert (await store.jobs.renew([held(lease, id=id_of(9))])).lost == (id_of(9),)


async def test_a_lease_is_renewed_from_now(store: Store, clock: FakeClock) -> None:
    """Counted from its old end, a busy heartbeat would push the end away for hours after a crash."""
    lease = await leased_job(store)
    clock.advance(1)
    await store.jobs.renew([held(lease), held(lease)])
    assert (await job_of(store)).lease_until == clock.now_us() + LEASE_US


async def test_a_lease_is_renewed_for_as_long_as_the_worker_says(store: Store, clock: FakeClock) -> None:
    """The length is the worker's to choose at each heartbeat."""
    lease = await leased_job(store)
    await store.jobs.renew([held(lease, lease_us=MINUTE_US)])
    assert (await job_of(store)).lease_until == clock.now_us() + MINUTE_US


async def test_renewing_many_tells_the_lost_and_the_cancelled_apart(store: Store) -> None:
    """One heartbeat speaks for all jobs of a worker, and answers in their order."""
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
    """A worker woke up, claimed again what it had lost, and its old handler still runs: only that one must stop."""
    old = await leased_job(store)
    clock.advance_us(LEASE_US)
    new = await ContractWorker(store).claim_one()
    assert (await store.jobs.renew([held(old), held(new)])).lost == (id_of(1),)
    assert (await store.jobs.renew([held(new), held(old)])).lost == (id_of(1),)
    await store.operations.cancel(id_of(1))
    answer = await store.jobs.renew([held(old), held(new)])
    assert (answer.lost, answer.cancelled) == ((id_of(1),), (id_of(1),))


async def test_renewing_nothing_is_no_error(store: Store) -> None:
    """A worker without jobs has a heartbeat too."""
    answer = await store.jobs.renew([])
    assert (answer.lost, answer.cancelled) == ((), ())


async def test_a_late_worker_cannot_move_the_cursor(store: Store, clock: FakeClock) -> None:
    """It would send the job's new holder back, or past pages that nobody has read."""
    late = await leased_job(store)
    clock.advance_us(LEASE_US)
    await ContractWorker(store, "other").claim_one()
    before = await job_of(store)
    assert await store.jobs.checkpoint(late.id, late.token, '{"page":2}') is False
    assert await job_of(store) == before


async def test_a_lapsed_lease_cannot_move_the_cursor(store: Store, clock: FakeClock) -> None:
    """A handler learns by its checkpoint that it must stop, before another one starts."""
    lease = await leased_job(store)
    clock.advance_us(LEASE_US)
    assert await store.jobs.checkpoint(lease.id, lease.token, '{"page":2}') is False
    assert (await job_of(store)).cursor is None


async def test_a_foreign_token_cannot_move_the_cursor(store: Store) -> None:
    """Neither can one for a job that nobody holds, or that nobody knows."""
    lease = await leased_job(store)
    assert await store.jobs.checkpoint(lease.id, GUESSED, "1") is False
    assert await store.jobs.checkpoint(id_of(9), lease.token, "1") is False
    await ContractWorker(store).settle(retry(lease))
    assert await store.jobs.checkpoint(lease.id, lease.token, "1") is False
    assert (await job_of(store)).cursor is None


async def test_a_cursor_survives_the_attempt(store: Store, clock: FakeClock) -> None:
    """An import goes on at the last committed page, not at the first."""
    lease = await leased_job(store, cursor='{"page":1}')
    clock.advance_us(LEASE_US - 1)
    assert await store.jobs.checkpoint(lease.id, lease.token, '{"page":2}') is True
    assert await store.jobs.checkpoint(lease.id, lease.token, '{"page":3}') is True
    await ContractWorker(store).settle(retry(lease))
    assert (await ContractWorker(store, "other").claim_one()).cursor == '{"page":3}'


async def test_reports_of_lost_leases_are_dropped(store: Store, clock: FakeClock) -> None:
    """Progress that jumps back and forth between two workers is worse than none."""
    late = await leased_job(store)
    clock.advance_us(LEASE_US)
    current = await ContractWorker(store, "other").claim_one()
    await store.jobs.report(
        [ProgressReport(current.id, current.token, "half"), ProgressReport(late.id, late.token, "quarter")]
    )
    assert (await job_of(store)).progress == "half"
    await store.jobs.report(
        [ProgressReport(id_of(9), current.token, "all"), ProgressReport(current.id, GUESSED, "none")]
    )
    assert (await job_of(store)).progress == "half"


async def test_a_report_is_stored_and_the_newest_counts(store: Store) -> None:
    """Reports are collected and sent in batches, in order."""
    lease = await leased_job(store)
    await store.jobs.report(
        [ProgressReport(lease.id, lease.token, "1 of 2"), ProgressReport(lease.id, lease.token, "2 of 2")]
    )
    await store.jobs.report([])
    assert (await job_of(store)).progress == "2 of 2"


async def test_an_empty_store_has_nothing_to_wait_for(store: Store) -> None:
    """Nothing is planned; only a submission can change that."""
    assert await store.jobs.wait_us(QUEUES) is None


async def test_finished_jobs_are_nothing_to_wait_for(store: Store) -> None:
    """A worker that waited for them would never sleep."""
    lease = await leased_job(store)
    await ContractWorker(store).settle(done(lease))
    assert await store.jobs.wait_us(QUEUES) is None


async def test_ready_work_is_not_waited_for(store: Store) -> None:
    """Zero: ask now."""
    await store.jobs.submit([new_job(1), new_job(2, delay_us=HOUR_US)])
    assert await store.jobs.wait_us(QUEUES) == 0
    assert await store.jobs.wait_us(["elsewhere", *QUEUES]) == 0


async def test_ready_work_of_other_queues_is_nothing_to_us(store: Store) -> None:
    """A worker that cannot serve a queue must not spin because that queue is full."""
    await store.jobs.submit([new_job(1, queue="elsewhere")])
    assert await store.jobs.wait_us(QUEUES) is None
    await store.jobs.submit([new_job(2, delay_us=MINUTE_US)])
    assert await store.jobs.wait_us(QUEUES) == MINUTE_US


async def test_the_next_job_or_the_next_expiry_ends_the_wait(store: Store, clock: FakeClock) -> None:
    """Whichever comes first; a time that has passed means now, not the past."""
    await store.jobs.submit([new_job(1, delay_us=MINUTE_US), new_job(2)])
    assert await store.jobs.wait_us(QUEUES) == 0
    await ContractWorker(store).claim_one()
    assert await store.jobs.wait_us(QUEUES) == LEASE_US
    clock.advance(1)
    assert await store.jobs.wait_us(QUEUES) == LEASE_US - 1_000_000
    clock.advance_us(HOUR_US)
    assert await store.jobs.wait_us(QUEUES) == 0


async def test_somebody_else_s_expiry_ends_the_wait_too(store: Store) -> None:
    """Taking back is everybody's duty: the workers of that queue may all be dead."""
    await store.jobs.submit([new_job(1, queue="elsewhere")])
    await ContractWorker(store).claim(1, ("elsewhere",))
    assert await store.jobs.wait_us(QUEUES) == LEASE_US


async def test_a_lease_lasts_exactly_as_long_as_promised(store: Store, clock: FakeClock) -> None:
    """One microsecond early, and two workers run the same job."""
    await leased_job(store)
    clock.advance_us(LEASE_US - 1)
    assert await ContractWorker(store, "other").claim() == ()
    clock.advance_us(1)
    again = await ContractWorker(store, "other").claim_one()
    assert (again.id, again.attempts, again.fence) == (id_of(1), 2, 2)


async def test_the_last_attempt_that_expires_fails_the_job(store: Store, clock: FakeClock) -> None:
    """A job that kills every worker must end in the dead letter, where a person finds it."""
    await leased_job(store, attempts_max=1)
    clock.advance_us(LEASE_US)
    await ContractWorker(store, "other").settle()
    job = await job_of(store)
    assert (job.state, job.finished_at) == (State.FAILED, clock.now_us())
    assert (job.last_error_code, job.last_error_at) == ("lease_expired", clock.now_us())
    assert (job.lease_owner, job.lease_until) == (None, None)
    assert await counts(store) == {"failed": 1}


async def test_an_expired_job_to_be_cancelled_is_cancelled(store: Store, clock: FakeClock) -> None:
    """Its worker died before it could obey; the wish stands, and nothing went wrong with the job."""
    await leased_job(store)
    await store.operations.cancel(id_of(1))
    clock.advance_us(LEASE_US)
    await ContractWorker(store, "other").settle()
    job = await job_of(store)
    assert (job.state, job.finished_at) == (State.CANCELLED, clock.now_us())
    assert (job.last_error_code, await store.reads.errors(id_of(1))) == (None, [])
    assert await counts(store) == {"cancelled": 1}


async def test_an_expired_lease_is_remembered_as_an_error(store: Store, clock: FakeClock) -> None:
    """Without it, a person sees two attempts and no reason."""
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
    """It waited once; the cursor it stored and the progress it reported still hold."""
    lease = await leased_job(store)
    run_at = (await job_of(store)).run_at
    await store.jobs.checkpoint(lease.id, lease.token, '{"page":7}')
    await store.jobs.submit([new_job(2, run_at=run_at + 1)])
    clock.advance_us(LEASE_US)
    again = await ContractWorker(store, "other").claim_one()
    assert (again.id, again.cursor) == (id_of(1), '{"page":7}')
    assert (await job_of(store)).run_at == run_at


async def test_any_exchange_takes_back_what_expired(store: Store, clock: FakeClock) -> None:
    """Also one that wants nothing, or other queues: the only worker of a queue may be the one that died."""
    await leased_job(store)
    clock.advance_us(LEASE_US)
    worker = ContractWorker(store, "other")
    assert (await worker.exchange(wants=worker.wants(queues=("elsewhere",)))).leases == ()
    assert await counts(store) == {"ready": 1}


async def test_reading_takes_nothing_back(store: Store, clock: FakeClock) -> None:
    """Reading changes nothing, and an observer must not take a job from a worker that is merely late."""
    await leased_job(store)
    clock.advance_us(HOUR_US)
    assert (await job_of(store)).state is State.LEASED
    assert await counts(store) == {"leased": 1}


async def test_taking_back_is_bounded_and_starts_with_the_oldest(store: Store, clock: FakeClock) -> None:
    """After a power cut one exchange must not carry the whole fleet's leases."""
    await store.jobs.submit([new_job(number) for number in range(RECLAIM_MAX + 1)])
    await ContractWorker(store).claim(1)
    clock.advance(1)
    await ContractWorker(store).claim(RECLAIM_MAX - 1)
    clock.advance(1)
    await ContractWorker(store).claim(1)
    clock.advance_us(HOUR_US)
    await ContractWorker(store).settle()
    assert await counts(store) == {"ready": RECLAIM_MAX, "leased": 1}
    assert (await job_of(store, RECLAIM_MAX)).state is State.LEASED
    await ContractWorker(store).settle()
    assert await counts(store) == {"ready": RECLAIM_MAX + 1}


async def test_only_what_expired_is_taken_back(store: Store, clock: FakeClock) -> None:
    """Each kind of job has its own length of lease."""
    await store.jobs.submit([new_job(1, lease_us=MINUTE_US), new_job(2)])
    await ContractWorker(store).claim(2)
    clock.advance_us(LEASE_US)
    await ContractWorker(store, "other").settle()
    assert (await job_of(store, 1)).state is State.LEASED
    assert (await job_of(store, 2)).state is State.PENDING


async def test_a_settlement_comes_before_taking_back(store: Store, clock: FakeClock) -> None:
    """A worker that is late by a moment brings its result in the very exchange that would take the job."""
    lease = await leased_job(store)
    clock.advance_us(LEASE_US)
    worker = ContractWorker(store)
    answer = await worker.exchange(done(lease), wants=worker.wants())
    assert (answer.lost, answer.leases) == ((), ())
    assert await counts(store) == {"done": 1}


async def test_an_attempt_spent_in_silence_counts(store: Store, clock: FakeClock) -> None:
    """Two deaths and one failure are three attempts."""
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
    """The heartbeat is what keeps a long job alive."""
    lease = await leased_job(store)
    for _ in range(5):
        clock.advance_us(LEASE_US - 1)
        assert (await store.jobs.renew([held(lease)])).lost == ()
        assert await ContractWorker(store, "other").claim() == ()
