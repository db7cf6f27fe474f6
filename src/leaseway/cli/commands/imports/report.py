"""leaseway import report"""

from typing import Any

from leaseway.api.schemas.imports import report_document, shard_document
from leaseway.api.schemas.values import as_dict
from leaseway.cli.commands.imports import formatting
from leaseway.cli.commands.imports.formatting import budget_in_words, next_command
from leaseway.cli.commands.imports.open_sink import OpenedSink, find_run, look
from leaseway.cli.output.color import harmless
from leaseway.cli.output.json import document
from leaseway.cli.output.table import TableCell, TableColumn, show_table
from leaseway.cli.output.text import counted, facts, heading, note, say
from leaseway.cli.settings import CliSettings
from leaseway.domain.health import render_bytes
from leaseway.imports.domain.run_state import RunState, ShardRow, ShardState
from leaseway.imports.domain.shard import canonical
from leaseway.imports.progress.report import (
    RunReport,
    build_report,
    count_reactions,
    shard_seconds,
    slowest_shards,
    sum_counts,
)
from leaseway.system import wall_clock_us

SHARDS_SHOWN_MAX = 100
NOTES = {"sweep": "sweep", "deletes": "deletes", "guards": "suspicion", "warnings": "warnings"}
"""Fields of a run, with their labels."""
COLUMNS = (
    *(TableColumn("shard"), TableColumn("state")),
    *(TableColumn(name, right=True) for name in ("pages", "rows", "inserted", "updated", "unchanged", "stale", "bad")),
    *(TableColumn("requests", right=True, leaves=5), TableColumn("size", right=True, leaves=2)),
    *(TableColumn("time", right=True, leaves=6), TableColumn("attempts", right=True, leaves=4)),
    *(
        TableColumn("page size", right=True, leaves=7),
        TableColumn("resumed at", may_shrink=True, leaves=1),
        TableColumn("guards", may_shrink=True, leaves=3),
    ),
)


def show_report(settings: CliSettings, text: str, run: str | None) -> None:
    name, found = look(text, lambda at: reported(at, run))
    if settings.json:
        by_shard = [shard_document(row, found.now) for row in found.shards]
        document({**as_dict(report_document(found, name.spec.budget)), "by_shard": by_shard})
        return
    show_head(name, found)
    show_totals(name, found)
    show_shards(found)
    show_parked(found)
    if (following := next_command(settings, text, found.run, run is not None)) is not None:
        say()
        say(following)


async def reported(at: OpenedSink, run: str | None) -> tuple[OpenedSink, RunReport]:
    return at, await build_report(at.sink, await find_run(at, run), wall_clock_us())


def show_head(at: OpenedSink, found: RunReport) -> None:
    run = found.run
    say(f"run {run.id} of {run.source}: {run.state.value}", formatting.RUN_STYLES[run.state])
    other_spec = "" if run.spec_hash == at.spec_hash else f" (the spec has changed since, it is {at.spec_hash} now)"
    is_over = run.finished_at is not None and run.state is not RunState.RUNNING
    facts(
        [
            ("state", formatting.MEANINGS[run.state]),
            ("why", run.why or ""),
            ("mode", formatting.mode_in_words(run)),
            ("began", formatting.instant(run.started_at)),
            (
                "ended",
                f"{formatting.instant(run.finished_at)}, after {formatting.duration(found.seconds)}" if is_over else "",
            ),
            ("watermark", formatting.instant(run.watermark)),
            ("spec", f"{run.spec_hash}{other_spec}"),
        ]
    )


def show_totals(at: OpenedSink, found: RunReport) -> None:
    totals, run = sum_counts(found.shards), found.run
    heading("in all")
    facts(
        [
            ("shards", formatting.shards_in_words(found.shards)),
            ("rows", formatting.totals_in_words(totals)),
            ("speed", formatting.rate(totals["rows"], found.seconds)),
            ("size", render_bytes(totals["size_bytes"])),
            ("budget", budget_in_words(run, found.shards, at.spec.budget)),
            ("guards", formatting.reactions_in_words(count_reactions(found.shards)) or "none"),
            ("table", changes_in_words(found)),
            *noted(found),
            *drifted(found),
        ]
    )


def changes_in_words(found: RunReport) -> str:
    changes = found.changes
    return f"{changes.added:,} rows added, {changes.changed:,} changed, {changes.removed:,} removed since it began"


def noted(found: RunReport) -> list[tuple[str, str]]:
    """What the end of the run found: deletes first."""
    return [(name, in_words(found.run.notes[note_])) for note_, name in NOTES.items() if found.run.notes.get(note_)]


def in_words(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case dict():
            return ", ".join(f"{name.replace('_', ' ')} {in_words(each)}" for name, each in value.items())
        case list():
            return "; ".join(in_words(each) for each in value)
        case str():
            return harmless(value)
    return canonical(value)


def drifted(found: RunReport) -> list[tuple[str, str]]:
    if found.compared_with is None:
        return [("drift", "unknown: no complete run before this one")]
    return [("compared with", f"run {found.compared_with.id}"), *formatting.drift_in_words(found.drift)]


def show_shards(found: RunReport) -> None:
    heading("shards")
    show_table(COLUMNS, [cells(row, found) for row in found.shards[:SHARDS_SHOWN_MAX]])
    if len(found.shards) > SHARDS_SHOWN_MAX:
        note(f"and {len(found.shards) - SHARDS_SHOWN_MAX:,} more; --json has them all")
    slowest = slowest_shards(found.shards, found.now)
    if len(found.shards) > 1 and slowest:
        texts = [f"{row.shard.label} {formatting.duration(shard_seconds(row, found.now))}" for row in slowest]
        say()
        facts([("slowest", ", ".join(texts))])


def cells(row: ShardRow, found: RunReport) -> list[TableCell | str]:
    counts = (row.pages, row.rows, row.inserted, row.updated, row.unchanged, row.stale)
    return [
        "  " * row.shard.depth + row.shard.label,
        TableCell(row.state.value, formatting.STATE_STYLES.get(row.state.value, "")),
        *(f"{count:,}" for count in counts),
        f"{row.quarantined:,}" if row.quarantined else "",
        f"{row.requests:,}",
        render_bytes(row.size_bytes),
        formatting.duration(shard_seconds(row, found.now)),
        f"{row.attempts:,}",
        "" if row.page_limit is None else f"{row.page_limit:,}",
        formatting.cursor_in_words(row.resumed_at),
        formatting.reactions_in_words(row.guards),
    ]


def show_parked(found: RunReport) -> None:
    parked = [row for row in found.shards if row.state is ShardState.PARKED]
    if not parked:
        return
    heading(f"parked: {counted(len(parked), 'shard')}")
    facts([(row.shard.label, row.why or "no reason recorded") for row in parked[:SHARDS_SHOWN_MAX]])
