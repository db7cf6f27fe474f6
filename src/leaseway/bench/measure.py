"""All figures of one machine and disk, in the order of a job's life: submit, pickup, drain."""

import math
import os
import platform
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from leaseway.bench.processes import probed

SINGLE = 1_000
PICKUPS = 100


class Figure(NamedTuple):
    name: str
    value: float
    unit: str
    what: str
    """The label."""


def measure(folder: Path, jobs: int, say: Callable[[str], None]) -> list[Figure]:
    """Creates temporary files only, in this folder."""
    scratch = f"sqlite:///{folder}"
    say("submitting")
    single = rate("submit_single", f"{scratch}/single.db", SINGLE)
    bulk = rate("submit_bulk", f"{scratch}/bulk.db", jobs)
    say("draining")
    drained = probed("drain", f"{scratch}/bulk.db", jobs)
    say("pickup in the same process")
    same = probed("pickup_same_process", f"{scratch}/same.db", PICKUPS)["waits_ms"]
    say("pickup in another process")
    other = probed("pickup_other_process", f"{scratch}/other.db", PICKUPS)["waits_ms"]
    return [
        Figure("submit_single", single, "jobs/s", "submit, one by one"),
        Figure("submit_bulk", bulk, "jobs/s", "submit, in bulk"),
        Figure("drain", drained["count"] / drained["seconds"], "jobs/s", "drain, one process"),
        Figure("pickup_same_p50", percentile(same, 50), "ms", "pickup in the same process, p50"),
        Figure("pickup_same_p99", percentile(same, 99), "ms", "pickup in the same process, p99"),
        Figure("pickup_other_p50", percentile(other, 50), "ms", "pickup in another process, p50"),
        Figure("pickup_other_p99", percentile(other, 99), "ms", "pickup in another process, p99"),
        Figure("worker_rss", drained["rss_mb"], "MB", "memory of a draining worker"),
    ]


def rate(probe: str, url: str, count: int) -> float:
    figures = probed(probe, url, count)
    return float(figures["count"] / figures["seconds"])


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that this share of all values does not exceed."""
    ranked = sorted(values)
    return ranked[max(math.ceil(len(ranked) * percent / 100), 1) - 1]


def machine() -> str:
    sqlite = f"SQLite {sqlite3.sqlite_version}"
    return f"Python {platform.python_version()}, {sqlite}, {os.cpu_count()} CPUs, {platform.system()}"
