"""Claims: at most one valid lease per job, attempts counted immediately, and a fair share for every lane."""

from msgspec.structs import replace

from leaseway.domain.exchange import GRANT_MAX, LANES_MAX, PROMOTE_MAX, Wants
from leaseway.domain.ids import Token
from leaseway.domain.job import Lease, State
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import (
    ALL,
    LEASE_US,
    QUEUES,
    ContractWorker,
    counts,
    done,
    id_of,
    ids_in,
    job_of,
    leased_job,
    new_job,
    snooze,
)


async def test_two_workers_never_hold_the_same_job(store: Store) -> None:
    """Two holders would run the job twice at the same time."""
    await store.jobs.submit([new_job(number) for number in range(1, 6)])
    first = await ContractWorker(store, "first").claim(3)
    second = await ContractWorker(store, "second").claim(3)
    assert [lease.id for lease in first] == [id_of(1), id_of(2), id_of(3)]
    assert [lease.id for lease in second] == [id_of(4), id_of(5)]
    assert await ContractWorker(store, "third").claim(3) == ()


async def test_an_attempt_counts_from_the_claim(store: Store) -> None:
    """A job that crashes its worker never settles: if the attempt were counted later, it would run forever."""
    await store.jobs.submit([new_job(1)])
    lease = await ContractWorker(store).claim_one()
    assert (lease.attempts, lease.fence) == (1, 1)
    job = await job_of(store)
    assert (job.attempts, job.fence) == (1, 1)


async def test_nobody_gets_more_than_asked_for(store: Store) -> None:
    """A leased job that does not run is delayed without a reason."""
    await store.jobs.submit([new_job(number) for number in range(1, 4)])
    worker = ContractWorker(store)
    assert len(await worker.claim(2)) == 2
    assert await worker.claim(0) == ()
    assert await worker.claim(-1) == ()
    assert await worker.claim(1, ()) == ()
    assert (await worker.exchange()).leases == ()
    assert await counts(store) == {"ready": 1, "leased": 2}


async def test_only_the_wanted_queues_are_served(store: Store) -> None:
    """A worker without the code or the rights for a queue must not get its jobs."""
    await store.jobs.submit([new_job(1, queue="a"), new_job(2, queue="b"), new_job(3, queue="c")])
    leases = await ContractWorker(store).claim(10, ("a", "c", "a"))
    assert [lease.id for lease in leases] == [id_of(1), id_of(3)]


async def test_a_lease_carries_all_that_a_handler_needs(store: Store) -> None:
    """A second query would be another round trip for every job."""
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
    worker = ContractWorker(store)
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
    """An operator who asks why a job is slow needs this first."""
    await store.jobs.submit([new_job(1)])
    clock.advance(1)
    await ContractWorker(store, "worker-7").claim_one()
    job = await job_of(store)
    assert (job.state, job.lease_owner) == (State.LEASED, "worker-7")
    assert job.lease_until == clock.now_us() + LEASE_US
    assert await counts(store) == {"leased": 1}


async def test_higher_priority_goes_first_then_earlier_time_then_earlier_submission(
    store: Store, clock: FakeClock
) -> None:
    """The order is part of the interface; submitters choose the ids, so ids must not decide it."""
    now = clock.now_us()
    await store.jobs.submit([new_job(9, run_at=now), new_job(8, run_at=now), new_job(7, run_at=now - 1)])
    await store.jobs.submit([new_job(6, priority=-1, run_at=now - 9), new_job(5, priority=1, run_at=now)])
    leases = await ContractWorker(store).claim(5)
    assert [lease.id for lease in leases] == [id_of(number) for number in (5, 7, 9, 8, 6)]


async def test_jobs_whose_time_has_come_take_their_place_in_the_order(store: Store, clock: FakeClock) -> None:
    """A scheduled job must not run behind every job that became ready while it waited."""
    now = clock.now_us()
    await store.jobs.submit([new_job(1, run_at=now + 2), new_job(2, run_at=now + 1), new_job(3, run_at=now)])
    await store.jobs.submit([new_job(4, run_at=now + 2, priority=1)])
    clock.advance_us(2)
    leases = await ContractWorker(store).claim(4)
    assert [lease.id for lease in leases] == [id_of(number) for number in (4, 3, 2, 1)]


