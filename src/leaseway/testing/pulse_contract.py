"""What every store must tell about how it is doing. Used like `job_store_contract`, with the same fixtures."""

from leaseway.domain.ids import SECOND_US, WorkerId
from leaseway.domain.inspection import EndedCount, LaneWait, LeaseOwner
from leaseway.domain.job import State
from leaseway.ports.store import Store, require_inspection
from leaseway.testing.clock import FakeClock
from leaseway.testing.contract.actors import LEASE_US, Worker, done, failed, id_of, new_job, retry


async def test_an_empty_store_tells_of_nothing(store: Store) -> None:
    """A screen must be able to show a store that is new."""
    assert await require_inspection(store).owners() == []
    assert await require_inspection(store).waiting() == []
    assert (await require_inspection(store).ended(0))[1] == []


async def test_workers_are_told_with_what_they_hold(store: Store, clock: FakeClock) -> None:
    """Who looks at the fleet wants to know who works, how much, and who has not been heard of."""
    await store.jobs.submit([new_job(number) for number in range(1, 5)])
    begun = clock.now_us()
    await Worker(store, "b").claim(1)
    clock.advance(5)
    await Worker(store, "b").claim(1)
    await Worker(store, "a").claim(1)
    later = clock.now_us()
    assert await require_inspection(store).owners() == [
        LeaseOwner(name=WorkerId("a"), leased=1, late=0, heard_at=later, until=later + LEASE_US),
        LeaseOwner(name=WorkerId("b"), leased=2, late=0, heard_at=later, until=begun + LEASE_US),
    ]


async def test_leases_that_expired_are_told_as_late(store: Store, clock: FakeClock) -> None:
    """Nobody has taken them back, and whoever looks must see that somebody should."""
    await store.jobs.submit([new_job(1)])
    await Worker(store, "gone").claim(1)
    clock.advance(LEASE_US // SECOND_US)
    (owner,) = await require_inspection(store).owners()
    assert (owner.leased, owner.late) == (1, 1)


async def test_who_settled_everything_is_no_owner(store: Store) -> None:
    """Only leases make an owner: a worker that left must not stay on the screen."""
    await store.jobs.submit([new_job(1)])
    worker = Worker(store)
    await worker.settle(done(await worker.claim_one()))
    assert await require_inspection(store).owners() == []


async def test_each_lane_tells_since_when_it_waits(store: Store, clock: FakeClock) -> None:
    """The one that waits longest counts, even if others pass it by their priority; what is scheduled does not wait."""
    begun = clock.now_us()
    await store.jobs.submit([new_job(1, priority=-5), new_job(2, tenant="b", needs="maps")])
    clock.advance(3)
    later = clock.now_us()
    await store.jobs.submit(
        [new_job(3, priority=9), new_job(4, tenant="c", delay_us=SECOND_US), new_job(5, queue="other")]
    )
    assert await require_inspection(store).waiting() == [
        LaneWait(queue="default", tenant="b", needs="maps", since=begun),
        LaneWait(queue="default", tenant="default", since=begun),
        LaneWait(queue="other", tenant="default", since=later),
    ]


async def test_a_lane_whose_jobs_are_all_taken_does_not_wait(store: Store) -> None:
    """What runs does not wait."""
    await store.jobs.submit([new_job(1)])
    await Worker(store).claim(1)
    assert await require_inspection(store).waiting() == []


async def test_what_ended_lately_is_counted_by_state(store: Store, clock: FakeClock) -> None:
    """A rate is made of these; what ended before, and what goes on, must not be in it."""
    await store.jobs.submit([new_job(number) for number in range(1, 4)])
    await store.jobs.submit([new_job(4, tenant="b"), new_job(5), new_job(6)])
    worker = Worker(store)
    leases = {lease.id: lease for lease in await worker.claim(5)}
    await worker.settle(done(leases[id_of(1)]))
    begun = clock.now_us()
    clock.advance(1)
    await worker.settle(done(leases[id_of(2)]), failed(leases[id_of(3)]), done(leases[id_of(4)]))
    await worker.settle(retry(leases[id_of(5)]))
    await store.operations.cancel(id_of(6))
    since, counted = await require_inspection(store).ended(begun)
    assert (since, counted) == (
        begun,
        [
            EndedCount(queue="default", tenant="b", state=State.DONE, count=1),
            EndedCount(queue="default", tenant="default", state=State.DONE, count=1),
            EndedCount(queue="default", tenant="default", state=State.FAILED, count=1),
            EndedCount(queue="default", tenant="default", state=State.CANCELLED, count=1),
        ],
    )
    since, counted = await require_inspection(store).ended(0)
    assert (since < begun, sum(each.count for each in counted)) == (True, 5)
    assert await require_inspection(store).ended(clock.now_us()) == (clock.now_us(), [])
