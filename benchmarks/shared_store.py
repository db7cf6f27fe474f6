"""Several workers on one store: how they share the work, and what happens when one of them is killed.

python -m benchmarks.shared_store URL    a worker whose first attempt never ends; prints when each attempt began
"""

import asyncio
import subprocess
import sys
import time

from benchmarks.processes import Worker, run_together
from leaseway import App, Context
from leaseway.bench.processes import command, probed

PROCESSES = 4


def fairness_shares(url: str, count: int) -> list[float]:
    """The share of each process, in percent, when all start together and there is enough work for all."""
    probed("submit_bulk", url, count - 1)
    settled = [figures["count"] for figures in run_together([command("drain_until_empty", url, 0)] * PROCESSES)]
    return [100 * each / sum(settled) for each in settled]


def recovery_seconds(url: str) -> float:
    """From the kill of the worker that runs the only job to the job's second start in a worker that was idle."""
    app = app_at(url)
    app.submit_sync(app.bind("hang", {}))
    app.close_sync()
    first, second = started(url), None
    try:
        first_line(first)
        second = started(url)
        time.sleep(1)  # the second worker is idle when it happens
        first.kill()
        killed_at = time.monotonic_ns()
        return (first_line(second) - killed_at) / 1e9
    finally:
        for worker in (first, second):
            if worker is not None:
                with worker:
                    worker.kill()


def started(url: str) -> Worker:
    return subprocess.Popen([sys.executable, "-m", "benchmarks.shared_store", url], stdout=subprocess.PIPE)


def first_line(worker: Worker) -> int:
    assert worker.stdout is not None
    return int(worker.stdout.readline())


def app_at(url: str) -> App:
    app = App(url)

    @app.job
    async def hang(ctx: Context) -> None:
        print(time.monotonic_ns(), flush=True)
        if ctx.attempt == 1:
            await asyncio.Event().wait()

    return app


if __name__ == "__main__":
    app_at(sys.argv[1]).work()