async def test_waking_scheduled_jobs_is_bounded_and_starts_with_the_earliest(store: Store, clock: FakeClock) -> None:
    """After a night of downtime, one exchange must not update a million rows."""
    late = new_job(9_999, delay_us=2)
    await store.jobs.submit([late, *(new_job(number, delay_us=1) for number in range(2 * PROMOTE_MAX))])
    clock.advance_us(2)
    await ContractWorker(store).settle()
    assert await counts(store) == {"ready": 2 * PROMOTE_MAX, "scheduled": 1}
    assert await store.operations.run_now(ALL, 9) == [late.id]


async def test_a_full_lane_does_not_starve_the_others(store: Store) -> None:
    """A tenant that submits a million jobs must not delay the jobs of others."""
    await store.jobs.submit([new_job(number, tenant="loud") for number in range(1, 101)])
    await store.jobs.submit([new_job(101, tenant="quiet"), new_job(102, tenant="quiet")])
    leases = await ContractWorker(store).claim(4)
    assert [lease.tenant for lease in leases] == ["loud", "loud", "quiet", "quiet"]


async def test_what_one_lane_cannot_use_goes_to_the_others(store: Store) -> None:
    """Fairness must not leave a worker idle while there is work."""
    await store.jobs.submit([new_job(number, tenant="loud") for number in range(1, 11)])
    await store.jobs.submit([new_job(11, tenant="quiet")])
    leases = await ContractWorker(store).claim(6)
    assert [lease.tenant for lease in leases] == ["loud"] * 5 + ["quiet"]


async def test_the_lane_that_waited_longest_is_served_first(store: Store, clock: FakeClock) -> None:
    """With fewer slots than lanes, every lane must get its turn."""
    tenants = ("a", "b", "c")
    await store.jobs.submit([new_job(3 * n + i, tenant=name) for n in range(3) for i, name in enumerate(tenants)])
    served = []
    for _ in range(7):
        (lease,) = await ContractWorker(store, "any").claim()
        served.append(lease.tenant)
        clock.advance_us(1)
    assert served == ["a", "b", "c", "a", "b", "c", "a"]


async def test_a_new_lane_does_not_wait_behind_the_old_ones(store: Store, clock: FakeClock) -> None:
    """A lane that was never served has waited longer than any other."""
    await store.jobs.submit([new_job(1, tenant="old"), new_job(2, tenant="old")])
    await ContractWorker(store).claim()
    clock.advance(1)
    await store.jobs.submit([new_job(3, tenant="new")])
    (lease,) = await ContractWorker(store, "other").claim()
    assert lease.tenant == "new"


async def test_a_lane_that_was_passed_over_keeps_its_turn(store: Store, clock: FakeClock) -> None:
    """Only a lane that was served moves to the end of the queue."""
    await store.jobs.submit([new_job(n, tenant=f"t{n % 3}") for n in range(6)])
    first = await ContractWorker(store).claim(2)
    clock.advance(1)
    second = await ContractWorker(store).claim(2)
    tenants = [lease.tenant for lease in (*first, *second)]
    assert tenants == ["t0", "t1", "t2", "t0"]


async def test_a_claim_looks_at_a_bounded_number_of_lanes(store: Store, clock: FakeClock) -> None:
    """A million tenants must not make a claim slow; the lanes that are left out come first next time."""
    lanes = LANES_MAX + 2
    await store.jobs.submit([new_job(2 * n + i, tenant=f"t{n:03}") for n in range(lanes) for i in range(2)])
    first = await ContractWorker(store).claim(2 * lanes)
    assert len(first) in (2 * LANES_MAX, GRANT_MAX)  # a service grants fewer
    clock.advance(1)
    second = await ContractWorker(store, "other").claim(2 * lanes)
    left_out = {f"t{n:03}" for n in range(lanes)} - {lease.tenant for lease in first}
    assert left_out <= {lease.tenant for lease in second}
    assert len(left_out) in (2, lanes - GRANT_MAX)


async def test_settling_and_claiming_the_same_job_in_one_exchange(store: Store) -> None:
    """Settlements are processed first, so a released job may be claimed in the same exchange under a new token."""
    await store.jobs.submit([new_job(1)])
    worker = ContractWorker(store)
    lease = await worker.claim_one()
    answer = await worker.exchange(snooze(lease), wants=worker.wants())
    (again,) = answer.leases
    assert (again.id, again.fence) == (id_of(1), 2)
    assert again.token != lease.token
    assert (await worker.settle(done(again))).lost == ()


