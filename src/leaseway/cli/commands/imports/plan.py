"""leaseway import plan: the shards, the forecast, and the problems. Nothing is imported."""

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

from leaseway.api.schemas.values import timestamp
from leaseway.app import App
from leaseway.cli.commands.imports import formatting
from leaseway.cli.commands.imports.open_sink import named, place_on_disk
from leaseway.cli.commands.imports.run import locate_run
from leaseway.cli.options import CliSettings
from leaseway.cli.output.console import counted, facts, local, note, print_json, say, wrapped
from leaseway.cli.output.table import TableCell, TableColumn, show_table
from leaseway.domain.errors import TerminalError, TransientError, UsageError
from leaseway.domain.validators import url_scheme
from leaseway.imports.domain.page import Row
from leaseway.imports.domain.run_state import RunMode
from leaseway.imports.run.assembly import ImportParts, load_import
from leaseway.imports.run.dry_run import DryRun, try_first_page
from leaseway.imports.run.plan import NO_HISTORY, Forecast, Plan, load_history, make_forecast, plan_with_history
from leaseway.imports.run.shard_jobs import needs_store, share_tokens
from leaseway.imports.run.watermark import RunHistory
from leaseway.imports.sources.port import BadReply, SourceBusy

SHARDS_SHOWN_MAX = 40
REFUSED = 2
VALUE_LENGTH_MAX = 30


class Prospect(NamedTuple):
    """Everything that is known before a run."""

    plan: Plan | None
    forecast: Forecast | None
    refusals: list[str]
    """Why it cannot run as it is."""
    tried: DryRun = DryRun()
    """The first page."""


def show_plan(settings: CliSettings, text: str, wanted: RunMode | None, requests_max: int | None) -> int:
    parts = load_import(named(text))
    found = asyncio.run(prospect_with_store(settings, text, parts, wanted, requests_max))
    if settings.json:
        print_json(prospect_json(parts, found))
    else:
        show_prospect(parts, found)
    return REFUSED if found.refusals else 0


async def prospect_with_store(
    settings: CliSettings, text: str, parts: ImportParts, wanted: RunMode | None, requests_max: int | None
) -> Prospect:
    """Only a refresh token that the workers share needs the job store."""
    if not needs_store(parts):
        return await prospect(parts, wanted, requests_max)
    place = locate_run(settings, text)
    async with App(place.store, limits=place.limits) as app:
        share_tokens(app, parts)
        return await prospect(parts, wanted, requests_max)


async def prospect(parts: ImportParts, wanted: RunMode | None, requests_max: int | None) -> Prospect:
    history, refusals = await looked_up(parts)
    try:
        plan = await plan_with_history(parts, history, wanted)
    except SourceBusy:
        raise
    except (BadReply, TerminalError, UsageError) as error:
        # Other errors say nothing about the spec: the source cannot be reached.
        return Prospect(None, None, [*refusals, parts.task.redactor(str(error))])
    source = parts.source
    ahead = make_forecast(plan, source.limit, source.page_limit, parts.spec.budget, requests_max)
    is_function = parts.spec.source.base_url is None and parts.spec.source.file is None
    tried = DryRun() if is_function else await try_first_page(parts, plan.shards[0])
    return Prospect(plan, ahead, [*refusals, *tried.refusals], tried)


async def looked_up(parts: ImportParts) -> tuple[RunHistory, list[str]]:
    """The runs so far, and why the sink cannot be written. A missing file is not created."""
    path = place_on_disk(parts.spec.sink.url)
    if path is not None and is_new(path):
        return NO_HISTORY, folderless(parts.spec.sink.url, path)
    try:
        await parts.sink.open()
        return await load_history(parts.sink, parts.spec.source.name, parts.task.spec_hash), []
    except (UsageError, TransientError) as error:
        return NO_HISTORY, [f"sink: {error}"]
    finally:
        await parts.sink.close()


def is_new(path: Path) -> bool:
    return not path.exists()


def folderless(url: str, path: Path) -> list[str]:
    """SQLite creates its file, but not the folder around it."""
    is_placeable = url_scheme(url) != "sqlite" or path.parent.is_dir()
    return [] if is_placeable else [f"sink.url: there is no folder {path.parent}; create it first"]


# -- text
# ---------------------------------------------------------------------------------------------------------------


def show_prospect(parts: ImportParts, found: Prospect) -> None:
    if found.plan is not None and found.forecast is not None:
        say(
            f"{parts.spec.source.name}: {counted(len(found.plan.shards), 'shard')} into {parts.spec.sink.table}", "bold"
        )
        show_shards(found.plan, found.forecast)
        show_forecast(parts, found.plan, found.forecast)
        show_first_rows(parts, found.tried)
    for refusal in found.refusals:
        say(wrapped(f"refused: {refusal}", 2), "red")
    if found.refusals:
        say("this import cannot run", "red")


