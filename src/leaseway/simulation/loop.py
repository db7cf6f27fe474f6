"""Event loops in virtual time.

    SimLoop    the world: owns time and every latency. Nothing else advances the clock.
    HostLoop   one process in that world: its own queue of callbacks and timers, run by the SimLoop in turns.

A frozen process gets no turns: its timers become overdue and its replies queue up, and all of them run when it is
thawed, as after SIGSTOP and SIGCONT. A crashed process is frozen for good, so that none of its `finally` blocks runs.

Both use private names of asyncio (`_run_once`, `_ready`, `_scheduled`, `_selector`, `_process_events`,
`_write_to_self`), which are the same in CPython 3.11 to 3.14; tests/simulation/test_loop.py fails if they change.
"""

import asyncio
import asyncio.base_events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

RESOLUTION_SECONDS = 1e-9
"""Timers that are closer together than this fire in the same turn; this hides floating-point rounding."""


STEPS_PER_TURN = 16


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is set: a task waits for an event that can never occur."""


class VirtualLoop(asyncio.base_events.BaseEventLoop):
    """What both loops share: no sockets, no threads, no machine clock."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _run_once: Callable[[], None]

    def __init__(self) -> None:
        super().__init__()
        self._clock_resolution = RESOLUTION_SECONDS
        self._selector = self  # BaseEventLoop waits by calling its selector

    def _process_events(self, events: list[Any]) -> None: ...

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

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock("no callback is ready and no timer is set")
        self._now += max(timeout, 0.0)
        return []

    def _write_to_self(self) -> None: ...

    def skip(self, seconds: float) -> None:
        """Advance the clock while no callback runs: timers that were due in that time are due now."""
        self._now += seconds


class HostLoop(VirtualLoop):
    """One process: it runs when the world gives it a turn, and requests a turn when it has work."""

    def __init__(self, world: SimLoop) -> None:
        super().__init__()
        self._world = world
        self._turn_due: asyncio.TimerHandle | None = None
        self._turn_is_next = False
        self.is_frozen = False
        self.time = world.time  # type: ignore[method-assign]

    def select(self, timeout: float | None) -> list[Any]:
        return []  # the world waits for this process

    def _write_to_self(self) -> None:
        self._ask_for_turn()  # call_soon_threadsafe: another loop has queued a callback here

    def start(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a coroutine as this process's main task."""
        task = self.create_task(main)
        self._ask_for_turn()
        return task

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False
        self._ask_for_turn()

    def bury(self, turns_max: int = 10_000) -> None:
        """Cancel the remaining tasks of a process, outside of virtual time. Only for a world that has ended."""
        self._ask_for_turn = lambda: None  # type: ignore[method-assign]
        for _ in range(turns_max):
            left = [task for task in asyncio.all_tasks(self) if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            self._take_turn()
        self.close()

    def _ask_for_turn(self) -> None:
        if self.is_frozen or self._turn_is_next:
            return
        if self._ready:
            self._turn_is_next = True
            self._world.call_soon(self._turn)
        elif self._scheduled:
            self._ask_for_turn_at(self._scheduled[0].when())

    def _ask_for_turn_at(self, when: float) -> None:
        if self._turn_due is not None:
            if self._turn_due.when() <= when:
                return
            self._turn_due.cancel()
        self._turn_due = self._world.call_at(when, self._timed_turn)

    def _timed_turn(self) -> None:
        self._turn_due = None
        if not self._turn_is_next:
            self._turn()

    def _turn(self) -> None:
        self._turn_is_next = False
        if not self.is_frozen:
            self._take_turn()
            self._ask_for_turn()

    def _take_turn(self) -> None:
        """Run until nothing is ready at this instant, or until the turn is over."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            for _ in range(STEPS_PER_TURN):
                self._run_once()
                if self.is_frozen or not self._ready:
                    break
        finally:
            asyncio._set_running_loop(outer)


def run_now(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, because every awaitable in it is already done."""
    try:
        call.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    call.close()
    raise RuntimeError(f"{call!r} waits for something; in the simulation a store must answer at once")
