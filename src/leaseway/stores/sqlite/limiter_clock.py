"""Which clock a file of limits goes by, and how it notices that the machine was started anew.

On Linux it is the clock that counts from the machine's start, which nobody can set, moved to the year we are in; and
the kernel tells one start from another. Elsewhere it is the wall clock, which never goes back behind what it said.
"""

import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from leaseway.domain.ids import Instant

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Timepiece(Struct, frozen=True):
    ticks_us: Callable[[], int]
    identity: str = ""
    """What one started machine calls itself; empty: nobody would notice another start."""
    wall_us: Callable[[], Instant] | None = None
    """If ticks do not count from 1970."""
    is_settable: bool = False
    """Somebody may set it back."""

    def ahead_us(self, since: Instant) -> int:
        """From its ticks to our instants. They go on after the last fence even if the machine lost its date."""
        return 0 if self.wall_us is None else max(self.wall_us(), since + 1) - self.ticks_us()


def wall_us() -> Instant:
    return time.time_ns() // 1_000


def since_boot_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def timepiece() -> Timepiece:
    """The best that this machine has."""
    if hasattr(time, "CLOCK_BOOTTIME") and BOOT_ID.exists():
        return Timepiece(since_boot_us, BOOT_ID.read_text("ascii").strip(), wall_us)
    return Timepiece(wall_us, is_settable=True)
