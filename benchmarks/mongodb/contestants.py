"""The contestants: each returns one number, from processes of its own, in a new and idle database."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.npm_packages import install_locked, node

from benchmarks.contestants import figures_of, rate
from benchmarks.harness import Measure, median, say
from benchmarks.mongodb.database import checkpoint, fill, new_database
from benchmarks.processes import rate_of, run_together
from leaseway.bench.processes import Figures, command, probed
from leaseway.testing.mongodb import MongoServer

Keep = Callable[[Figures], None]
AGENDA = Path(__file__).with_name("agenda")


def keep_nothing(figures: Figures) -> None:
    pass


# -- leaseway -------------------------------------------------------------------------------------------------------


def drained(server: MongoServer, count: int, workers: int = 1) -> Measure:
    def measure(_: Path) -> float:
        with new_database(server) as url:
            fill(url, count)
            checkpoint(server)
            return rate_of(run_together([command("drain_until_empty", url, 0)] * workers), count)

    return measure


def drained_at(server: MongoServer, url: str, count: int) -> Measure:
    """From a database in which more jobs wait or have finished. So many are added first, and drained again."""

    def measure(_: Path) -> float:
        probed("submit_bulk", url, count - 1)
        checkpoint(server)
        return rate(probed("drain", url, count))

    return measure


def submitted(server: MongoServer, probe: str, count: int) -> Measure:
    def measure(_: Path) -> float:
        with new_database(server) as url:
            checkpoint(server)
            return rate(probed(probe, url, count))

    return measure


def picked_up(server: MongoServer, probe: str, count: int, keep: Keep) -> Measure:
    """The median, in milliseconds."""

    def measure(_: Path) -> float:
        with new_database(server) as url:
            checkpoint(server)
            figures = probed(probe, url, count)
        keep(figures)
        return median(figures["waits_ms"])

    return measure


def rows_written(server: MongoServer, count: int) -> Measure:
    return counted(server, "benchmarks.mongodb.rows", count)


# -- peers ----------------------------------------------------------------------------------------------------------


def raw(server: MongoServer, verb: str, count: int) -> Measure:
    return counted(server, "benchmarks.mongodb.raw", verb, count)


def counted(server: MongoServer, module: str, *arguments: object) -> Measure:
    *verb, count = arguments

    def measure(_: Path) -> float:
        with new_database(server) as url:
            checkpoint(server)
            return rate(figures_of(module, *verb, url, count))

    return measure


def raw_loop(server: MongoServer, count: int) -> Measure:
    def measure(_: Path) -> float:
        with new_database(server) as url:
            loop = [sys.executable, "-m", "benchmarks.mongodb.raw", "drain", url, str(count)]
            return rate_of(run_together([loop]), count)

    return measure


def raw_pickup(server: MongoServer, count: int) -> Measure:
    """The median, in milliseconds."""

    def measure(_: Path) -> float:
        with new_database(server) as url:
            return median(figures_of("benchmarks.mongodb.raw", "pickup", url, count)["waits_ms"])

    return measure


class AgendaSetup(NamedTuple):
    """Its defaults are 5 s, 5 and 20."""

    process_every_ms: int = 200
    concurrency: int = 20

    def __str__(self) -> str:
        return f"processEvery={self.process_every_ms} ms, concurrency={self.concurrency}"

    def options(self) -> str:
        limits = {"defaultConcurrency": self.concurrency, "maxConcurrency": self.concurrency}
        return json.dumps({"processEvery": self.process_every_ms, **limits})


AGENDA_SETUPS = [AgendaSetup(), AgendaSetup(concurrency=100), AgendaSetup(concurrency=5)]


def agenda(server: MongoServer, count: int, setup: AgendaSetup) -> Measure:
    modules = install_locked(AGENDA, say)

    def measure(_: Path) -> float:
        with new_database(server) as url:
            command = [str(node()), str(AGENDA / "drain.mjs"), url, str(count), setup.options(), str(modules)]
            return rate_of(run_together([command]), count)

    return measure
