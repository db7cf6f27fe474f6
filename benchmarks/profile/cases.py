"""Where the CPU time of a job goes on each store: of the worker by step, and of the server.

Not a comparison, so nothing takes turns: CPU time hardly depends on what else the machine does.
"""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks import contestants
from benchmarks.calls.provider import running_provider
from benchmarks.harness import Figure, Measured, median, say, shown, spread
from benchmarks.mongodb import database as mongodb
from benchmarks.mongodb.idling import cpu_seconds
from benchmarks.postgres import database as postgres
from benchmarks.postgres.idling import cpu_ns
from benchmarks.results import versions

SERVER = "server"
PHASES = {"submit": "submit in bulk", "run": "run"}

Steps = dict[tuple[str, str], float]
"""Microseconds per job, by phase and step."""


class Size(NamedTuple):
    repeats: int = 3
    jobs: int = 50_000
    calls: int = 10_000


FULL = Size()
QUICK = Size(1, 2_000, 500)


class Place(NamedTuple):
    """A store, and what its server has used so far, in microseconds."""

    url: str
    server_us: Callable[[], float]


def profiled(place: Place, count: int, provider: str) -> Steps:
    command = [sys.executable, "-m", "benchmarks.profile.worker", place.url, str(count), provider]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = place.server_us()
        print("submit", file=process.stdin, flush=True)
        process.stdout.readline()
        between = place.server_us()
        printed, _ = process.communicate("run\n")
    found = json.loads(printed)
    steps = {(phase, step): us for phase, by_step in found.items() for step, us in by_step.items()}
    if after := place.server_us():
        steps["submit", SERVER], steps["run", SERVER] = (between - before) / count, (after - between) / count
    return steps


def compared(store: str, size: Size, new_place: Callable[[], AbstractContextManager[Place]]) -> list[Figure]:
    runs: dict[str, list[Steps]] = {"": [], "call": []}
    with running_provider() as provider:
        for _ in range(size.repeats):
            for what, url, count in (("", "", size.jobs), ("call", provider, size.calls)):
                with new_place() as place:
                    runs[what].append(profiled(place, count, url))
                say(f"  {store}, {what or 'nothing'}: {shown(sum(runs[what][-1].values()))} µs per job")
    return [
        figure
        for phase, title in PHASES.items()
        for what, found in runs.items()
        if (phase, what) != ("submit", "call")
        for figure in figures_of(f"{store}, {title}{', with one call' if what else ''}", phase, found)
    ]


def figures_of(title: str, phase: str, runs: Sequence[Steps]) -> list[Figure]:
    names = sorted({step for run in runs for of, step in run if of == phase})
    values = {name: [run.get((phase, name), 0.0) for run in runs] for name in names}
    totals = [sum(us for (of, _), us in run.items() if of == phase) for run in runs]
    ordered = sorted(names, key=lambda name: -median(values[name]))
    total = Figure(f"{title}: in all", median(totals), "µs", None, spread(totals))
    return [total, *(Figure(f"{title}: {name}", median(values[name]), "µs", None, "") for name in ordered)]


def profile_sqlite(size: Size) -> list[Figure]:
    @contextmanager
    def new_place() -> Iterator[Place]:
        with TemporaryDirectory(prefix="leaseway-benchmarks-") as folder:
            yield Place(contestants.url_in(Path(folder)), lambda: 0.0)

    return compared("SQLite", size, new_place)


def profile_postgres(size: Size) -> list[Figure]:
    with postgres.benchmark_server() as server:

        @contextmanager
        def new_place() -> Iterator[Place]:
            with postgres.new_database(server.url) as url:
                yield Place(url, lambda: cpu_ns(server) / 1_000)

        return compared("PostgreSQL", size, new_place)


def profile_mongodb(size: Size) -> list[Figure]:
    with mongodb.benchmark_server() as server:

        @contextmanager
        def new_place() -> Iterator[Place]:
            with mongodb.new_database(server) as url:
                yield Place(url, lambda: cpu_seconds(server) * 1e6)

        return compared("MongoDB", size, new_place)


CASES: dict[str, Callable[[Size], list[Figure]]] = {
    case.__name__: case for case in (profile_sqlite, profile_postgres, profile_mongodb)
}


def run(names: Sequence[str], quick: bool, repeats: int | None) -> Measured:
    size = QUICK if quick else FULL
    size = size._replace(repeats=repeats or size.repeats)
    figures: list[Figure] = []
    for name in names:
        say(name)
        figures += CASES[name](size)
    return Measured(figures, [f"SQLite {sqlite3.sqlite_version}", *versions("asyncpg", "pymongo", "aiohttp")])
