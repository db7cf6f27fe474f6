"""Claiming: at most one live lease per job, the attempt counted at once, and a fair share for every lane."""

from leaseway.domain.exchange import LANES_MAX, PROMOTE_MAX, Wants
from leaseway.domain.ids import Token
from leaseway.domain.job import Lease, State
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.contract.actors import (
    LEASE_US,
    QUEUES,
    Worker,
    counts,
    done,
    id_of,
    job_of,
    new_job,
    snooze,
)


async def test_two_workers_never_hold_the_same_job(store: Store) -> None:
    """The first promise of all."""
    await store.jobs.submit([new_job(number) for number in range(1, 6)])
    first = await Worker(store, "first").claim(3)
    second = await Worker(store, "second").claim(3)
    assert [lease.id for lease in first] == [id_of(1), id_of(2), id_of(3)]
    assert [lease.id for lease in second] == [id_of(4), id_of(5)]
    assert await Worker(store, "third").claim(3) == ()


async def test_an_attempt_counts_from_the_claim(store: Store) -> None:
    """A job that kills its worker never settles: counted later, it would come back for ever."""
    await store.jobs.submit([new_job(1)])
    lease = await Worker(store).claim_one()
    assert (lease.attempts, lease.fence) == (1, 1)
    job = await job_of(store)
    assert (job.attempts, job.fence) == (1, 1)


async def test_nobody_gets_more_than_asked_for(store: Store) -> None:
    """A job that is leased and not run is a job that waits for nothing."""
    await store.jobs.submit([new_job(number) for number in range(1, 4)])
    worker = Worker(store)
    assert len(await worker.claim(2)) == 2
    assert await worker.claim(0) == ()
    assert await worker.claim(-1) == ()
    assert await worker.claim(1, ()) == ()
    assert (await worker.exchange()).leases == ()
    assert await counts(store) == {"ready": 1, "leased": 2}


async def test_only_the_wanted_queues_are_served(store: Store) -> None:
    """A worker without the code or the rights for a queue must not get its jobs."""
    await store.jobs.submit([new_job(1, queue="a"), new_job(2, queue="b"), new_job(3, queue="c")])
    leases = await Worker(store).claim(10, ("a", "c", "a"))
    assert [lease.id for lease in leases] == [id_of(1), id_of(3)]


async def test_a_lease_carries_all_that_a_handler_needs(store: Store) -> None:
    """A second question to the store would be a second round trip for every job."""
    new = new_job(
        1,
        kind="geocode",
        payload='{"a":1}',
        queue="slow",
        tenant="acme",
        priority=7,
        attempts_max=3,
        timeout_us=9,
        shard_key="shard-1",
        cursor='{"page":1}',
    )
    await store.jobs.submit([new])
    worker = Worker(store)
    wants = worker.wants(queues=("slow",))
    assert (await worker.exchange(wants=wants)).leases == (
        Lease(
            id=id_of(1),
            token=wants.token,
            fence=1,
            kind="geocode",
            queue="slow",
            tenant="acme",
            payload='{"a":1}',
            attempts=1,
            attempts_max=3,
            lease_us=LEASE_US,
            timeout_us=9,
            shard_key="shard-1",
            cursor='{"page":1}',
            priority=7,
        ),
    )


async def test_a_leased_job_says_who_has_it_until_when(store: Store, clock: FakeClock) -> None:
    """The first question of a person who wonders why a job is slow."""
    await store.jobs.submit([new_job(1)])
    clock.advance(1)
    await Worker(store, "worker-7").claim_one()
    job = await job_of(store)
    assert (job.state, job.lease_owner) == (State.LEASED, "worker-7")
    assert job.lease_until == clock.now_us() + LEASE_US
    assert await counts(store) == {"leased": 1}


async def test_higher_priority_goes_first_then_earlier_time_then_earlier_submission(
    store: Store, clock: FakeClock
) -> None:
    """The order is part of the interface; ids are made by submitters and decide nothing."""
    now = clock.now_us()
    await store.jobs.submit([new_job(9, run_at=now), new_job(8, run_at=now), new_job(7, run_at=now - 1)])
    await store.jobs.submit([new_job(6, priority=-1, run_at=now - 9), new_job(5, priority=1, run_at=now)])
    leases = await Worker(store).claim(5)
    assert [lease.id for lease in leases] == [id_of(number) for number in (5, 7, 9, 8, 6)]


async def test_jobs_whose_time_has_come_take_their_place_in_the_order(store: Store, clock: FakeClock) -> None:
    """A scheduled job is not served behind everything that was ready while it waited."""
    now = clock.now_us()
    await store.jobs.submit([new_job(1, run_at=now + 2), new_job(2, run_at=now + 1), new_job(3, run_at=now)])
    await store.jobs.submit([new_job(4, run_at=now + 2, priority=1)])
    clock.advance_us(2)
    leases = await Worker(store).claim(4)
    assert [lease.id for lease in leases] == [id_of(number) for number in (4, 3, 2, 1)]


async def test_waking_scheduled_jobs_is_bounded_and_starts_with_the_earliest(store: Store, clock: FakeClock) -> None:
    """After a night of downtime one exchange must not rewrite a million rows."""
    late = new_job(9_999, tenant="late", delay_us=2)
    await store.jobs.submit([late, *(new_job(number, delay_us=1) for number in range(PROMOTE_MAX))])
    clock.advance_us(2)
    await Worker(store).settle()
    assert await counts(store) == {"ready": PROMOTE_MAX}
    assert await counts(store, tenant="late") == {"scheduled": 1}
    await Worker(store).settle()
    assert await counts(store, tenant="late") == {"ready": 1}


