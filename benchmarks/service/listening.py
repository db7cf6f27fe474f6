"""The cost of a thousand subscribers for one process: its memory, and the latency of submissions meanwhile."""

import sys
import time
from typing import NamedTuple

from benchmarks.postgres.database import new_database
from benchmarks.processes import let_go, ready_workers
from benchmarks.service.place import Served, Size, memory_mb, served
from benchmarks.service.submitting import Submitted, submitted
from leaseway.domain.identity import Role

LEAVE_SECONDS = 6.0
"""The service continues to poll for a while when there are no subscribers."""


class Crowded(NamedTuple):
    listeners: int
    more_mb: float
    alone: list[Submitted]
    together: list[Submitted]
    reached: int
    """How many subscribers received the submitted jobs."""
    heard_mb: float


def crowded(size: Size, server_url: str) -> Crowded:
    """In turns, so that neither variant has the warmer server: alone, together, alone, together …"""
    with new_database(server_url) as url, served(url, role=Role.OPERATOR) as service:
        submitted(service, size, size.seconds / 2)
        alone, together, memory, heard = list[Submitted](), list[Submitted](), list[float](), list[dict[str, int]]()
        for _ in range(size.repeats):
            alone.append(submitted(service, size))
            before = memory_mb(service.pid)
            with ready_workers([crowd_command(service, size.listeners)]) as crowd:
                together.append(submitted(service, size))
                memory.append(memory_mb(service.pid) - before)
                heard += let_go(crowd)
            time.sleep(min(LEAVE_SECONDS, size.seconds))
    refuse_lost(heard)
    reached, heard_mb = min(each["reached"] for each in heard), sum(each["bytes"] for each in heard) / 1e6
    return Crowded(size.listeners, max(memory), alone, together, reached, heard_mb)


def crowd_command(service: Served, listeners: int) -> list[str]:
    host, _, port = service.url.removeprefix("http://").partition(":")
    return [sys.executable, "-m", "benchmarks.service.crowd", host, port, service.key, str(listeners)]


def refuse_lost(heard: list[dict[str, int]]) -> None:
    """Disconnected subscribers cost nothing, so they must not count."""
    lost = sum(each["lost"] for each in heard)
    if lost:
        raise RuntimeError(f"{lost} listeners were lost")
