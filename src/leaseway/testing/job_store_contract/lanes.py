"""Gates: jobs that are not admitted do not start, and jobs behind a closed gate do not cost anything."""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from leaseway.domain.exchange import LANES_MAX, Admit, Gate, Gated, Wants
from leaseway.domain.ids import SECOND_US, Token
from leaseway.domain.limits.limit import Rate
from leaseway.domain.tenant import WEIGHT_MAX, Tenant
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import (
    ALL,
    LEASE_US,
    MINUTE_US,
    NOBODY,
    QUEUES,
    ContractWorker,
    counts,
    done,
    failed,
    id_of,
    job_of,
    new_job,
    retry,
)

MAPS = Gate("maps", "default")
MAIL = Gate("mail", "default")


async def test_jobs_behind_a_gate_do_not_start_unless_admitted(store: Store) -> None:
    """The provider would refuse the calls of a job that started without its permits, and all calls after it."""
    await store.jobs.submit([new_job(1, needs="maps"), new_job(2, needs="maps"), new_job(3)])
    worker = ContractWorker(store)
    assert [lease.id for lease in await worker.claim(9)] == [id_of(3)]
    assert await worker.claim(9, admits={MAIL: 9, Gate("maps", "other"): 9, Gate("", "default"): 9}) == ()
    assert [lease.id for lease in await worker.claim(9, admits={MAPS: 1})] == [id_of(1)]
    assert await worker.claim(9, admits={MAPS: 0}) == await worker.claim(9, admits={MAPS: -1}) == ()
    assert [lease.id for lease in await worker.claim(9, admits={MAPS: 5})] == [id_of(2)]


async def test_what_is_admitted_is_not_more_than_what_is_wanted(store: Store) -> None:
    """A worker must not get more jobs than it has free slots, whatever the limits allow."""
    await store.jobs.submit([new_job(n, needs="maps") for n in range(5)])
    assert len(await ContractWorker(store).claim(2, admits={MAPS: 5})) == 2


async def test_lanes_behind_one_gate_share_what_is_admitted(store: Store) -> None:
    """Two queues that call one provider share its limit."""
    await store.jobs.submit([new_job(n, needs="maps", queue=f"q{n % 2}") for n in range(10)])
    leases = await ContractWorker(store).claim(9, ("q0", "q1"), {MAPS: 3})
    assert len(leases) == 3
    assert len(await ContractWorker(store).claim(9, ("q0", "q1"), {MAPS: 7})) == 7


async def test_a_gate_that_is_named_twice_lets_out_the_sum(store: Store) -> None:
    """Each of the two admissions was paid for."""
    await store.jobs.submit([new_job(n, needs="maps") for n in range(5)])
    wants = Wants(QUEUES, 9, Token("t"), (Admit(MAPS, 1), Admit(MAPS, 2)))
    assert len((await ContractWorker(store).exchange(wants=wants)).leases) == 3


async def test_an_open_gate_does_not_starve_those_who_need_none(store: Store) -> None:
    """Lanes must share a claim equally, with a gate or without."""
    await store.jobs.submit([new_job(n, needs="maps") for n in range(10)])
    await store.jobs.submit([new_job(10 + n) for n in range(10)])
    leases = await ContractWorker(store).claim(8, admits={MAPS: 8})
    assert sorted(lease.needs for lease in leases) == [""] * 4 + ["maps"] * 4


async def test_what_a_gate_holds_back_goes_to_the_others(store: Store) -> None:
    """A worker must not be idle because one provider is at its limit."""
    await store.jobs.submit([new_job(n, needs="maps") for n in range(10)])
    await store.jobs.submit([new_job(10 + n) for n in range(10)])
    leases = await ContractWorker(store).claim(8, admits={MAPS: 2})
    assert sorted(lease.needs for lease in leases) == [""] * 6 + ["maps"] * 2


