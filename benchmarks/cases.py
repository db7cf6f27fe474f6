"""The figures that leaseway promises on SQLite, one function each: measure in turns, compare, describe.

The sizes are those of the promise; `--quick` divides them for a trial run, whose results prove nothing.
"""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks import contestants, huey_peer
from benchmarks.harness import AT_LEAST, AT_MOST, Figure, Measured, Target, in_turns, median, say, shown, spread
from benchmarks.results import versions
from benchmarks.shared_store import fairness_shares, recovery_seconds
from leaseway.bench.measure import percentile
from leaseway.bench.processes import probed


class Size(NamedTuple):
    repeats: int = 5
    drain: int = 50_000
    backlog: int = 1_000_000
    single: int = 2_000
    bulk: int = 200_000
    huey: int = 5_000
    huey_search: int = 2_000
    pickups: int = 300
    starts: int = 15
    fairness: int = 60_000


FULL = Size()
QUICK = Size(
    repeats=1, drain=5_000, backlog=20_000, single=200, bulk=10_000, huey=300, huey_search=100, pickups=20, starts=3,
    fairness=4_000,
)  # fmt: skip


def drain(size: Size) -> list[Figure]:
    best, best_unsafe = best_huey(size, fsync=True), best_huey(size, fsync=False)
    memory: list[float] = []
    found = in_turns(
        {
            "leaseway": contestants.drained(size.drain, lambda figures: memory.append(figures["rss_mb"])),
            "raw": contestants.raw("drain", size.drain),
            "huey": contestants.huey(size.huey, best),
            "huey without fsync": contestants.huey(size.huey, best_unsafe),
        },
        size.repeats,
    )
    ours, bare, theirs, unsafe = (median(values) for values in found.values())
    note = f"{size.drain:,} no-op async jobs, 200 bytes, synchronous=FULL, one process; {spread(found['leaseway'])}"
    huey_note = f"{theirs:,.0f} jobs/s: best of {len(huey_peer.setups())} configurations, {best}; {size.huey:,} tasks"
    raw_note = f"{bare:,.0f} jobs/s: batches of 500; {spread(found['raw'])}"
    unsafe_note = f"{unsafe:,.0f} jobs/s: {best_unsafe}; a power cut can lose its tasks"
    return [
        Figure("drain", ours, "jobs/s", Target(AT_LEAST, 20_000), note),
        Figure("drain, times huey", ours / theirs, "×", Target(AT_LEAST, 8), huey_note),
        Figure("drain, times huey without durability", ours / unsafe, "×", None, unsafe_note),
        Figure("drain, share of bare sqlite3", 100 * ours / bare, "%", Target(AT_LEAST, 45), raw_note),
        Figure("memory of the draining worker", median(memory), "MB", Target(AT_MOST, 60), spread(memory)),
    ]


def best_huey(size: Size, *, fsync: bool) -> huey_peer.Setup:
    """Try every setup and take the fastest."""
    say(f"  looking for huey's best setup, fsync={fsync}")
    setups = {str(setup): setup for setup in huey_peer.setups(fsync)}
    measures = {name: contestants.huey(size.huey_search, setup) for name, setup in setups.items()}
    found = in_turns(measures, min(size.repeats, 3))
    return setups[max(found, key=lambda name: median(found[name]))]


def backlog(size: Size) -> list[Figure]:
    with TemporaryDirectory(prefix="leaseway-benchmarks-") as folder:
        filled = Path(folder) / "filled.db"
        say(f"  filling a file with {size.backlog:,} jobs")
        probed("submit_bulk", f"sqlite:///{filled}", size.backlog - 1)
        found = in_turns(
            {
                "nothing else waits": contestants.drained(size.drain),
                f"{size.backlog:,} wait": contestants.drained_from(filled, size.drain),
            },
            size.repeats,
        )
    alone, crowded = (median(values) for values in found.values())
    note = f"{crowded:,.0f} against {alone:,.0f} jobs/s"
    return [Figure(f"drain with {size.backlog:,} waiting", 100 * crowded / alone, "%", Target(AT_LEAST, 80), note)]


