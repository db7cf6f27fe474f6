"""Imports: runs, shards, plans, reports and quarantined records."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from leaseway.api.schemas.values import Document, Timestamp, extend, timestamp
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.imports.domain.drift import Drift
from leaseway.imports.domain.run_state import EXIT_CODES, RunMode, RunRow, RunState, ShardRow, ShardState
from leaseway.imports.run.plan import Forecast, Plan
from leaseway.imports.run.progress import RunSnapshot
from leaseway.imports.run.quarantine_replay import QuarantinedRow, ReplayResult
from leaseway.imports.run.report import (
    COUNTS,
    RunReport,
    count_reactions,
    count_requests,
    count_states,
    shard_seconds,
    slowest_shards,
    sum_counts,
)
from leaseway.imports.sinks.port import Changes
from leaseway.imports.sinks.row_map import DEGREES, GridCell
from leaseway.imports.spec.model import RunBudget

SHARDS_MAX = 1_000
PARKED_MAX = 20

Pace = tuple[float, float]
"""Rows and requests per second."""
Point = tuple[float, float, int]
"""Longitude, latitude, and the number of rows there."""


class ImportRunDocument(Document, kw_only=True):
    run: str
    source: str
    spec_hash: str
    state: RunState
    why: str | None
    exit_code: int | None
    mode: RunMode
    since: Timestamp | None
    watermark: Timestamp | None
    started_at: Timestamp | None
    finished_at: Timestamp | None
    concurrency: int


class ImportDocument(Document, kw_only=True):
    """An import that the service was started with."""

    source: str
    spec: str
    """The file name of its spec."""
    table: str
    has_positions: bool
    """Whether its rows can be shown on a map."""
    is_reachable: bool
    """False: its sink does not respond."""
    last_run: ImportRunDocument | None


class ImportSummaryDocument(ImportRunDocument, kw_only=True):
    shards: dict[str, int]
    """How many shards are in each state."""
    guards: dict[str, int]
    pages: int
    rows: int
    inserted: int
    updated: int
    unchanged: int
    stale: int
    quarantined: int
    requests: int
    bytes: int
    budget: Any
    parked: list[dict[str, Any]]
    notes: dict[str, Any]


class ImportLimitDocument(Document, kw_only=True):
    count: int
    window_seconds: float


class ImportProgressDocument(ImportSummaryDocument, kw_only=True):
    share: float
    """The completed part, from 0 to 1."""
    shards_total: int
    shards_ended: int
    rows_per_second: float | None
    """Over the last seconds. null: not known yet, or the run has finished."""
    requests_per_second: float | None
    seconds_left: float | None
    """null: not known."""
    limit: ImportLimitDocument | None
    """The rate limit on requests that takes effect first."""


class ImportReportDocument(ImportSummaryDocument, kw_only=True):
    seconds: float
    changes: dict[str, Any]
    deletes: Any
    compared_with: str | None
    drift: Any
    slowest: list[str]


class ImportShardDocument(Document, kw_only=True):
    key: str
    label: str
    predicate: dict[str, Any]
    state: ShardState
    why: str | None
    parent: str | None
    estimated_rows: int | None
    pages: int
    rows: int
    inserted: int
    updated: int
    unchanged: int
    stale: int
    quarantined: int
    requests: int
    bytes: int
    guards: dict[str, int]
    attempts: int
    cursor: Any
    resumed_at: Any
    page_limit: int | None
    started_at: Timestamp | None
    finished_at: Timestamp | None
    seconds: float | None


class PlannedShardDocument(Document, kw_only=True):
    key: str
    label: str
    predicate: dict[str, Any]
    rows: int | None


class ImportPlanDocument(Document, kw_only=True):
    source: str
    table: str
    mode: RunMode
    why_mode: str
    since: Timestamp | None
    watermark: Timestamp | None
    shards: list[PlannedShardDocument]
    """The first 1,000 shards."""
    shards_total: int
    rows: int | None
    requests: int | None
    seconds: float | None
    is_most: bool
    cost: float | None
    requests_max: int | None
    is_over_budget: bool


class QuarantinedDocument(Document, kw_only=True):
    """A record that could not be converted to a row."""

    number: int
    run: str
    shard: str
    position: int
    external_id: str | None
    code: str
    problem: str
    document: Any


class ImportPointsDocument(Document, kw_only=True):
    """Where rows are located. Add up the counts of points with the same coordinates."""

    items: list[Point]
    """Rows that this run wrote: longitude, latitude, count."""
    others: list[Point]
    """Rows that other runs wrote."""
    degrees: float
    """The distance between two points of the grid."""
    has_positions: bool
    more: bool
    """There are rows that were not read yet."""
    next: str | None
    """The value for `after`. null: the run has finished and all rows were read."""


class ReplayedDocument(Document, kw_only=True):
    """What happened to quarantined records."""

    written: int
    discarded: int
    quarantined: int
    by_code: dict[str, list[dict[str, Any]]]
    missing: list[int]


class ImportResumedDocument(Document, kw_only=True):
    run: str
    shards_open: int


# -- runs -----------------------------------------------------------------------------------------------------------


def run_document(run: RunRow) -> ImportRunDocument:
    return ImportRunDocument(
        run=run.id,
        source=run.source,
        spec_hash=run.spec_hash,
        state=run.state,
        why=run.why,
        exit_code=EXIT_CODES.get(run.state),
        mode=run.mode,
        since=timestamp(run.since),
        watermark=timestamp(run.watermark),
        started_at=timestamp(run.started_at),
        finished_at=timestamp(run.finished_at),
        concurrency=run.concurrency,
    )


def summary_document(run: RunRow, shards: Sequence[ShardRow], budget: RunBudget | None = None) -> ImportSummaryDocument:
    """What the `run`, `status` and `report` commands have in common."""
    parked = [row for row in shards if row.state is ShardState.PARKED]
    return extend(
        ImportSummaryDocument,
        run_document(run),
        shards=count_states(shards),
        guards=count_reactions(shards),
        **row_counts(sum_counts(shards)),
        budget=run_budget(run, shards, budget),
        parked=[{"key": row.shard.key, "label": row.shard.label, "why": row.why} for row in parked],
        notes=dict(run.notes),
    )


def row_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Documents say `bytes`, Python says `size_bytes`."""
    return {"bytes" if name == "size_bytes" else name: count for name, count in counts.items()}


