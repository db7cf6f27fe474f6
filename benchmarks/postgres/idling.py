"""What idle workers cost the server, by its own CPU time in /proc (Linux)."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.postgres.database import checkpoint, new_database
from benchmarks.processes import let_go, ready_workers
from leaseway.bench.processes import command
from leaseway.testing.postgres import PostgresServer

SETTLE_SECONDS_MAX = 10.0
"""Until the server has cleaned up earlier work, and every worker has polled without finding a job."""
PROC = Path("/proc")


class Idle(NamedTuple):
    alone_percent: float
    """Of one core, by the server without a worker."""
    percent: float
    """With all workers."""


def idle_share(server: PostgresServer, workers: int, processes: int, seconds: float) -> Idle:
    settle_seconds = min(SETTLE_SECONDS_MAX, seconds)
    with new_database(server.url) as url:
        checkpoint(url)
        time.sleep(settle_seconds)
        alone = cpu_percent(server, seconds)
        commands = [command("idle", url, workers // processes)] * processes
        with ready_workers(commands) as running:
            time.sleep(settle_seconds)
            busy = cpu_percent(server, seconds)
            let_go(running)
    return Idle(alone, busy)


def cpu_percent(server: PostgresServer, seconds: float) -> float:
    before, started_at = cpu_ns(server), time.perf_counter()
    time.sleep(seconds)
    after, elapsed = cpu_ns(server), time.perf_counter() - started_at
    return 100 * (after - before) / 1e9 / elapsed


def cpu_ns(server: PostgresServer) -> int:
    """Of the server, its living children, and those that have ended."""
    assert server.process is not None
    root = server.process.pid
    ended = sum(int(ticks) for ticks in stat_of(root)[13:15]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return ended + sum(on_cpu_ns(pid) for pid in (root, *children_of(root)))


def on_cpu_ns(pid: int) -> int:
    """Exact, where `stat` counts ticks of ten milliseconds, which is coarse for a process that rarely wakes."""
    try:
        return int((PROC / str(pid) / "schedstat").read_text().split()[0])
    except OSError:  # it has ended since it was listed
        return 0


def children_of(root: int) -> Iterator[int]:
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (stat := stat_of(int(entry.name))) and int(stat[1]) == root:
            yield int(entry.name)


def stat_of(pid: int) -> list[str]:
    """The fields after the name, which may contain blanks: state, parent, … ; empty if it has ended."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
