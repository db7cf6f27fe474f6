"""Deadlines of many calls that share one timer of the event loop.

`asyncio.timeout` makes a timer, puts it into the event loop's heap and cancels it, for every call. Nearly all calls end
long before their deadline, and for a short call this is a good part of its own cost. Here a call only joins a set. One
timer runs, until the earliest deadline of the set, and then looks for the deadlines that have passed.
"""

import asyncio
import math
from types import TracebackType

NEVER = math.inf


class Deadlines:
    """The deadlines of the calls that are in flight in one event loop."""

    def __init__(self) -> None:
        self._open: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER

    def after(self, seconds: float) -> "Deadline":
        """For `with`: raises TimeoutError in the task once these seconds have passed, as `asyncio.timeout` does."""
        return Deadline(self, asyncio.get_running_loop().time() + seconds)

    def unset(self) -> "Deadline":
        """One that does not run yet: see `Deadline.restart`."""
        return Deadline(self, NEVER)

    def add(self, deadline: "Deadline") -> None:
        self._open.add(deadline)
        self.watch(deadline.when)

    def discard(self, deadline: "Deadline") -> None:
        self._open.discard(deadline)
        if not self._open:
            self._stop_timer()

    def watch(self, when: float) -> None:
        """Let the timer run out at this time or before."""
        if when < self._timer_at:
            self._stop_timer()
            self._timer = asyncio.get_running_loop().call_at(when, self._expire)
            self._timer_at = when

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, NEVER

    def _expire(self) -> None:
        # A loop runs a timer up to the resolution of its clock too early.
        now = max(asyncio.get_running_loop().time(), self._timer_at)
        self._timer, self._timer_at = None, NEVER
        for each in self._open:
            if each.when <= now:
                each.expire()
        self.watch(min((each.when for each in self._open), default=NEVER))


class Deadline:
    """The deadline of one call."""

    __slots__ = ("_cancelling", "_deadlines", "_task", "is_expired", "when")

    def __init__(self, deadlines: Deadlines, when: float) -> None:
        self._deadlines = deadlines
        self.when = when
        """By the clock of the event loop."""
        self.is_expired = False

    def __enter__(self) -> "Deadline":
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline needs a task that it can stop")
        self._task, self._cancelling = task, task.cancelling()
        self._deadlines.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deadlines.discard(self)
        # Another cancellation of the task takes precedence, as in `asyncio.timeout`.
        if self.is_expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def restart(self, seconds: float) -> None:
        """Count these seconds from now."""
        if not self.is_expired:
            self.when = asyncio.get_running_loop().time() + seconds
            self._deadlines.watch(self.when)

    def stop(self) -> None:
        """Until it is restarted."""
        self.when = NEVER

    def expire(self) -> None:
        self.when, self.is_expired = NEVER, True
        self._task.cancel()
