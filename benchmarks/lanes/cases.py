"""Drain from many lanes against drain from one, on each store: measure in turns, compare, describe.

Every contestant has as many waiting jobs, and starts with a full store of its own.
"""

import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks import contestants
from benchmarks.harness import AT_LEAST, Figure, Measure, Measured, Target, in_turns, median, say, shown, spread
from benchmarks.mongodb import database as mongodb
from benchmarks.postgres import database as postgres
from benchmarks.results import versions
from leaseway.bench.processes import Figures

WORKER = "benchmarks.lanes.worker"
CLOSED_SHARE = 90.0
SHARES = {10_000: 50.0, 100_000: 30.0}
"""Lanes, and the share of one lane's drain that is the target."""


class Size(NamedTuple):
    repeats: int = 3
    jobs: int = 100_000
    """That wait; so with the most lanes each has one."""
    drain: int = 20_000
    lanes: tuple[int, ...] = (1, 1_000, 10_000, 100_000)
    closed: tuple[int, ...] = (0, 100_000)


FULL = Size()
QUICK = Size(1, 2_000, 1_500, (1, 1_000), (0, 250))


def drained(url: str, lanes: int, size: Size) -> Figures:
    return contestants.figures_of(WORKER, "drain", url, lanes, size.drain)


def filled(url: str, lanes: int, size: Size) -> None:
    say(f"  filling {lanes:,} lanes with {size.jobs:,} jobs")
    contestants.figures_of(WORKER, "fill", url, lanes, size.jobs)


def closed(url: str, lanes: int, size: Size) -> None:
    """One lane with work, and so many whose limit is used up."""
    if lanes:
        say(f"  closing {lanes:,} lanes")
        contestants.figures_of(WORKER, "close", url, lanes, 0)
    contestants.figures_of(WORKER, "fill", url, 1, size.drain)


def compared(store: str, size: Size, measures: Mapping[int, Callable[[Path], Figures]]) -> list[Figure]:
    """`measures`: by number of lanes with ready work; the first is one lane."""
    found, (one, *others) = rounds(measures, size), measures
    figures = [Figure(f"{store}: drain from one lane", median(found[one].rates), "jobs/s", None, found[one].note())]
    for lanes in others:
        target = Target(AT_LEAST, SHARES[lanes]) if lanes in SHARES else None
        share, note = found[lanes].share_of(found[one]), found[lanes].note()
        figures.append(Figure(f"{store}: drain from {lanes:,} lanes, share of one lane", share, "%", target, note))
    return figures


def compared_closed(store: str, size: Size, measures: Mapping[int, Callable[[Path], Figures]]) -> list[Figure]:
    """`measures`: by number of closed lanes; the first has none."""
    found, (none, *others) = rounds(measures, size), measures
    return [
        Figure(
            f"{store}: drain from one lane with {lanes:,} lanes used up, share of none",
            found[lanes].share_of(found[none]), "%", Target(AT_LEAST, CLOSED_SHARE),
            f"{found[lanes].note()}; without them {found[none].note()}",
        )
        for lanes in others
    ]  # fmt: skip


class Rounds(NamedTuple):
    """Of one contestant: jobs per second, and the CPU time of each job."""

    rates: list[float]
    cpu_us: list[float]

    def note(self) -> str:
        return f"{shown(median(self.rates))} jobs/s, {shown(median(self.cpu_us))} µs of CPU each; {spread(self.rates)}"

    def share_of(self, base: "Rounds") -> float:
        return 100 * median([ours / theirs for ours, theirs in zip(self.rates, base.rates, strict=True)])


def rounds(measures: Mapping[int, Callable[[Path], Figures]], size: Size) -> dict[int, Rounds]:
    """By number of lanes."""
    cpu_us: dict[int, list[float]] = {lanes: [] for lanes in measures}

    def rated(lanes: int) -> Measure:
        def run(folder: Path) -> float:
            figures = measures[lanes](folder)
            cpu_us[lanes].append(figures["cpu_us"])
            return contestants.rate(figures)

        return run

    rates = in_turns({f"{lanes:,} lanes": rated(lanes) for lanes in measures}, size.repeats)
    return {lanes: Rounds(found, cpu_us[lanes]) for lanes, found in zip(measures, rates.values(), strict=True)}


Fill = Callable[[str, int, Size], None]


def lanes_sqlite(size: Size) -> list[Figure]:
    """The files with ready lanes are filled once and copied each time. Closed lanes open after a minute, so they are
    made right before a measurement."""
    with TemporaryDirectory(prefix="leaseway-benchmarks-") as folder:
        files = {lanes: Path(folder) / f"{lanes}.db" for lanes in size.lanes}
        for lanes, file in files.items():
            filled(f"sqlite:///{file}", lanes, size)

        def on_copy(lanes: int) -> Callable[[Path], Figures]:
            def run(place: Path) -> Figures:
                shutil.copyfile(files[lanes], place / "work.db")
                return drained(contestants.url_in(place), lanes, size)

            return run

        ready = compared("SQLite", size, {lanes: on_copy(lanes) for lanes in size.lanes})

    def on_new(lanes: int) -> Callable[[Path], Figures]:
        def run(place: Path) -> Figures:
            closed(contestants.url_in(place), lanes, size)
            return drained(contestants.url_in(place), lanes, size)

        return run

    return ready + compared_closed("SQLite", size, {lanes: on_new(lanes) for lanes in size.closed})


def lanes_postgres(size: Size) -> list[Figure]:
    """As on SQLite: databases with ready lanes are copied."""
    with postgres.benchmark_server() as server, ExitStack() as stack:

        def run(fill: Fill, lanes: int) -> Callable[[Path], Figures]:
            template = ""
            if fill is filled:
                template = stack.enter_context(postgres.new_database(server.url))
                filled(template, lanes, size)
                postgres.rest(template)

            def measure(_: Path) -> Figures:
                with postgres.new_database(server.url, template=template) as url:
                    if not template:
                        fill(url, lanes, size)
                        postgres.rest(url)
                    postgres.checkpoint(url)
                    return drained(url, lanes, size)

            return measure

        return both("PostgreSQL", size, run)


def lanes_mongodb(size: Size) -> list[Figure]:
    with mongodb.benchmark_server() as server:

        def run(fill: Fill, lanes: int) -> Callable[[Path], Figures]:
            def measure(_: Path) -> Figures:
                with mongodb.new_database(server) as url:
                    fill(url, lanes, size)
                    mongodb.checkpoint(server)
                    return drained(url, lanes, size)

            return measure

        return both("MongoDB", size, run)


def both(store: str, size: Size, run: Callable[[Fill, int], Callable[[Path], Figures]]) -> list[Figure]:
    """Lanes with ready work, and closed lanes."""
    ready = compared(store, size, {lanes: run(filled, lanes) for lanes in size.lanes})
    return ready + compared_closed(store, size, {lanes: run(closed, lanes) for lanes in size.closed})


CASES: dict[str, Callable[[Size], list[Figure]]] = {
    case.__name__: case for case in (lanes_sqlite, lanes_postgres, lanes_mongodb)
}


def run(names: Sequence[str], quick: bool, repeats: int | None) -> Measured:
    size = QUICK if quick else FULL
    size = size._replace(repeats=repeats or size.repeats)
    figures: list[Figure] = []
    for name in names:
        say(name)
        figures += CASES[name](size)
    return Measured(figures, [f"SQLite {sqlite3.sqlite_version}", *versions("asyncpg", "pymongo")])
