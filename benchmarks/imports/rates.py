"""Rows per second of whole runs, interleaved, each in its own file or database."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.harness import AT_LEAST, Figure, Target, in_turns, median, say, shown, spread
from benchmarks.imports import theirs
from benchmarks.imports.dlt_peer import Setup
from benchmarks.imports.ours import SHARD_IDS, import_in, run_seconds
from benchmarks.imports.place import SQLITE, WORKERS, Place, Size, refuse_missing
from benchmarks.imports.provider import PAGE_ROWS, provider
from benchmarks.postgres.database import new_database

OURS, OURS_BEST, DLT = "leaseway", "leaseway, best", "dlt"
WORKERS_TRIED = (1, WORKERS, 3)


def rows_into(database: str, size: Size, place: Place) -> list[Figure]:
    best = best_setups(database, size, place)
    contestants: dict[str, int | Setup] = {OURS: WORKERS, OURS_BEST: best.workers}
    if best.workers == WORKERS:
        del contestants[OURS_BEST]
    if best.setup is not None:
        contestants[DLT] = best.setup
    measures = {name: partial(rate, database, place, contestant) for name, contestant in contestants.items()}
    found = in_turns(measures, size.repeats)
    how = f"{place.it.rows:,} rows in pages of {PAGE_ROWS:,}, ranges of {SHARD_IDS:,} ids, {WORKERS} workers"
    figures = [Figure(f"rows into {database}", median(found[OURS]), "rows/s", None, f"{how}; {spread(found[OURS])}")]
    if OURS_BEST in found:
        rounds = found[OURS_BEST]
        figures.append(Figure(f"the same, {best.workers} workers", median(rounds), "rows/s", None, spread(rounds)))
    return [*figures, *([times_dlt(database, best, found)] if DLT in found else [])]


class Best(NamedTuple):
    """The fastest configuration of a first trial."""

    workers: int
    setup: Setup | None
    tried: int
    """The number of dlt configurations."""


def best_setups(database: str, size: Size, place: Place) -> Best:
    setups = theirs.SETUPS[database][: size.setups] if place.has_dlt else []
    with provider(size.tried_rows) as some:
        few = place._replace(it=some)
        workers = max(WORKERS_TRIED[-size.setups :], key=lambda count: tried(database, few, count))
        setup = max(setups, key=lambda each: tried(database, few, each)) if setups else None
    return Best(workers, setup, len(setups))


def times_dlt(database: str, best: Best, found: Mapping[str, Sequence[float]]) -> Figure:
    ours = {WORKERS: median(found[OURS])} | ({best.workers: median(found[OURS_BEST])} if OURS_BEST in found else {})
    workers = max(ours, key=lambda count: ours[count])
    peer = median(found[DLT])
    note = (
        f"with {workers} workers, against {shown(peer)} rows/s: {best.setup}, the fastest of {best.tried} setups; "
        f"{spread(found[DLT])}"
    )
    return Figure(f"rows into {database}, times dlt", ours[workers] / peer, "×", Target(AT_LEAST, 3), note)


def tried(database: str, place: Place, contestant: int | Setup) -> float:
    """A first trial of one configuration."""
    with TemporaryDirectory(prefix="leaseway-benchmarks-") as folder:
        found = rate(database, place, contestant, Path(folder))
    who = f"leaseway, workers: {contestant}" if isinstance(contestant, int) else f"dlt, {contestant}"
    say(f"  {database}: {who} {shown(found)} rows/s")
    return found


def rate(database: str, place: Place, contestant: int | Setup, folder: Path) -> float:
    """Rows per second of one run, which must be complete."""
    with database_for(database, place) as url:
        if isinstance(contestant, int):
            ours = import_in(folder, place.it, url)
            seconds, count = run_seconds(ours.command("run", "first", contestant)), ours.rows()
        else:
            pipeline = theirs.pipeline_in(folder, place.it, url)
            seconds, count = run_seconds(pipeline.command(contestant, place.it.id_max)), pipeline.rows()
    refuse_missing(place, count)
    return count / seconds


@contextlib.contextmanager
def database_for(database: str, place: Place) -> Iterator[str | None]:
    """None: a file."""
    if database == SQLITE:
        yield None
        return
    with new_database(place.postgres_url) as url:
        yield url
