"""Expiring leases: a job whose worker fell silent is taken back, and what became of it is written down."""

from leaseway.domain.exchange import RECLAIM_MAX
from leaseway.domain.job import ErrorRecord, State
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.contract.actors import (
    HOUR_US,
    LEASE_US,
    MINUTE_US,
    Worker,
    counts,
    done,
    held,
    id_of,
    job_of,
    leased_job,
    new_job,
    retry,
)


async def test_a_lease_lasts_exactly_as_long_as_promised(store: Store, clock: FakeClock) -> None:
    """One microsecond early, and two workers run the same job."""
    await leased_job(store)
    clock.advance_us(LEASE_US - 1)
    assert await Worker(store, "other").claim() == ()
    clock.advance_us(1)
    again = await Worker(store, "other").claim_one()
    assert (again.id, again.attempts, again.fence) == (id_of(1), 2, 2)


async def test_the_last_attempt_that_expires_fails_the_job(store: Store, clock: FakeClock) -> None:
    """A job that kills every worker must end in the dead letter, where a person finds it."""
    await leased_job(store, attempts_max=1)
    clock.advance_us(LEASE_US)
    await Worker(store, "other").settle()
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
    await Worker(store, "other").settle()
    job = await job_of(store)
    assert (job.state, job.finished_at) == (State.CANCELLED, clock.now_us())
    assert (job.last_error_code, await store.reads.errors(id_of(1))) == (None, [])
    assert await counts(store) == {"cancelled": 1}


async def test_an_expired_lease_is_remembered_as_an_error(store: Store, clock: FakeClock) -> None:
    """Without it, a person sees two attempts and no reason."""
    await leased_job(store)
    clock.advance_us(LEASE_US)
    await Worker(store, "other").settle()
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
    again = await Worker(store, "other").claim_one()
    assert (again.id, again.cursor) == (id_of(1), '{"page":7}')
    assert (await job_of(store)).run_at == run_at


async def test_any_exchange_takes_back_what_expired(store: Store, clock: FakeClock) -> None:
    """Also one that wants nothing, or other queues: the only worker of a queue may be the one that died."""
    await leased_job(store)
    clock.advance_us(LEASE_US)
    worker = Worker(store, "other")
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
    await Worker(store).claim(1)
    clock.advance(1)
    await Worker(store).claim(RECLAIM_MAX - 1)
    clock.advance(1)
    await Worker(store).claim(1)
    clock.advance_us(HOUR_US)
    await Worker(store).settle()
    assert await counts(store) == {"ready": RECLAIM_MAX, "leased": 1}
    assert (await job_of(store, RECLAIM_MAX)).state is State.LEASED
    await Worker(store).settle()
    assert await counts(store) == {"ready": RECLAIM_MAX + 1}


async def test_only_what_expired_is_taken_back(store: Store, clock: FakeClock) -> None:
    """Each kind of job has its own length of lease."""
    await store.jobs.submit([new_job(1, lease_us=MINUTE_US), new_job(2)])
    await Worker(store).claim(2)
    clock.advance_us(LEASE_US)
    await Worker(store, "other").settle()
    assert (await job_of(store, 1)).state is State.LEASED
    assert (await job_of(store, 2)).state is State.PENDING


async def test_a_settlement_comes_before_taking_back(store: Store, clock: FakeClock) -> None:
    """A worker that is late by a moment brings its result in the very exchange that would take the job."""
    lease = await leased_job(store)
    clock.advance_us(LEASE_US)
    worker = Worker(store)
    answer = await worker.exchange(done(lease), wants=worker.wants())
    assert (answer.lost, answer.leases) == ((), ())
    assert await counts(store) == {"done": 1}


async def test_an_attempt_spent_in_silence_counts(store: Store, clock: FakeClock) -> None:
    """Two deaths and one failure are three attempts."""
    await store.jobs.submit([new_job(1, attempts_max=3)])
    for _ in range(2):
        await Worker(store).claim_one()
        clock.advance_us(LEASE_US)
    lease = await Worker(store).claim_one()
    assert lease.attempts == 3
    await Worker(store).settle(retry(lease))
    codes = [error.code for error in await store.reads.errors(id_of(1))]
    assert codes == ["lease_expired", "lease_expired", "broken"]


async def test_a_renewed_lease_is_not_taken_back(store: Store, clock: FakeClock) -> None:
    """The heartbeat is what keeps a long job alive."""
    lease = await leased_job(store)
    for _ in range(5):
        clock.advance_us(LEASE_US - 1)
        assert (await store.jobs.renew([held(lease)])).lost == ()
        assert await Worker(store, "other").claim() == ()
