"""Closed lanes: one worker learns that a gate is closed, and no worker tries it before its time. However many lanes one
tenant has, closed or open, the lanes of the others are served; and lanes without jobs leave.
"""

from collections import Counter

from msgspec.structs import replace

from leaseway.domain.budgets.budget import Charge
from leaseway.domain.exchange import CLOSED_US_MAX, LANES_MAX, Closing, Gate, Gated
from leaseway.domain.ids import SECOND_US
from leaseway.domain.requirements import Needs, render_needs
from leaseway.domain.tenant import Tenant
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import (
    ALL,
    MINUTE_US,
    QUEUES,
    ContractWorker,
    counts,
    done,
    id_of,
    new_job,
)
from leaseway.testing.job_store_contract.lanes import MAIL, MAPS, served


def closing(gate: Gate, seconds: int = 10, why: str = "limit maps: its rate is used up") -> Closing:
    return Closing(gate, seconds * SECOND_US, why)


async def close(store: Store, *closings: Closing, tenant: str | None = None) -> tuple[Gated, ...]:
    """Close gates; return those that the same exchange still reports."""
    worker = ContractWorker(store)
    wants = replace(worker.wants(1), closed=closings, tenant=tenant)
    return (await worker.exchange(wants=wants)).gated


async def gated(store: Store) -> tuple[Gated, ...]:
    return await close(store)


async def test_a_closed_lane_is_closed_for_all_workers_until_its_time(store: Store, clock: FakeClock) -> None:
    """The limiter would give every worker the same answer, so only one of them needs to ask."""
    await store.jobs.submit([new_job(1, needs="maps"), new_job(2, needs="mail")])
    assert await close(store, closing(MAPS)) == (Gated(MAIL, 1),)
    clock.advance(9)
    assert await gated(store) == (Gated(MAIL, 1),)
    clock.advance(1)
    assert set(await gated(store)) == {Gated(MAPS, 1), Gated(MAIL, 1)}


def spending(name: str, tenant: str = "default") -> Gate:
    """The gate of jobs that need an instance of the budget spend:{tenant}."""
    return Gate(render_needs(Needs(budgets=(Charge(name, "spend:{tenant}"),))), tenant)


async def test_lanes_open_by_the_name_of_what_has_changed(store: Store) -> None:
    """A raised budget must not wait until the closures of its lanes end; lanes that wait for something else stay
    closed."""
    acme, zeta = spending("spend:acme", "acme"), spending("spend:zeta", "zeta")
    await store.jobs.submit([new_job(1, needs=acme.needs, tenant="acme"), new_job(2, needs=zeta.needs, tenant="zeta")])
    await store.jobs.submit([new_job(3, needs="maps")])
    both = {Gated(acme, 1), Gated(zeta, 1)}
    assert await close(store, closing(acme), closing(zeta), closing(MAPS)) == ()
    assert await store.operations.open_lanes("spend", 10) == 0, "another budget may begin with the same word"
    assert await store.operations.open_lanes("spend:acme", 10) == 1
    assert await gated(store) == (Gated(acme, 1),)
    await close(store, closing(acme))
    assert await store.operations.open_lanes("spend:{tenant}", 10, "zeta") == 1
    assert await gated(store) == (Gated(zeta, 1),)
    await close(store, closing(zeta))
    assert await store.operations.open_lanes("spend:{tenant}", 1) == 1
    assert await store.operations.open_lanes("spend:{tenant}", 0) == 0
    assert await store.operations.open_lanes("spend:{tenant}", 10) == 1
    assert set(await gated(store)) == both
    assert await store.operations.open_lanes("spend:{tenant}", 10) == 0


async def test_a_lane_that_opens_ends_the_wait_of_a_worker(store: Store) -> None:
    """An idle worker of another process must claim from it at once."""
    gate = spending('a "quoted" name')
    await store.jobs.submit([new_job(1, needs=gate.needs)])
    await close(store, closing(gate))
    assert await store.jobs.wait_us(QUEUES) == 10 * SECOND_US
    assert await store.operations.open_lanes('a "quoted" name', 10) == 1
    assert await store.jobs.wait_us(QUEUES) == 0


