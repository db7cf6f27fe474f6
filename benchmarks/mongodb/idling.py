"""What idle workers cost the server, by its own CPU time in /proc (Linux)."""

import os
import time
from pathlib import Path

from benchmarks.mongodb.database import checkpoint, new_database
from benchmarks.processes import let_go, ready_workers
from leaseway.bench.processes import command
from leaseway.testing.mongodb import MongoServer

SETTLE_SECONDS_MAX = 10.0
"""Until every worker has polled without finding a job."""


def idle_percents(server: MongoServer, workers: int, processes: int, seconds: float) -> tuple[float, float]:
    """Of one core, by the server: without a worker, and with all workers."""
    settle_seconds = min(SETTLE_SECONDS_MAX, seconds)
    with new_database(server) as url:
        checkpoint(server)
        time.sleep(settle_seconds)
        alone = cpu_percent(server, seconds)
        commands = [command("idle", url, workers // processes)] * processes
        with ready_workers(commands) as running:
            time.sleep(settle_seconds)
            busy = cpu_percent(server, seconds)
            let_go(running)
    return alone, busy


def cpu_percent(server: MongoServer, seconds: float) -> float:
    before, started_at = cpu_seconds(server), time.perf_counter()
    time.sleep(seconds)
    after, elapsed = cpu_seconds(server), time.perf_counter() - started_at
    return 100 * (after - before) / elapsed


def cpu_seconds(server: MongoServer) -> float:
    """Of all threads of the server, in ticks of ten milliseconds."""
    assert server.process is not None
    fields = Path("/proc", str(server.process.pid), "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
