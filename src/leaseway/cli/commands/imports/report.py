"""leaseway import status|report"""

import contextlib
from typing import Any

from leaseway.api.schemas.imports import report_document, shard_document, summary_document
from leaseway.api.schemas.values import as_dict
from leaseway.cli.commands.imports import formatting
from leaseway.cli.commands.imports.formatting import (
    budget_in_words,
    describe_idle,
    given_up,
    next_command,
    show_quarantine,
    show_shards,
    show_summary,
)
from leaseway.cli.commands.imports.open_sink import OpenedSink, find_run, jobs_url, look
from leaseway.cli.options import CliSettings
from leaseway.cli.output.console import counted, facts, heading, note, print_json, rich_console, say
from leaseway.cli.output.table import TableCell, TableColumn, show_table
from leaseway.domain.errors import TransientError
from leaseway.domain.health import render_bytes
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.limit import parse_rate
from leaseway.imports.domain.partition import canonical
from leaseway.imports.domain.run_state import RunRow, RunState, ShardRow, ShardState
from leaseway.imports.run.report import (
    RunReport,
    build_report,
    count_reactions,
    order_by_parent,
    shard_seconds,
    slowest_shards,
    sum_counts,
)
from leaseway.system import SystemClock, wall_clock_us

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
        print_json({**as_dict(report_document(found, name.spec.budget)), "by_shard": by_shard})
        return
    show_head(name, found)
    show_totals(name, found)
    show_shard_table(found)
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
            return value
    return canonical(value)


def drifted(found: RunReport) -> list[tuple[str, str]]:
    if found.compared_with is None:
        return [("drift", "unknown: no complete run before this one")]
    return [("compared with", f"run {found.compared_with.id}"), *formatting.drift_in_words(found.drift)]


def show_shard_table(found: RunReport) -> None:
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


LOOK_SECONDS = 0.5


def show_status(settings: CliSettings, text: str, run: str | None, watch: bool) -> None:
    if watch and not settings.json:
        with contextlib.suppress(KeyboardInterrupt):
            look(text, lambda found: watched(found, run))
    look(text, lambda found: told(settings, found, run))


async def told(settings: CliSettings, found: OpenedSink, run: str | None) -> None:
    row = await find_run(found, run)
    shards = order_by_parent(await found.sink.shards.find_all(row.id))
    dead = await given_up(jobs_url(settings, found.name), found.source, row.id, shards)
    if settings.json:
        now = wall_clock_us()
        by_shard = [{**as_dict(shard_document(each, now)), "given_up": dead.get(each.shard.key)} for each in shards]
        print_json({**as_dict(summary_document(row, shards, found.spec.budget)), "by_shard": by_shard})
        return
    say(f"run {row.id}", "bold")
    show_shards(shards, dead)
    show_summary(found.spec, row, shards, dead, elapsed_seconds(row))
    show_quarantine(settings, found.name, shards)
    following = next_command(settings, found.name, row, run is not None)
    if following and row.state is not RunState.RUNNING:
        say(following)
    elif following and (idle := await describe_idle(jobs_url(settings, found.name), found.source)):
        say(f"{idle}{following}", "yellow")


def elapsed_seconds(run: RunRow) -> float:
    return ((run.finished_at or wall_clock_us()) - run.started_at) / SECOND_US


async def watched(found: OpenedSink, run: str | None) -> None:
    """Redraw until the run has ended or the user presses Ctrl-C."""

    from leaseway.imports.run.progress import ProgressTracker, tightest
    from leaseway.imports.run.progress_view import ProgressView

    clock, id_ = SystemClock(), (await find_run(found, run)).id
    rates = [parse_rate("source.limits", text) for text in found.spec.source.limits]
    watching = ProgressTracker(tightest(rates))
    title = f"{found.source} → {found.spec.sink.table}"
    with ProgressView(rich_console(stderr=True), title) as screen:
        while True:  # until the run ends; a run that makes no progress is shown as well
            with contextlib.suppress(TransientError):
                row, shards = await found.sink.runs.find(id_), await found.sink.shards.find_all(id_)
                if row is None or row.state is not RunState.RUNNING:
                    return
                screen.show(watching.update(clock.monotonic(), row, shards))
            await clock.sleep(LOOK_SECONDS)
