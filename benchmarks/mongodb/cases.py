"""The figures that leaseway promises on MongoDB, one function each: measure in turns, compare, describe.

All contestants take turns on one server, a replica set of one member. Every write of every contestant is majority
and journaled. The sizes are those of the promise; `--quick` divides them for a trial run, whose results prove nothing.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import AT_LEAST, AT_MOST, BELOW, Figure, Measured, Target, in_turns, median, say, shown, spread
from benchmarks.mongodb import contestants
from benchmarks.mongodb.contestants import AGENDA_SETUPS
from benchmarks.mongodb.database import benchmark_server, fill_many, new_database, server_version
from benchmarks.mongodb.idling import idle_percents
from benchmarks.results import versions
from leaseway.bench.measure import percentile
from leaseway.bench.processes import Figures
from leaseway.stores.mongodb.documents import DONE, READY
from leaseway.testing.mongodb import MongoServer

AGENDA_VERSION = "Agenda 6.2.6"


class Size(NamedTuple):
    repeats: int = 3
    drain: int = 20_000
    slow: int = 1_000
    """Jobs for the contestants that run hundreds per second and not thousands."""
    backlog: int = 1_000_000
    single: int = 1_000
    bulk: int = 50_000
    pickups: int = 200
    rows: int = 20_000
    idle_workers: int = 50
    idle_processes: int = 5
    idle_seconds: int = 20


FULL = Size()
QUICK = Size(
    repeats=1, drain=1_000, slow=50, backlog=5_000, single=50, bulk=2_000, pickups=10, rows=2_000, idle_workers=4,
    idle_processes=2, idle_seconds=1,
)  # fmt: skip


def drain(size: Size, server: MongoServer) -> list[Figure]:
    found = in_turns(
        {
            "one": contestants.drained(server, size.drain),
            "four": contestants.drained(server, size.drain, 4),
            "loop": contestants.raw_loop(server, size.slow),
        },
        size.repeats,
    )
    one, four, loop = (median(values) for values in found.values())
    note = f"{size.drain:,} no-op async jobs, 200 bytes, default settings; {spread(found['one'])}"
    how = (
        f"{shown(loop)} jobs/s: findOneAndUpdate and updateOne, one by one, {size.slow:,} jobs; {spread(found['loop'])}"
    )
    together = f"{shown(four)} jobs/s, the server on the same CPUs; {spread(found['four'])}"
    return [
        Figure("MongoDB, drain, one worker", one, "jobs/s", None, note),
        Figure("drain, times a plain loop", one / loop, "×", Target(AT_LEAST, 20), how),
        Figure("four workers, times one", four / one, "×", Target(AT_LEAST, 2), together),
    ]


def agenda(size: Size, server: MongoServer) -> list[Figure]:
    peers = {str(setup): contestants.agenda(server, size.slow, setup) for setup in AGENDA_SETUPS}
    found = in_turns({"leaseway": contestants.drained(server, size.drain), **peers}, size.repeats)
    ours = median(found.pop("leaseway"))
    setup, theirs = max(found.items(), key=lambda each: median(each[1]))
    note = f"{shown(median(theirs))} jobs/s: best of {len(found)} configurations, {setup}; {size.slow:,} jobs; "
    return [Figure("drain, times Agenda", ours / median(theirs), "×", Target(AT_LEAST, 10), note + spread(theirs))]


def backlog(size: Size, server: MongoServer) -> list[Figure]:
    with new_database(server) as few, new_database(server) as waiting, new_database(server) as finished:
        say(f"  filling two databases with {size.backlog:,} jobs each")
        fill_many(few, 1)
        fill_many(waiting, size.backlog)
        fill_many(finished, size.backlog, DONE)
        found = in_turns(
            {
                READY: contestants.drained_at(server, waiting, size.drain),
                "alone": contestants.drained_at(server, few, size.drain),
                DONE: contestants.drained_at(server, finished, size.drain),
            },
            size.repeats,
        )
    alone = median(found["alone"])
    names = {READY: "waiting", DONE: "finished and kept"}
    return [
        Figure(
            f"drain with {size.backlog:,} {name}",
            100 * median(found[status]) / alone,
            "%",
            Target(AT_LEAST, 80),
            f"{median(found[status]):,.0f} against {alone:,.0f} jobs/s; {spread(found[status])}",
        )
        for status, name in names.items()
    ]


def submit(size: Size, server: MongoServer) -> list[Figure]:
    found = in_turns(
        {
            "one by one": contestants.submitted(server, "submit_single", size.single),
            "raw": contestants.raw(server, "insert", size.single),
            "bulk": contestants.submitted(server, "submit_bulk", size.bulk),
            "raw bulk": contestants.raw(server, "insert_many", size.bulk),
        },
        size.repeats,
    )
    single, bare, bulk, bare_bulk = (median(values) for values in found.values())
    same = "the same documents, indexes and validator"
    return [
        share("submit one by one, share of raw inserts", single, bare, 60, f"{same}; {spread(found['one by one'])}"),
        share("submit in bulk, share of raw inserts of 1,000", bulk, bare_bulk, 50, f"{same}; {spread(found['bulk'])}"),
    ]


def share(what: str, ours: float, bare: float, target: float, how: str) -> Figure:
    note = f"{ours:,.0f} against {bare:,.0f} jobs/s; {how}"
    return Figure(what, 100 * ours / bare, "%", Target(AT_LEAST, target), note)


def pickup(size: Size, server: MongoServer) -> list[Figure]:
    runs: list[Figures] = []
    found = in_turns(
        {
            "other process": contestants.picked_up(server, "pickup_other_process", size.pickups, runs.append),
            "bare": contestants.raw_pickup(server, size.pickups),
        },
        size.repeats,
    )
    waits = [wait for run in runs for wait in run["waits_ms"]]
    note = f"from the call of submit to the handler's first line in another process; {len(waits)} jobs"
    bare = "one insert and one findOneAndUpdate, without notification and handler: the lower bound on this machine"
    return [
        Figure("pickup p50", percentile(waits, 50), "ms", Target(AT_MOST, 5), note),
        Figure("pickup p99", percentile(waits, 99), "ms", Target(AT_MOST, 20)),
        Figure("pickup by two bare writes, p50", median(found["bare"]), "ms", None, bare),
    ]


def idle(size: Size, server: MongoServer) -> list[Figure]:
    alone: list[float] = []

    def measure(_: Path) -> float:
        without, with_all = idle_percents(server, size.idle_workers, size.idle_processes, size.idle_seconds)
        alone.append(without)
        return with_all

    found = in_turns({"percent": measure}, min(size.repeats, 2))
    note = (
        f"of one core, over {size.idle_seconds} s; without workers {shown(median(alone))} %; {spread(found['percent'])}"
    )
    return [Figure(f"{size.idle_workers} idle workers", median(found["percent"]), "%", Target(BELOW, 5), note)]


def sink(size: Size, server: MongoServer) -> list[Figure]:
    found = in_turns(
        {
            "sink": contestants.rows_written(server, size.rows),
            "upserts": contestants.raw(server, "upsert", size.slow),
        },
        size.repeats,
    )
    ours, theirs = (median(values) for values in found.values())
    note = f"{ours:,.0f} against {theirs:,.0f} rows/s; pages of 1,000 rows, each with its cursor in one transaction"
    return [Figure("sink, times one-by-one upserts", ours / theirs, "×", Target(AT_LEAST, 10), note)]


CASES: dict[str, Callable[[Size, MongoServer], list[Figure]]] = {
    f"mongodb_{case.__name__}": case for case in (drain, agenda, backlog, submit, pickup, idle, sink)
}


def run(names: Sequence[str], quick: bool, repeats: int | None) -> Measured:
    size = QUICK if quick else FULL
    size = size._replace(repeats=repeats or size.repeats)
    figures: list[Figure] = []
    with benchmark_server() as server:
        for name in names:
            say(name)
            figures += CASES[name](size, server)
        software = [f"MongoDB {server_version(server)}", *versions("pymongo", "uvloop"), AGENDA_VERSION]
        return Measured(figures, software)
