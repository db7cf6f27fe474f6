"""Time, chance and names as the machine gives them. Everything else gets them through ports."""

import asyncio
import os
import random
import secrets
import socket
import time

from leaseway.domain.ids import Instant, JobId, Token, WorkerId

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32 in lower case: no letter looks like another, and the order of texts is the order of numbers."""

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_clock_us() -> Instant:
    return time.time_ns() // 1_000


class SystemClock:
    def monotonic(self) -> float:
        # Unlike time.monotonic, this clock goes on while a laptop sleeps, as the leases in the store do.
        return time.clock_gettime(_BOOT_CLOCK)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemChance:
    def random(self) -> float:
        return random.random()


class SystemIds:
    """Ids of 26 characters: 48 bits of milliseconds, 80 bits that start at random and count up from there."""

    def __init__(self) -> None:
        self._last = 0
        self._pid = os.getpid()

    def job(self) -> JobId:
        number = (time.time_ns() // 1_000_000) << 80
        if number <= self._last >> 80 << 80 and self._pid == os.getpid():
            number = self._last + 1
        else:
            # A child process must not count on from its parent's number.
            self._pid = os.getpid()
            number |= secrets.randbits(79)
        self._last = number
        return JobId(base32(number, 26))

    def token(self) -> Token:
        return Token(secrets.token_hex(16))

    def worker(self) -> WorkerId:
        return WorkerId(f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}")


def base32(number: int, length: int) -> str:
    return "".join([ALPHABET[(number >> shift) & 31] for shift in range(5 * (length - 1), -1, -5)])