async def test_a_worker_is_told_which_of_its_jobs_shall_stop(store: Store) -> None:
    """The worker must learn about its own jobs only, and only about those it still holds when the exchange ends."""
    await store.jobs.submit([new_job(number, priority=int(number == 3)) for number in range(1, 6)])
    mine, other = ContractWorker(store, "mine"), ContractWorker(store, "other")
    _three, one, _two = await mine.claim(3)
    await other.claim(1)
    for number in (4, 3, 1):
        await store.operations.cancel(id_of(number))
    assert (await mine.exchange()).cancelled == (id_of(1), id_of(3))
    assert (await mine.settle(done(one))).cancelled == (id_of(3),)
    assert (await other.exchange(wants=other.wants())).cancelled == (id_of(4),)


async def test_a_token_may_be_any_text(store: Store) -> None:
    """A token that looks like a number or is empty must be compared as text."""
    for number, text in enumerate(("1", "01", "1e0", "null", "true", " 1"), start=1):
        await store.jobs.submit([new_job(number)])
        worker = ContractWorker(store)
        (lease,) = (await worker.exchange(wants=Wants(QUEUES, 1, Token(text)))).leases
        assert lease.token == text
        assert (await worker.settle(done(lease, token=Token("1.0")))).lost == (lease.id,)
        assert (await worker.settle(done(lease))).lost == ()


async def test_a_claim_sent_again_gets_the_same_leases(store: Store, clock: FakeClock) -> None:
    """Otherwise the jobs would wait for their leases to expire, held by a worker that does not know about them."""
    await store.jobs.submit([new_job(number) for number in range(1, 6)])
    worker = ContractWorker(store)
    wants = worker.wants(2)
    first = await worker.exchange(wants=wants)
    clock.advance(1)
    again = await worker.exchange(wants=wants, repeat=True)
    assert again.leases == first.leases
    assert await counts(store) == {"ready": 3, "leased": 2}


async def test_a_claim_sent_again_counts_no_second_attempt(store: Store) -> None:
    """A bad network must not use up the attempts of jobs that never ran."""
    await store.jobs.submit([new_job(1)])
    worker = ContractWorker(store)
    wants = worker.wants()
    for repeat in (False, True, True):
        await worker.exchange(wants=wants, repeat=repeat)
    job = await job_of(store)
    assert (job.attempts, job.fence) == (1, 1)


async def test_leases_handed_out_again_last_from_now(store: Store, clock: FakeClock) -> None:
    """The worker measures its lease from the request that was answered."""
    await store.jobs.submit([new_job(1)])
    worker = ContractWorker(store)
    wants = worker.wants()
    await worker.exchange(wants=wants)
    clock.advance_us(LEASE_US - 1)
    await worker.exchange(wants=wants, repeat=True)
    assert (await job_of(store)).lease_until == clock.now_us() + LEASE_US


async def test_leases_handed_out_again_come_in_the_order_of_submission(store: Store) -> None:
    """The order must be the same on every store, across lanes and priorities."""
    await store.jobs.submit([new_job(5, tenant="b"), new_job(4, tenant="a")])
    await store.jobs.submit([new_job(3, tenant="a", priority=1), new_job(2, tenant="b")])
    worker = ContractWorker(store)
    wants = worker.wants(4)
    await worker.exchange(wants=wants)
    again = await worker.exchange(wants=wants, repeat=True)
    assert [lease.id for lease in again.leases] == [id_of(number) for number in (5, 4, 3, 2)]


async def test_a_claim_that_never_arrived_is_made_when_repeated(store: Store) -> None:
    """An unknown outcome may mean that the request was never executed."""
    await store.jobs.submit([new_job(1)])
    worker = ContractWorker(store)
    answer = await worker.exchange(wants=worker.wants(), repeat=True)
    assert [lease.id for lease in answer.leases] == [id_of(1)]


async def test_leases_that_expired_meanwhile_are_claimed_anew(store: Store, clock: FakeClock) -> None:
    """The repetition came too late: the job was reclaimed, and this is a new delivery."""
    await store.jobs.submit([new_job(1)])
    worker = ContractWorker(store)
    wants = worker.wants()
    await worker.exchange(wants=wants)
    clock.advance_us(LEASE_US)
    (lease,) = (await worker.exchange(wants=wants, repeat=True)).leases
    assert (lease.attempts, lease.fence) == (2, 2)