async def test_a_worker_is_told_behind_which_gates_jobs_are_ready(store: Store) -> None:
    """Otherwise no worker would acquire permits for these jobs, and they would wait forever."""
    await store.jobs.submit([new_job(1), *(new_job(2 + n, needs="maps") for n in range(3)), new_job(9, needs="mail")])
    worker = ContractWorker(store)
    answer = await worker.exchange(wants=worker.wants(2, admits={MAPS: 1}))
    assert len(answer.leases) == 2
    # Mail has not been served yet, so it comes first.
    assert answer.gated == (Gated(MAIL, 1), Gated(MAPS, 2))
    assert (await worker.exchange(wants=worker.wants(1, ("elsewhere",)))).gated == ()
    assert (await worker.exchange(wants=worker.wants(0))).gated == ()
    assert (await worker.exchange()).gated == ()


async def test_lanes_behind_one_gate_are_told_of_as_one(store: Store) -> None:
    """The limits are acquired once for all of these lanes, so the count must be the sum."""
    await store.jobs.submit([new_job(n, needs="maps", queue=f"q{n % 3}") for n in range(10)])
    await store.jobs.submit([new_job(10, needs="maps", queue="q0", delay_us=SECOND_US)])
    worker = ContractWorker(store)
    assert (await worker.exchange(wants=worker.wants(1, ("q0", "q1")))).gated == (Gated(MAPS, 7),)


async def test_what_this_exchange_made_ready_is_told_of(store: Store, clock: FakeClock) -> None:
    """A retried job, or one whose time has come, must not wait for the next exchange to be reported."""
    await store.jobs.submit([new_job(1, needs="maps"), new_job(2, needs="mail", delay_us=SECOND_US)])
    worker = ContractWorker(store)
    (lease,) = await worker.claim(admits={MAPS: 1})
    clock.advance(1)
    answer = await worker.exchange(retry(lease), wants=worker.wants(1))
    assert set(answer.gated) == {Gated(MAPS, 1), Gated(MAIL, 1)}


async def test_a_bounded_number_of_gates_is_told_of(store: Store) -> None:
    """A million tenants behind gates must not make the reply large."""
    await store.jobs.submit([new_job(n, needs="maps", tenant=f"t{n:03}") for n in range(LANES_MAX + 5)])
    worker = ContractWorker(store)
    answer = await worker.exchange(wants=worker.wants(1))
    assert [gated.gate.tenant for gated in answer.gated] == [f"t{n:03}" for n in range(LANES_MAX)]


async def test_closed_gates_do_not_use_up_the_lanes_of_a_claim(store: Store) -> None:
    """A lane behind a hundred closed lanes must still be served."""
    await store.jobs.submit([new_job(n, needs="maps", tenant=f"t{n:03}") for n in range(LANES_MAX + 5)])
    await store.jobs.submit([new_job(999, tenant="z")])
    assert [lease.id for lease in await ContractWorker(store).claim(1)] == [id_of(999)]


async def test_a_repeat_adopts_what_was_admitted_the_first_time(store: Store) -> None:
    """The permits that were acquired for these jobs are used although the reply was lost."""
    await store.jobs.submit([new_job(n, needs="maps") for n in range(3)])
    worker = ContractWorker(store)
    wants = worker.wants(2, admits={MAPS: 2})
    first = await worker.exchange(wants=wants)
    again = await worker.exchange(wants=wants, repeat=True)
    assert again == first
    assert again.gated == (Gated(MAPS, 1),)
    assert [lease.needs for lease in again.leases] == ["maps", "maps"]


