"""A rolling deploy under load: worker processes of an old version are replaced one by one while jobs are submitted.

A third of the jobs fit both versions, a third has a parameter that only the new one has, and a third is of a kind that
the old one does not know. None may fail, and no job that a worker gave back may have used an attempt.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.harness import AT_MOST, Figure, Measured, Target, say
from benchmarks.postgres.database import benchmark_server, new_database
from benchmarks.results import versions
from leaseway import App
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import State

JOBS, JOBS_QUICK = 10_000, 60
WORKERS = 3
PAGE = 1_000
SUBMIT_TOGETHER = 50
NONE = Target(AT_MOST, 0)

OLD = """
import os
from leaseway import App

app = App(os.environ["BENCH_STORE"])

@app.job
async def resize(image: str) -> str:
    return image
"""
NEW = """
import os
from leaseway import App

app = App(os.environ["BENCH_STORE"])

@app.job
async def resize(image: str, width: int = 100) -> str:
    return f"{image}: {width}"

@app.job
async def crop(image: str) -> str:
    return image
"""


class Deployed(NamedTuple):
    states: Counter[State]
    repeated: int
    """Jobs that used more than one attempt."""


def start_worker(folder: Path, url: str, version: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "leaseway.cli", "work", f"{version}:app", "--quiet"]
    environ = {**os.environ, "BENCH_STORE": url, "PYTHONPATH": str(folder)}
    return subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def submitting_app(url: str) -> App:
    """Knows the jobs of the new version, which accept the arguments of the old one."""
    app = App(url)

    @app.job
    async def resize(image: str, width: int = 100) -> str:
        return f"{image}: {width}"

    @app.job
    async def crop(image: str) -> str:
        return image

    return app


async def submit_part(app: App, jobs: int) -> None:
    numbers = range(jobs // 3)
    for start in range(0, len(numbers), SUBMIT_TOGETHER):
        bound = []
        for number in numbers[start : start + SUBMIT_TOGETHER]:
            bound.append(app.bind("resize", {"image": f"old {number}"}))
            bound.append(app.bind("resize", {"image": f"new {number}", "width": number}))
            bound.append(app.bind("crop", {"image": f"crop {number}"}))
        await app.submit_many(bound)


async def deploy(url: str, jobs: int) -> Deployed:
    """Replace the workers one by one, with a part of the jobs before each step."""
    with TemporaryDirectory() as name:
        folder, fleet = Path(name), deque["subprocess.Popen[bytes]"]()
        (folder / "old_version.py").write_text(OLD, "utf-8")
        (folder / "new_version.py").write_text(NEW, "utf-8")
        app = submitting_app(url)
        try:
            async with app:
                for step in range(2 * WORKERS):
                    fleet.append(start_worker(folder, url, "old_version" if step < WORKERS else "new_version"))
                    await submit_part(app, jobs // (2 * WORKERS) + 3)
                    if len(fleet) > WORKERS:
                        await stop_worker(fleet.popleft())
                return await read_outcome(app)
        finally:
            for worker in fleet:
                worker.kill()
                worker.wait()


async def stop_worker(worker: "subprocess.Popen[bytes]") -> None:
    worker.send_signal(signal.SIGTERM)
    await asyncio.to_thread(worker.wait)


async def read_outcome(app: App) -> Deployed:
    reads = (await app.store()).reads
    while any(lane.unfinished for lane in await reads.lanes()):  # noqa: ASYNC110 - other processes do the work
        await asyncio.sleep(0.5)
    states, repeated, before = Counter[State](), 0, None
    while page := await reads.jobs(JobFilter(), before=before, limit=PAGE):
        states.update(job.state for job in page)
        repeated += sum(job.attempts != 1 for job in page)
        before = page[-1].id
    return Deployed(states, repeated)


def compare(store: str, outcome: Deployed) -> list[Figure]:
    total = outcome.states.total()
    note = f"{total:,} jobs, {WORKERS} old worker processes replaced one by one"
    return [
        Figure(
            f"{store}: jobs of two versions that did not succeed", total - outcome.states[State.DONE], "", NONE, note
        ),
        Figure(f"{store}: jobs of two versions that used a second attempt", outcome.repeated, "", NONE, note),
    ]


def on_sqlite(jobs: int) -> list[Figure]:
    with TemporaryDirectory() as folder:
        return compare("SQLite", asyncio.run(deploy(f"sqlite:///{folder}/jobs.db", jobs)))


def on_postgres(jobs: int) -> list[Figure]:
    with benchmark_server() as server, new_database(server.url) as url:
        return compare("PostgreSQL", asyncio.run(deploy(url, jobs)))


CASES: dict[str, Callable[[int], list[Figure]]] = {"deploy_sqlite": on_sqlite, "deploy_postgres": on_postgres}


def run(names: Sequence[str], quick: bool, repeats: int | None) -> Measured:
    figures: list[Figure] = []
    for name in names:
        say(name)
        figures += CASES[name](JOBS_QUICK if quick else JOBS)
    return Measured(figures, versions("asyncpg"))
