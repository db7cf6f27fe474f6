"""Group commit of single submissions: queued jobs are written together, and each caller gets its own answer."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from tests.stores.postgres_support import connected, opened, value

from leaseway.domain.errors import BadValue, LeasewayError, StoreBusy, UnknownOutcome, UsageError
from leaseway.domain.job import NewJob
from leaseway.stores.postgres.submit import BATCH_MAX, WRITERS_MAX, LaneQueue
from leaseway.testing.job_store_contract.fixtures import id_of, ids_in, new_job
from leaseway.testing.postgres import PostgresServer


class FakeWriter:
    """Ends a write when it is told to, and records which jobs were written together."""

    def __init__(self) -> None:
        self.written: list[list[str]] = []
        self.together = LaneQueue(self.write)
        self._answers: list[asyncio.Future[None]] = []

    async def write(self, jobs: Sequence[NewJob]) -> None:
        self.written.append([job.id for job in jobs])
        self._answers.append(asyncio.get_running_loop().create_future())
        await self._answers[-1]

    async def come(self, *numbers: int) -> "list[asyncio.Task[None]]":
        tasks = [asyncio.ensure_future(self.together.submit(new_job(number))) for number in numbers]
        await asyncio.sleep(0)
        return tasks

    async def answer(self, error: BaseException | None = None) -> None:
        """Finish the oldest write."""
        waiting = next(each for each in self._answers if not each.done())
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)
        for _ in range(5):  # the writer wakes up and starts the next one
            await asyncio.sleep(0)


@pytest.fixture
async def desk() -> AsyncIterator[FakeWriter]:
    """A lane queue with as many busy writers as allowed."""
    desk = FakeWriter()
    writers = await desk.come(*range(WRITERS_MAX))
    yield desk
    for task in writers:
        task.cancel()
    await asyncio.gather(*writers, return_exceptions=True)


def ids(*numbers: int) -> list[str]:
    return [id_of(number) for number in numbers]


async def test_a_single_submission_is_written_at_once() -> None:
    """Batching must not add latency to an idle system."""
    desk = FakeWriter()
    (task,) = await desk.come(1)
    assert desk.written == [ids(1)]
    await desk.answer()
    assert task.done()


async def test_submissions_during_a_write_are_written_together(desk: FakeWriter) -> None:
    """One commit for many jobs is what makes concurrent submissions fast."""
    before = len(desk.written)
    tasks = await desk.come(7, 8, 9)
    assert len(desk.written) == before
    await desk.answer()
    assert desk.written[before:] == [ids(7, 8, 9)]
    assert not any(task.done() for task in tasks)
    for _ in range(WRITERS_MAX):
        await desk.answer()
    assert all(task.done() and task.exception() is None for task in tasks)


async def test_a_hanging_write_does_not_block_the_others() -> None:
    """Its reply may be lost; the others must not wait for its timeout."""
    desk = FakeWriter()
    await desk.come(1)
    (task,) = await desk.come(2)
    assert desk.written == [ids(1), ids(2)]
    del desk._answers[0]  # the first write never ends
    await desk.answer()
    assert task.done()
    (task,) = await desk.come(3)
    await desk.answer()
    assert task.done()


async def test_a_batch_is_bounded(desk: FakeWriter) -> None:
    """A thousand callers must not become one transaction of any size."""
    await desk.come(*range(10, 10 + BATCH_MAX + 5))
    await desk.answer()
    assert len(desk.written[-1]) == BATCH_MAX
    await desk.answer()
    assert len(desk.written[-1]) == 5


async def test_the_job_of_a_cancelled_caller_is_not_written(desk: FakeWriter) -> None:
    """A cancelled caller must not block the callers behind it."""
    first, second, third = await desk.come(7, 8, 9)
    first.cancel()
    await desk.answer()
    assert desk.written[-1] == ids(8, 9)
    for _ in range(WRITERS_MAX):
        await desk.answer()
    assert first.cancelled()
    assert second.done()
    assert third.done()


async def test_a_caller_cancelled_at_its_turn_passes_the_turn_on(desk: FakeWriter) -> None:
    """Otherwise every caller behind it would wait for ever."""
    first, second = await desk.come(7, 8)
    next(each for each in desk._answers if not each.done()).set_result(None)
    await asyncio.sleep(0)  # the writer ends and starts the next one
    assert not desk.together._queue  # its turn has come, and it has not run yet
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.sleep(0)
    assert desk.written[-1] == ids(8)
    assert first.cancelled()
    for _ in range(WRITERS_MAX):
        await desk.answer()
    assert second.done()
    assert second.exception() is None


async def test_lanes_do_not_wait_for_each_other(server: PostgresServer) -> None:
    """An open transaction that created a lane may last for minutes; it blocks only submissions to that lane."""
    async with opened(server) as store, connected(server) as connection:
        await store.jobs.submit([new_job(0)])
        transaction = connection.transaction()
        await transaction.start()
        assert store.transactional is not None
        await store.transactional.submit(connection, [new_job(1, tenant="new")])
        stuck = [asyncio.ensure_future(store.jobs.submit([new_job(number, tenant="new")])) for number in range(2, 6)]
        await asyncio.sleep(0)
        async with asyncio.timeout(5):  # half of the timeout of a statement
            await asyncio.gather(*(store.jobs.submit([new_job(number)]) for number in range(6, 20)))
        assert not any(task.done() for task in stuck)
        await transaction.commit()
        await asyncio.gather(*stuck)
        assert len(await ids_in(store)) == 20


async def test_an_invalid_job_does_not_fail_the_others_of_its_batch(server: PostgresServer) -> None:
    """The other callers did nothing wrong."""
    async with opened(server) as store:
        await store.jobs.submit([new_job(0)])
        jobs = [new_job(number, shard_key="a\0b" if number == 7 else "fine") for number in range(1, 12)]
        answers = await asyncio.gather(*(store.jobs.submit([job]) for job in jobs), return_exceptions=True)
        assert [isinstance(answer, UsageError) for answer in answers] == [job.id == id_of(7) for job in jobs]
        assert len(await ids_in(store)) == 11


async def test_an_error_that_cannot_be_copied_reaches_every_caller(desk: FakeWriter) -> None:
    """A caller that is not answered waits for ever."""
    tasks = await desk.come(7, 8)
    await desk.answer()
    await desk.answer()
    await desk.answer(BadValue("text", "must be Unicode"))
    await desk.answer(BadValue("text", "must be Unicode"))
    await desk.answer(BadValue("text", "must be Unicode"))
    assert all(isinstance(task.exception(), LeasewayError) for task in tasks)


async def test_every_caller_gets_its_own_exception_object(desk: FakeWriter) -> None:
    """A shared exception would collect the tracebacks of all callers."""
    tasks = await desk.come(7, 8, 9)
    await desk.answer()
    await desk.answer()
    await desk.answer(StoreBusy("the server has no free connection"))
    errors = [task.exception() for task in tasks]
    assert all(type(error) is StoreBusy for error in errors)
    assert {str(error) for error in errors} == {"the server has no free connection"}
    assert len({id(error) for error in errors}) == len(errors)


async def test_if_the_writer_is_cancelled_the_outcome_is_unknown_to_the_others(desk: FakeWriter) -> None:
    """Its transaction may have been committed: they must repeat the call, not report a failure."""
    first, second = await desk.come(7, 8)
    await desk.answer()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.gather(second, return_exceptions=True)
    assert isinstance(second.exception(), UnknownOutcome)


async def test_many_concurrent_submissions_take_few_transactions(server: PostgresServer) -> None:
    """Each job is stored once, and the counters are exact."""
    async with opened(server) as store:
        await store.jobs.submit([new_job(0)])
        answers = await asyncio.gather(*(store.jobs.submit([new_job(number)]) for number in range(1, 61)))
        assert [answer.id for (answer,) in answers] == ids(*range(1, 61))
        assert sorted(await ids_in(store)) == sorted(ids(*range(61)))
        sql = f"SELECT count(DISTINCT xmin::text) FROM {store.address.schema}.payloads"
        assert await value(server, sql) <= 10