def submit(size: Size) -> list[Figure]:
    found = in_turns(
        {
            "one by one": contestants.submitted("submit_single", size.single),
            "raw": contestants.raw("insert", size.single),
            "plain": contestants.submitted("submit_plain", size.single),
            "sixteen at once": contestants.submitted("submit_at_once", size.single),
            "bulk": contestants.submitted("submit_bulk", size.bulk),
        },
        size.repeats,
    )
    single, bare, plain, at_once, bulk = (median(values) for values in found.values())
    note = f"{single:,.0f} against {bare:,.0f} jobs/s; each in its own durable transaction"
    return [
        Figure("submit one by one, share of bare inserts", 100 * single / bare, "%", Target(AT_LEAST, 70), note),
        Figure("the same from plain code", 100 * plain / bare, "%", Target(AT_LEAST, 75), f"{plain:,.0f} jobs/s"),
        Figure("the same from sixteen tasks at once", 100 * at_once / bare, "%", None, f"{at_once:,.0f} jobs/s"),
        Figure("submit in bulk", bulk, "jobs/s", Target(AT_LEAST, 100_000), spread(found["bulk"])),
    ]


def pickup(size: Size) -> list[Figure]:
    limits = {"pickup_same_process": ("same process", 3, 15), "pickup_other_process": ("other process", 15, 60)}
    figures = []
    for probe, (name, p50, p99) in limits.items():
        waits: list[float] = []
        found = in_turns({name: picked_up(probe, size.pickups, waits)}, min(size.repeats, 3))
        note = f"from the call of submit to the handler's first line; {len(waits)} jobs, {spread(found[name])}"
        figures += [
            Figure(f"pickup, {name}, p50", percentile(waits, 50), "ms", Target(AT_MOST, p50), note),
            Figure(f"pickup, {name}, p99", percentile(waits, 99), "ms", Target(AT_MOST, p99)),
        ]
    return figures


def picked_up(probe: str, count: int, waits: list[float]) -> Callable[[Path], float]:
    def measure(folder: Path) -> float:
        found = probed(probe, contestants.url_in(folder), count)["waits_ms"]
        waits.extend(found)
        return percentile(found, 50)

    return measure


def start(size: Size) -> list[Figure]:
    measures = {"import": contestants.import_ms, "help": contestants.help_ms, "python": contestants.python_ms}
    found = in_turns(measures, size.starts)
    imported, helped, bare = (median(values) for values in found.values())
    note = f"the whole process; Python alone takes {shown(bare)} ms"
    return [
        Figure("from leaseway import App", imported, "ms", Target(AT_MOST, 150), spread(found["import"])),
        Figure("leaseway --help", helped, "ms", Target(AT_MOST, 300), note),
    ]


def fairness(size: Size) -> list[Figure]:
    shares: list[float] = []

    def measure(folder: Path) -> float:
        shares[:] = fairness_shares(contestants.url_in(folder), size.fairness)
        return min(shares)

    found = in_turns({"smallest share": measure}, min(size.repeats, 3))
    note = f"four processes on one file; last round {', '.join(f'{share:.0f}' for share in sorted(shares))} %"
    return [Figure("smallest share of four processes", median(found["smallest share"]), "%", None, note)]


def recovery(size: Size) -> list[Figure]:
    found = in_turns({"seconds": lambda folder: recovery_seconds(contestants.url_in(folder))}, min(size.repeats, 2))
    note = f"until the job runs again in another process; the default lease of 15 s; {spread(found['seconds'])}"
    return [Figure("recovery after kill -9", median(found["seconds"]), "s", Target(AT_MOST, 20), note)]


CASES: dict[str, Callable[[Size], list[Figure]]] = {
    case.__name__: case for case in (drain, backlog, submit, pickup, start, fairness, recovery)
}


def run(names: Sequence[str], quick: bool, repeats: int | None) -> Measured:
    size = QUICK if quick else FULL
    size = size._replace(repeats=repeats or size.repeats)
    figures: list[Figure] = []
    for name in names:
        say(name)
        figures += CASES[name](size)
    return Measured(figures, [f"SQLite {sqlite3.sqlite_version}", *versions("huey", "cysqlite")])