async def test_only_a_repetition_gets_leases_again(store: Store) -> None:
    """A new exchange that returned running jobs would run them twice."""
    await store.jobs.submit([new_job(1)])
    worker = ContractWorker(store)
    wants = worker.wants()
    await worker.exchange(wants=wants)
    assert (await worker.exchange(wants=wants)).leases == ()


async def test_leases_of_another_claim_are_not_handed_out_again(store: Store) -> None:
    """The worker already runs these jobs under the token of an earlier reply."""
    await store.jobs.submit([new_job(1), new_job(2)])
    worker = ContractWorker(store)
    await worker.claim_one()
    answer = await worker.exchange(wants=worker.wants(2), repeat=True)
    assert [lease.id for lease in answer.leases] == [id_of(2)]


async def test_leases_of_another_worker_are_not_handed_out(store: Store) -> None:
    """A leaked token alone must not be enough; the owner is compared as well."""
    await store.jobs.submit([new_job(1)])
    worker = ContractWorker(store)
    wants = worker.wants()
    await worker.exchange(wants=wants)
    assert (await ContractWorker(store, "thief").exchange(wants=wants, repeat=True)).leases == ()


async def test_a_whole_exchange_sent_again_happens_once(store: Store) -> None:
    """Settlement, child and claim must have the result of the first call, and nothing may happen twice."""
    await store.jobs.submit([new_job(2)])
    lease = await leased_job(store, 1, priority=1)
    worker = ContractWorker(store)
    wants = worker.wants(1)
    settlement = done(lease, children=(new_job(3),))
    first = await worker.exchange(settlement, wants=wants)
    again = await worker.exchange(settlement, wants=wants, repeat=True)
    assert again == first
    assert [lease.id for lease in again.leases] == [id_of(2)]
    assert await counts(store) == {"ready": 1, "leased": 1, "done": 1}
    assert await ids_in(store) == [id_of(1), id_of(2), id_of(3)]


async def test_a_repetition_without_wants_only_settles(store: Store) -> None:
    """A worker that stops sends such an exchange last."""
    lease = await leased_job(store)
    worker = ContractWorker(store)
    for repeat in (False, True):
        answer = await worker.exchange(done(lease), repeat=repeat)
        assert (answer.lost, answer.leases) == ((), ())
    assert (await job_of(store)).state is State.DONE


async def test_a_lease_handed_out_again_may_have_to_stop(store: Store) -> None:
    """The job may have been cancelled before its worker learned of the lease."""
    await store.jobs.submit([new_job(1)])
    worker = ContractWorker(store)
    wants = worker.wants()
    await worker.exchange(wants=wants)
    await store.operations.cancel(id_of(1))
    again = await worker.exchange(wants=wants, repeat=True)
    assert [lease.id for lease in again.leases] == [id_of(1)]
    assert again.cancelled == (id_of(1),)


async def test_a_repetition_that_wants_none_gets_what_was_granted(store: Store) -> None:
    """The lease renewal must learn which leases a blocked worker was granted, without claiming more."""
    await store.jobs.submit([new_job(1), new_job(2)])
    worker = ContractWorker(store)
    wants = worker.wants(1)
    first = await worker.exchange(wants=wants)
    again = await worker.exchange(wants=replace(wants, count=0), repeat=True)
    assert again.leases == first.leases
    assert await counts(store) == {"ready": 1, "leased": 1}


async def test_a_repetition_returns_a_bounded_number_of_leases(store: Store) -> None:
    """A client can use one token for many claims. Without a bound, the answer to a repetition would have no bound."""
    await store.jobs.submit([new_job(number) for number in range(6)])
    worker = ContractWorker(store)
    wants = worker.wants(2)
    granted = [lease for _ in range(3) for lease in (await worker.exchange(wants=wants)).leases]
    bounded = await worker.exchange(wants=replace(wants, repeat_max=4), repeat=True)
    # A service has a bound of its own.
    assert bounded.leases in (tuple(granted[:4]), tuple(granted))
    assert (await worker.exchange(wants=wants, repeat=True)).leases == tuple(granted)
    assert await counts(store) == {"leased": 6}


async def test_a_repetition_that_wants_none_claims_nothing(store: Store) -> None:
    """If the first try never arrived, there is nothing to return."""
    await store.jobs.submit([new_job(1)])
    worker = ContractWorker(store)
    again = await worker.exchange(wants=worker.wants(0), repeat=True)
    assert again.leases == ()
    assert await counts(store) == {"ready": 1}