async def test_the_end_of_a_closure_ends_the_wait_of_a_worker(store: Store, clock: FakeClock) -> None:
    """The worker that closed the lane may be gone; another one must try it in time."""
    await store.jobs.submit([new_job(1, needs="maps"), new_job(2, delay_us=MINUTE_US)])
    await close(store, closing(MAPS))
    assert await store.jobs.wait_us(QUEUES) == 10 * SECOND_US
    clock.advance(10)
    assert await store.jobs.wait_us(QUEUES) == 0


async def test_a_worker_with_permits_enters_a_closed_lane(store: Store) -> None:
    """Another worker was refused before the permits were free. The admission is newer than the refusal."""
    await store.jobs.submit([new_job(1, needs="maps"), new_job(2, needs="maps")])
    await close(store, closing(MAPS))
    assert [lease.id for lease in await ContractWorker(store).claim(9, admits={MAPS: 1})] == [id_of(1)]
    assert await gated(store) == ()


async def test_a_closed_lane_keeps_its_time(store: Store, clock: FakeClock) -> None:
    """Workers that are refused one after the other must not keep a lane closed for ever."""
    await store.jobs.submit([new_job(1, needs="maps")])
    await close(store, closing(MAPS))
    clock.advance(9)
    await close(store, closing(MAPS))
    clock.advance(1)
    assert await gated(store) == (Gated(MAPS, 1),)


async def test_a_wait_of_nothing_opens_a_closed_lane(store: Store) -> None:
    """A call under a concurrency limit ends at a time that no limiter can name. The worker that ends it knows, and the
    next job must not wait until the lane would have opened."""
    await store.jobs.submit([new_job(n, needs=needs) for n, needs in enumerate(("maps", "mail"), 1)])
    await close(store, closing(MAPS), closing(MAIL))
    await close(store, closing(MAPS, seconds=0), tenant="stranger")
    assert await gated(store) == ()
    assert await close(store, closing(MAPS, seconds=0)) == (Gated(MAPS, 1),)
    assert await gated(store) == (Gated(MAPS, 1),)
    assert {(lane.needs, lane.closed_why is None) for lane in await store.reads.lanes()} == {
        ("maps", True),
        ("mail", False),
    }
    assert await close(store, closing(MAPS)) == ()


async def test_no_lane_is_closed_for_long(store: Store, clock: FakeClock) -> None:
    """The definition of a limit may change. Without a bound, a worker could close a lane for ever."""
    await store.jobs.submit([new_job(1, needs="maps")])
    await close(store, closing(MAPS, seconds=10**6))
    clock.advance_us(CLOSED_US_MAX)
    assert await gated(store) == (Gated(MAPS, 1),)


async def test_a_closed_lane_has_a_reason(store: Store, clock: FakeClock) -> None:
    """An operator must see which limit keeps the jobs of a lane waiting, and until when."""
    await store.jobs.submit([new_job(1, needs="maps"), new_job(2)])
    await close(store, closing(MAPS))
    plain, maps = await store.reads.lanes()
    assert (maps.closed_until, maps.closed_why) == (clock.now_us() + 10 * SECOND_US, "limit maps: its rate is used up")
    assert (plain.closed_until, plain.closed_why) == (None, None)
    clock.advance(10)
    await gated(store)
    assert [(lane.closed_until, lane.closed_why) for lane in await store.reads.lanes()] == [(None, None)] * 2


async def test_a_worker_of_one_tenant_closes_its_lanes_only(store: Store) -> None:
    """Otherwise a tenant with a worker key could stop the jobs of the others."""
    await store.jobs.submit([new_job(1, needs="maps", tenant="a"), new_job(2, needs="maps", tenant="b")])
    gates = [Gate("maps", tenant) for tenant in ("a", "b")]
    await close(store, *map(closing, gates), tenant="a")
    assert await gated(store) == (Gated(gates[1], 1),)


async def test_a_lane_without_a_gate_cannot_be_closed(store: Store) -> None:
    """A worker with a stale cap must not stop jobs that need nothing, and new settings apply from the next claim on."""
    await store.jobs.submit([new_job(1, tenant="acme")])
    acme = Gate("", "acme")
    await close(store, closing(acme), tenant="other")
    await store.tenants.set(Tenant(name="acme", concurrency=1))
    assert await close(store, closing(acme)) == ()
    await store.tenants.set(Tenant(name="acme", concurrency=2))
    assert await gated(store) == (Gated(acme, 1),)
    assert await close(store, closing(acme)) == ()
    await store.tenants.forget("acme")
    worker = ContractWorker(store)
    reply = await worker.exchange(wants=replace(worker.wants(1), closed=(closing(acme),)))
    assert [lease.id for lease in reply.leases] == [id_of(1)]


