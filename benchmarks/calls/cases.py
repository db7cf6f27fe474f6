"""What jobs cost that make one HTTP call each, 64 at once in one process: measure in turns, compare, describe.

Every contestant calls the same provider, which runs in a process of its own. A rate is the median of all rounds; a
ratio is the median of the ratios within a round, so that a busy machine disturbs both sides alike. CPU is the time of
the calling process, with its threads, and hardly depends on what else the machine does.
"""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmarks.calls.callers import AT_ONCE
from benchmarks.calls.provider import running_provider
from benchmarks.harness import AT_LEAST, Figure, Measured, Target, in_turns, median, say, shown, spread
from benchmarks.postgres.database import benchmark_server, new_database, server_version
from benchmarks.results import versions
from leaseway.bench.processes import Figures
from leaseway.testing.postgres import PostgresServer
from leaseway.testing.valkey import valkey_server

SOFTWARE = ("aiohttp", "httpx2", "taskiq", "taskiq-redis", "asyncpg")
SQLITE, POSTGRESQL = "SQLite", "PostgreSQL"
TASKIQ = "taskiq"


class Size(NamedTuple):
    repeats: int = 5
    calls: int = 10_000


FULL = Size()
QUICK = Size(repeats=1, calls=1_000)


class Place(NamedTuple):
    """What all contestants share."""

    provider_url: str
    server: PostgresServer
    calls: int


class Rounds(NamedTuple):
    """The rates of the rounds, and the CPU of each call, by contestant."""

    rates: dict[str, list[float]]
    cpu_us: dict[str, list[float]]

    def ratio(self, ours: str, theirs: str) -> float:
        return median([a / b for a, b in zip(self.rates[ours], self.rates[theirs], strict=True)])

    def note(self, name: str) -> str:
        rate, cpu_us = shown(median(self.rates[name])), shown(median(self.cpu_us[name]))
        return f"{rate} per s and {cpu_us} µs of CPU each; {spread(self.rates[name])}"

    def cpu_share(self, name: str, base: str) -> str:
        return f"by CPU {100 * median(self.cpu_us[base]) / median(self.cpu_us[name]):.0f} %"


def measured(who: str, place: Place, store: str) -> Figures:
    command = [sys.executable, "-m", "benchmarks.calls.callers", who, place.provider_url, store, str(place.calls)]
    figures: Figures = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return figures


def rounds(contestants: dict[str, Callable[[Path], Figures]], repeats: int) -> Rounds:
    cpu_us: dict[str, list[float]] = {name: [] for name in contestants}

    def measure(name: str) -> Callable[[Path], float]:
        def run(folder: Path) -> float:
            figures = contestants[name](folder)
            cpu_us[name].append(figures["cpu_us"])
            return float(figures["rate"])

        return run

    return Rounds(in_turns({name: measure(name) for name in contestants}, repeats), cpu_us)


def on_sqlite(who: str, place: Place) -> Callable[[Path], Figures]:
    return lambda folder: measured(who, place, f"sqlite:///{folder / 'work.db'}")


def on_postgres(who: str, place: Place) -> Callable[[Path], Figures]:
    def run(_: Path) -> Figures:
        with new_database(place.server.url) as url:
            return measured(who, place, url)

    return run


def on_valkey(who: str, place: Place) -> Callable[[Path], Figures]:
    def run(_: Path) -> Figures:
        with valkey_server() as server:
            return measured(who, place, server.url)

    return run


def clients(size: Size, place: Place) -> list[Figure]:
    """`ctx.http` in a job, against bare clients and a peer."""
    contestants = {
        "aiohttp": on_sqlite("aiohttp", place),
        "httpx2": on_sqlite("httpx2", place),
        "leaseway": on_sqlite("plain", place),
    }
    if find_spec("taskiq_redis"):
        contestants[TASKIQ] = on_valkey(TASKIQ, place)
    else:
        say("  taskiq is in the group bench: ./dev bench installs it")
    found = rounds(contestants, size.repeats)
    share = 100 * found.ratio("leaseway", "aiohttp")
    how = f"{found.note('aiohttp')}; {found.cpu_share('leaseway', 'aiohttp')}"
    ours = rate_figure("a job per call with ctx.http, SQLite", found, "leaseway")
    figures = [
        ours._replace(note=f"{size.calls:,} calls, {AT_ONCE} at once, one process; {ours.note}"),
        Figure("the same, share of bare aiohttp", share, "%", Target(AT_LEAST, 50), how),
        Figure("the same, times bare httpx2", found.ratio("leaseway", "httpx2"), "×", None, found.note("httpx2")),
    ]
    if TASKIQ in contestants:
        note = f"{found.note(TASKIQ)}; a Redis list on Valkey, without results"
        times = found.ratio("leaseway", TASKIQ)
        figures.append(Figure("the same, times taskiq + aiohttp", times, "×", Target(AT_LEAST, 1.5), note))
    return figures


def metered(size: Size, place: Place) -> list[Figure]:
    """What a limit and a budget add, on each store."""
    figures = list[Figure]()
    for store, on_store in ((SQLITE, on_sqlite), (POSTGRESQL, on_postgres)):
        whom = {"no limit": "plain", "limit": "limit", "limit and budget": "budget", "any client": "any client"}
        found = rounds({name: on_store(who, place) for name, who in whom.items()}, size.repeats)
        any_client = f"with limit and budget, aiohttp in ctx.call(), {store}"
        figures += [
            rate_figure(f"calls with ctx.http, {store}", found, "no limit"),
            share_of_unlimited(found, "limit", store, 60),
            share_of_unlimited(found, "limit and budget", store, 45),
            rate_figure(any_client, found, "any client"),
        ]
    return figures


def rate_figure(what: str, found: Rounds, name: str) -> Figure:
    return Figure(what, median(found.rates[name]), "calls/s", None, found.note(name))


def share_of_unlimited(found: Rounds, name: str, store: str, target: float) -> Figure:
    note = f"{found.note(name)}; {found.cpu_share(name, 'no limit')}"
    share = 100 * found.ratio(name, "no limit")
    return Figure(f"with {name}, share of that, {store}", share, "%", Target(AT_LEAST, target), note)


CASES: dict[str, Callable[[Size, Place], list[Figure]]] = {case.__name__: case for case in (clients, metered)}


def run(names: Sequence[str], quick: bool, repeats: int | None) -> Measured:
    size = QUICK if quick else FULL
    size = size._replace(repeats=repeats or size.repeats)
    figures = list[Figure]()
    with ExitStack() as stack:
        server = stack.enter_context(benchmark_server())
        place = Place(stack.enter_context(running_provider()), server, size.calls)
        for name in names:
            say(name)
            figures += CASES[name](size, place)
        software = [
            f"SQLite {sqlite3.sqlite_version}",
            f"PostgreSQL {server_version(server.url)}",
            *versions(*SOFTWARE),
        ]
    return Measured(figures, software)