def progress_document(
    run: RunRow, shards: Sequence[ShardRow], budget: RunBudget | None, snapshot: RunSnapshot, pace: Pace | None
) -> ImportProgressDocument:
    summary = summary_document(run, shards, budget)
    summary.parked = summary.parked[:PARKED_MAX]
    rate, is_over = snapshot.limit, run.finished_at is not None
    rows, requests = pace if pace is not None and not is_over else (None, None)
    limit = None if rate is None else ImportLimitDocument(count=rate.count, window_seconds=rate.window_us / SECOND_US)
    return extend(
        ImportProgressDocument,
        summary,
        share=round(snapshot.share, 4),
        shards_total=snapshot.shards,
        shards_ended=snapshot.ended,
        rows_per_second=None if rows is None else round(rows, 2),
        requests_per_second=None if requests is None else round(requests, 2),
        seconds_left=None if is_over or snapshot.seconds_left is None else round(snapshot.seconds_left, 1),
        limit=limit,
    )


def run_budget(run: RunRow, shards: Sequence[ShardRow], budget: RunBudget | None) -> dict[str, Any] | None:
    price = None if budget is None else budget.price
    if run.requests_max is None and price is None:
        return None
    used = count_requests(run, shards)
    return {
        "requests_max": run.requests_max,
        "requests": used,
        "left": None if run.requests_max is None else max(run.requests_max - used, 0),
        "cost": None if price is None else round(used * price, 6),
        "currency": None if price is None or budget is None else budget.currency,
    }


