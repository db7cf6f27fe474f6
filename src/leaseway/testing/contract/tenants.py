"""Tenants: what was agreed is kept, and everybody gets the share that it weighs."""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from leaseway.domain.exchange import Gate, Gated
from leaseway.domain.ids import Token
from leaseway.domain.limits.limit import Rate
from leaseway.domain.tenant import WEIGHT_MAX, Tenant
from leaseway.ports.store import Store
from leaseway.testing.contract.actors import NOBODY, Worker, done, new_job

CAPPED = Tenant(name="b", weight=WEIGHT_MAX, starts=(Rate(1_000_000, 5), Rate(60_000_000, 100)), concurrency=3)


async def test_what_was_agreed_with_tenants_is_kept(store: Store) -> None:
    """By name, each as it was said last."""
    assert await store.tenants.all() == []
    await store.tenants.set(CAPPED)
    await store.tenants.set(Tenant(name="a", weight=2))
    assert await store.tenants.all() == [Tenant(name="a", weight=2), CAPPED]
    await store.tenants.set(Tenant(name="b"))
    assert await store.tenants.all() == [Tenant(name="a", weight=2), Tenant(name="b")]


async def test_forgetting_a_tenant_says_whether_it_was_known(store: Store) -> None:
    """A name with a slip of the pen must not look like success."""
    await store.tenants.set(Tenant(name="a"))
    assert await store.tenants.forget("A") is False
    assert await store.tenants.forget("a") is True
    assert await store.tenants.forget("a") is False
    assert await store.tenants.all() == []


# -- workers of one tenant ----------------------------------------------------------------------------------


async def test_who_works_for_one_tenant_is_given_nothing_of_others(store: Store) -> None:
    """He may not even see it; and there is as much left for the others as before."""
    await store.jobs.submit([new_job(n, tenant="a" if n % 2 else "b", priority=9 - n) for n in range(8)])
    worker = Worker(store)
    wants = replace(worker.wants(3), tenant="a")
    got = [await worker.exchange(wants=replace(wants, token=Token(token))) for token in ("first", "next", "last")]
    assert [[lease.tenant for lease in reply.leases] for reply in got] == [["a"] * 3, ["a"], []]
    assert [lease.tenant for lease in await worker.claim(9)] == ["b"] * 4


async def test_who_works_for_one_tenant_is_told_of_its_gates_only(store: Store) -> None:
    """And what he is admitted to elsewhere does not help him."""
    await store.jobs.submit([new_job(n, tenant="a" if n % 2 else "b", needs="maps") for n in range(8)])
    worker, mine, other = Worker(store), Gate("maps", "a"), Gate("maps", "b")
    wants = replace(worker.wants(3, admits={mine: 1, other: 5}), tenant="a")
    reply = await worker.exchange(wants=wants)
    assert [lease.tenant for lease in reply.leases] == ["a"]
    assert reply.gated == (Gated(mine, 3),)
    assert [lease.tenant for lease in await worker.claim(9, admits={other: 5})] == ["b"] * 4


# -- fair shares --------------------------------------------------------------------------------------------


async def served(store: Store, claims: int, jobs: int, admits: Mapping[Gate, int] = NOBODY) -> Counter[str]:
    """By tenant, how many jobs so many claims of one size got."""
    got: Counter[str] = Counter()
    worker = Worker(store)
    for _ in range(claims):
        leases = await worker.claim(jobs, admits=admits)
        got.update(lease.tenant for lease in leases)
        await worker.settle(*map(done, leases))
    return got


def fairness(service: Iterable[int]) -> float:
    """Jain's index: one if everybody got the same, a tenth if one of ten got it all."""
    got = list(service)
    return sum(got) ** 2 / (len(got) * sum(each**2 for each in got))


async def with_one_loud_tenant(store: Store, needs: str = "") -> None:
    """Nine tenants submit 20 jobs each, one submits 2,000 before them."""
    await store.jobs.submit([new_job(n, tenant="loud", needs=needs) for n in range(2_000)])
    for tenant in range(9):
        first = 10_000 + 20 * tenant
        await store.jobs.submit([new_job(first + n, tenant=f"quiet-{tenant}", needs=needs) for n in range(20)])


async def test_a_loud_tenant_gets_no_more_than_the_quiet_ones_job_by_job(store: Store) -> None:
    """While everybody has work, a hundred times as many jobs must not mean a hundred times as much service."""
    await with_one_loud_tenant(store)
    got = await served(store, claims=150, jobs=1)
    assert len(got) == 10
    assert fairness(got.values()) >= 0.95


