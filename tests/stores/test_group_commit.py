"""Group commit: which calls share a batch, and what becomes of them when one of them fails or is cancelled."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from leaseway.domain.errors import BadValue, StoreBusy, UnknownOutcome
from leaseway.stores.group_commit import BATCH_MAX, GroupCommit


class Server:
    """Serves batches one after the other, each when the test says so."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_answer = asyncio.Semaphore(0)
        self.error = ""
        self.at_the_end: Callable[[], object] = int

    async def serve(self, calls: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(calls))
        await self.may_answer.acquire()
        if self.error:
            raise StoreBusy(self.error)
        asyncio.get_running_loop().call_soon(self.at_the_end)
        return [BadValue("call", "is negative") if call < 0 else 10 * call for call in calls]

    def answer(self, batches: int = 1_000) -> None:
        for _ in range(batches):
            self.may_answer.release()


async def started(group: GroupCommit[int, int], *calls: int) -> list["asyncio.Task[int]"]:
    """Tasks that have made these calls, in this order."""
    tasks = [asyncio.ensure_future(group.call(call)) for call in calls]
    await asyncio.sleep(0)
    return tasks


async def test_calls_that_arrive_during_a_batch_share_the_next_one() -> None:
    """Otherwise each of them costs a transaction of its own, and they conflict with each other."""
    server = Server()
    group: GroupCommit[int, int] = GroupCommit(server.serve)
    tasks = await started(group, 1, 2, 3, 4)
    assert server.batches == [[1]], "a call that finds nothing under way does not wait for others"
    server.answer()
    assert await asyncio.gather(*tasks) == [10, 20, 30, 40]
    assert server.batches == [[1], [2, 3, 4]]
    assert await group.call(5) == 50


async def test_a_batch_has_a_bound() -> None:
    """A transaction of any size would exceed the limits of the server."""
    server = Server()
    group: GroupCommit[int, int] = GroupCommit(server.serve)
    tasks = await started(group, *range(2 * BATCH_MAX + 2))
    server.answer()
    assert await asyncio.gather(*tasks) == [10 * call for call in range(2 * BATCH_MAX + 2)]
    assert [len(batch) for batch in server.batches] == [1, BATCH_MAX, BATCH_MAX, 1]


async def test_an_invalid_call_does_not_affect_the_others() -> None:
    """Calls of different jobs share a batch by chance."""
    server = Server()
    group: GroupCommit[int, int] = GroupCommit(server.serve)
    tasks = await started(group, 1, 2, -3, 4)
    server.answer()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [answers[0], answers[1], answers[3]] == [10, 20, 40]
    assert isinstance(answers[2], BadValue)


async def test_a_failed_batch_fails_for_each_of_its_calls() -> None:
    """A call without an answer would wait for ever. Each caller gets its own exception, because raising changes it."""
    server = Server()
    group: GroupCommit[int, int] = GroupCommit(server.serve)
    tasks = await started(group, 1, 2, 3)
    server.error = "the server was lost"
    server.answer()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [(type(error), str(error)) for error in errors] == [(StoreBusy, "the server was lost")] * 3
    assert len({id(error) for error in errors}) == 3
    server.error = ""
    assert await group.call(4) == 40


async def test_the_others_learn_that_the_caller_which_served_them_was_cancelled() -> None:
    """Their calls may have had an effect. The calls behind them must go on."""
    server = Server()
    group: GroupCommit[int, int] = GroupCommit(server.serve)
    first, second, third = await started(group, 1, 2, 3)
    server.answer(1)
    await first
    (fourth,) = await started(group, 4)
    assert server.batches == [[1], [2, 3]]
    second.cancel()
    with pytest.raises(UnknownOutcome):
        await third
    server.answer()
    assert await fourth == 40
    assert second.cancelled()


async def test_a_cancelled_call_that_waits_is_not_served() -> None:
    """Its caller is gone and could not return what it was granted."""
    server = Server()
    group: GroupCommit[int, int] = GroupCommit(server.serve)
    first, second, third = await started(group, 1, 2, 3)
    second.cancel()
    await asyncio.sleep(0)
    server.answer()
    assert await asyncio.gather(*[first, third]) == [10, 30]
    assert server.batches == [[1], [3]]


async def test_the_turn_of_a_cancelled_caller_passes_to_the_next() -> None:
    """If the turn comes in the same moment as the cancellation, the queue must not stop for ever."""
    server = Server()
    group: GroupCommit[int, int] = GroupCommit(server.serve)
    first, second, third = await started(group, 1, 2, 3)
    server.at_the_end = second.cancel
    server.answer()
    assert await asyncio.gather(*[first, third]) == [10, 30]
    assert second.cancelled()
    assert await group.call(4) == 40
