"""Runs and shards as coloured text."""

from collections.abc import Mapping, Sequence

from leaseway.cli.output.text import counted, local, span
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.imports.domain.drift import Drift
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardRow
from leaseway.imports.domain.shard import Cursor, canonical
from leaseway.imports.progress.report import count_states

STATE_STYLES = {"done": "green", "running": "cyan", "waiting": "yellow", "parked": "red", "split": "dim"}
RUN_STYLES = {
    RunState.COMPLETE: "green",
    RunState.RUNNING: "cyan",
    RunState.PARTIAL: "yellow",
    RunState.FAILED: "red",
    RunState.SUSPECT: "red",
}
MEANINGS = {
    RunState.RUNNING: "it has not finished",
    RunState.COMPLETE: "all rows are imported",
    RunState.PARTIAL: "some shards are missing",
    RunState.FAILED: "the whole run was stopped",
    RunState.SUSPECT: "all rows are imported, but the result looks wrong",
}
PATHS_SHOWN_MAX = 20


def duration(seconds: float | None) -> str:
    return "" if seconds is None else span(round(seconds * SECOND_US))


def rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f} rows/s" if seconds > 0 and count else ""


def totals_in_words(totals: Mapping[str, int]) -> str:
    names = ("pages", "rows", "inserted", "updated", "unchanged", "stale", "quarantined", "requests")
    return ", ".join(of(totals[name], name) for name in names)


def of(count: int, name: str) -> str:
    """1 page, 2 pages, 0 inserted"""
    return counted(count, name[:-1]) if name in ("pages", "rows", "requests") else f"{count:,} {name}"


def shards_in_words(shards: Sequence[ShardRow]) -> str:
    states = ", ".join(f"{count:,} {name}" for name, count in count_states(shards).items())
    return f"{counted(len(shards), 'shard')}: {states}" if shards else "no shards"


def reactions_in_words(guards: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in guards.items())


def mode_in_words(run: RunRow) -> str:
    if run.mode is RunMode.FULL or run.since is None:
        return "full: all records"
    return f"incremental: changes since {local(run.since)}"


def instant(value: Instant | None) -> str:
    return "" if value is None else local(value)


def cursor_in_words(cursor: Cursor | None) -> str:
    """{"after": 311592} is after 311592."""
    if cursor is None:
        return ""
    plain = all(isinstance(value, str | int | float) for value in cursor.values())
    return ", ".join(f"{name} {value}" for name, value in cursor.items()) if plain else canonical(cursor)


def drift_in_words(found: Drift | None) -> list[tuple[str, str]]:
    """Names and values, for `facts`."""
    if found is None:
        return [("drift", "unknown: no profile of both runs")]
    if not found:
        return [("drift", "none")]
    changed = [f"{each.path}: {' or '.join(each.before)}, now {' or '.join(each.after)}" for each in found.changed]
    kinds = [("new paths", found.new, ", "), ("vanished paths", found.vanished, ", "), ("other types", changed, "; ")]
    return [(name, shortened(list(paths), between)) for name, paths, between in kinds if paths]


def shortened(texts: list[str], between: str = ", ", count_max: int = PATHS_SHOWN_MAX) -> str:
    more = len(texts) - count_max
    return between.join(texts[:count_max]) + (f" and {more:,} more" if more > 0 else "")