def show_first_rows(parts: ImportParts, tried: DryRun) -> None:
    """Three rows as they would be written: a wrong path or type is seen at a glance."""
    if tried.rows:
        columns = list(parts.spec.resource.columns)
        bad = f", {len(tried.bad):,} of them bad" if tried.bad else ""
        say(f"the first page has {counted(tried.records, 'record')}{bad}; the first rows:")
        lines = [first_row_cells(row, columns) for row in tried.rows]
        show_table([TableColumn("key"), TableColumn("stamp"), *(TableColumn(name) for name in columns)], lines)
    for warning in tried.warnings:
        say(wrapped(f"warning: {warning}", 2), "yellow")


def first_row_cells(row: Row, columns: list[str]) -> list[TableCell | str]:
    values = [row.values.get(name) for name in columns]
    shown = ["" if value is None else str(value)[:VALUE_LENGTH_MAX] for value in values]
    return [row.external_id, local(row.stamp) if row.stamp else "", *shown]


def show_shards(plan: Plan, ahead: Forecast) -> None:
    sign = "≤ " if ahead.is_most else ""
    rows = zip(plan.shards, ahead.by_shard, strict=True)
    lines = [(shard.label, f"{sign}{count:,}" if count is not None else "") for shard, count in rows]
    show_table([TableColumn("shard"), TableColumn("rows", right=True)], lines[:SHARDS_SHOWN_MAX])
    if len(lines) > SHARDS_SHOWN_MAX:
        note(f"and {len(lines) - SHARDS_SHOWN_MAX:,} more; --json has them all")


def show_forecast(parts: ImportParts, plan: Plan, ahead: Forecast) -> None:
    rates = parts.source.limit.definition.rates if parts.source.limit else ()
    pace = " and ".join(str(rate) for rate in rates)
    facts(
        [
            ("mode", mode_text(plan)),
            ("rows", about(ahead.rows, ahead.is_most)),
            ("requests", about(ahead.requests, ahead.is_most, "at least ")),
            ("time", time_text(ahead, pace)),
            ("cost", cost_text(parts, ahead)),
            ("budget", budget_text(ahead)),
        ]
    )


def mode_text(plan: Plan) -> str:
    what = "full" if plan.since is None else f"incremental, since {local(plan.since)}"
    return f"{what}: {plan.why_mode}" if plan.why_mode else what


def about(count: int | None, is_most: bool, otherwise: str = "") -> str:
    return "unknown" if count is None else f"{'at most ' if is_most else otherwise}{count:,}"


def time_text(ahead: Forecast, pace: str) -> str:
    if not pace:
        return "not limited: the spec has no limit"
    if ahead.seconds is None:
        return f"unknown, at {pace}"
    return f"{'at most' if ahead.is_most else 'at least'} {formatting.duration(ahead.seconds)}, at {pace}"


def cost_text(parts: ImportParts, ahead: Forecast) -> str:
    if ahead.cost is None or parts.spec.budget is None:
        return ""
    return f"{about_word(ahead)}{ahead.cost:,.2f} {parts.spec.budget.currency}"


def about_word(ahead: Forecast) -> str:
    return "at most " if ahead.is_most else "at least "


def budget_text(ahead: Forecast) -> str:
    if ahead.requests_max is None:
        return ""
    if ahead.is_over:
        return (
            f"will stop after {ahead.requests_max:,} of ~{ahead.requests:,} requests; rows fetched so far are kept; "
            "continue with `resume --requests-max`"
        )
    return f"{ahead.requests_max:,} requests"


# -- JSON
# ---------------------------------------------------------------------------------------------------------------


def prospect_json(parts: ImportParts, found: Prospect) -> dict[str, Any]:
    plan, ahead = found.plan, found.forecast
    budget = parts.spec.budget
    known = {"source": parts.spec.source.name, "table": parts.spec.sink.table, "refused": found.refusals}
    if plan is None or ahead is None:
        return {**known, "shards": None}
    return {
        **known,
        "mode": plan.mode.value,
        "why_mode": plan.why_mode,
        "since": timestamp(plan.since),
        "watermark": timestamp(plan.watermark),
        "shards": [
            {"key": shard.key, "label": shard.label, "predicate": dict(shard.predicate), "rows": rows}
            for shard, rows in zip(plan.shards, ahead.by_shard, strict=True)
        ],
        "first_rows": [{"key": row.external_id, **row.values} for row in found.tried.rows],
        "warnings": list(found.tried.warnings),
        "rows": ahead.rows,
        "requests": ahead.requests,
        "seconds": ahead.seconds,
        "is_most": ahead.is_most,
        "cost": ahead.cost,
        "currency": None if budget is None or ahead.cost is None else budget.currency,
        "requests_max": ahead.requests_max,
        "is_over_budget": ahead.is_over,
    }
