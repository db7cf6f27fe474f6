"""What one run has done, and how two runs differ, according to the sink."""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from leaseway.domain.errors import UsageError
from leaseway.domain.ids import Instant
from leaseway.imports.domain.drift import Drift, compare_profiles, merge_profiles
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardRow, ShardState
from leaseway.imports.sinks.port import Changes, Sink

COUNTS = ("pages", "rows", "inserted", "updated", "unchanged", "stale", "quarantined", "requests", "size_bytes")
SLOWEST_SHOWN = 5
RUNS_SEEN_MAX = 100


class RunReport(Struct, frozen=True, kw_only=True):
    run: RunRow
    shards: Sequence[ShardRow]
    now: Instant
    changes: Changes
    """Changes in the table from the start of the run to its end."""
    compared_with: RunRow | None = None
    """The complete run before this one."""
    drift: Drift | None = None
    """Compared with that run. None: unknown."""

    @property
    def seconds(self) -> float:
        return ((self.run.finished_at or self.now) - self.run.started_at) / 1_000_000


async def build_report(sink: Sink, run: RunRow, now: Instant) -> RunReport:
    shards = await sink.shards.find_all(run.id)
    before = await complete_before(sink, run)
    return RunReport(
        run=run,
        shards=order_by_parent(shards),
        now=now,
        changes=await sink.rows.changes(run.source, run.started_at, run.finished_at or now),
        compared_with=before,
        drift=None if before is None else find_drift(await sink.shards.find_all(before.id), shards),
    )


async def complete_before(sink: Sink, run: RunRow) -> RunRow | None:
    """The run to compare with: preferably a full one, because a few changed documents are a poor sample."""
    found = await sink.runs.find_all(run.source, RUNS_SEEN_MAX, state=RunState.COMPLETE)
    earlier = [row for row in found if row.started_at < run.started_at and row.id != run.id]
    return next((row for row in earlier if row.mode is RunMode.FULL), next(iter(earlier), None))


def find_drift(before: Sequence[ShardRow], after: Sequence[ShardRow]) -> Drift | None:
    return compare_profiles(merge_profiles(row.profile for row in before), merge_profiles(row.profile for row in after))


def sum_counts(shards: Sequence[ShardRow]) -> dict[str, int]:
    return {name: sum(getattr(row, name) for row in shards) for name in COUNTS}


def count_states(shards: Sequence[ShardRow]) -> dict[str, int]:
    return dict(Counter(row.state.value for row in shards))


def count_reactions(shards: Sequence[ShardRow]) -> dict[str, int]:
    """How often each guard reacted."""
    total: Counter[str] = Counter()
    for row in shards:
        total.update(row.guards)
    return dict(sorted(total.items()))


def shard_seconds(row: ShardRow, now: Instant) -> float | None:
    """From the first page to the last, including pauses. None if the shard has not been started."""
    if row.started_at is None:
        return None
    is_open = row.state in (ShardState.WAITING, ShardState.RUNNING)
    end = now if is_open or row.finished_at is None else row.finished_at
    return max(end - row.started_at, 0) / 1_000_000


def slowest_shards(shards: Sequence[ShardRow], now: Instant, count: int = SLOWEST_SHOWN) -> list[ShardRow]:
    timed = [(shard_seconds(row, now) or 0.0, row) for row in shards if row.pages]
    return [row for _, row in sorted(timed, key=lambda each: -each[0])[:count]]


def order_by_parent(shards: Sequence[ShardRow]) -> list[ShardRow]:
    """Children after their parent. Every shard appears once, also one whose parent is missing."""
    by_parent: dict[str | None, list[ShardRow]] = {}
    keys = {row.shard.key for row in shards}
    for row in shards:
        by_parent.setdefault(row.parent if row.parent in keys else None, []).append(row)
    ordered: list[ShardRow] = []
    waiting = list(reversed(by_parent.get(None, [])))
    while waiting:  # every shard is visited once, because it has one parent
        row = waiting.pop()
        ordered.append(row)
        waiting.extend(reversed(by_parent.get(row.shard.key, [])))
    return ordered


def count_requests(run: RunRow, shards: Sequence[ShardRow]) -> int:
    """With a budget, requests that returned no page count as well. Without one, only the shards' counters are known."""
    return run.requests if run.requests_max is not None else sum_counts(shards)["requests"]


class ShardDiff(Struct, frozen=True):
    before: ShardRow
    after: ShardRow


class RunDiff(Struct, frozen=True, kw_only=True):
    before: RunRow
    after: RunRow
    totals_before: dict[str, int]
    totals_after: dict[str, int]
    new: Sequence[ShardRow]
    """Shards of the later run only."""
    gone: Sequence[ShardRow]
    """Shards of the earlier run only."""
    changed: Sequence[ShardDiff]
    """Shards of both runs with another number of rows or another state."""
    rows: Changes
    """Between the end of the first and the end of the second run."""
    drift: Drift | None

    @property
    def window(self) -> tuple[Instant, Instant | None]:
        return run_end(self.before), self.after.finished_at


async def diff_runs(sink: Sink, before: RunRow, after: RunRow, now: Instant) -> RunDiff:
    if before.id == after.id:
        raise UsageError(f"run {before.id} cannot be compared with itself; name two different runs")
    if before.started_at > after.started_at:
        before, after = after, before
    old, new = await sink.shards.find_all(before.id), await sink.shards.find_all(after.id)
    was = {row.shard.key: row for row in old}
    is_ = {row.shard.key: row for row in new}
    pairs = [ShardDiff(was[key], is_[key]) for key in sorted(was.keys() & is_.keys())]
    return RunDiff(
        before=before,
        after=after,
        totals_before=sum_counts(old),
        totals_after=sum_counts(new),
        new=[row for row in new if row.shard.key not in was],
        gone=[row for row in old if row.shard.key not in is_],
        changed=[pair for pair in pairs if shard_outcome(pair.before) != shard_outcome(pair.after)],
        rows=await sink.rows.changes(after.source, run_end(before), after.finished_at or now),
        drift=find_drift(old, new),
    )


def shard_outcome(row: ShardRow) -> tuple[str, int]:
    return row.state.value, row.rows


def run_end(run: RunRow) -> Instant:
    return run.finished_at or run.started_at
