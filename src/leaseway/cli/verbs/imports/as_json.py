"""Runs and shards as JSON documents. Names are stable: programs read them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from leaseway.cli.screen.times import iso
from leaseway.domain.ids import Instant
from leaseway.domain.imports.drift import Drift
from leaseway.domain.imports.progress import EXIT_CODES, RunRow, ShardRow, ShardState
from leaseway.domain.imports.spec_parts import RunBudget
from leaseway.imports.differences import Differences
from leaseway.imports.report import (
    COUNTS,
    Report,
    reactions_of,
    seconds_of,
    slowest_of,
    spent,
    states_of,
    totals_of,
)
from leaseway.ports.sink import Changes


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
    totals = {name: count for name, count in totals_of(shards).items() if name != "size_bytes"}
    return {
        **run_json(run),
        "shards": states_of(shards),
        "guards": reactions_of(shards),
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


def budget_json(run: RunRow, shards: Sequence[ShardRow], budget: RunBudget | None) -> dict[str, Any] | None:
    price = None if budget is None else budget.price
    if run.requests_max is None and price is None:
        return None
    used = spent(run, shards)
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
        "seconds": seconds_of(row, now),
    }


def report_json(found: Report, budget: RunBudget | None) -> dict[str, Any]:
    return {
        **summary_json(found.run, found.shards, budget),
        "seconds": found.seconds,
        "changes": changes_json(found.changes),
        "deletes": found.run.notes.get("deletes"),
        "compared_with": None if found.compared_with is None else found.compared_with.id,
        "drift": drift_json(found.drift),
        "slowest": [row.shard.key for row in slowest_of(found.shards, found.now)],
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


def differences_json(found: Differences) -> dict[str, Any]:
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
