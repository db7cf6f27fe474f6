"""Payloads: a store may keep long ones apart, and nothing else of the job may show it."""

from leaseway.domain.exchange import Exchange, ProgressReport, Wants
from leaseway.domain.ids import Token, WorkerId
from leaseway.domain.job import Failure, NewJob, State
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import (
    ALL,
    HOUR_US,
    ContractWorker,
    failed,
    id_of,
    job_of,
    keyed_job,
    leased_job,
    new_job,
    retry,
)


def sized(number: int, size: int, **options: object) -> NewJob:
    """A job whose payload has this many characters."""
    return new_job(number, payload='{"t":"' + "é" * (size - 8) + '"}', **options)


async def stored_bytes(store: Store) -> int:
    return sum(lane.bytes for lane in await store.reads.lanes())


async def test_short_and_long_payloads_of_one_batch_reach_their_own_jobs(store: Store) -> None:
    """A payload that is kept apart must not be swapped with that of a neighbour."""
    jobs = [sized(number, size) for number, size in enumerate((10, 999, 1_000, 1_001, 2_000, 70_000, 9, 100_000), 1)]
    await store.jobs.submit(jobs)
    assert await stored_bytes(store) == sum(len(job.payload.encode()) for job in jobs)
    assert [lease.payload for lease in await ContractWorker(store).claim(9)] == [job.payload for job in jobs]
    assert [job.payload for job in await store.reads.jobs(ALL)] == [job.payload for job in reversed(jobs)]


async def test_a_repeated_claim_has_the_same_long_payload(store: Store) -> None:
    """The reply of a claim can be lost. The repetition must not lease a job without its arguments."""
    job = sized(1, 50_000)
    await store.jobs.submit([job])
    wants = Wants(("default",), 5, Token("claim"))
    await store.jobs.exchange(Exchange(WorkerId("w"), (), wants))
    again = await store.jobs.exchange(Exchange(WorkerId("w"), (), wants, repeat=True))
    assert [lease.payload for lease in again.leases] == [job.payload]


async def test_a_repeated_submission_keeps_the_first_payload(store: Store) -> None:
    """A client that lost the reply sends its job again; a faulty one sends other arguments under a known id."""
    first = [sized(1, 5_000), sized(2, 10)]
    await store.jobs.submit(first)
    await store.jobs.submit([sized(1, 10), sized(2, 5_000), sized(3, 5_000)])
    await store.jobs.submit([sized(2, 6_000)])
    assert [(await job_of(store, number)).payload for number in (1, 2)] == [job.payload for job in first]
    assert await stored_bytes(store) == sum(len(job.payload.encode()) for job in (*first, sized(3, 5_000)))


async def test_a_retried_job_has_its_long_payload_in_every_life(store: Store) -> None:
    """An operator retries a job that failed: it runs with the arguments that it was submitted with."""
    job, worker = sized(1, 20_000), ContractWorker(store)
    await store.jobs.submit([job])
    await worker.settle(failed(await worker.claim_one()))
    assert (await job_of(store)).payload == job.payload
    assert await store.operations.retry(ALL, 1) == [id_of(1)]
    assert (await worker.claim_one()).payload == job.payload


async def test_texts_of_an_unfinished_job_are_counted_when_they_are_written(store: Store) -> None:
    """Counted only at the end of a job, the cursors of jobs that never end would be storage beside the quota."""
    lease, cursor, progress = await leased_job(store), f'"{"c" * 2_000}"', f'"{"p" * 900}"'
    before = await stored_bytes(store)
    assert await store.jobs.checkpoint(lease.id, lease.token, cursor)
    assert await stored_bytes(store) == before + len(cursor)
    await store.jobs.report([ProgressReport(lease.id, lease.token, progress)])
    assert await stored_bytes(store) == before + len(cursor + progress)
    await ContractWorker(store).settle(retry(lease, failure=Failure("broken", "m" * 300, "t" * 700)))
    assert await stored_bytes(store) == before + len(cursor + progress) + 1_000
    assert (await job_of(store)).state is State.PENDING


async def test_a_deleted_job_leaves_no_payload(store: Store, clock: FakeClock) -> None:
    """A payload that stays would fill the disk, and would be the arguments of a later job with the same id."""
    worker = ContractWorker(store)
    for discards in (True, False):
        await store.jobs.submit([sized(1, 20_000), sized(2, 20_000, cursor='"' + "x" * 2_000 + '"')])
        await worker.settle(*(failed(lease) for lease in await worker.claim(2)))
        clock.advance_us(HOUR_US)
        removed = await store.operations.discard(ALL, 5) if discards else await store.operations.prune(HOUR_US, 5)
        assert removed
        assert await stored_bytes(store) == 0
    await store.jobs.submit([sized(1, 10), keyed_job(2)])
    assert (await worker.claim(2))[0].payload == sized(1, 10).payload
