"""Several workers on one file: how they share the work, and what happens when one of them is killed.

python -m benchmarks.many FILE    a worker whose first attempt never ends; prints when each attempt began
"""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from leaseway import App, Context
from leaseway.bench.probe import command, decoded, probed

PROCESSES = 4
RUN_SECONDS_MAX = 120


def fairness_shares(file: Path, count: int) -> list[float]:
    """The share of each process, in percent, when all start together and the work is enough for all."""
    probed("submit_bulk", file, count - 1)
    pipe = subprocess.PIPE
    workers = [
        subprocess.Popen(command("drain_until_empty", file, 0), stdin=pipe, stdout=pipe) for _ in range(PROCESSES)
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"go\n")
        worker.stdin.flush()
    settled = [decoded(worker.communicate(timeout=RUN_SECONDS_MAX)[0])["count"] for worker in workers]
    return [100 * each / sum(settled) for each in settled]


def recovery_seconds(file: Path) -> float:
    """From the kill of the worker that runs the only job, to the job's second start in a worker that was idle."""
    app = app_at(file)
    app.submit_sync(app.bind("hang", {}))
    app.close_sync()
    first, second = started(file), None
    try:
        first_line(first)
        second = started(file)
        time.sleep(1)  # the second worker is idle when it happens
        first.kill()
        killed_at = time.monotonic_ns()
        return (first_line(second) - killed_at) / 1e9
    finally:
        for worker in (first, second):
            if worker is not None:
                with worker:
                    worker.kill()


def started(file: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "benchmarks.many", str(file)], stdout=subprocess.PIPE)


def first_line(worker: subprocess.Popen[bytes]) -> int:
    assert worker.stdout is not None
    return int(worker.stdout.readline())


def app_at(file: Path) -> App:
    app = App(f"sqlite:///{file}")

    @app.job
    async def hang(ctx: Context) -> None:
        print(time.monotonic_ns(), flush=True)
        if ctx.attempt == 1:
            await asyncio.Event().wait()

    return app


if __name__ == "__main__":
    app_at(Path(sys.argv[1])).work()
