"""The system's clock, random numbers and ids. All other modules get them through ports."""

import asyncio
import os
import random
import secrets
import socket
import threading
import time

from leaseway.domain.ids import Instant, JobId, Token, WorkerId

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32 in lower case: no two letters look alike, and texts sort like the numbers they encode."""

PAIRS = [first + second for first in ALPHABET for second in ALPHABET]
COUNT_MAX = len(PAIRS) ** 2 - 1

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_clock_us() -> Instant:
    return time.time_ns() // 1_000


class SystemClock:
    def monotonic(self) -> float:
        # Unlike time.monotonic, this clock continues while a laptop sleeps, as leases in the store do.
        return time.clock_gettime(_BOOT_CLOCK)

    def wall_us(self) -> Instant:
        return wall_clock_us()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemChance:
    def random(self) -> float:
        return random.random()


class SystemIds:
    """Ids of 26 characters: 10 for the millisecond, 12 random ones for the process, 4 for a counter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._millisecond = 0
        self._prefix = ""
        self._chance = ""
        self._count = 0
        self._pid = 0

    def job(self) -> JobId:
        with self._lock:
            return self._job()

    def _job(self) -> JobId:
        millisecond = time.time_ns() // 1_000_000
        # The clock may stand still or go back. A forked child must not continue its parent's counter.
        if millisecond > self._millisecond or self._count == COUNT_MAX or self._pid != os.getpid():
            if self._pid != os.getpid():
                self._pid, self._chance = os.getpid(), base32(secrets.randbits(60), 12)
            self._millisecond = max(millisecond, self._millisecond + 1)
            self._prefix = base32(self._millisecond, 10) + self._chance
            self._count = 0
        self._count += 1
        return JobId(f"{self._prefix}{PAIRS[self._count >> 10]}{PAIRS[self._count & 1023]}")

    def token(self) -> Token:
        return Token(secrets.token_hex(16))

    def worker(self) -> WorkerId:
        return WorkerId(f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}")


def random_text(alphabet: str, length: int) -> str:
    """A random text for secrets."""
    return "".join(secrets.choice(alphabet) for _ in range(length))


def base32(number: int, length: int) -> str:
    return "".join([ALPHABET[(number >> shift) & 31] for shift in range(5 * (length - 1), -1, -5)])
