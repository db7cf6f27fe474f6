"""Repeating an exchange whose reply was lost: leases granted then are handed out again, and none besides."""

from msgspec.structs import replace

from leaseway.domain.job import State
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.contract.actors import (
    LEASE_US,
    Worker,
    counts,
    done,
    id_of,
    ids_in,
    job_of,
    leased_job,
    new_job,
)


async def test_a_claim_sent_again_gets_the_same_leases(store: Store, clock: FakeClock) -> None:
    """Otherwise they would wait for their expiry, held by a worker that does not know it has them."""
    await store.jobs.submit([new_job(number) for number in range(1, 6)])
    worker = Worker(store)
    wants = worker.wants(2)
    first = await worker.exchange(wants=wants)
    clock.advance(1)
    again = await worker.exchange(wants=wants, repeat=True)
    assert again.leases == first.leases
    assert await counts(store) == {"ready": 3, "leased": 2}


async def test_a_claim_sent_again_counts_no_second_attempt(store: Store) -> None:
    """A bad network must not use up the attempts of jobs that never ran."""
    await store.jobs.submit([new_job(1)])
    worker = Worker(store)
    wants = worker.wants()
    for repeat in (False, True, True):
        await worker.exchange(wants=wants, repeat=repeat)
    job = await job_of(store)
    assert (job.attempts, job.fence) == (1, 1)


async def test_leases_handed_out_again_last_from_now(store: Store, clock: FakeClock) -> None:
    """The worker measures its lease from the request that it got an answer to."""
    await store.jobs.submit([new_job(1)])
    worker = Worker(store)
    wants = worker.wants()
    await worker.exchange(wants=wants)
    clock.advance_us(LEASE_US - 1)
    await worker.exchange(wants=wants, repeat=True)
    assert (await job_of(store)).lease_until == clock.now_us() + LEASE_US


async def test_leases_handed_out_again_come_in_the_order_of_submission(store: Store) -> None:
    """Across lanes and priorities, so that every store gives the same answer."""
    await store.jobs.submit([new_job(5, tenant="b"), new_job(4, tenant="a")])
    await store.jobs.submit([new_job(3, tenant="a", priority=1), new_job(2, tenant="b")])
    worker = Worker(store)
    wants = worker.wants(4)
    await worker.exchange(wants=wants)
    again = await worker.exchange(wants=wants, repeat=True)
    assert [lease.id for lease in again.leases] == [id_of(number) for number in (5, 4, 3, 2)]


async def test_a_claim_that_never_arrived_is_made_when_repeated(store: Store) -> None:
    """An unknown outcome may mean that nothing happened."""
    await store.jobs.submit([new_job(1)])
    worker = Worker(store)
    answer = await worker.exchange(wants=worker.wants(), repeat=True)
    assert [lease.id for lease in answer.leases] == [id_of(1)]


async def test_leases_that_expired_meanwhile_are_claimed_anew(store: Store, clock: FakeClock) -> None:
    """The repetition came too late: the job was taken back, and this is a new delivery."""
    await store.jobs.submit([new_job(1)])
    worker = Worker(store)
    wants = worker.wants()
    await worker.exchange(wants=wants)
    clock.advance_us(LEASE_US)
    (lease,) = (await worker.exchange(wants=wants, repeat=True)).leases
    assert (lease.attempts, lease.fence) == (2, 2)


async def test_only_a_repetition_gets_leases_again(store: Store) -> None:
    """A new exchange that hands out running jobs would run them twice."""
    await store.jobs.submit([new_job(1)])
    worker = Worker(store)
    wants = worker.wants()
    await worker.exchange(wants=wants)
    assert (await worker.exchange(wants=wants)).leases == ()


async def test_leases_of_another_claim_are_not_handed_out_again(store: Store) -> None:
    """Jobs that this worker runs already, under the token of an answer that it received."""
    await store.jobs.submit([new_job(1), new_job(2)])
    worker = Worker(store)
    await worker.claim_one()
    answer = await worker.exchange(wants=worker.wants(2), repeat=True)
    assert [lease.id for lease in answer.leases] == [id_of(2)]


async def test_leases_of_another_worker_are_not_handed_out(store: Store) -> None:
    """The token alone would do, were it never leaked; the owner makes sure."""
    await store.jobs.submit([new_job(1)])
    worker = Worker(store)
    wants = worker.wants()
    await worker.exchange(wants=wants)
    assert (await Worker(store, "thief").exchange(wants=wants, repeat=True)).leases == ()


async def test_a_whole_exchange_sent_again_happens_once(store: Store) -> None:
    """Settlement, child and claim: all of the first answer, nothing of it twice."""
    await store.jobs.submit([new_job(2)])
    lease = await leased_job(store, 1, priority=1)
    worker = Worker(store)
    wants = worker.wants(1)
    settlement = done(lease, children=(new_job(3),))
    first = await worker.exchange(settlement, wants=wants)
    again = await worker.exchange(settlement, wants=wants, repeat=True)
    assert again == first
    assert [lease.id for lease in again.leases] == [id_of(2)]
    assert await counts(store) == {"ready": 1, "leased": 1, "done": 1}
    assert await ids_in(store) == [id_of(1), id_of(2), id_of(3)]


async def test_a_repetition_without_wants_only_settles(store: Store) -> None:
    """The last exchange of a worker that goes away."""
    lease = await leased_job(store)
    worker = Worker(store)
    for repeat in (False, True):
        answer = await worker.exchange(done(lease), repeat=repeat)
        assert (answer.lost, answer.leases) == ((), ())
    assert (await job_of(store)).state is State.DONE


async def test_a_lease_handed_out_again_may_have_to_stop(store: Store) -> None:
    """Somebody cancelled the job while its worker did not know of it."""
    await store.jobs.submit([new_job(1)])
    worker = Worker(store)
    wants = worker.wants()
    await worker.exchange(wants=wants)
    await store.operations.cancel(id_of(1))
    again = await worker.exchange(wants=wants, repeat=True)
    assert [lease.id for lease in again.leases] == [id_of(1)]
    assert again.cancelled == (id_of(1),)


async def test_a_repetition_that_wants_none_gets_what_was_granted(store: Store) -> None:
    """So a keeper learns what a blocked worker was granted, without taking more for it."""
    await store.jobs.submit([new_job(1), new_job(2)])
    worker = Worker(store)
    wants = worker.wants(1)
    first = await worker.exchange(wants=wants)
    again = await worker.exchange(wants=replace(wants, count=0), repeat=True)
    assert again.leases == first.leases
    assert await counts(store) == {"ready": 1, "leased": 1}


async def test_a_repetition_that_wants_none_claims_nothing(store: Store) -> None:
    """If the first try never arrived, there is nothing to be told of."""
    await store.jobs.submit([new_job(1)])
    worker = Worker(store)
    again = await worker.exchange(wants=worker.wants(0), repeat=True)
    assert again.leases == ()
    assert await counts(store) == {"ready": 1}
