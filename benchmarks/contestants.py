"""The contestants: each returns one number from a process of its own, with fresh files in its folder."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import Measure
from benchmarks.huey_peer import Setup
from leaseway.bench.processes import probed

RUN_SECONDS_MAX = 600


def figures_of(module: str, *arguments: object) -> dict[str, Any]:
    """What `python -m MODULE …` prints."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=RUN_SECONDS_MAX)
    figures: dict[str, Any] = json.loads(ran.stdout)
    return figures


def rate(figures: dict[str, Any]) -> float:
    return float(figures["count"] / figures["seconds"])


# -- leaseway -------------------------------------------------------------------------------------------------------


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder}/work.db"


def submitted(probe: str, count: int) -> Measure:
    return lambda folder: rate(probed(probe, url_in(folder), count))


def drained(count: int, keep: Callable[[dict[str, Any]], None] = lambda _: None) -> Measure:
    def measure(folder: Path) -> float:
        probed("submit_bulk", url_in(folder), count - 1)  # it submits one to warm up
        figures = probed("drain", url_in(folder), count)
        keep(figures)
        return rate(figures)

    return measure


def drained_from(filled: Path, count: int) -> Measure:
    """From a file in which many more jobs wait; it is filled once and copied each time."""

    def measure(folder: Path) -> float:
        shutil.copyfile(filled, folder / "work.db")
        return rate(probed("drain", url_in(folder), count))

    return measure


# -- peers ----------------------------------------------------------------------------------------------------------


def raw(name: str, count: int) -> Measure:
    return lambda folder: rate(figures_of("benchmarks.raw", name, folder / "raw.db", count))


def huey(count: int, setup: Setup) -> Measure:
    setting = json.dumps(setup._asdict())
    return lambda folder: rate(figures_of("benchmarks.huey_peer", folder / "huey.db", count, setting))


# -- start-up ---------------------------------------------------------------------------------------------------------

IMPORT = "import time; t = time.perf_counter(); from leaseway import App; print(time.perf_counter() - t)"


def import_ms(folder: Path) -> float:
    started(folder, sys.executable, "-c", IMPORT)
    return float(started(folder, sys.executable, "-c", IMPORT).stdout) * 1000


def help_ms(folder: Path) -> float:
    """The whole process, Python's own start included."""
    return started_ms(folder, Path(sys.executable).with_name("leaseway"), "--help")


def python_ms(folder: Path) -> float:
    return started_ms(folder, sys.executable, "-c", "pass")


def started_ms(folder: Path, *command: str | Path) -> float:
    started(folder, *command)
    started_at = time.perf_counter()
    started(folder, *command)
    return (time.perf_counter() - started_at) * 1000


def started(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[bytes]:
    """As with an installed package, whose bytecode is compiled once."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