async def test_a_job_stays_in_its_lane(store: Store, clock: FakeClock) -> None:
    """The requirements of a job never change, whatever happens to it."""
    await store.jobs.submit([new_job(1, needs="maps", attempts_max=9)])
    worker = ContractWorker(store)
    assert (await job_of(store)).needs == "maps"
    (lease,) = await worker.claim(admits={MAPS: 1})
    await worker.settle(retry(lease))
    assert await counts(store, needs="maps") == {"ready": 1}
    await worker.claim(admits={MAPS: 1})
    clock.advance_us(LEASE_US)
    (lease,) = await worker.claim(admits={MAPS: 1})
    await worker.settle(failed(lease))
    assert (await job_of(store)).needs == "maps"
    assert await counts(store, needs="maps") == {"failed": 1}
    await store.operations.retry(ALL, 1)
    assert await worker.claim() == ()
    (lease,) = await worker.claim(admits={MAPS: 1})
    assert lease.needs == "maps"
    await worker.settle(done(lease, children=(new_job(2, needs="mail"), new_job(3))))
    assert await counts(store, needs="maps") == {"done": 1}
    assert [lane.needs for lane in await store.reads.lanes()] == ["", "mail", "maps"]


async def test_a_capped_tenant_is_behind_a_gate_from_the_next_claim_on(store: Store) -> None:
    """The caps must be checked before any job of the tenant starts, with or without requirements, until they are
    removed.
    """
    await store.jobs.submit([new_job(n, tenant="acme") for n in range(4)])
    acme, worker = Gate("", "acme"), ContractWorker(store)
    assert len(await worker.claim()) == 1
    await store.tenants.set(Tenant(name="acme", concurrency=1))
    answer = await worker.exchange(wants=worker.wants(9))
    assert (answer.leases, answer.gated) == ((), (Gated(acme, 3),))
    assert len(await worker.claim(9, admits={acme: 1})) == 1
    await store.tenants.forget("acme")
    assert len(await worker.claim(9)) == 2


# -- waiting ------------------------------------------------------------------------------------------------


async def test_jobs_behind_closed_gates_wake_nobody(store: Store) -> None:
    """Ten thousand jobs that may not start must not make every worker poll all day."""
    await store.jobs.submit([new_job(n, needs="maps") for n in range(3)])
    assert await store.jobs.wait_us(QUEUES) == 0
    assert await store.jobs.wait_us(QUEUES, [MAPS]) is None
    assert await store.jobs.wait_us(QUEUES, [MAIL, Gate("maps", "other")]) == 0
    await store.jobs.submit([new_job(9, delay_us=MINUTE_US)])
    assert await store.jobs.wait_us(QUEUES, [MAIL, MAPS]) == MINUTE_US
    await store.jobs.submit([new_job(10)])
    assert await store.jobs.wait_us(QUEUES, [MAPS]) == 0


async def test_only_a_gate_can_be_closed(store: Store) -> None:
    """A worker with a stale cap must not wait for it after the cap was removed."""
    await store.jobs.submit([new_job(1, tenant="acme")])
    acme = Gate("", "acme")
    assert await store.jobs.wait_us(QUEUES, [acme]) == 0
    await store.tenants.set(Tenant(name="acme", concurrency=1))
    assert await store.jobs.wait_us(QUEUES, [acme]) is None
    assert await store.jobs.wait_us(QUEUES) == 0
    await store.tenants.set(Tenant(name="acme"))
    assert await store.jobs.wait_us(QUEUES, [acme]) == 0


CAPPED = Tenant(name="b", weight=WEIGHT_MAX, starts=(Rate(1_000_000, 5), Rate(60_000_000, 100)), concurrency=3)


async def test_what_was_agreed_with_tenants_is_kept(store: Store) -> None:
    """The settings must be listed by name, each with its latest value."""
    assert await store.tenants.all() == []
    await store.tenants.set(CAPPED)
    await store.tenants.set(Tenant(name="a", weight=2))
    assert await store.tenants.all() == [Tenant(name="a", weight=2), CAPPED]
    await store.tenants.set(Tenant(name="b"))
    assert await store.tenants.all() == [Tenant(name="a", weight=2), Tenant(name="b")]


async def test_forgetting_a_tenant_says_whether_it_was_known(store: Store) -> None:
    """A misspelled name must not look like success."""
    await store.tenants.set(Tenant(name="a"))
    assert await store.tenants.forget("A") is False
    assert await store.tenants.forget("a") is True
    assert await store.tenants.forget("a") is False
    assert await store.tenants.all() == []


