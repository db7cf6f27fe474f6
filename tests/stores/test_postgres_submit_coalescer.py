"""Submissions that wait together are written together, and each has his own answer."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from tests.stores.postgres_support import connected, opened, value

from leaseway.domain.errors import BadValue, LeasewayError, StoreBusy, UnknownOutcome, UsageError
from leaseway.domain.job import NewJob
from leaseway.stores.postgres.submit_coalescer import BATCH_MAX, WRITERS_MAX, LaneQueue
from leaseway.testing.contract.actors import id_of, ids_in, new_job
from leaseway.testing.postgres import PostgresServer


class Desk:
    """Writes when it is told to, and remembers what came together."""

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
        """The oldest write that is under way ends."""
        waiting = next(each for each in self._answers if not each.done())
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)
        for _ in range(5):  # the writer hears of it, passes on, and the next one begins
            await asyncio.sleep(0)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    """One at which as many write as may."""
    desk = Desk()
    writers = await desk.come(*range(WRITERS_MAX))
    yield desk
    for task in writers:
        task.cancel()
    await asyncio.gather(*writers, return_exceptions=True)


def ids(*numbers: int) -> list[str]:
    return [id_of(number) for number in numbers]


async def test_who_comes_alone_waits_for_nobody() -> None:
    """A lone caller must not pay for the company that others may have."""
    desk = Desk()
    (task,) = await desk.come(1)
    assert desk.written == [ids(1)]
    await desk.answer()
    assert task.done()


async def test_who_comes_while_others_write_is_written_with_the_rest_of_them(desk: Desk) -> None:
    """One commit for all: that is what makes a crowd fast."""
    before = len(desk.written)
    tasks = await desk.come(7, 8, 9)
    assert len(desk.written) == before
    await desk.answer()
    assert desk.written[before:] == [ids(7, 8, 9)]
    assert not any(task.done() for task in tasks)
    for _ in range(WRITERS_MAX):
        await desk.answer()
    assert all(task.done() and task.exception() is None for task in tasks)


async def test_one_write_that_is_stuck_holds_up_nobody_else() -> None:
    """Its answer was lost, perhaps: the others need not wait for its deadline."""
    desk = Desk()
    await desk.come(1)
    (task,) = await desk.come(2)
    assert desk.written == [ids(1), ids(2)]
    del desk._answers[0]  # nobody will ever answer the first
    await desk.answer()
    assert task.done()
    (task,) = await desk.come(3)
    await desk.answer()
    assert task.done()


async def test_a_transaction_is_bounded(desk: Desk) -> None:
    """A thousand callers must not become one transaction of any size."""
    await desk.come(*range(10, 10 + BATCH_MAX + 5))
    await desk.answer()
    assert len(desk.written[-1]) == BATCH_MAX
    await desk.answer()
    assert len(desk.written[-1]) == 5


async def test_who_gives_up_is_not_written_and_does_not_stop_the_others(desk: Desk) -> None:
    first, second, third = await desk.come(7, 8, 9)
    first.cancel()
    await desk.answer()
    assert desk.written[-1] == ids(8, 9)
    for _ in range(WRITERS_MAX):
        await desk.answer()
    assert first.cancelled()
    assert second.done()
    assert third.done()


async def test_who_gives_up_in_the_moment_of_his_turn_leaves_it_to_the_next(desk: Desk) -> None:
    """Otherwise everybody behind him would wait for ever."""
    first, second = await desk.come(7, 8)
    next(each for each in desk._answers if not each.done()).set_result(None)
    await asyncio.sleep(0)  # the writer ends, and passes on
    assert not desk.together._queue  # his turn has come, and he has not heard of it yet
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
    """Somebody's open transaction that made a lane may last for minutes: it holds up who submits there, nobody else."""
    async with opened(server) as store, connected(server) as connection:
        await store.jobs.submit([new_job(0)])
        transaction = connection.transaction()
        await transaction.start()
        assert store.transactional is not None
        await store.transactional.submit(connection, [new_job(1, tenant="new")])
        stuck = [asyncio.ensure_future(store.jobs.submit([new_job(number, tenant="new")])) for number in range(2, 6)]
        await asyncio.sleep(0)
        async with asyncio.timeout(5):  # half of what a statement may take
            await asyncio.gather(*(store.jobs.submit([new_job(number)]) for number in range(6, 20)))
        assert not any(task.done() for task in stuck)
        await transaction.commit()
        await asyncio.gather(*stuck)
        assert len(await ids_in(store)) == 20


async def test_one_job_that_is_refused_for_good_does_not_take_the_others_along(server: PostgresServer) -> None:
    async with opened(server) as store:
        await store.jobs.submit([new_job(0)])
        jobs = [new_job(number, shard_key="a\0b" if number == 7 else "fine") for number in range(1, 12)]
        answers = await asyncio.gather(*(store.jobs.submit([job]) for job in jobs), return_exceptions=True)
        assert [isinstance(answer, UsageError) for answer in answers] == [job.id == id_of(7) for job in jobs]
        assert len(await ids_in(store)) == 11


async def test_an_error_of_several_parts_reaches_everybody_as_well(desk: Desk) -> None:
    """Whoever is not told waits for ever."""
    tasks = await desk.come(7, 8)
    await desk.answer()
    await desk.answer()
    await desk.answer(BadValue("text", "must be Unicode"))
    await desk.answer(BadValue("text", "must be Unicode"))
    await desk.answer(BadValue("text", "must be Unicode"))
    assert all(isinstance(task.exception(), LeasewayError) for task in tasks)


async def test_everybody_hears_of_a_failure_by_an_error_of_his_own(desk: Desk) -> None:
    """One object in many hands would carry everybody's traceback."""
    tasks = await desk.come(7, 8, 9)
    await desk.answer()
    await desk.answer()
    await desk.answer(StoreBusy("the server has no free connection"))
    errors = [task.exception() for task in tasks]
    assert all(type(error) is StoreBusy for error in errors)
    assert {str(error) for error in errors} == {"the server has no free connection"}
    assert len({id(error) for error in errors}) == len(errors)


async def test_if_the_writer_gives_up_the_others_know_that_nobody_knows(desk: Desk) -> None:
    """His transaction may have been committed or not: they must ask again, and not believe in a failure."""
    first, second = await desk.come(7, 8)
    await desk.answer()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.gather(second, return_exceptions=True)
    assert isinstance(second.exception(), UnknownOutcome)


async def test_a_crowd_is_stored_in_few_transactions(server: PostgresServer) -> None:
    """Each of them once, and the counters are right."""
    async with opened(server) as store:
        await store.jobs.submit([new_job(0)])
        answers = await asyncio.gather(*(store.jobs.submit([new_job(number)]) for number in range(1, 61)))
        assert [answer.id for (answer,) in answers] == ids(*range(1, 61))
        assert sorted(await ids_in(store)) == sorted(ids(*range(61)))
        sql = f"SELECT count(DISTINCT xmin::text) FROM {store.address.schema}.payloads"
        assert await value(server, sql) <= 10
