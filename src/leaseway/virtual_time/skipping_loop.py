"""An event loop in virtual time that skips what a worker does while it waits.

A worker has many timers of its own: it polls, renews leases and checks limits several times a second. A run over days
would execute millions of them. So timers are of two sorts:

    stops          timers of handlers and of the test, and instants that the store, the limiter, the ledger or a
                   schedule name. Time advances to them exactly.
    housekeeping   all other timers of the worker (see `worker.environment.housekeeping`). They fire as usual for
                   `SETTLE_SECONDS` after each stop. Then the loop goes on to the next stop at once, where those that
                   are overdue fire once.

Time stands still while a handler works in a thread.
"""

import asyncio
import heapq
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NoReturn

from leaseway.domain.errors import UsageError
from leaseway.virtual_time.loop import SimLoop
from leaseway.worker.environment import IS_HOUSEKEEPING

SETTLE_SECONDS = 1.2
"""After this time a worker has reacted to everything that happened at a stop: it learns of a cancellation within a
second."""
THREAD_CHECK_SECONDS = 0.05
"""In real time: a thread that ends without waking the loop is noticed after this time."""
NO_NETWORK = "virtual time has no network; give ctx.http its replies with virtual_time(app, transport=…)"


class SkippingLoop(SimLoop):
    def __init__(self) -> None:
        super().__init__()
        self._stops: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._settled_at = 0.0
        self._woken = threading.Event()
        self.skips = 0
        self.settle_seconds = SETTLE_SECONDS
        self.next_event: Callable[[], float | None] = lambda: None
        """The next instant at which something happens without a timer, in seconds from now."""
        self.on_skip: Callable[[float], None] = lambda seconds: None
        """Called after time was advanced over housekeeping."""
        self.is_thread_busy: Callable[[], bool] = lambda: False

    def restart(self) -> None:
        """Something happened: let the worker react before time is skipped."""
        self._settled_at = self._now + self.settle_seconds

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        timer = super().call_at(when, callback, *args, context=context)
        if not IS_HOUSEKEEPING.get():
            heapq.heappush(self._stops, (when, next(self._numbers), timer))
        return timer

    # -- where time advances ----------------------------------------------------------------------------------------

    def select(self, timeout: float | None) -> None:
        if timeout == 0 or self._wait_for_threads():
            return
        stop = self._next_stop()
        if self._now >= self._settled_at and (skip := self._seconds_to_skip(stop, timeout)) is not None:
            self._now += skip
            self.skips += 1
            self.on_skip(skip)
            self.restart()
            return
        super().select(timeout)
        if stop is not None and self._now >= stop:
            self.restart()

    def _next_stop(self) -> float | None:
        while self._stops and (self._stops[0][2].cancelled() or self._stops[0][0] < self._now):
            heapq.heappop(self._stops)
        return self._stops[0][0] if self._stops else None

    def _seconds_to_skip(self, stop: float | None, timeout: float | None) -> float | None:
        """How far to go, if that is further than the next timer."""
        event = self.next_event()
        known = [] if event is None else [max(event, 0.0)]
        known += [] if stop is None else [stop - self._now]
        seconds = min(known, default=0.0)
        return seconds if seconds > (timeout or 0.0) else None

    # -- threads ----------------------------------------------------------------------------------------------------

    def _write_to_self(self) -> None:
        self._woken.set()

    def _wait_for_threads(self) -> bool:
        """Wait in real time while a handler works in a thread. True: it has called back."""
        while self.is_thread_busy() and not self._ready:
            self._woken.wait(THREAD_CHECK_SECONDS)
            self._woken.clear()
        if self._ready:
            self.restart()
        return bool(self._ready)

    # -- no network -------------------------------------------------------------------------------------------------

    async def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise UsageError(NO_NETWORK)

    getaddrinfo = create_connection = create_server = create_datagram_endpoint = _refuse
    create_unix_connection = create_unix_server = sock_connect = _refuse
    subprocess_exec = subprocess_shell = _refuse


@contextmanager
def outside_of_loops() -> Iterator[None]:
    """Leave the running loop, if there is one, so that another loop can run inside one of its tasks."""
    outer = asyncio._get_running_loop()
    if outer is None:
        yield
        return
    # From Python 3.14 on, a thread has one current task for all loops.
    swap = getattr(asyncio.tasks, "_swap_current_task", lambda loop, task: None)
    task = swap(outer, None)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(outer)
        swap(outer, task)
