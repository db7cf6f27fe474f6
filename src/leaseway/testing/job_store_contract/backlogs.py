"""Backlogs: an exchange wakes, reclaims and opens a bounded number of things, and a tenant with very many of them does
not delay the others by more than a few exchanges.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from leaseway.domain.exchange import PROMOTE_MAX, RECLAIM_MAX, REOPEN_MAX, Closing, Gate
from leaseway.domain.ids import SECOND_US
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import (
    HOUR_US,
    MINUTE_US,
    ContractWorker,
    counts,
    id_of,
    job_of,
    new_job,
)

CLOSED_SECONDS = 600
CLOSE_TRIES_MAX = 20
QUIET = 1_000_000
"""The number of the job whose tenant has only this one."""


async def submit_backlog(store: Store, jobs: int, lanes: int = 1) -> None:
    """Jobs of one tenant that are due in a minute, and one job of another tenant that is due a second later."""
    for start in range(0, jobs, 1_000):
        numbers = range(start, min(start + 1_000, jobs))
        new = [
            new_job(n, tenant="loud", needs=f"n{n % lanes}" if lanes > 1 else "", delay_us=MINUTE_US) for n in numbers
        ]
        await store.jobs.submit(new)
    await store.jobs.submit([new_job(QUIET, tenant="quiet", delay_us=MINUTE_US + SECOND_US)])


async def exchanges_until_ready(store: Store, tenant: str, most: int) -> int:
    for exchanges in range(1, most + 1):
        await ContractWorker(store).settle()
        if await counts(store, tenant=tenant) == {"ready": 1}:
            return exchanges
    raise AssertionError(f"the job of tenant {tenant} is not ready after {most} exchanges")


async def test_due_jobs_of_one_tenant_do_not_delay_those_of_another(store: Store, clock: FakeClock) -> None:
    """A campaign that schedules everything for 9:00 must not move the nine o'clock jobs of the others."""
    await submit_backlog(store, 6 * PROMOTE_MAX)
    clock.advance(2 * 60)
    assert await exchanges_until_ready(store, "quiet", 1) == 1
    assert (await counts(store, tenant="loud"))["scheduled"] >= 4 * PROMOTE_MAX


async def test_due_jobs_in_very_many_lanes_do_not_delay_those_of_another(store: Store, clock: FakeClock) -> None:
    """With a limit per account, a tenant has a lane for each account, and turns by lane alone would be its turns."""
    await submit_backlog(store, 12 * PROMOTE_MAX, lanes=2 * PROMOTE_MAX)
    clock.advance(2 * 60)
    assert await exchanges_until_ready(store, "quiet", 3) <= 3


async def test_lanes_whose_jobs_are_not_due_do_not_slow_down_a_backlog(store: Store, clock: FakeClock) -> None:
    """Each exchange looks at a bounded number of lanes. If it finds nothing due there, it still wakes the earliest."""
    later = [new_job(2_000_000 + n, tenant="later", needs=f"n{n}", delay_us=HOUR_US) for n in range(PROMOTE_MAX + 10)]
    for start in range(0, len(later), 1_000):
        await store.jobs.submit(later[start : start + 1_000])
    await submit_backlog(store, 3 * PROMOTE_MAX)
    clock.advance(2 * 60)
    for _ in range(4):
        await ContractWorker(store).settle()
    assert await counts(store, tenant="loud") == {"ready": 3 * PROMOTE_MAX}
    assert await counts(store, tenant="quiet") == {"ready": 1}


async def test_of_each_lane_the_earliest_jobs_wake_first(store: Store, clock: FakeClock) -> None:
    """Turns are between lanes. Within a lane, a job must not wait for one that was due later."""
    jobs = [new_job(n, tenant=f"t{n % 2}", delay_us=MINUTE_US - n) for n in range(3 * PROMOTE_MAX)]
    for start in range(0, len(jobs), 1_000):
        await store.jobs.submit(jobs[start : start + 1_000])
    clock.advance(60)
    await ContractWorker(store).settle()
    for tenant in range(2):
        ready = (await counts(store, tenant=f"t{tenant}"))["ready"]
        last = 3 * PROMOTE_MAX - 2 + tenant
        claimed = await ContractWorker(store).claim_all(2 * PROMOTE_MAX, tenant=f"t{tenant}")
        # A claim wakes more jobs, which come after the first ones.
        assert [lease.id for lease in claimed][:ready] == [id_of(last - 2 * n) for n in range(ready)]


async def test_expired_leases_of_one_tenant_do_not_delay_those_of_another(store: Store, clock: FakeClock) -> None:
    """A worker key that leases thousands of jobs and drops them must not keep the jobs of a dead worker elsewhere."""
    jobs = [new_job(n, tenant="loud") for n in range(3 * RECLAIM_MAX)]
    for start in range(0, len(jobs), 1_000):
        await store.jobs.submit(jobs[start : start + 1_000])
    assert len(await ContractWorker(store).claim_all(len(jobs))) == len(jobs)
    clock.advance(1)
    await store.jobs.submit([new_job(QUIET, tenant="quiet")])
    assert [lease.id for lease in await ContractWorker(store).claim(1)] == [id_of(QUIET)]
    clock.advance_us(HOUR_US)
    assert await exchanges_until_ready(store, "quiet", 1) == 1
    assert await counts(store, tenant="loud") == {"ready": RECLAIM_MAX - 1, "leased": 2 * RECLAIM_MAX + 1}
    assert (await job_of(store, 0)).attempts == 1


async def close_lanes(store: Store, clock: FakeClock, gates: Sequence[Gate]) -> None:
    """A store may skip a lane that it cannot lock at once. Then a worker closes it with a later exchange."""
    for _ in range(CLOSE_TRIES_MAX):
        for start in range(0, len(gates), 1_000):
            worker = ContractWorker(store)
            some = gates[start : start + 1_000]
            closed = tuple(Closing(gate, CLOSED_SECONDS * SECOND_US, "the rate is used up") for gate in some)
            await worker.exchange(wants=replace(worker.wants(1), closed=closed))
            clock.advance_us(1)
        still_open = {(lane.needs, lane.tenant) for lane in await store.reads.lanes() if lane.closed_until is None}
        gates = [gate for gate in gates if (gate.needs, gate.tenant) in still_open]
        if not gates:
            return
    raise AssertionError(f"{len(gates)} lanes stay open, such as {gates[0]}")


async def test_closed_lanes_of_one_tenant_do_not_delay_those_of_another(store: Store, clock: FakeClock) -> None:
    """With a limit per account, all lanes of a tenant open at once, and those of the others must open in time."""
    needs = [f"mail:{n}" for n in range(2 * REOPEN_MAX)]
    for start in range(0, len(needs), 1_000):
        await store.jobs.submit(
            [new_job(start + n, tenant="loud", needs=each) for n, each in enumerate(needs[start : start + 1_000])]
        )
    await store.jobs.submit([new_job(QUIET, tenant="quiet", needs="maps")])
    gates = [*(Gate(each, "loud") for each in needs), Gate("maps", "quiet")]
    await close_lanes(store, clock, gates)
    clock.advance(2 * CLOSED_SECONDS)
    exchanges, still_closed = 0, ["quiet"]
    while "quiet" in still_closed:  # a store may skip a lane that it cannot lock at once
        await ContractWorker(store).settle()
        exchanges += 1
        still_closed = [lane.tenant for lane in await store.reads.lanes() if lane.closed_until is not None]
    assert len(still_closed) >= max(1, len(gates) - exchanges * REOPEN_MAX), "the quiet tenant comes before the rest"