async def test_a_loud_tenant_gets_no_more_than_the_quiet_ones_batch_by_batch(store: Store) -> None:
    """The same for workers that take many at once, and a number that cannot be divided by ten."""
    await with_one_loud_tenant(store)
    got = await served(store, claims=22, jobs=7)
    assert len(got) == 10
    assert fairness(got.values()) >= 0.95


async def test_a_loud_tenant_gets_no_more_behind_gates(store: Store) -> None:
    """Jobs that need a provider are most of the jobs."""
    await with_one_loud_tenant(store, needs="maps")
    tenants = ["loud", *(f"quiet-{n}" for n in range(9))]
    got = await served(store, claims=22, jobs=7, admits={Gate("maps", tenant): 7 for tenant in tenants})
    assert len(got) == 10
    assert fairness(got.values()) >= 0.95


async def test_a_heavier_tenant_is_served_more_often_job_by_job(store: Store) -> None:
    """Weights 1 and 3 mean a quarter and three quarters."""
    await store.tenants.set(Tenant(name="b", weight=3))
    await store.jobs.submit([new_job(2 * n + i, tenant=tenant) for n in range(100) for i, tenant in enumerate("ab")])
    got = await served(store, claims=80, jobs=1)
    assert got == {"a": 20, "b": 60}


async def test_a_heavier_tenant_gets_more_of_each_batch(store: Store) -> None:
    """And what cannot be divided in one claim is made up for in the next."""
    await store.tenants.set(Tenant(name="b", weight=3))
    await store.jobs.submit([new_job(2 * n + i, tenant=tenant) for n in range(300) for i, tenant in enumerate("ab")])
    got = await served(store, claims=30, jobs=10)
    assert abs(got["a"] - 75) <= 2
    assert got.total() == 300


async def test_a_new_weight_counts_from_the_next_claim_on(store: Store) -> None:
    """Nobody restarts workers to help a customer."""
    await store.jobs.submit([new_job(2 * n + i, tenant=tenant) for n in range(200) for i, tenant in enumerate("ab")])
    assert await served(store, claims=10, jobs=2) == {"a": 10, "b": 10}
    await store.tenants.set(Tenant(name="a", weight=9))
    assert await served(store, claims=10, jobs=10) == {"a": 90, "b": 10}
    await store.tenants.forget("a")
    assert await served(store, claims=10, jobs=2) == {"a": 10, "b": 10}


async def test_a_tenant_that_comes_back_is_not_paid_for_its_absence(store: Store) -> None:
    """It gets its share from now on; those who worked meanwhile must not stand still for it."""
    await store.jobs.submit([new_job(1, tenant="away")])
    await store.jobs.submit([new_job(1_000 + n, tenant="here") for n in range(400)])
    await served(store, claims=200, jobs=1)
    await store.jobs.submit([new_job(2_000 + n, tenant="away") for n in range(100)])
    got = await served(store, claims=20, jobs=1)
    assert abs(got["away"] - got["here"]) <= 2


async def test_tenants_that_come_back_together_start_alike(store: Store) -> None:
    """When all work was done, nobody is left to say how far everybody was; it is remembered all the same."""
    await store.jobs.submit([new_job(n, tenant="busy") for n in range(200)])
    await served(store, claims=200, jobs=1)
    await store.jobs.submit([new_job(1_000, tenant="new"), *(new_job(1_001 + n, tenant="new") for n in range(50))])
    await served(store, claims=1, jobs=1)
    await store.jobs.submit([new_job(2_000 + n, tenant="busy") for n in range(50)])
    got = await served(store, claims=20, jobs=1)
    assert abs(got["busy"] - got["new"]) <= 2


async def test_jobs_that_come_one_by_one_have_no_privilege(store: Store) -> None:
    """Who never has more than one job ready must not be first in line each time."""
    await store.jobs.submit([new_job(10_000 + n, tenant="many") for n in range(100)])
    got: Counter[str] = Counter()
    for n in range(60):
        await store.jobs.submit([new_job(n, tenant="few")])
        got += await served(store, claims=1, jobs=1)
    assert abs(got["few"] - got["many"]) <= 2


async def test_a_lane_behind_a_closed_gate_saves_nothing_up(store: Store) -> None:
    """When a provider is back after an hour, its jobs get their share, and not all the workers for an hour."""
    maps = Gate("maps", "default")
    await store.jobs.submit([new_job(n, needs="maps") for n in range(300)])
    await store.jobs.submit([new_job(1_000 + n) for n in range(300)])
    worker = Worker(store)
    await served(store, claims=2, jobs=1, admits={maps: 1})
    await served(store, claims=100, jobs=1)
    needs = [lease.needs for _ in range(20) for lease in await worker.claim(1, admits={maps: 1})]
    assert abs(needs.count("maps") - 10) <= 1
