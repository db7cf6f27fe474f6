"""The verdict on a run without open jobs: complete, partial, failed or suspect.

A suspect run has all its rows, but something about them as a whole is wrong. Then nothing is deleted, and the watermark
does not move.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from leaseway.imports.domain.run_state import RunRow, RunState, ShardRow, ShardState
from leaseway.imports.spec.model import GuardSettings, SweepSettings

ROWS_COMPARED_MIN = 100
"""Smaller shards can lose half of their rows at any time."""
DELETED = "deleted"
"""The predicate of the feed of deleted records, which do not count as yield."""


class RunVerdict(NamedTuple):
    state: RunState
    why: str | None = None
    guard: str | None = None
    """The guard that made the run suspect."""


COMPLETE = RunVerdict(RunState.COMPLETE)


def judge_shards(run: RunRow, shards: Sequence[ShardRow]) -> RunVerdict:
    """The verdict from the states of the shards."""
    if run.state is RunState.FAILED:
        return RunVerdict(RunState.FAILED, run.why)
    left = [row for row in shards if row.state not in (ShardState.DONE, ShardState.SPLIT)]
    return RunVerdict(RunState.PARTIAL, "; ".join(partial_reasons(run, left, len(shards)))) if left else COMPLETE


def partial_reasons(run: RunRow, left: Sequence[ShardRow], count: int) -> Iterator[str]:
    parked = [row for row in left if row.state is ShardState.PARKED]
    others = [row for row in left if row.state is not ShardState.PARKED]
    if parked:
        yield f"{len(parked):,} of {count:,} shards parked: {first_reason(parked)}"
    if others and run.requests_max is not None and run.requests >= run.requests_max:
        used = f"the budget of {run.requests_max:,} requests is used up"
        yield f"{used}, with {len(others):,} of {count:,} shards left; resume the run with a larger one"
    elif others:
        yield f"{len(others):,} of {count:,} shards unfinished: {first_reason(others)}"


def first_reason(shards: Sequence[ShardRow]) -> str:
    row = next((row for row in shards if row.why), shards[0])
    return f"{row.shard.label}: {row.why or 'not finished'}"


# -- yield ------------------------------------------------------------------------------------------------------------


def find_yield_collapse(
    now: Sequence[ShardRow], before: Sequence[ShardRow], guards: GuardSettings
) -> RunVerdict | None:
    """Compare with the last complete full run. Returns None if the number of rows is plausible."""
    rows, rows_before = rows_by_planned_shard(now), rows_by_planned_shard(before)
    total, total_before = sum(rows.values()), sum(rows_before.values())
    what_to_do = (
        "check the source; if the numbers are right, lower resource.guards.yield_floor and resume the run, which sends "
        "no requests"
    )
    if total < guards.yield_floor * total_before:
        problem = f"{total:,} rows, and the last complete full run had {total_before:,}"
        return RunVerdict(RunState.SUSPECT, f"{problem}; {what_to_do}", "yield_collapse")
    for key, count in rows_before.items():
        if count >= ROWS_COMPARED_MIN and key in rows and rows[key] < guards.yield_floor * count:
            problem = f"shard {key} has {rows[key]:,} rows, and had {count:,} in the last complete full run"
            return RunVerdict(RunState.SUSPECT, f"{problem}; {what_to_do}", "yield_collapse")
    return None


def rows_by_planned_shard(shards: Sequence[ShardRow]) -> dict[str, int]:
    """Rows of each planned shard, including the shards that it was split into."""
    parents = {row.shard.key: row.parent for row in shards}
    rows: dict[str, int] = {}
    for row in shards:
        if DELETED not in row.shard.predicate:
            first = planned_ancestor(row.shard.key, parents)
            rows[first] = rows.get(first, 0) + row.rows
    return rows


def planned_ancestor(key: str, parents: Mapping[str, str | None]) -> str:
    for _ in range(len(parents)):  # a shard has fewer ancestors than there are shards
        parent = parents.get(key)
        if parent is None:
            break
        key = parent
    return key


# -- deletes and duplicates -------------------------------------------------------------------------------------------


def find_excess_absence(stored: int, absent: int, sweeping: SweepSettings) -> RunVerdict | None:
    if absent <= sweeping.max_ratio * stored:
        return None
    problem = f"{absent:,} of {stored:,} rows are absent, more than {sweeping.max_ratio:.1%}; nothing was deleted"
    what_to_do = (
        "check the source; if the rows are gone, raise resource.deletes.sweep.max_ratio and run a full import again"
    )
    return RunVerdict(RunState.SUSPECT, f"{problem}; {what_to_do}", "sweep_ratio")


def duplicate_warning(shards: Sequence[ShardRow], guards: GuardSettings) -> str | None:
    """Only a warning: duplicate records were written once."""
    rows = sum(row.rows for row in shards)
    doubled = sum(row.guards.get("duplicate", 0) for row in shards)
    if not rows or doubled <= guards.duplicate_ratio_max * rows:
        return None
    return (
        f"{doubled:,} of {rows:,} records are duplicates, more than {guards.duplicate_ratio_max:.0%}: the source "
        "changes its order while it is read and may omit as many; use keyset paging if the source supports it"
    )
