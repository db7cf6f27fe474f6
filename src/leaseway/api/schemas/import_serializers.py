"""Runs and shards of imports as JSON documents, for the API and for the command line. Names are stable."""

from collections.abc import Sequence
from typing import Any

import msgspec

from leaseway.api.schemas.serializers import iso
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.imports.domain.drift import Drift
from leaseway.imports.domain.run_state import EXIT_CODES, RunRow, ShardRow, ShardState
from leaseway.imports.plan.plan import Forecast, Plan
from leaseway.imports.progress.progress import RunSnapshot
from leaseway.imports.progress.report import (
    COUNTS,
    RunDiff,
    RunReport,
    count_reactions,
    count_requests,
    count_states,
    shard_seconds,
    slowest_shards,
    sum_counts,
)
from leaseway.imports.run.quarantine_replay import QuarantinedRow, ReplayResult
from leaseway.imports.sinks.port import Changes
from leaseway.imports.spec.model import RunBudget

SHARDS_MAX = 1_000
PARKED_MAX = 20

Pace = tuple[float, float]
"""Rows and requests a second."""


def run_json(run: RunRow) -> dict[str, Any]:
    return {
        "run": run.id,
        "source": run.source,
        "spec_hash": run.spec_hash,
        "state": run.state.value,
        "why": run.why,
        "exit_code": EXIT_CODES.get(run.state),
        "mode": run.mode.value,
        "since": iso(run.since),
        "watermark": iso(run.watermark),
        "started_at": iso(run.started_at),
        "finished_at": iso(run.finished_at),
        "seats": run.seats,
    }


def summary_json(run: RunRow, shards: Sequence[ShardRow], budget: RunBudget | None = None) -> dict[str, Any]:
    """What `run`, `status` and `report` all say."""
    totals = {name: count for name, count in sum_counts(shards).items() if name != "size_bytes"}
    return {
        **run_json(run),
        "shards": count_states(shards),
        "guards": count_reactions(shards),
        **totals,
        "bytes": sum(row.size_bytes for row in shards),
        "budget": budget_json(run, shards, budget),
        "parked": [
            {"key": row.shard.key, "label": row.shard.label, "why": row.why}
            for row in shards
            if row.state is ShardState.PARKED
        ],
        "notes": dict(run.notes),
    }


def progress_json(
    run: RunRow, shards: Sequence[ShardRow], budget: RunBudget | None, snapshot: RunSnapshot, pace: Pace | None
) -> dict[str, Any]:
    """One look at a run, with what can only be seen between two of them."""
    summary = summary_json(run, shards, budget)
    rate = snapshot.limit
    is_over = run.finished_at is not None
    rows, requests = pace if pace is not None and not is_over else (None, None)
    return {
        **summary,
        "parked": summary["parked"][:PARKED_MAX],
        "share": round(snapshot.share, 4),
        "shards_total": snapshot.shards,
        "shards_ended": snapshot.ended,
        "rows_per_second": None if rows is None else round(rows, 2),
        "requests_per_second": None if requests is None else round(requests, 2),
        "seconds_left": None if is_over or snapshot.seconds_left is None else round(snapshot.seconds_left, 1),
        "limit": None if rate is None else {"count": rate.count, "window_seconds": rate.window_us / SECOND_US},
    }


def budget_json(run: RunRow, shards: Sequence[ShardRow], budget: RunBudget | None) -> dict[str, Any] | None:
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


def shard_json(row: ShardRow, now: Instant) -> dict[str, Any]:
    counts = {name: getattr(row, name) for name in COUNTS if name != "size_bytes"}
    return {
        "key": row.shard.key,
        "label": row.shard.label,
        "predicate": dict(row.shard.predicate),
        "state": row.state.value,
        "why": row.why,
        "parent": row.parent,
        "estimated_rows": row.shard.estimated_rows,
        **counts,
        "bytes": row.size_bytes,
        "guards": dict(row.guards),
        "attempts": row.attempts,
        "cursor": row.cursor,
        "resumed_at": row.resumed_at,
        "page_limit": row.page_limit,
        "started_at": iso(row.started_at),
        "finished_at": iso(row.finished_at),
        "seconds": shard_seconds(row, now),
    }


def report_json(found: RunReport, budget: RunBudget | None) -> dict[str, Any]:
    return {
        **summary_json(found.run, found.shards, budget),
        "seconds": found.seconds,
        "changes": changes_json(found.changes),
        "deletes": found.run.notes.get("deletes"),
        "compared_with": None if found.compared_with is None else found.compared_with.id,
        "drift": drift_json(found.drift),
        "slowest": [row.shard.key for row in slowest_shards(found.shards, found.now)],
        "by_shard": [shard_json(row, found.now) for row in found.shards],
    }


def changes_json(found: Changes) -> dict[str, Any]:
    return {
        "added": found.added,
        "changed": found.changed,
        "removed": found.removed,
        "samples": {kind: list(ids) for kind, ids in found.samples.items()},
    }


def drift_json(found: Drift | None) -> dict[str, Any] | None:
    return None if found is None else msgspec.to_builtins(found)


def differences_json(found: RunDiff) -> dict[str, Any]:
    after, until = found.window
    return {
        "before": {**run_json(found.before), **found.totals_before},
        "after": {**run_json(found.after), **found.totals_after},
        "shards": {
            "new": [row.shard.key for row in found.new],
            "gone": [row.shard.key for row in found.gone],
            "changed": [
                {"key": pair.after.shard.key, "before": facts_json(pair.before), "after": facts_json(pair.after)}
                for pair in found.changed
            ],
        },
        "rows": {"after": iso(after), "until": iso(until), **changes_json(found.rows)},
        "drift": drift_json(found.drift),
    }


def facts_json(row: ShardRow) -> dict[str, Any]:
    return {"state": row.state.value, "rows": row.rows, "why": row.why}


def quarantined_json(each: QuarantinedRow) -> dict[str, Any]:
    bad = each.bad
    return {
        "number": each.number,
        "run": each.run,
        "shard": each.shard,
        "position": bad.position,
        "external_id": bad.external_id,
        "code": bad.code,
        "problem": bad.problem,
        "document": bad.document,
    }


def replayed_json(done: ReplayResult) -> dict[str, Any]:
    return {
        "written": done.written,
        "discarded": done.discarded,
        "stayed": done.stayed_count,
        "by_code": {
            code: [{"number": number, "problem": problem} for number, problem in stayed]
            for code, stayed in sorted(done.stayed.items())
        },
        "gone": done.gone,
    }


def plan_json(source: str, table: str, plan: Plan, ahead: Forecast) -> dict[str, Any]:
    return {
        "source": source,
        "table": table,
        "mode": plan.mode.value,
        "why_mode": plan.why_mode,
        "since": iso(plan.since),
        "watermark": iso(plan.watermark),
        "shards": [
            {"key": shard.key, "label": shard.label, "predicate": dict(shard.predicate), "rows": rows}
            for shard, rows in zip(plan.shards[:SHARDS_MAX], ahead.by_shard, strict=False)
        ],
        "shards_total": len(plan.shards),
        "rows": ahead.rows,
        "requests": ahead.requests,
        "seconds": ahead.seconds,
        "is_most": ahead.is_most,
        "cost": ahead.cost,
        "requests_max": ahead.requests_max,
        "is_over_budget": ahead.is_over,
    }