async def test_a_full_lane_does_not_starve_the_others(store: Store) -> None:
    """A tenant who submits a million jobs must not make the others wait for them."""
    await store.jobs.submit([new_job(number, tenant="loud") for number in range(1, 101)])
    await store.jobs.submit([new_job(101, tenant="quiet"), new_job(102, tenant="quiet")])
    leases = await Worker(store).claim(4)
    assert [lease.tenant for lease in leases] == ["loud", "loud", "quiet", "quiet"]


async def test_what_one_lane_cannot_use_goes_to_the_others(store: Store) -> None:
    """Fairness must not leave a worker idle while there is work."""
    await store.jobs.submit([new_job(number, tenant="loud") for number in range(1, 11)])
    await store.jobs.submit([new_job(11, tenant="quiet")])
    leases = await Worker(store).claim(6)
    assert [lease.tenant for lease in leases] == ["loud"] * 5 + ["quiet"]


async def test_the_lane_that_waited_longest_is_served_first(store: Store, clock: FakeClock) -> None:
    """With fewer hands than lanes, everybody has a turn."""
    tenants = ("a", "b", "c")
    await store.jobs.submit([new_job(3 * n + i, tenant=name) for n in range(3) for i, name in enumerate(tenants)])
    served = []
    for _ in range(7):
        (lease,) = await Worker(store, "any").claim()
        served.append(lease.tenant)
        clock.advance_us(1)
    assert served == ["a", "b", "c", "a", "b", "c", "a"]


async def test_a_new_lane_does_not_wait_behind_the_old_ones(store: Store, clock: FakeClock) -> None:
    """It was never served: that is longer ago than anything."""
    await store.jobs.submit([new_job(1, tenant="old"), new_job(2, tenant="old")])
    await Worker(store).claim()
    clock.advance(1)
    await store.jobs.submit([new_job(3, tenant="new")])
    (lease,) = await Worker(store, "other").claim()
    assert lease.tenant == "new"


async def test_a_lane_that_was_passed_over_keeps_its_turn(store: Store, clock: FakeClock) -> None:
    """Only a lane that got something goes to the end of the line."""
    await store.jobs.submit([new_job(n, tenant=f"t{n % 3}") for n in range(6)])
    first = await Worker(store).claim(2)
    clock.advance(1)
    second = await Worker(store).claim(2)
    tenants = [lease.tenant for lease in (*first, *second)]
    assert tenants == ["t0", "t1", "t2", "t0"]


async def test_a_claim_looks_at_a_bounded_number_of_lanes(store: Store, clock: FakeClock) -> None:
    """A million tenants must not make a claim slow; whoever is left out comes first next time."""
    lanes = LANES_MAX + 2
    await store.jobs.submit([new_job(2 * n + i, tenant=f"t{n:03}") for n in range(lanes) for i in range(2)])
    first = await Worker(store).claim(2 * lanes)
    assert len(first) == 2 * LANES_MAX
    clock.advance(1)
    second = await Worker(store, "other").claim(2 * lanes)
    assert [lease.tenant for lease in second] == [f"t{LANES_MAX:03}"] * 2 + [f"t{LANES_MAX + 1:03}"] * 2


async def test_settling_and_claiming_the_same_job_in_one_exchange(store: Store) -> None:
    """Settlements come first, so a job that was given back may be claimed at once, under a new token."""
    await store.jobs.submit([new_job(1)])
    worker = Worker(store)
    lease = await worker.claim_one()
    answer = await worker.exchange(snooze(lease), wants=worker.wants())
    (again,) = answer.leases
    assert (again.id, again.fence) == (id_of(1), 2)
    assert again.token != lease.token
    assert (await worker.settle(done(again))).lost == ()


async def test_a_worker_is_told_which_of_its_jobs_shall_stop(store: Store) -> None:
    """Only its own, and only those it still holds when the exchange ends."""
    await store.jobs.submit([new_job(number, priority=int(number == 3)) for number in range(1, 6)])
    mine, other = Worker(store, "mine"), Worker(store, "other")
    _three, one, _two = await mine.claim(3)
    await other.claim(1)
    for number in (4, 3, 1):
        await store.operations.cancel(id_of(number))
    assert (await mine.exchange()).cancelled == (id_of(1), id_of(3))
    assert (await mine.settle(done(one))).cancelled == (id_of(3),)
    assert (await other.exchange(wants=other.wants())).cancelled == (id_of(4),)


async def test_a_token_may_be_any_text(store: Store) -> None:
    """A token that looks like a number, or like nothing, must be compared as text."""
    for number, text in enumerate(("1", "01", "1e0", "null", "true", " 1"), start=1):
        await store.jobs.submit([new_job(number)])
        worker = Worker(store)
        (lease,) = (await worker.exchange(wants=Wants(QUEUES, 1, Token(text)))).leases
        assert lease.token == text
        assert (await worker.settle(done(lease, token=Token("1.0")))).lost == (lease.id,)
        assert (await worker.settle(done(lease))).lost == ()
