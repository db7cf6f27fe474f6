"""The figures that leaseway promises on PostgreSQL, one function each: measure in turns, compare, describe.

All contestants use one server, with fsync and synchronous_commit on, and take turns on it. The sizes are those of the
promise; `--quick` divides them for a trial run, whose results prove nothing.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

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
from benchmarks.postgres import contestants
from benchmarks.postgres.crowd import create_tables, idle_crowd, submit_alone
from benchmarks.postgres.database import benchmark_server, new_database, server_version
from benchmarks.postgres.idling import Idle, idle_share
from benchmarks.postgres.setups import CELERY, CELERY_ON_REDIS, PGQUEUER, PROCRASTINATE, RAW, Peer
from benchmarks.results import versions
from benchmarks.shared_store import recovery_seconds
from leaseway.bench.measure import percentile
from leaseway.bench.processes import Figures
from leaseway.testing.postgres import PostgresServer

SOFTWARE = ("asyncpg", "uvloop", "pgqueuer", "procrastinate", "psycopg", "celery", "sqlalchemy")
MARGIN = 1.5
"""More jobs wait than a run of a given time is expected to take."""


class Size(NamedTuple):
    repeats: int = 5
    searches: int = 2
    setups: int = 20
    """Of each peer, at most."""
    drain: int = 50_000
    drain_search: int = 20_000
    slow: int = 2_000
    """Jobs for the peers that run hundreds per second and not thousands."""
    slow_search: int = 500
    backlog: int = 1_000_000
    pinned_seconds: int = 60
    pinned_repeats: int = 3
    single: int = 2_000
    bulk: int = 200_000
    pickups: int = 300
    crowd: int = 50
    idle_workers: int = 200
    idle_processes: int = 4
    idle_seconds: int = 30


FULL = Size()
QUICK = Size(
    repeats=1, searches=1, setups=1, drain=5_000, drain_search=1_000, slow=100, slow_search=20, backlog=20_000,
    pinned_seconds=2, pinned_repeats=1, single=200, bulk=10_000, pickups=20, crowd=6, idle_workers=8, idle_processes=2,
    idle_seconds=1,
)  # fmt: skip


def drain(size: Size, server: PostgresServer) -> list[Figure]:
    """Beside the fastest peer, and beside a raw loop."""
    peers = {
        "PgQueuer": best(size, server, PGQUEUER),
        "PgQueuer, two": best(size, server, PGQUEUER, workers=2),
    }
    raw = best(size, server, RAW)
    memory, starts = list[float](), {"one": list[float](), "two": list[float]()}
    ours = {
        "one": contestants.drained(
            server.url, size.drain, 1, lambda figures: memory.append(figures["rss_mb"]), starts["one"].append
        ),
        "two": contestants.drained(server.url, size.drain, 2, keep_start=starts["two"].append),
        "raw": raw.measure,
    }
    found = in_turns({**ours, **{name: peer.measure for name, peer in peers.items()}}, size.repeats)
    one, two = (Rate(median(found[name]), median(starts[name]), size.drain) for name in starts)
    note = f"{size.drain:,} no-op async jobs, 200 bytes, default settings; {spread(found['one'])}"
    return [
        Figure("drain, one worker process", one.rate, "jobs/s", None, note, one.with_start()),
        Figure("drain, two worker processes", two.rate, "jobs/s", None, spread(found["two"]), two.with_start()),
        times("drain, times PgQueuer", one, found["PgQueuer"], 2, peers["PgQueuer"]),
        times("drain, two processes each, times PgQueuer", two, found["PgQueuer, two"], 1.3, peers["PgQueuer, two"]),
        share_of_raw(one, found["raw"], raw),
        Figure("memory of the draining worker", median(memory), "MB", None, spread(memory)),
    ]


SLOW_PEERS = {
    "Procrastinate": (PROCRASTINATE, 20),
    "Celery": (CELERY, 20),
    "Celery on Redis, as it starts by default": (CELERY_ON_REDIS, None),
}
"""Peers that run hundreds of jobs per second, with the targets."""


def peers(size: Size, server: PostgresServer) -> list[Figure]:
    """Drain beside the other peers. To find their best setups takes minutes."""
    found_best = {name: best(size, server, peer) for name, (peer, _) in SLOW_PEERS.items()}
    starts = list[float]()
    ours = {"leaseway": contestants.drained(server.url, size.drain, 1, keep_start=starts.append)}
    found = in_turns({**ours, **{name: peer.measure for name, peer in found_best.items()}}, size.repeats)
    one = Rate(median(found["leaseway"]), median(starts), size.drain)
    return [
        times(f"drain, times {name}", one, found[name], target, found_best[name])
        for name, (_, target) in SLOW_PEERS.items()
    ]


class Rate(NamedTuple):
    """Jobs per second of a contestant, and the seconds in which its processes start."""

    rate: float
    start_seconds: float
    jobs: int

    def with_start(self) -> float:
        """Jobs per second if the start counts, for so many jobs."""
        return self.jobs / (self.jobs / self.rate + self.start_seconds)


class Best(NamedTuple):
    """A peer in its fastest setup here."""

    measure: Callable[[Path], float]
    note: str
    starts: list[float]
    """The seconds in which its processes started, by round."""


def best(size: Size, server: PostgresServer, peer: Peer, workers: int = 1) -> Best:
    is_fast = peer in (RAW, PGQUEUER)
    count, search = (size.drain, size.drain_search) if is_fast else (size.slow, size.slow_search)
    peer = peer._replace(setups=peer.setups[: size.setups])
    setup = contestants.best_setup(server.url, peer, search, size.searches, workers)
    note, starts = f"best of {len(peer.setups)} configurations, {setup}; {count:,} jobs", list[float]()
    return Best(contestants.peer(server.url, peer, setup, count, workers, starts.append), note, starts)


def times(what: str, ours: Rate, theirs: Sequence[float], target: float | None, how: Best) -> Figure:
    note = f"{shown(median(theirs))} jobs/s: {how.note}; {spread(theirs)}"
    wanted = None if target is None else Target(AT_LEAST, target)
    peer = Rate(median(theirs), median(how.starts), ours.jobs)
    return Figure(what, ours.rate / peer.rate, "×", wanted, note, ours.with_start() / peer.with_start())


def share_of_raw(ours: Rate, raw: Sequence[float], how: Best) -> Figure:
    note = f"{shown(median(raw))} jobs/s: claim and complete, {how.note}; {spread(raw)}"
    return Figure("drain, share of a raw loop", 100 * ours.rate / median(raw), "%", Target(AT_LEAST, 55), note)


def backlog(size: Size, server: PostgresServer) -> list[Figure]:
    with new_database(server.url) as few, new_database(server.url) as many:
        say(f"  filling a database with {size.backlog:,} jobs")
        contestants.fill(few, size.drain)
        contestants.fill(many, size.backlog)
        found = in_turns(
            {
                "nothing else waits": contestants.drained_from(server.url, few, size.drain),
                f"{size.backlog:,} wait": contestants.drained_from(server.url, many, size.drain),
            },
            size.repeats,
        )
    alone, crowded = (median(values) for values in found.values())
    note = f"{crowded:,.0f} against {alone:,.0f} jobs/s"
    return [Figure(f"drain with {size.backlog:,} waiting", 100 * crowded / alone, "%", Target(AT_LEAST, 80), note)]


def pinned(size: Size, server: PostgresServer) -> list[Figure]:
    seconds, free_runs, pinned_runs = size.pinned_seconds, list[Figures](), list[Figures]()
    rate = contestants.drained(server.url, size.drain)(Path())
    count = int(rate * seconds * MARGIN) + size.drain
    with new_database(server.url) as filled:
        say(f"  filling a database with {count:,} jobs, for {seconds} s at {rate:,.0f} per s")
        contestants.fill(filled, count)
        found = in_turns(
            {
                "free": contestants.drained_for(server.url, filled, seconds, free_runs.append, pinned=False),
                "pinned": contestants.drained_for(server.url, filled, seconds, pinned_runs.append, pinned=True),
            },
            size.pinned_repeats,
        )
    free, held = median(found["free"]), median(found["pinned"])
    note = f"{held:,.0f} against {free:,.0f} jobs/s; {course('pinned', pinned_runs)}; {course('free', free_runs)}"
    what = f"drain with a snapshot pinned for {seconds} s"
    return [Figure(what, 100 * held / free, "%", Target(AT_LEAST, 50), note)]


def course(name: str, runs: Sequence[Figures]) -> str:
    """The rate during the last run, and its shortest duration: less than requested if its jobs ran out."""
    shortest = min(run["ended_ns"] - run["begun_ns"] for run in runs) / 1e9
    return f"{name} for {shortest:.0f} s, by sixths: {', '.join(shown(rate) for rate in runs[-1]['rates'])}"


def submit(size: Size, server: PostgresServer) -> list[Figure]:
    found = in_turns(
        {
            "one by one": contestants.submitted(server.url, "submit_single", size.single),
            "raw": contestants.raw_inserts(server.url, size.single),
            "plain": contestants.submitted(server.url, "submit_plain", size.single),
            "sixteen at once": contestants.submitted(server.url, "submit_at_once", 4 * size.single),
            "raw, sixteen at once": contestants.raw_inserts(server.url, 4 * size.single, "insert_at_once"),
            "bulk": contestants.submitted(server.url, "submit_bulk", size.bulk),
        },
        size.repeats,
    )
    single, bare, plain, at_once, bare_at_once, bulk = (median(values) for values in found.values())
    note = f"{single:,.0f} against {bare:,.0f} jobs/s; each in its own durable transaction; {spread(found['raw'])} raw"
    crowd = f"{at_once:,.0f} against {bare_at_once:,.0f} jobs/s; each caller waits for each of its jobs"
    return [
        Figure("submit one by one, alone, share of a raw insert", 100 * single / bare, "%", Target(AT_LEAST, 80), note),
        Figure("the same from plain code", 100 * plain / bare, "%", None, f"{plain:,.0f} jobs/s"),
        Figure(
            "submit one by one, sixteen callers, share of sixteen raw inserters",
            100 * at_once / bare_at_once,
            "%",
            Target(AT_LEAST, 90),
            crowd,
        ),
        Figure("submit in bulk", bulk, "jobs/s", Target(AT_LEAST, 60_000), spread(found["bulk"])),
    ]


def pickup(size: Size, server: PostgresServer) -> list[Figure]:
    figures = []
    for probe, name in {"pickup_same_process": "same process", "pickup_other_process": "other process"}.items():
        runs: list[Figures] = []
        measure = contestants.picked_up(server.url, probe, size.pickups, runs.append)
        found = in_turns({name: measure}, min(size.repeats, 3))
        waits = [wait for run in runs for wait in run["waits_ms"]]
        note = f"from the call of submit to the handler's first line; {len(waits)} jobs, {spread(found[name])}"
        figures += [
            Figure(f"pickup, {name}, p50", percentile(waits, 50), "ms", Target(AT_MOST, 3), note),
            Figure(f"pickup, {name}, p99", percentile(waits, 99), "ms", Target(AT_MOST, 10)),
        ]
    bare = in_turns({"bare statements": contestants.raw_pickup(server.url, size.pickups)}, min(size.repeats, 3))
    note = "one INSERT and one claim, two commits, without notification and handler: the lower bound on this machine"
    floor = median(bare["bare statements"])
    return [*figures, Figure("pickup by two bare statements, p50", floor, "ms", None, note)]


def recovery(size: Size, server: PostgresServer) -> list[Figure]:
    def measure(_: Path) -> float:
        with new_database(server.url) as url:
            return recovery_seconds(url)

    found = in_turns({"seconds": measure}, min(size.repeats, 2))
    note = f"until the job runs again in another process; the default lease of 15 s; {spread(found['seconds'])}"
    return [Figure("recovery after kill -9", median(found["seconds"]), "s", Target(AT_MOST, 20), note)]


def idle(size: Size, server: PostgresServer) -> list[Figure]:
    shares: list[Idle] = []

    def measure(_: Path) -> float:
        shares.append(idle_share(server, size.idle_workers, size.idle_processes, size.idle_seconds))
        return shares[-1].percent

    found = in_turns({"percent": measure}, min(size.repeats, 3))
    alone = median([share.alone_percent for share in shares])
    note = (
        f"of one core, by all processes of the server, over {size.idle_seconds} s; without workers {alone:.2g} %; "
        f"each worker has connections of its own; {spread(found['percent'])}"
    )
    value = median(found["percent"])
    return [Figure(f"{size.idle_workers} idle workers", value, "%", Target(AT_MOST, 2), note)]


def crowd(size: Size, server: PostgresServer) -> list[Figure]:
    """What a notification that many idle workers get costs the job that it is about."""
    waits: dict[int, list[float]] = {1: [], size.crowd: []}

    def among(workers: int) -> Measure:
        def run(_: Path) -> float:
            found: list[float] = []
            with new_database(server.url) as url:
                asyncio.run(create_tables(url))
                with idle_crowd(url, workers, found):
                    asyncio.run(submit_alone(url, size.pickups))
            waits[workers] += found
            return percentile(found, 50)

        return run

    found = in_turns({str(workers): among(workers) for workers in waits}, min(size.repeats, 3))
    one, many = found.values()
    ratio = median([b / a for a, b in zip(one, many, strict=True)])
    p99 = percentile(waits[size.crowd], 99)
    note = f"{median(many):.2f} against {median(one):.2f} ms, p99 {p99:.1f} ms; {spread(many)}"
    return [Figure(f"pickup p50 with {size.crowd} idle workers against one", ratio, "×", Target(AT_MOST, 1.5), note)]


CASES: dict[str, Callable[[Size, PostgresServer], list[Figure]]] = {
    f"postgres_{case.__name__}": case for case in (drain, peers, backlog, pinned, submit, pickup, crowd, recovery, idle)
}


def run(names: Sequence[str], quick: bool, repeats: int | None) -> Measured:
    size = QUICK if quick else FULL
    size = size._replace(repeats=repeats or size.repeats)
    figures: list[Figure] = []
    with benchmark_server() as server:
        for name in names:
            say(name)
            figures += CASES[name](size, server)
        return Measured(figures, [f"PostgreSQL {server_version(server.url)}", *versions(*SOFTWARE)])
