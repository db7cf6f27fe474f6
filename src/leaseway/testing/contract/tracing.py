"""Where a job came from: kept for those who trace, and told to those who hold it."""

from leaseway.domain.exchange import HeldLease
from leaseway.domain.ids import Token
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.contract.actors import LEASE_US, Worker, done, held, id_of, keyed_job, leased_job, new_job, retry

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
GUESSED = Token("guessed")


async def test_the_trace_of_a_job_comes_back_to_its_worker(store: Store) -> None:
    """Whoever runs a job says whose doing it is: of one job, of many, and of one with a key."""
    await store.jobs.submit([new_job(1, trace=TRACE)])
    await store.jobs.submit([new_job(2, trace=TRACE), new_job(3), new_job(4, trace=OTHER)])
    await store.jobs.submit([keyed_job(5, trace=OTHER)])
    leases = [held(lease) for lease in await Worker(store).claim(5)]
    assert await store.jobs.traces(leases) == {id_of(1): TRACE, id_of(2): TRACE, id_of(4): OTHER, id_of(5): OTHER}


async def test_jobs_that_nobody_traces_have_no_trace(store: Store) -> None:
    """And asking about nothing answers nothing."""
    lease = await leased_job(store)
    assert await store.jobs.traces([held(lease)]) == {}
    assert await store.jobs.traces([]) == {}


async def test_who_does_not_hold_a_job_is_not_told_its_trace(store: Store, clock: FakeClock) -> None:
    """Ids are no secret, and what others do is nobody's business."""
    late = await leased_job(store, trace=TRACE)
    assert await store.jobs.traces([HeldLease(late.id, GUESSED, LEASE_US)]) == {}
    clock.advance_us(LEASE_US)
    now = await Worker(store, "other").claim_one()
    assert await store.jobs.traces([held(late)]) == {}
    assert await store.jobs.traces([held(now)]) == {id_of(1): TRACE}


async def test_every_attempt_knows_the_trace(store: Store) -> None:
    """The attempt that fails is the one that people look for."""
    worker, lease = Worker(store), await leased_job(store, trace=TRACE)
    await worker.settle(retry(lease))
    assert await store.jobs.traces([held(await worker.claim_one())]) == {id_of(1): TRACE}


async def test_a_job_that_a_job_submits_keeps_its_trace(store: Store) -> None:
    worker, lease = Worker(store), await leased_job(store)
    await worker.settle(done(lease, children=(new_job(2, trace=OTHER),)))
    assert await store.jobs.traces([held(await worker.claim_one())]) == {id_of(2): OTHER}
