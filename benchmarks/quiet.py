"""Waits until the machine is idle, because a busy one measures its neighbours."""

import time
from pathlib import Path

from benchmarks.harness import say

IDLE_SHARE = 0.95
SECONDS = 10.0
WAIT_SECONDS_MAX = 3_600.0


def wait_until_idle() -> str:
    """Returns what the results say about it."""
    deadline, busy = time.monotonic() + WAIT_SECONDS_MAX, 1.0
    while time.monotonic() < deadline:
        before = cpu_times()
        time.sleep(SECONDS)
        after = cpu_times()
        busy = 1 - (after[1] - before[1]) / max(after[0] - before[0], 1)
        if busy <= 1 - IDLE_SHARE:
            return f"The machine was idle before: {100 * busy:.0f} % busy for {SECONDS:g} s."
        say(f"  waiting for an idle machine: {100 * busy:.0f} % busy")
    return f"The machine was never idle within an hour: {100 * busy:.0f} % busy at the end."


def cpu_times() -> tuple[int, int]:
    """All ticks of all CPUs since boot, and the idle ones. Linux only."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return sum(fields[:8]), fields[3] + fields[4]
