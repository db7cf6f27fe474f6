"""The performance targets of the service, one function each: measure, compare with the target, say how.

`leaseway serve` runs in a process of its own, with keys, and another process sends the requests. Database, service,
load and browser share the machine; on a machine of its own the service is faster.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import AT_LEAST, AT_MOST, BELOW, Figure, Measured, Target, in_turns, median, say, shown, spread
from benchmarks.postgres.database import benchmark_server, new_database, server_version
from benchmarks.results import versions
from benchmarks.service.asking import Line, asked, previewed
from benchmarks.service.listening import crowded
from benchmarks.service.million import fill
from benchmarks.service.peers import flower, flower_version, has_flower
from benchmarks.service.place import FULL, QUICK, Size, served
from benchmarks.service.submitting import Submitted, in_bulk, one_by_one
from benchmarks.service.watching import first_screen, has_browser, seen_ms
from leaseway.bench.measure import percentile
from leaseway.domain.identity import Role
from leaseway.testing.postgres import PostgresServer

SQLITE, POSTGRESQL = "SQLite", "PostgreSQL"
FLOWER_CONNECTIONS = (1, 16, 64)
SOFTWARE = ("fastapi", "uvicorn", "httptools", "asyncpg", "playwright")


# -- submitting -----------------------------------------------------------------------------------------------------


def submit(size: Size, server: PostgresServer) -> list[Figure]:
    ours: list[Submitted] = []
    theirs: dict[str, list[Submitted]] = {str(each): [] for each in FLOWER_CONNECTIONS if has_flower_in(size, each)}

    def alone(_: Path) -> float:
        ours.append(one_by_one(size, server.url))
        return ours[-1].per_second

    def peer(connections: str) -> Callable[[Path], float]:
        def measure(_: Path) -> float:
            theirs[connections].append(flower(size, int(connections)))
            return theirs[connections][-1].per_second

        return measure

    peers = {f"Flower, {each} connections": peer(each) for each in theirs}
    found = in_turns(
        {"one by one": alone, "bulk": lambda _: in_bulk(size, server.url), **peers}, size.repeats
    )  # fmt: skip
    return [*own_figures(size, ours, found), *flower_figures(median(found["one by one"]), theirs)]


def own_figures(size: Size, ours: Sequence[Submitted], found: dict[str, list[float]]) -> list[Figure]:
    rate, p99 = found["one by one"], [each.p99_ms for each in ours]
    api_us, load_us = median([each.cpu_us for each in ours]), median([each.load_cpu_us for each in ours])
    note = (
        f"{size.connections} connections kept alive, a tenant's key, durable; {api_us:.0f} µs of the API process and "
        f"{load_us:.0f} µs of the load for each; {spread(rate)}"
    )
    middle = f"p50 {shown(median([each.p50_ms for each in ours]))} ms; {spread(p99)}"
    bulk = f"{size.bulk_jobs:,} jobs in a call, two connections; {spread(found['bulk'])}"
    return [
        Figure("submit, one API process", median(rate), "requests/s", Target(AT_LEAST, 5_000), note),
        Figure("submit, p99", median(p99), "ms", Target(AT_MOST, 30), middle),
        Figure("submit in bulk", median(found["bulk"]), "jobs/s", Target(AT_LEAST, 20_000), bulk),
    ]


def has_flower_in(size: Size, connections: int) -> bool:
    """One variant is sufficient in a quick run."""
    return (size is not QUICK or connections == FLOWER_CONNECTIONS[0]) and has_flower()


def flower_figures(ours: float, theirs: dict[str, list[Submitted]]) -> list[Figure]:
    if not theirs:
        return []
    rates = {connections: median([each.per_second for each in found]) for connections, found in theirs.items()}
    best = max(rates, key=lambda connections: rates[connections])
    cpu_us, p99 = (median([getattr(each, name) for each in theirs[best]]) for name in ("cpu_us", "p99_ms"))
    note = (
        f"{rates[best]:,.0f} requests/s, p99 {shown(p99)} ms: the best of {len(rates)} numbers of connections, {best}; "
        f"{cpu_us:.0f} µs of its process for each; {flower_version()}, Valkey as broker, which keeps tasks in memory"
    )
    return [Figure("submit, times Flower", ours / rates[best], "×", None, note)]


# -- reading ---------------------------------------------------------------------------------------------------------


def million(size: Size, server: PostgresServer) -> list[Figure]:
    return [figure for database in (POSTGRESQL, SQLITE) for figure in million_in(database, size, server)]


def million_in(database: str, size: Size, server: PostgresServer) -> list[Figure]:
    with ExitStack() as stack:
        url = store_in(database, server, stack)
        say(f"  filling {database} with {size.jobs:,} jobs")
        filled = fill(url, size.jobs)
        service = stack.enter_context(served(url, role=Role.OPERATOR))
        line = Line(service.url, service.key)
        stack.callback(line.close)
        asked(line, filled, 1)  # the first request waits for the disk
        found, previews = asked(line, filled, size.asked), previewed(line)
    every = [ms for each in found.values() for ms in each]
    slowest = max(found, key=lambda name: median(found[name]))
    often = f"{len(found)} different requests, each {size.asked} times or more"
    note = f"{len(every):,} requests, {often}; p50 {shown(median(every))} ms"
    change = max(previews, key=lambda name: previews[name])
    seek = f"“{change}”: exact count of all matching jobs, in bounded steps; not a page, no target"
    return [
        Figure(
            f"dashboard with {size.jobs:,} jobs, {database}, p99",
            percentile(every, 99),
            "ms",
            Target(AT_MOST, 100),
            note,
        ),
        Figure("slowest request", median(found[slowest]), "ms", Target(AT_MOST, 100), f"“{slowest}”, its median"),
        Figure(f"/v1/scale with {size.jobs:,} jobs, p99", percentile(found["scale"], 99), "ms", Target(AT_MOST, 50)),
        Figure("count before a bulk change, slowest", previews[change], "ms", None, seek),
    ]


def store_in(database: str, server: PostgresServer, stack: ExitStack) -> str:
    if database == POSTGRESQL:
        return stack.enter_context(new_database(server.url))
    return f"sqlite:///{stack.enter_context(TemporaryDirectory(prefix='leaseway-benchmarks-'))}/work.db"


# -- live stream -----------------------------------------------------------------------------------------------------


def seen(size: Size, server: PostgresServer) -> list[Figure]:
    if not has_browser():
        return []
    return [seen_in(database, size, server) for database in (POSTGRESQL, SQLITE)]


def seen_in(database: str, size: Size, server: PostgresServer) -> Figure:
    with ExitStack() as stack:
        url = store_in(database, server, stack)
        service = stack.enter_context(served(url, role=None))
        waits = asyncio.run(seen_ms(service, url, size))
    middle, most = shown(percentile(waits, 50)), shown(max(waits))
    note = f"{len(waits)} jobs, from the settling call to the text in the row; p50 {middle} ms, at most {most} ms"
    return Figure(
        f"change seen in the browser, {database}, p95", percentile(waits, 95), "ms", Target(AT_MOST, 300), note
    )


def paint(size: Size, server: PostgresServer) -> list[Figure]:
    if not has_browser():
        return []
    with ExitStack() as stack:
        service = stack.enter_context(served(store_in(SQLITE, server, stack), role=None))
        found = asyncio.run(first_screen(service))
    note = f"{found['files']} files and the first responses, empty cache; painted after {found['paint_ms']:.0f} ms"
    return [Figure("first screen, bytes transferred", found["bytes"] / 1e3, "kB", Target(AT_MOST, 150), note)]


def listeners(size: Size, server: PostgresServer) -> list[Figure]:
    found = crowded(size, server.url)
    alone, together = ([each.per_second for each in some] for some in (found.alone, found.together))
    share = 100 * median(together) / median(alone)
    cpu = " against ".join(f"{median([each.cpu_us for each in some]):.0f}" for some in (found.together, found.alone))
    heard = f"{found.reached:,} of them received events, {found.heard_mb:,.0f} MB in all"
    note = f"{median(together):,.0f} against {median(alone):,.0f} requests/s, {cpu} µs of the API process each; {heard}"
    many = f"{found.listeners:,} subscribers"
    return [
        Figure(f"{many}, memory", found.more_mb, "MB", Target(BELOW, 150), "additional memory, by WebSocket"),
        Figure(f"{many}, submit / submit without them", share, "%", Target(AT_LEAST, 90), note),
    ]


CASES: dict[str, Callable[[Size, PostgresServer], list[Figure]]] = {
    f"service_{case.__name__}": case for case in (submit, seen, million, listeners, paint)
}


def run(names: Sequence[str], quick: bool, repeats: int | None) -> Measured:
    size = QUICK if quick else FULL
    size = size if repeats is None else size._replace(repeats=repeats)
    figures: list[Figure] = []
    with benchmark_server() as server:
        for name in names:
            say(name)
            figures += CASES[name](size, server)
        stores = [f"SQLite {sqlite3.sqlite_version}", f"PostgreSQL {server_version(server.url)}"]
        return Measured(figures, [*stores, *versions(*SOFTWARE)])