# -- workers of one tenant ----------------------------------------------------------------------------------


async def test_who_works_for_one_tenant_is_given_nothing_of_others(store: Store) -> None:
    """The payloads of other tenants are confidential, and the shares of the other workers must not shrink."""
    await store.jobs.submit([new_job(n, tenant="a" if n % 2 else "b", priority=9 - n) for n in range(8)])
    worker = ContractWorker(store)
    wants = replace(worker.wants(3), tenant="a")
    got = [await worker.exchange(wants=replace(wants, token=Token(token))) for token in ("first", "next", "last")]
    assert [[lease.tenant for lease in reply.leases] for reply in got] == [["a"] * 3, ["a"], []]
    assert [lease.tenant for lease in await worker.claim(9)] == ["b"] * 4


async def test_who_works_for_one_tenant_is_told_of_its_gates_only(store: Store) -> None:
    """An admission for another tenant's gate must not help either."""
    await store.jobs.submit([new_job(n, tenant="a" if n % 2 else "b", needs="maps") for n in range(8)])
    worker, mine, other = ContractWorker(store), Gate("maps", "a"), Gate("maps", "b")
    wants = replace(worker.wants(3, admits={mine: 1, other: 5}), tenant="a")
    reply = await worker.exchange(wants=wants)
    assert [lease.tenant for lease in reply.leases] == ["a"]
    assert reply.gated == (Gated(mine, 3),)
    assert [lease.tenant for lease in await worker.claim(9, admits={other: 5})] == ["b"] * 4


# -- fair shares --------------------------------------------------------------------------------------------


async def served(store: Store, claims: int, jobs: int, admits: Mapping[Gate, int] = NOBODY) -> Counter[str]:
    """The number of jobs per tenant that a series of equal claims returned."""
    got: Counter[str] = Counter()
    worker = ContractWorker(store)
    for _ in range(claims):
        leases = await worker.claim(jobs, admits=admits)
        got.update(lease.tenant for lease in leases)
        await worker.settle(*map(done, leases))
    return got


def fairness(service: Iterable[int]) -> float:
    """Jain's index: 1 if all tenants got the same, 0.1 if one of ten got everything."""
    got = list(service)
    return sum(got) ** 2 / (len(got) * sum(each**2 for each in got))


async def with_one_loud_tenant(store: Store, needs: str = "") -> None:
    """Nine tenants submit 20 jobs each, and one submits 2,000 before them."""
    await store.jobs.submit([new_job(n, tenant="loud", needs=needs) for n in range(2_000)])
    for tenant in range(9):
        first = 10_000 + 20 * tenant
        await store.jobs.submit([new_job(first + n, tenant=f"quiet-{tenant}", needs=needs) for n in range(20)])


async def test_a_loud_tenant_gets_no_more_than_the_quiet_ones_job_by_job(store: Store) -> None:
    """While all tenants have work, a hundred times as many jobs must not mean a hundred times as much service."""
    await with_one_loud_tenant(store)
    got = await served(store, claims=150, jobs=1)
    assert len(got) == 10
    assert fairness(got.values()) >= 0.95


async def test_a_loud_tenant_gets_no_more_than_the_quiet_ones_batch_by_batch(store: Store) -> None:
    """The same must hold for workers that claim many at once, and for a number that ten does not divide."""
    await with_one_loud_tenant(store)
    got = await served(store, claims=22, jobs=7)
    assert len(got) == 10
    assert fairness(got.values()) >= 0.95


async def test_a_loud_tenant_gets_no_more_behind_gates(store: Store) -> None:
    """Most jobs need a provider, so fairness must hold behind gates as well."""
    await with_one_loud_tenant(store, needs="maps")
    tenants = ["loud", *(f"quiet-{n}" for n in range(9))]
    got = await served(store, claims=22, jobs=7, admits={Gate("maps", tenant): 7 for tenant in tenants})
    assert len(got) == 10
    assert fairness(got.values()) >= 0.95


