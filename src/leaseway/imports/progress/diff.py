"""Two runs of one source, side by side: their shards, the rows that changed between them, and their documents."""

from collections.abc import Sequence

from msgspec import Struct

from leaseway.domain.errors import UsageError
from leaseway.domain.ids import Instant
from leaseway.imports.domain.drift import Drift
from leaseway.imports.domain.run_state import RunRow, ShardRow
from leaseway.imports.progress.report import drift_of, totals_of
from leaseway.imports.sinks.port import Changes, Sink


class ShardDifference(Struct, frozen=True):
    before: ShardRow
    after: ShardRow


class Differences(Struct, frozen=True, kw_only=True):
    before: RunRow
    after: RunRow
    totals_before: dict[str, int]
    totals_after: dict[str, int]
    new: Sequence[ShardRow]
    """Shards that only the later run has."""
    gone: Sequence[ShardRow]
    """Shards that only the earlier one has."""
    changed: Sequence[ShardDifference]
    """In both, with another number of rows or in another state."""
    rows: Changes
    """Between the end of the one and the end of the other."""
    drift: Drift | None

    @property
    def window(self) -> tuple[Instant, Instant | None]:
        return end_of(self.before), self.after.finished_at


async def differences(sink: Sink, before: RunRow, after: RunRow, now: Instant) -> Differences:
    if before.id == after.id:
        raise UsageError(f"run {before.id} is compared with itself; name two different runs")
    if before.started_at > after.started_at:
        before, after = after, before
    old, new = await sink.shards(before.id), await sink.shards(after.id)
    was = {row.shard.key: row for row in old}
    is_ = {row.shard.key: row for row in new}
    pairs = [ShardDifference(was[key], is_[key]) for key in sorted(was.keys() & is_.keys())]
    return Differences(
        before=before,
        after=after,
        totals_before=totals_of(old),
        totals_after=totals_of(new),
        new=[row for row in new if row.shard.key not in was],
        gone=[row for row in old if row.shard.key not in is_],
        changed=[pair for pair in pairs if facts(pair.before) != facts(pair.after)],
        rows=await sink.changes(after.source, end_of(before), after.finished_at or now),
        drift=drift_of(old, new),
    )


def facts(row: ShardRow) -> tuple[str, int]:
    return row.state.value, row.rows


def end_of(run: RunRow) -> Instant:
    return run.finished_at or run.started_at
