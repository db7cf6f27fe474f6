"""An event loop in virtual time: it owns time, and waiting costs nothing.

It uses private names of asyncio (`_run_once`, `_ready`, `_scheduled`, `_write_to_self`, and those of handles), which
are the same in CPython 3.11 to 3.14; tests/simulation/test_loop.py fails if they change.
"""

import asyncio
import asyncio.base_events
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

RESOLUTION_SECONDS = 1e-9
"""Timers that are closer together than this fire in the same turn; this hides floating-point rounding."""


TIMERS_MIN, CANCELLED_SHARE_MAX = 100, 0.5
"""In a longer heap with a larger share of cancelled timers, all of these are removed at once."""
WAIT_SECONDS_MAX = 86_400.0


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is set: a task waits for an event that can never occur."""


class VirtualLoop(asyncio.base_events.BaseEventLoop):
    """What both loops share: no sockets, no threads, no machine clock."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[Any]
    """A heap of timers."""
    _timer_cancelled_count: int

    def _run_once(self) -> None:
        """The same as in asyncio, without sockets and without its debug mode."""
        self._drop_cancelled_timers()
        self._wait()
        ready, timers, due = self._ready, self._scheduled, self.time() + RESOLUTION_SECONDS
        while timers and timers[0]._when < due:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _drop_cancelled_timers(self) -> None:
        timers = self._scheduled
        if len(timers) > TIMERS_MIN and self._timer_cancelled_count / len(timers) > CANCELLED_SHARE_MAX:
            for timer in timers:
                timer._scheduled = not timer._cancelled
            self._scheduled = [timer for timer in timers if not timer._cancelled]
            heapq.heapify(self._scheduled)
            self._timer_cancelled_count = 0
            return
        while timers and timers[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(timers)._scheduled = False

    def _wait(self) -> None:
        """Nothing happens by itself."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run the function immediately, never in a thread; the returned future is done."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it travels on through the future
            future.set_exception(error)
        return future


class SimLoop(VirtualLoop):
    """The world's loop. `select` is the only place where time advances."""

    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _wait(self) -> None:
        if self._ready or self._stopping:
            self.select(0)
        elif self._scheduled:
            self.select(min(max(0, self._scheduled[0]._when - self._now), WAIT_SECONDS_MAX))
        else:
            self.select(None)

    def select(self, timeout: float | None) -> None:
        """Advance the time by `timeout`. 0: a callback is ready. None: no timer is set."""
        if timeout is None:
            raise Deadlock("no callback is ready and no timer is set")
        self._now += timeout

    def _write_to_self(self) -> None: ...

    def skip(self, seconds: float) -> None:
        """Advance the clock while no callback runs: timers that were due in that time are due now."""
        self._now += seconds


def run_now(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, because every awaitable in it is already done."""
    try:
        call.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    call.close()
    raise RuntimeError(f"{call!r} waits for something; in the simulation a store must answer at once")
