"""One tenant submits a hundred times as much as each of the others: which tenants are served?

    python -m benchmarks.limits.tenants STORE FILE     one worker; each start is a line of FILE

First all tenants have jobs, and their starts are counted until one of them has none left. Then the large one still has
jobs, the small ones submit one now and then, and the time until it starts is their wait.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from leaseway import App, JobHandle
from leaseway.bench.measure import percentile
from leaseway.telemetry.log import NoEvents

LARGE, SMALL = "large", [f"small-{number}" for number in range(9)]
TIMES = 100
PROCESSES = 2
JOB_SECONDS = 0.01
PAUSE_SECONDS = 0.05
WAIT_SECONDS_MAX = 60.0


class Start(NamedTuple):
    tenant: str
    submitted_ns: int
    """0: it was submitted before the start."""
    started_ns: int


class Served(NamedTuple):
    jain: float
    wait_p50_ms: float
    wait_p99_ms: float
    counted: int
    waits: int


def app_at(store: str, file: str = os.devnull) -> tuple[App, JobHandle[Any]]:
    app = App(store, events=NoEvents())
    starts = os.open(file, os.O_WRONLY | os.O_APPEND)

    @app.job
    async def work(who: str, submitted_ns: int) -> None:
        os.write(starts, f"{who} {submitted_ns} {time.monotonic_ns()}\n".encode())
        await asyncio.sleep(JOB_SECONDS)

    return app, work


def served(jobs: int, waits: int) -> Served:
    """With this many jobs for each small tenant, and this many more that are submitted one by one."""
    with TemporaryDirectory(prefix="leaseway-benchmarks-") as folder:
        store, file = f"sqlite:///{Path(folder) / 'work.db'}", Path(folder) / "starts"
        file.touch()
        app, work = app_at(store)
        for tenant, count in {LARGE: TIMES * jobs, **dict.fromkeys(SMALL, jobs)}.items():
            work.options(tenant=tenant).submit_many_sync([{"who": tenant, "submitted_ns": 0}] * count)
        with workers(store, file):
            await_starts(file, jobs * len(SMALL))
            for number in range(waits):
                tenant = SMALL[number % len(SMALL)]
                work.options(tenant=tenant).submit_sync(who=tenant, submitted_ns=time.monotonic_ns())
                time.sleep(PAUSE_SECONDS)
            await_starts(file, jobs * len(SMALL) + waits)
        app.close_sync()
        return judged(starts_in(file))


@contextmanager
def workers(store: str, file: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.limits.tenants", store, str(file)]
    running = [subprocess.Popen(command) for _ in range(PROCESSES)]
    try:
        yield
    finally:
        for worker in running:
            with worker:
                worker.kill()


def await_starts(file: Path, count: int) -> None:
    """Until this many jobs of small tenants have started."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while file.read_bytes().count(b"small") < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count:,} jobs of small tenants did not start in {WAIT_SECONDS_MAX:g} s")
        time.sleep(0.2)


def starts_in(file: Path) -> list[Start]:
    lines = (line.split() for line in file.read_text().splitlines())
    starts = [Start(tenant, int(submitted_ns), int(started_ns)) for tenant, submitted_ns, started_ns in lines]
    return sorted(starts, key=lambda start: start.started_ns)


def judged(starts: Sequence[Start]) -> Served:
    waiting = [start for start in starts if not start.submitted_ns]
    ends_ns = {start.tenant: start.started_ns for start in waiting}
    counts = Counter(start.tenant for start in waiting if start.started_ns <= min(ends_ns.values()))
    waits_ms = [(start.started_ns - start.submitted_ns) / 1e6 for start in starts if start.submitted_ns]
    return Served(
        jain=jain([counts[tenant] for tenant in (LARGE, *SMALL)]),
        wait_p50_ms=percentile(waits_ms, 50),
        wait_p99_ms=percentile(waits_ms, 99),
        counted=counts.total(),
        waits=len(waits_ms),
    )


def jain(shares: Sequence[float]) -> float:
    """Jain's index: 1 if all have the same, 1/n if one has all."""
    return float(sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares)))


if __name__ == "__main__":
    app_at(sys.argv[1], sys.argv[2])[0].work()
