"""The system's clock, random numbers and ids. All other modules get them through ports."""

import asyncio
import contextlib
import gc
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from leaseway.domain.ids import ALPHABET, Instant, JobId, Token, WorkerId
from leaseway.domain.store_clock import advance_clock, start_clock

PAIRS = [first + second for first in ALPHABET for second in ALPHABET]
COUNTER_BITS = 40
COUNTER_MAX = (1 << COUNTER_BITS) - (1 << 24)
"""The counter of a millisecond has room for one more step below this value."""
STEPS = 1024
"""Random steps that are drawn at once: a system call for each id would cost more than the id."""

GENERATOR = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=GENERATOR.seed)

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_clock_us() -> Instant:
    return time.time_ns() // 1_000


class ProcessTime:
    """The clock of stores that end with the process. It does not go back when the machine's clock is set back."""

    def __init__(
        self,
        wall_us: Callable[[], Instant] = wall_clock_us,
        ticks_us: Callable[[], int] = lambda: time.clock_gettime_ns(_BOOT_CLOCK) // 1_000,
    ) -> None:
        self._wall_us, self._ticks_us = wall_us, ticks_us
        self._state = start_clock(wall_us(), ticks_us())

    def __call__(self) -> Instant:
        now, self._state = advance_clock(self._state, self._wall_us(), self._ticks_us())
        return now


store_time_us = ProcessTime()
"""One object, so that a store, its limiter and its ledger agree."""


class SystemClock:
    def __init__(self) -> None:
        # Unlike time.monotonic, this clock continues while a laptop sleeps, as leases in the store do. A job reads it
        # ten times, and a wrapper in Python would cost more than the call.
        self.monotonic: Callable[[], float] = partial(time.clock_gettime, _BOOT_CLOCK)

    def wall_us(self) -> Instant:
        return wall_clock_us()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemChance:
    """It does not share the generator of the module `random`: handlers that seed that one would make jitter equal. A
    forked process draws numbers of its own. The numbers are not secret: ids and tokens come from `SystemIds`."""

    def random(self) -> float:
        return GENERATOR.random()


class SystemIds:
    """Ids of 26 characters: 10 for the millisecond, 16 random ones.

    The ids of a process grow. A new millisecond starts with 79 new random bits; each further id within it adds a random
    step of 24 bits. A caller that knows some ids of a process cannot guess the next ones and submit under them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._millisecond = 0
        self._prefix = ""
        self._counter = 0
        self._pid = 0
        self._steps: list[int] = []

    def job(self) -> JobId:
        with self._lock:
            millisecond = time.time_ns() // 1_000_000
            # The clock may stand still or go back. A forked child must not continue with the numbers of its parent.
            if millisecond > self._millisecond or self._pid != os.getpid():
                self._begin(max(millisecond, self._millisecond))
            elif self._counter >= COUNTER_MAX:
                self._begin(self._millisecond + 1)
            elif self._steps:
                self._counter += self._steps.pop()
            else:
                self._steps = [1 + (number >> 8) for number in memoryview(os.urandom(4 * STEPS)).cast("I")]
                self._counter += self._steps.pop()
            n = self._counter
            return JobId(
                f"{self._prefix}{PAIRS[n >> 30]}{PAIRS[n >> 20 & 1023]}{PAIRS[n >> 10 & 1023]}{PAIRS[n & 1023]}"
            )

    def _begin(self, millisecond: int) -> None:
        if self._pid != os.getpid():
            self._pid, self._steps = os.getpid(), []
        number = secrets.randbits(2 * COUNTER_BITS - 1)
        self._millisecond = millisecond
        self._prefix = base32(millisecond << COUNTER_BITS | number >> (COUNTER_BITS - 1), 18)
        # The highest bit of the counter stays free, so that at least 30,000 ids fit into the millisecond.
        self._counter = number & (1 << (COUNTER_BITS - 1)) - 1

    def token(self) -> Token:
        return Token(secrets.token_hex(16))

    def worker(self) -> WorkerId:
        return WorkerId(f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}")


def random_text(alphabet: str, length: int) -> str:
    """A random text for secrets."""
    return "".join(secrets.choice(alphabet) for _ in range(length))


def base32(number: int, length: int) -> str:
    return "".join([ALPHABET[(number >> shift) & 31] for shift in range(5 * (length - 1), -1, -5)])


# -- garbage collection -----------------------------------------------------------------------------------------------

YOUNG_OBJECTS = 10_000
"""How many new objects start a collection. Jobs that run at once have more than Python's default of 700."""


@contextlib.contextmanager
def garbage_collected_rarely() -> Iterator[None]:
    """For a process that belongs to leaseway. Otherwise the garbage collector scans all imported modules again and
    again, which takes a sixth of the CPU of a job with one call, blocks the event loop for 20 to 50 ms, and frees
    nothing.

    A program that runs a worker or a service beside other things decides by itself.
    """
    before = gc.get_threshold()
    freeze_loaded_objects()
    if before[0]:  # 0: the program has switched the collector off
        gc.set_threshold(max(before[0], YOUNG_OBJECTS), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def freeze_loaded_objects() -> None:
    """Call it once, before the first request or job."""
    gc.collect()
    gc.freeze()


def freeze_late_import() -> None:
    """A library was imported while the process was busy: its objects are exempt, too, if those before it are."""
    if gc.get_freeze_count():
        gc.freeze()
