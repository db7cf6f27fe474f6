"""Processes that start together: each reports that it is ready, waits for a line on stdin, and prints its figures as
JSON.

The time runs from the first claim of the first one to the last settlement of the last one, on the monotonic clock that
all processes of a machine share. The start, up to the first claim, is measured apart.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from leaseway.bench.processes import Figures

RUN_SECONDS_MAX = 600

Worker = subprocess.Popen[bytes]


@contextmanager
def ready_workers(commands: Sequence[list[str]]) -> Iterator[list[Worker]]:
    """All of them, as soon as all are ready. None outlives the body."""
    pipe = subprocess.PIPE
    workers = [subprocess.Popen(command, stdin=pipe, stdout=pipe) for command in commands]
    try:
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        yield workers
    finally:
        for worker in workers:
            with worker:
                worker.kill()


def let_go(workers: Sequence[Worker], meanwhile: Callable[[], None] = lambda: None) -> list[Figures]:
    """Give the start signal, do something `meanwhile`, and wait for the last line of each."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"go\n")
        worker.stdin.flush()
    meanwhile()
    return [last_line(worker) for worker in workers]


def last_line(worker: Worker) -> Figures:
    text, _ = worker.communicate(timeout=RUN_SECONDS_MAX)
    if worker.returncode:
        raise subprocess.CalledProcessError(worker.returncode, worker.args)
    figures: Figures = json.loads(text.splitlines()[-1])
    return figures


def run_together(commands: Sequence[list[str]], meanwhile: Callable[[], None] = lambda: None) -> list[Figures]:
    """The figures of each. `start_ns`: how long it took from its start to its first claim, without the wait for the
    others."""
    started_ns = time.monotonic_ns()
    with ready_workers(commands) as workers:
        ready_ns = time.monotonic_ns()
        found = let_go(workers, meanwhile)
    return [
        {**figures, "start_ns": max(figures.get("begun_ns", 0) - ready_ns, 0) + ready_ns - started_ns}
        for figures in found
    ]


def rate_of(found: Sequence[Figures], count: int) -> float:
    """Jobs per second of all of them together. They must have settled every job, and each job once."""
    # A worker that falls behind releases jobs, and another one settles them.
    settled = sum(figures["count"] - figures.get("released", 0) for figures in found)
    if settled != count:
        raise RuntimeError(f"{settled:,} jobs were settled, and {count:,} were waiting")
    return count / busy_ns(found) * 1e9


def start_seconds(found: Sequence[Figures]) -> float:
    """Until the last of them had started."""
    return max(int(figures["start_ns"]) for figures in found) / 1e9


def busy_ns(found: Sequence[Figures]) -> int:
    busy = [figures for figures in found if figures["count"]]
    return int(max(figures["ended_ns"] for figures in busy) - min(figures["begun_ns"] for figures in busy))


# -- in a worker ----------------------------------------------------------------------------------------------------


def ready() -> None:
    """Wait for the others."""
    print("ready", flush=True)
    sys.stdin.readline()


def done(count: int, begun_ns: int, ended_ns: int) -> None:
    print(json.dumps({"count": count, "begun_ns": begun_ns, "ended_ns": ended_ns}), flush=True)
