"""Event loops in virtual time, one per simulated process.

    SimLoop    the world: owns time and every latency. Nothing else advances the clock; see `leaseway.virtual_time`.
    HostLoop   one process in that world: its own queue of callbacks and timers, run by the SimLoop in turns.

A frozen process gets no turns: its timers become overdue and its replies queue up, and all of them run when it is
thawed, as after SIGSTOP and SIGCONT. A crashed process is frozen for good, so that none of its `finally` blocks runs.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from leaseway.virtual_time.loop import SimLoop, VirtualLoop

T = TypeVar("T")

STEPS_PER_TURN = 16


class HostLoop(VirtualLoop):
    """One process: it runs when the world gives it a turn, and requests a turn when it has work."""

    def __init__(self, world: SimLoop) -> None:
        super().__init__()
        self._world = world
        self._turn_due: asyncio.TimerHandle | None = None
        self._turn_is_next = False
        self.is_frozen = False
        self.on_task: Callable[[Any], None] | None = None
        """Called with every coroutine that becomes a task, before its first step."""
        self.time = world.time  # type: ignore[method-assign]

    def _write_to_self(self) -> None:
        self._ask_for_turn()  # call_soon_threadsafe: another loop has queued a callback here

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **options)
        if self.on_task is not None:
            self.on_task(coro)
        return task

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
