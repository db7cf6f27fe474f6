"""One simulated operating-system process: its loop, its clock, its ids and its faults."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from random import Random
from typing import TYPE_CHECKING, Any

from leaseway.domain.ids import SECOND_US, Instant, JobId, Token, WorkerId
from leaseway.simulation.loop import HostLoop
from leaseway.system import base32
from leaseway.virtual_time.loop import SimLoop

if TYPE_CHECKING:
    from leaseway.worker.loop import Worker

HANDLER_TASK = "Slots._run"
"""The coroutine in which a worker runs one handler."""
FAILURES_EXCUSE = 3
BACKOFF_SECONDS = 2.5
"""A worker waits up to two seconds before it repeats a call that failed several times in a row."""


class Process:
    """Dead: it never runs again. Frozen: it does not run until it is thawed. Left: its main function returned."""

    def __init__(self, name: str, world: SimLoop, chance: Random) -> None:
        self.name = name
        self.world = world
        self.loop = HostLoop(world)
        self.chance = chance
        self.started_at = world.time()
        # The monotonic clocks of two machines are unrelated.
        self.clock = SimClock(world, offset=chance.uniform(0, 100_000))
        self.ids = SeededIds(name, world, chance)
        self.worker: Worker | None = None
        self.main: asyncio.Task[None] | None = None
        """Keeps the tasks of a killed process alive; nothing else references a task that waits for a reply."""
        self.grace_seconds = 0.0
        self.draining_at: float | None = None
        self.was_paused = False
        self.frozen_until = float("-inf")
        self.is_dead = False
        self.has_left = False
        self._troubles: list[tuple[float, float]] = []
        self._slow_claims: list[tuple[float, float]] = []
        self._failures: Counter[str] = Counter()
        """Failures in a row, by verb."""
        self._when_thawed: list[Callable[[], object]] = []
        self.on_end: Callable[[Process], None] = ignore
        """Called once when the process has crashed or exited."""

    @property
    def is_up(self) -> bool:
        return not (self.is_dead or self.has_left)

    def freeze(self, seconds: float) -> None:
        """SIGSTOP now, SIGCONT later."""
        self.was_paused = True
        self.frozen_until = self.loop.time() + seconds
        self.loop.freeze()
        self.suffer(seconds)
        self.world.call_later(seconds, self._thaw)

    def freeze_at_start(self, seconds: float, note: Callable[[], object]) -> None:
        """SIGSTOP at the worst moment: after the task of the next handler is created, before its first step."""

        def freeze(coroutine: Any) -> None:
            if coroutine.__qualname__ == HANDLER_TASK:
                self.loop.on_task = None
                self.freeze(seconds)
                note()

        self.loop.on_task = freeze

    def crash(self) -> None:
        """kill -9: no code of the process runs any more."""
        self.is_dead = True
        self.loop.freeze()
        self._end()

    def leave(self) -> None:
        """Its main function has returned."""
        self.has_left = True
        self._end()

    def _end(self) -> None:
        self.world.call_soon(self.on_end, self)

    def when_thawed(self, step: Callable[[], object]) -> None:
        """Call the function when the process is thawed; never, if it is killed while frozen."""
        self._when_thawed.append(step)

    def _thaw(self) -> None:
        if not self.is_dead:
            self.loop.thaw()
            for step in self._when_thawed:
                self.world.call_soon(step)
        self._when_thawed.clear()

    # -- faults it had ---------------------------------------------------------------------------------------------

    def suffer(self, seconds: float) -> None:
        """Excuse the process for being late from now on, for this time."""
        now = self.loop.time()
        self._troubles.append((now, now + seconds))

    def wait_for_claim(self, seconds: float) -> None:
        """Excuses lateness but not a lost lease: the lease-renewal thread keeps an unanswered claim alive."""
        now = self.loop.time()
        self._slow_claims.append((now, now + seconds))

    def fail(self, verb: str) -> None:
        """A call failed. One or two failures in a row do no harm; the pauses after more of them excuse a lost lease."""
        self._failures[verb] += 1
        if self._failures[verb] >= FAILURES_EXCUSE:
            self.suffer(BACKOFF_SECONDS)

    def succeed(self, verb: str) -> None:
        self._failures[verb] = 0

    def was_well(self, since: float, until: float) -> bool:
        """Whether the process had no fault that excuses a lost lease."""
        if self.is_dead or self.has_left:
            return False
        return not any(begin <= until and end >= since for begin, end in self._troubles)

    def was_swift(self, since: float, until: float) -> bool:
        """Whether the process had no fault that excuses any other lateness."""
        was_waiting = any(begin <= until and end >= since for begin, end in self._slow_claims)
        return self.was_well(since, until) and not was_waiting

    def well_since(self, at: float) -> float:
        """When its last fault ended."""
        troubles = self._troubles + self._slow_claims
        return max([self.started_at, *(min(end, at) for begin, end in troubles if begin <= at)])


def ignore(process: Process) -> None: ...


class SimClock:
    def __init__(self, world: SimLoop, offset: float) -> None:
        self._world = world
        self._offset = offset

    def monotonic(self) -> float:
        return self._world.time() + self._offset

    def wall_us(self) -> Instant:
        return int(self.monotonic() * SECOND_US)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SeededIds:
    """Ids with the shape of real ones, and the same in every replay."""

    def __init__(self, name: str, world: SimLoop, chance: Random) -> None:
        self._name = name
        self._world = world
        self._chance = chance
        self._last = 0

    def job(self) -> JobId:
        number = (int(self._world.time() * 1_000) << 80) | self._chance.getrandbits(79)
        self._last = max(number, self._last + 1)
        return JobId(base32(self._last, 26))

    def token(self) -> Token:
        return Token(f"{self._chance.getrandbits(128):032x}")

    def worker(self) -> WorkerId:
        return WorkerId(f"{self._name}:{self._chance.getrandbits(32):08x}")


HERE: ContextVar[Process] = ContextVar("HERE")
"""The process whose code is running."""
