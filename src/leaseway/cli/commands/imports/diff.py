"""leaseway import diff"""

from typing import Any

from msgspec import Struct

from leaseway.api.schemas.imports import changes_fields, drift_fields, run_document
from leaseway.api.schemas.values import as_dict, timestamp
from leaseway.cli.commands.imports import formatting
from leaseway.cli.commands.imports.open_sink import OpenedSink, find_run, look
from leaseway.cli.options import CliSettings
from leaseway.cli.output.console import facts, heading, note, print_json, say
from leaseway.cli.output.table import TableCell, TableColumn, show_table
from leaseway.domain.errors import NoSuchJob
from leaseway.imports.domain.run_state import RunRow, ShardRow
from leaseway.imports.run.report import RunDiff, diff_runs
from leaseway.system import wall_clock_us

SHARDS_SHOWN_MAX = 40
TOTALS = ("pages", "rows", "inserted", "updated", "unchanged", "stale", "quarantined", "requests")


def show_diff(settings: CliSettings, text: str, before: str | None, after: str | None) -> None:
    found = look(text, lambda at: compared(at, before, after))
    if settings.json:
        print_json(differences_document(found))
        return
    show_runs(found)
    show_rows(found)
    show_shards(found)
    heading("documents")
    facts(formatting.drift_in_words(found.drift))


async def compared(at: OpenedSink, before: str | None, after: str | None) -> RunDiff:
    first, second = await two_runs(at, before, after)
    return await diff_runs(at.sink, first, second, wall_clock_us())


async def two_runs(at: OpenedSink, before: str | None, after: str | None) -> tuple[RunRow, RunRow]:
    """The two named runs, the named one and the last one, or the last two."""
    if before is not None:
        return await find_run(at, before), await find_run(at, after)
    last = await find_run(at, None)
    runs = await at.sink.runs.find_all(at.source, 2)
    if len(runs) < 2:
        raise NoSuchJob(f"{at.source} has only one run, {last.id}; there is no other run to compare it with")
    return runs[1], runs[0]


def show_runs(found: RunDiff) -> None:
    before, after = found.before, found.after
    was, is_ = found.totals_before, found.totals_after
    rows: list[list[TableCell | str]] = [
        ["state", *(TableCell(run.state.value, formatting.RUN_STYLES[run.state]) for run in (before, after)), ""],
        ["mode", before.mode.value, after.mode.value, ""],
        ["began", formatting.instant(before.started_at), formatting.instant(after.started_at), ""],
    ]
    rows += [[name, f"{was[name]:,}", f"{is_[name]:,}", gain(is_[name] - was[name])] for name in TOTALS]
    show_table(
        [
            TableColumn(""),
            TableColumn(before.id, right=True),
            TableColumn(after.id, right=True),
            TableColumn("difference", right=True),
        ],
        rows,
    )
    if before.spec_hash != after.spec_hash:
        note(f"the spec changed between the runs: {before.spec_hash}, then {after.spec_hash}")
    if before.mode is not after.mode:
        note("a full and an incremental run: their totals and shards differ by design")


def gain(count: int) -> str:
    return f"{count:+,}" if count else ""


def show_rows(found: RunDiff) -> None:
    heading("rows between the end of the one and the end of the other, as the table is now")
    changes = found.rows
    for kind, count in (("added", changes.added), ("changed", changes.changed), ("removed", changes.removed)):
        ids = list(changes.samples.get(kind, ()))
        dots = " …" if count > len(ids) else ""
        samples = f": {', '.join(ids)}{dots}" if ids else ""
        say(f"  {count:,} {kind}{samples}")


def show_shards(found: RunDiff) -> None:
    heading("shards")
    if not (found.new or found.gone or found.changed):
        say("  the same in both")
        return
    rows: list[tuple[TableCell | str, ...]] = []
    rows += ((row.shard.label, TableCell("new", "green"), "", fact(row)) for row in found.new)
    rows += ((row.shard.label, TableCell("gone", "red"), fact(row), "") for row in found.gone)
    rows += (
        (pair.after.shard.label, TableCell("changed", "yellow"), fact(pair.before), fact(pair.after))
        for pair in found.changed
    )
    show_table(
        [TableColumn("shard"), TableColumn(""), TableColumn("before", right=True), TableColumn("after", right=True)],
        rows[:SHARDS_SHOWN_MAX],
    )
    if len(rows) > SHARDS_SHOWN_MAX:
        note(f"and {len(rows) - SHARDS_SHOWN_MAX:,} more; --json has them all")


def fact(row: ShardRow) -> str:
    return f"{row.state.value}, {formatting.of(row.rows, 'rows')}"


class DifferencesDocument(Struct, kw_only=True):
    """Two runs compared, as --json prints them. The HTTP API has no such document."""

    before: dict[str, Any]
    after: dict[str, Any]
    shards: dict[str, Any]
    rows: dict[str, Any]
    drift: dict[str, Any] | None


def differences_document(found: RunDiff) -> DifferencesDocument:
    after, until = found.window
    changed = [
        {"key": pair.after.shard.key, "before": shard_outcome(pair.before), "after": shard_outcome(pair.after)}
        for pair in found.changed
    ]
    return DifferencesDocument(
        before={**as_dict(run_document(found.before)), **found.totals_before},
        after={**as_dict(run_document(found.after)), **found.totals_after},
        shards={
            "new": [row.shard.key for row in found.new],
            "gone": [row.shard.key for row in found.gone],
            "changed": changed,
        },
        rows={"after": timestamp(after), "until": timestamp(until), **changes_fields(found.rows)},
        drift=drift_fields(found.drift),
    )


def shard_outcome(row: ShardRow) -> dict[str, Any]:
    return {"state": row.state.value, "rows": row.rows, "why": row.why}
