"""Ids of other tenants: a submission under such an id is an error, on every way into the store.

Submitters choose ids, so that a submission can be repeated. If a known id of another tenant counted as a repetition,
a tenant that submits under the id of another one's next job would suppress that job, and its submitter would be told
that the job is stored.
"""

from collections.abc import Awaitable

from leaseway.domain.errors import IdConflict
from leaseway.domain.ids import SECOND_US
from leaseway.domain.job import NewJob, State, Submitted
from leaseway.domain.schedule import Schedule
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import (
    MINUTE_US,
    ContractWorker,
    counts,
    done,
    id_of,
    ids_in,
    job_of,
    keyed_job,
    leased_job,
    new_job,
)

OTHER = "umbrella"


async def refused_id(submission: Awaitable[object]) -> str:
    """The message of the IdConflict that this submission must raise."""
    try:
        await submission
    except IdConflict as error:
        return str(error)
    raise AssertionError("the id of another tenant's job was accepted")


async def finish_all(store: Store) -> None:
    worker = ContractWorker(store)
    await worker.settle(*[done(lease) for lease in await worker.claim(10)])


async def check_refused(store: Store, *jobs: NewJob) -> None:
    """All jobs are refused together, and the stored job stays as it is."""
    before, lanes = await job_of(store), await store.reads.lanes()
    message = await refused_id(store.jobs.submit(jobs))
    assert id_of(1) in message
    assert "acme" not in message, "the owner of an id is confidential"
    assert await job_of(store) == before
    assert await ids_in(store) == [id_of(1)]
    assert [lane for lane in await store.reads.lanes() if lane not in lanes] == []


async def test_the_id_of_another_tenant_is_refused(store: Store) -> None:
    """For one job, for jobs that differ only in their payloads, for a mixed batch, and with an idempotency key."""
    await store.jobs.submit([new_job(1, tenant="acme")])
    await check_refused(store, new_job(1, tenant=OTHER))
    await check_refused(store, *[new_job(number, tenant=OTHER) for number in (2, 1, 3)])
    await check_refused(store, new_job(2, tenant=OTHER), new_job(1, tenant=OTHER, priority=5), new_job(3))
    await check_refused(store, keyed_job(1, tenant=OTHER))
    await check_refused(store, keyed_job(2, tenant=OTHER), new_job(1, tenant=OTHER))


async def test_the_id_of_a_leased_job_is_refused(store: Store) -> None:
    """The submission would disappear as it does behind a pending job."""
    await leased_job(store, tenant="acme")
    await check_refused(store, new_job(1, tenant=OTHER))
    await check_refused(store, new_job(1, tenant=OTHER), new_job(2, tenant=OTHER))


async def test_the_id_of_a_finished_job_is_refused(store: Store) -> None:
    """Finished jobs may be in another table, which each way into the store looks up by itself."""
    await store.jobs.submit([new_job(1, tenant="acme")])
    await finish_all(store)
    await check_refused(store, new_job(1, tenant=OTHER))
    await check_refused(store, *[new_job(number, tenant=OTHER) for number in (2, 1, 3)])
    await check_refused(store, new_job(2, tenant=OTHER), new_job(1, tenant=OTHER, priority=5), new_job(3))
    await check_refused(store, keyed_job(1, tenant=OTHER))


async def test_one_id_for_two_tenants_in_a_batch_is_refused(store: Store) -> None:
    """One of the two jobs would be acknowledged and not stored."""
    await refused_id(store.jobs.submit([new_job(1, tenant="acme"), new_job(1, tenant=OTHER)]))
    await refused_id(store.jobs.submit([keyed_job(1, tenant="acme"), keyed_job(1, tenant=OTHER)]))
    assert await ids_in(store) == []


async def test_a_refused_id_does_not_take_its_key(store: Store) -> None:
    """The submitter repeats its request with a new id and the same key, and must get its job."""
    await store.jobs.submit([new_job(1, tenant="acme")])
    await refused_id(store.jobs.submit([keyed_job(1, tenant=OTHER)]))
    assert await store.jobs.submit([keyed_job(2, tenant=OTHER)]) == [Submitted(id_of(2))]


async def test_an_own_id_stays_a_repetition(store: Store) -> None:
    """A client that lost the reply repeats its request: before its job runs, and after it has finished."""
    batch = [new_job(1, tenant=OTHER), new_job(2, tenant=OTHER, queue="slow")]
    first = await store.jobs.submit(batch)
    assert await store.jobs.submit(batch) == first
    await finish_all(store)
    assert await store.jobs.submit(batch) == first
    assert await counts(store, tenant=OTHER) == {"done": 1}


async def test_a_child_with_the_id_of_another_tenant_is_refused(store: Store) -> None:
    """The settlement must not be accepted: its child would be lost, and its handler has already ended."""
    await store.jobs.submit([new_job(1, tenant="acme", delay_us=MINUTE_US)])
    lease = await leased_job(store, 2, tenant=OTHER)
    children = (new_job(3, tenant=OTHER), new_job(1, tenant=OTHER))
    await refused_id(ContractWorker(store).settle(done(lease, children=children)))
    assert (await job_of(store, 2)).state is State.LEASED
    assert await ids_in(store) == [id_of(1), id_of(2)]
    await ContractWorker(store).settle(done(lease, children=children[:1]))
    assert await ids_in(store) == [id_of(1), id_of(2), id_of(3)]


async def test_no_settlement_of_the_exchange_is_written(store: Store) -> None:
    """An exchange is one transaction: the worker sends all settlements again."""
    await store.jobs.submit([new_job(1, tenant="acme", delay_us=MINUTE_US)])
    worker, fine = ContractWorker(store), await leased_job(store, 2, tenant=OTHER)
    wrong = await leased_job(store, 3, tenant=OTHER)
    await refused_id(worker.settle(done(fine), done(wrong, children=(keyed_job(1, tenant=OTHER),))))
    assert [(await job_of(store, number)).state for number in (2, 3)] == [State.LEASED] * 2


async def test_a_schedule_does_not_fire_into_the_id_of_another_tenant(store: Store, clock: FakeClock) -> None:
    """A schedule that moves on without its job has missed a fire."""
    await store.jobs.submit([new_job(1, tenant="acme")])
    await store.schedules.declare([Schedule(name="hourly", kind="report", cron="0 * * * *")])
    seen = clock.now_us()
    await refused_id(store.schedules.fire("hourly", seen, seen + SECOND_US, [keyed_job(1)]))
    (row,) = await store.schedules.all()
    assert (row.seen, row.last_fire) == (seen, None)
    assert await store.schedules.fire("hourly", seen, seen + SECOND_US, [keyed_job(2)])