async def test_tenants_take_turns_in_the_list_of_gates(store: Store) -> None:
    """A tenant with a limit per account has a thousand gates. The gates of all others must be reported as early."""
    await store.jobs.submit([new_job(n, needs=f"mail:{n:04}", tenant="many") for n in range(3 * LANES_MAX)])
    await store.jobs.submit([new_job(10_000 + n, needs=f"maps:{n}", tenant="few") for n in range(2)])
    for _ in range(2):
        tenants = [each.gate.tenant for each in await gated(store)]
        assert Counter(tenants) == {"many": LANES_MAX - 2, "few": 2}
        assert max(place for place, tenant in enumerate(tenants) if tenant == "few") <= 3
        await ContractWorker(store).claim(1, admits={Gate("maps:0", "few"): 1})
        await store.jobs.submit([new_job(20_000, needs="maps:0", tenant="few")])


async def test_a_tenant_gets_no_more_for_many_lanes(store: Store) -> None:
    """Lanes are cheap: a tenant must not multiply its share by a limit per account."""
    await store.jobs.submit([new_job(n, needs=f"mail:{n}", tenant="many") for n in range(60)])
    await store.jobs.submit([new_job(10_000 + n, needs="maps", tenant="one") for n in range(60)])
    admits = {Gate(f"mail:{n}", "many"): 1 for n in range(60)} | {Gate("maps", "one"): 60}
    for jobs, claims in ((1, 20), (4, 5)):
        got = await served(store, claims=claims, jobs=jobs, admits=admits)
        assert abs(got["many"] - got["one"]) <= 2


async def test_lanes_of_one_tenant_take_turns(store: Store) -> None:
    """A lane that joins later starts at the place of the others, and does not hold them up."""
    await store.jobs.submit([new_job(100 * lane + n, needs=f"maps:{lane}") for lane in range(3) for n in range(30)])
    admits = {Gate(f"maps:{lane}", "default"): 9 for lane in range(4)}
    worker = ContractWorker(store)
    first = Counter([lease.needs for _ in range(10) for lease in await worker.claim(2, admits=admits)])
    assert max(first.values()) - min(first.values()) <= 1
    await store.jobs.submit([new_job(300 + n, needs="maps:3") for n in range(30)])
    then = Counter([lease.needs for _ in range(12) for lease in await worker.claim(1, admits=admits)])
    assert max(then.values()) - min(then.values()) <= 2


async def test_lanes_without_jobs_leave(store: Store) -> None:
    """Queue names and limits per account are endless. Lanes that stay for ever would slow down every list of lanes."""
    worker = ContractWorker(store)
    await store.jobs.submit([new_job(n, queue=f"q{n}", needs="maps" if n % 2 else "") for n in range(10)])
    leases = await worker.claim(9, tuple(f"q{n}" for n in range(10)), {MAPS: 9})
    await worker.settle(*map(done, leases))
    assert await store.operations.prune(MINUTE_US, 100) == 0
    assert len(await store.reads.lanes()) == 10
    assert await store.operations.prune(0, 100) == len(leases)
    assert [lane.unfinished for lane in await store.reads.lanes()] == [1] * (10 - len(leases))
    await store.jobs.submit([new_job(100, queue="q0"), new_job(101, queue="q0")])
    assert len(await worker.claim(9, ("q0",))) == 2
    assert await counts(store, queue="q0") == {"leased": 2}


async def test_lanes_leave_a_bounded_number_at_a_time(store: Store) -> None:
    """Prune runs beside the workers and must be short."""
    await store.jobs.submit([new_job(n, queue=f"q{n}") for n in range(5)])
    for n in range(5):
        await store.operations.cancel(id_of(n))
    await store.operations.discard(ALL, 5)
    left = []
    for limit in (0, 2, 2, 2):
        await store.operations.prune(0, limit)
        left.append(len(await store.reads.lanes()))
    assert left == [5, 3, 1, 0]
