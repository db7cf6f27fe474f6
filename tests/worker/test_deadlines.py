"""The deadlines of calls share one timer, and each of them still ends its call in time."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from leaseway.deadlines import NEVER, Deadlines
from leaseway.virtual_time.loop import SimLoop
from leaseway.worker.environment import SwallowedCancels, cancel_and_wait, running_beside


class CountingLoop(SimLoop):
    """Virtual time that counts the timers."""

    timers = 0

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        self.timers += 1
        return super().call_at(when, callback, *args, context=context)


def run(test: Callable[[CountingLoop], Coroutine[Any, Any, None]]) -> None:
    loop = CountingLoop()
    try:
        loop.run_until_complete(test(loop))
    finally:
        loop.close()


async def seconds_until_cut(deadlines: Deadlines, seconds: float) -> float:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with pytest.raises(TimeoutError), deadlines.after(seconds):
        await asyncio.Event().wait()
    return loop.time() - begun


def test_each_call_ends_at_its_own_deadline() -> None:
    """A call that waits for the deadline of another one would keep its slot and its hold for minutes."""

    async def test(loop: CountingLoop) -> None:
        deadlines = Deadlines()
        waits: list[Awaitable[float]] = [seconds_until_cut(deadlines, seconds) for seconds in (300, 5, 30, 5, 0.5)]
        assert await asyncio.gather(*waits) == pytest.approx([300, 5, 30, 5, 0.5])
        assert deadlines._timer is None

    run(test)


def test_calls_that_end_in_time_need_one_timer_for_all() -> None:
    """A timer for each call cost as much as the rest of its bookkeeping."""

    async def test(loop: CountingLoop) -> None:
        deadlines = Deadlines()

        async def call() -> None:
            for _ in range(100):
                with deadlines.after(30):
                    await asyncio.sleep(0)

        with deadlines.after(20):
            loop.timers = 0
            await asyncio.gather(*(call() for _ in range(10)))
            assert loop.timers == 0
        assert deadlines._timer is None

    run(test)


def test_a_restarted_deadline_counts_from_then_and_a_stopped_one_not_at_all() -> None:
    """A large reply arrives in parts, and each part gives the provider its time again. The wait for a permit is not
    the provider's time."""

    async def test(loop: CountingLoop) -> None:
        async def call() -> None:
            with Deadlines().unset() as deadline:
                await asyncio.sleep(100)
                deadline.restart(10)
                for _ in range(3):
                    await asyncio.sleep(9)
                    deadline.restart(10)
                deadline.stop()
                assert deadline.when == NEVER
                await asyncio.sleep(100)
                deadline.restart(10)
                await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            await call()
        assert loop.time() == pytest.approx(237)

    run(test)


@pytest.mark.parametrize("passes", [False, True])
def test_a_cancellation_from_outside_stays_one(passes: bool) -> None:
    """A job that its operator cancels must not look as if its provider had been silent."""

    async def test(loop: CountingLoop) -> None:
        async def call() -> None:
            with deadlines.after(10):
                await asyncio.Event().wait()

        deadlines = Deadlines()
        task = loop.create_task(call())
        loop.call_at(10 if passes else 5, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert deadlines._timer is None

    run(test)


def test_a_deadline_that_passed_does_not_cancel_what_follows() -> None:
    """The worker retries the call in the same task, which must not count as cancelled any more."""

    async def test(loop: CountingLoop) -> None:
        await seconds_until_cut(deadlines := Deadlines(), 1)
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        with deadlines.after(10):
            await asyncio.sleep(5)

    run(test)


# -- cancellations that a library swallows -----------------------------------------------------------------------------


async def run_for_ever(swallowed: list[str], name: str = "") -> None:
    """Like a task whose driver swallows the first cancellation."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if name in swallowed:
                raise
            swallowed.append(name)


def test_tasks_are_cancelled_until_they_end() -> None:
    """A service that waits for one of them could never be restarted."""

    async def test(loop: CountingLoop) -> None:
        swallowed: list[str] = []
        tasks = [loop.create_task(run_for_ever(swallowed, name)) for name in "ab"]
        await asyncio.sleep(0)
        await cancel_and_wait(*tasks, None)
        assert (sorted(swallowed), [task.cancelled() for task in tasks]) == (["a", "b"], [True, True])

    run(test)


@pytest.mark.parametrize("error", [None, ValueError, asyncio.CancelledError])
def test_what_runs_beside_a_body_ends_with_it(error: type[BaseException] | None) -> None:
    """However the body ends: a worker that was cancelled must end as well as one that was drained."""

    async def test(_: CountingLoop) -> None:
        swallowed: list[str] = []
        with pytest.raises(error) if error else contextlib.nullcontext():
            async with running_beside([run_for_ever(swallowed)]):
                await asyncio.sleep(0)
                if error is not None:
                    raise error
        assert swallowed == [""]

    run(test)


def test_an_error_beside_a_body_ends_the_body() -> None:
    """A worker whose heartbeats have failed for good must not go on without them."""

    async def fail() -> None:
        raise ValueError("defect")

    async def test(_: CountingLoop) -> None:
        with pytest.raises(ValueError, match="defect"):
            async with running_beside([fail()]):
                await asyncio.Event().wait()

    run(test)


def test_a_swallowed_cancellation_of_the_own_task_is_noticed() -> None:
    """The call that swallowed it returns as if nothing had happened."""

    async def swallow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    async def test(_: CountingLoop) -> None:
        cancels = SwallowedCancels()
        cancels.start()
        cancels.check()

        async def call_with_deadline() -> None:
            async with asyncio.timeout(1):
                await swallow()
                cancels.check()

        with pytest.raises(TimeoutError):
            await call_with_deadline()
        cancels.check()

    run(test)