async def test_a_heavier_tenant_is_served_more_often_job_by_job(store: Store) -> None:
    """Weights 1 and 3 must give a quarter and three quarters."""
    await store.tenants.set(Tenant(name="b", weight=3))
    await store.jobs.submit([new_job(2 * n + i, tenant=tenant) for n in range(100) for i, tenant in enumerate("ab")])
    got = await served(store, claims=80, jobs=1)
    assert got == {"a": 20, "b": 60}


async def test_a_heavier_tenant_gets_more_of_each_batch(store: Store) -> None:
    """A remainder that cannot be divided in one claim must be made up for in the next."""
    await store.tenants.set(Tenant(name="b", weight=3))
    await store.jobs.submit([new_job(2 * n + i, tenant=tenant) for n in range(300) for i, tenant in enumerate("ab")])
    got = await served(store, claims=30, jobs=10)
    assert abs(got["a"] - 75) <= 2
    assert got.total() == 300


async def test_a_new_weight_counts_from_the_next_claim_on(store: Store) -> None:
    """A new weight must not need a restart of the workers."""
    await store.jobs.submit([new_job(2 * n + i, tenant=tenant) for n in range(200) for i, tenant in enumerate("ab")])
    assert await served(store, claims=10, jobs=2) == {"a": 10, "b": 10}
    await store.tenants.set(Tenant(name="a", weight=9))
    assert await served(store, claims=10, jobs=10) == {"a": 90, "b": 10}
    await store.tenants.forget("a")
    assert await served(store, claims=10, jobs=2) == {"a": 10, "b": 10}


async def test_a_tenant_that_comes_back_is_not_paid_for_its_absence(store: Store) -> None:
    """It must get its share from now on, and tenants that worked meanwhile must not be stopped for it."""
    await store.jobs.submit([new_job(1, tenant="away")])
    await store.jobs.submit([new_job(1_000 + n, tenant="here") for n in range(400)])
    await served(store, claims=200, jobs=1)
    await store.jobs.submit([new_job(2_000 + n, tenant="away") for n in range(100)])
    got = await served(store, claims=20, jobs=1)
    assert abs(got["away"] - got["here"]) <= 2


async def test_tenants_that_come_back_together_start_alike(store: Store) -> None:
    """After all work was done, no active lane defines the current position, so the store must remember it."""
    await store.jobs.submit([new_job(n, tenant="busy") for n in range(200)])
    await served(store, claims=200, jobs=1)
    await store.jobs.submit([new_job(1_000, tenant="new"), *(new_job(1_001 + n, tenant="new") for n in range(50))])
    await served(store, claims=1, jobs=1)
    await store.jobs.submit([new_job(2_000 + n, tenant="busy") for n in range(50)])
    got = await served(store, claims=20, jobs=1)
    assert abs(got["busy"] - got["new"]) <= 2


async def test_jobs_that_come_one_by_one_have_no_privilege(store: Store) -> None:
    """A tenant that never has more than one ready job must not be first every time."""
    await store.jobs.submit([new_job(10_000 + n, tenant="many") for n in range(100)])
    got: Counter[str] = Counter()
    for n in range(60):
        await store.jobs.submit([new_job(n, tenant="few")])
        got += await served(store, claims=1, jobs=1)
    assert abs(got["few"] - got["many"]) <= 2


async def test_a_lane_behind_a_closed_gate_saves_nothing_up(store: Store) -> None:
    """When a provider is back after an hour, its jobs must get their share, and not all workers for an hour."""
    maps = Gate("maps", "default")
    await store.jobs.submit([new_job(n, needs="maps") for n in range(300)])
    await store.jobs.submit([new_job(1_000 + n) for n in range(300)])
    worker = ContractWorker(store)
    await served(store, claims=2, jobs=1, admits={maps: 1})
    await served(store, claims=100, jobs=1)
    needs = [lease.needs for _ in range(20) for lease in await worker.claim(1, admits={maps: 1})]
    assert abs(needs.count("maps") - 10) <= 1
