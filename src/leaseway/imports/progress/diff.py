"""Two runs of one source, side by side: their shards, the rows that changed between them, and their documents."""

from collections.abc import Sequence

from msgspec import Struct

from leaseway.domain.errors import UsageError
from leaseway.domain.ids import Instant
from leaseway.imports.domain.drift import Drift
from leaseway.imports.domain.run_state import RunRow, ShardRow
from leaseway.imports.progress.report import find_drift, sum_counts
from leaseway.imports.sinks.port import Changes, Sink


class ShardDiff(Struct, frozen=True):
    before: ShardRow
    after: ShardRow


class RunDiff(Struct, frozen=True, kw_only=True):
    before: RunRow
    after: RunRow
    totals_before: dict[str, int]
    totals_after: dict[str, int]
    new: Sequence[ShardRow]
    """Shards that only the later run has."""
    gone: Sequence[ShardRow]
    """Shards that only the earlier one has."""
    changed: Sequence[ShardDiff]
    """In both, with another number of rows or in another state."""
    rows: Changes
    """Between the end of the one and the end of the other."""
    drift: Drift | None

    @property
    def window(self) -> tuple[Instant, Instant | None]:
        return run_end(self.before), self.after.finished_at


async def diff_runs(sink: Sink, before: RunRow, after: RunRow, now: Instant) -> RunDiff:
    if before.id == after.id:
        raise UsageError(f"run {before.id} is compared with itself; name two different runs")
    if before.started_at > after.started_at:
        before, after = after, before
    old, new = await sink.shards(before.id), await sink.shards(after.id)
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
        rows=await sink.changes(after.source, run_end(before), after.finished_at or now),
        drift=find_drift(old, new),
    )


def shard_outcome(row: ShardRow) -> tuple[str, int]:
    return row.state.value, row.rows


def run_end(run: RunRow) -> Instant:
    return run.finished_at or run.started_at