def shard_document(row: ShardRow, now: Instant) -> ImportShardDocument:
    return ImportShardDocument(
        key=row.shard.key,
        label=row.shard.label,
        predicate=dict(row.shard.predicate),
        state=row.state,
        why=row.why,
        parent=row.parent,
        estimated_rows=row.shard.estimated_rows,
        **row_counts({name: getattr(row, name) for name in COUNTS}),
        guards=dict(row.guards),
        attempts=row.attempts,
        cursor=row.cursor,
        resumed_at=row.resumed_at,
        page_limit=row.page_limit,
        started_at=timestamp(row.started_at),
        finished_at=timestamp(row.finished_at),
        seconds=shard_seconds(row, now),
    )


# -- reports --------------------------------------------------------------------------------------------------------


def report_document(found: RunReport, budget: RunBudget | None) -> ImportReportDocument:
    return extend(
        ImportReportDocument,
        summary_document(found.run, found.shards, budget),
        seconds=found.seconds,
        changes=changes_fields(found.changes),
        deletes=found.run.notes.get("deletes"),
        compared_with=None if found.compared_with is None else found.compared_with.id,
        drift=drift_fields(found.drift),
        slowest=[row.shard.key for row in slowest_shards(found.shards, found.now)],
    )


def changes_fields(found: Changes) -> dict[str, Any]:
    return {
        "added": found.added,
        "changed": found.changed,
        "removed": found.removed,
        "samples": {kind: list(ids) for kind, ids in found.samples.items()},
    }


def drift_fields(found: Drift | None) -> dict[str, Any] | None:
    return None if found is None else to_builtins(found)


# -- quarantine, plans, points --------------------------------------------------------------------------------------


def quarantined_document(each: QuarantinedRow) -> QuarantinedDocument:
    bad = each.bad
    return QuarantinedDocument(
        number=each.number,
        run=each.run,
        shard=each.shard,
        position=bad.position,
        external_id=bad.external_id,
        code=bad.code,
        problem=bad.problem,
        document=bad.document,
    )


def replayed_document(done: ReplayResult) -> ReplayedDocument:
    return ReplayedDocument(
        written=done.written,
        discarded=done.discarded,
        quarantined=done.quarantined_count,
        by_code={
            code: [{"number": number, "problem": problem} for number, problem in records]
            for code, records in sorted(done.quarantined.items())
        },
        missing=done.missing,
    )


def plan_document(source: str, table: str, plan: Plan, ahead: Forecast) -> ImportPlanDocument:
    shards = zip(plan.shards[:SHARDS_MAX], ahead.by_shard, strict=False)
    return ImportPlanDocument(
        source=source,
        table=table,
        mode=plan.mode,
        why_mode=plan.why_mode,
        since=timestamp(plan.since),
        watermark=timestamp(plan.watermark),
        shards=[
            PlannedShardDocument(key=shard.key, label=shard.label, predicate=dict(shard.predicate), rows=rows)
            for shard, rows in shards
        ],
        shards_total=len(plan.shards),
        rows=ahead.rows,
        requests=ahead.requests,
        seconds=ahead.seconds,
        is_most=ahead.is_most,
        cost=ahead.cost,
        requests_max=ahead.requests_max,
        is_over_budget=ahead.is_over,
    )


def points_document(has_positions: bool, cells: list[GridCell], more: bool, after: str | None) -> ImportPointsDocument:
    return ImportPointsDocument(
        items=[(*cell.middle, cell.rows) for cell in cells if cell.is_of_run],
        others=[(*cell.middle, cell.rows) for cell in cells if not cell.is_of_run],
        degrees=DEGREES,
        has_positions=has_positions,
        more=more,
        next=after,
    )
