"""Memory of the worker processes, as counted by the operating system."""

import contextlib
import subprocess
from pathlib import Path
from typing import NamedTuple

from benchmarks.imports.ours import Import, started
from benchmarks.imports.provider import Provider

LOOK_SECONDS = 0.1
MB = 1_000_000


class Weight(NamedTuple):
    """Peak resident memory of the largest worker."""

    early_mb: float
    """When a quarter was fetched."""
    final_mb: float
    workers: int


def weighed(import_: Import, it: Provider, workers: int, pages: int) -> Weight:
    """Run an import and sample its workers until they end."""
    before = len(it.pages())
    peaks: dict[int, float] = {}
    early: dict[int, float] = {}
    with started(import_.command("run", "weighed", workers)) as process:
        while process.poll() is None:  # ends with the run
            for child in children_of(process.pid):
                peaks[child] = max(peaks.get(child, 0), peak_mb(child))
            if not early and len(it.pages()) - before >= pages / 4:
                early = dict(peaks)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
    return Weight(max(early.values(), default=0), max(peaks.values(), default=0), len(peaks))


def children_of(process: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except FileNotFoundError:
        return []


def peak_mb(process: int) -> float:
    """0 if the process has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 / MB for line in lines if line.startswith("VmHWM:")), 0)
