"""Processes that start together: each reports that it is ready, waits for a line on stdin, and prints its figures as
JSON.

Starting a worker is not measured. The time runs from the first claim of the first one to the last settlement of the
last one, on the monotonic clock that all processes of a machine share.
"""

import json
import subprocess
import sys
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
    with ready_workers(commands) as workers:
        return let_go(workers, meanwhile)


def rate_of(found: Sequence[Figures], count: int) -> float:
    """Jobs per second of all of them together. They must have settled every job, and each job once."""
    settled = sum(figures["count"] for figures in found)
    if settled != count:
        raise RuntimeError(f"{settled:,} jobs were settled, and {count:,} were waiting")
    busy = [figures for figures in found if figures["count"]]
    begun_ns = min(figures["begun_ns"] for figures in busy)
    ended_ns = max(figures["ended_ns"] for figures in busy)
    return float(count / (ended_ns - begun_ns) * 1e9)


# -- in a worker ----------------------------------------------------------------------------------------------------


def ready() -> None:
    """Wait for the others."""
    print("ready", flush=True)
    sys.stdin.readline()


def done(count: int, begun_ns: int, ended_ns: int) -> None:
    print(json.dumps({"count": count, "begun_ns": begun_ns, "ended_ns": ended_ns}), flush=True)
