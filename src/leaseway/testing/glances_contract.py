"""What every store must show in passing. Used like `job_store_contract`, with the same fixtures."""

from msgspec.structs import asdict

from leaseway.domain.ids import JobId
from leaseway.domain.inspection import JobFilter, JobSummary
from leaseway.domain.job import Job, State
from leaseway.ports.store import Store, require_inspection
from leaseway.testing.clock import FakeClock
from leaseway.testing.contract.actors import Worker, done, failed, id_of, new_job


def glimpse_of(job: Job) -> JobSummary:
    seen = JobSummary.__struct_fields__
    return JobSummary(**{name: value for name, value in asdict(job).items() if name in seen})


async def seen_lately(store: Store, newest: int = 0, ended: int = 0, after: int = 0) -> set[JobId]:
    _, found = await require_inspection(store).recent(newest, after, ended)
    return {glimpse.id for glimpse in found}


async def test_who_looks_at_an_empty_store_sees_nothing(store: Store, clock: FakeClock) -> None:
    """A screen must be able to watch a store that is new."""
    assert await require_inspection(store).recent(100, 0, 100) == (clock.now_us(), [])
    assert await require_inspection(store).summaries([id_of(1)]) == []


async def test_a_glimpse_tells_what_the_record_tells(store: Store) -> None:
    """Who watches and who asks must not be told different things, whatever became of the job."""
    await store.jobs.submit([new_job(number, tenant=f"t{number % 2}", priority=-number) for number in range(1, 6)])
    worker = Worker(store)
    first, second, _ = await worker.claim(3)
    await worker.settle(done(first), failed(second))
    await store.operations.cancel(id_of(5))
    ids = [id_of(number) for number in range(1, 6)]
    expected = {id_: glimpse_of(job) for id_ in ids if (job := await store.reads.job(id_)) is not None}
    assert len({each.state for each in expected.values()}) == 5
    assert {each.id: each for each in await require_inspection(store).summaries(ids)} == expected
    _, lately = await require_inspection(store).recent(10, 0, 10)
    assert {each.id: each for each in lately} == expected


async def test_of_the_newest_only_so_many_are_seen(store: Store) -> None:
    """A look is made several times a second, and must not grow with what waits."""
    await store.jobs.submit([new_job(number) for number in range(1, 21)])
    assert await seen_lately(store, newest=3) == {id_of(18), id_of(19), id_of(20)}


async def test_what_ended_is_seen_from_an_instant_on_and_the_last_first(store: Store, clock: FakeClock) -> None:
    """Behind a long queue the newest jobs are not those that run: who watches wants to see what is done."""
    await store.jobs.submit([new_job(number) for number in range(1, 11)])
    worker, before = Worker(store), clock.now_us()
    for number in range(1, 5):
        clock.advance(1)
        await worker.settle(done(await worker.claim_one()))
        if number == 2:
            between = clock.now_us()
    assert await seen_lately(store, ended=10, after=before) == {id_of(1), id_of(2), id_of(3), id_of(4)}
    assert await seen_lately(store, ended=10, after=between) == {id_of(3), id_of(4)}
    assert await seen_lately(store, ended=1, after=before) == {id_of(4)}


async def test_a_retried_job_is_seen_as_it_is_now(store: Store) -> None:
    """It leaves the history and lives again; it must not be seen twice, nor be missed."""
    await store.jobs.submit([new_job(1)])
    worker = Worker(store)
    await worker.settle(failed(await worker.claim_one()))
    await store.operations.retry(JobFilter(), 1)
    (seen,) = await require_inspection(store).summaries([id_of(1)])
    assert seen.state is State.PENDING
