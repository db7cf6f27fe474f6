"""Progress of a running run: how far, how fast, how long until its end.

    the run and its shards, sample by sample ─► RunSnapshot

Pure: the caller provides the time. `progress_view.py` draws the snapshots.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from leaseway.domain.limits.limit import Rate
from leaseway.imports.domain.run_state import RunRow, ShardRow, ShardState

RATE_SECONDS = 5.0
"""Rates cover the last seconds, not the whole run, so that a stalled run is visible."""
PACE_SECONDS_MIN = 1.0
ETA_SECONDS = 15.0
ETA_SECONDS_MIN = 2.0
"""No estimate before that."""
ENDED = (ShardState.DONE, ShardState.SPLIT, ShardState.PARKED)


class RunningShard(NamedTuple):
    """A shard that is being processed."""

    label: str
    rows: int
    share: float | None
    """None if its size is unknown."""


class ShardProblem(NamedTuple):
    label: str
    why: str
    is_parked: bool
    """False: it will be retried."""


class RequestBudget(NamedTuple):
    requests: int
    requests_max: int


class RunSnapshot(Struct, frozen=True, kw_only=True):
    """The state of a run at one moment."""

    run: str
    seconds: float
    """Since the first sample."""
    shards: int
    ended: int
    running: int
    rows: int
    requests: int
    share: float
    rows_per_second: float = 0.0
    requests_per_second: float = 0.0
    seconds_left: float | None = None
    limit: Rate | None = None
    budget: RequestBudget | None = None
    running_shards: Sequence[RunningShard] = ()
    guards: Mapping[str, int] = {}
    quarantined: int = 0
    problems: Sequence[ShardProblem] = ()


class ProgressSample(NamedTuple):
    at: float
    rows: int
    requests: int
    share: float


class ProgressTracker:
    """Keeps recent samples, for rates and estimates."""

    def __init__(self, limit: Rate | None = None) -> None:
        self._limit = limit
        self._began_at: float | None = None
        self._samples: deque[ProgressSample] = deque()

    def update(self, at: float, run: RunRow, shards: Sequence[ShardRow]) -> RunSnapshot:
        """`at` is in seconds, on a monotonic clock."""
        rows, requests = sum(row.rows for row in shards), sum(row.requests for row in shards)
        sample = ProgressSample(at, rows, requests, completed_share(run, shards))
        self._began_at = at if self._began_at is None else self._began_at
        self._samples.append(sample)
        while self._samples[0].at < at - ETA_SECONDS:
            self._samples.popleft()
        recent = [each for each in self._samples if each.at >= at - RATE_SECONDS]
        guards: Counter[str] = Counter()
        for row in shards:
            guards.update(row.guards)
        running, id_max = [row for row in shards if row.state is ShardState.RUNNING], known_id_max(run, shards)
        return RunSnapshot(
            run=run.id,
            seconds=at - self._began_at,
            shards=len(shards),
            ended=sum(row.state in ENDED for row in shards),
            running=len(running),
            rows=rows,
            requests=requests,
            share=sample.share,
            rows_per_second=rate_per_second(recent, sample.rows - recent[0].rows),
            requests_per_second=rate_per_second(recent, sample.requests - recent[0].requests),
            seconds_left=seconds_left(self._samples[0], sample),
            limit=self._limit,
            budget=None if run.requests_max is None else RequestBudget(run.requests, run.requests_max),
            running_shards=[RunningShard(row.shard.label, row.rows, shard_share(row, id_max)) for row in running],
            guards=dict(guards),
            quarantined=sum(row.quarantined for row in shards),
            problems=[trouble for row in shards if (trouble := shard_problem(row)) is not None],
        )


# -- rates ------------------------------------------------------------------------------------------------------------


def rate_per_second(samples: Sequence[ProgressSample], gained: int) -> float:
    """Per second."""
    return gained / max(samples[-1].at - samples[0].at, PACE_SECONDS_MIN)


def seconds_left(first: ProgressSample, last: ProgressSample) -> float | None:
    """None: too early for an estimate, or no progress."""
    seconds, gained = last.at - first.at, last.share - first.share
    if last.share >= 1:
        return 0.0
    return None if seconds < ETA_SECONDS_MIN or gained <= 0 else (1 - last.share) * seconds / gained


def tightest(rates: Sequence[Rate]) -> Rate | None:
    """The rate that limits long runs."""
    return min(rates, key=lambda rate: rate.count / rate.window_us, default=None)


# -- shares -----------------------------------------------------------------------------------------------------------


class ShardExtent(NamedTuple):
    """How much of a shard is done, in rows or in ids."""

    done: float
    whole: float


def completed_share(run: RunRow, shards: Sequence[ShardRow]) -> float:
    """The share of rows if all shards know their number of rows; otherwise of ids; otherwise of shards."""
    id_max = known_id_max(run, shards)
    for measure in (by_rows, by_ids):
        found = [measure(row, id_max) for row in shards]
        extents = [extent for extent in found if extent is not None]
        if len(extents) == len(found):
            break
    else:
        extents = [ShardExtent(row.state in ENDED, 1) for row in shards]
    whole = sum(extent.whole for extent in extents)
    return min(sum(extent.done for extent in extents) / whole, 1.0) if whole else 0.0


def known_id_max(run: RunRow, shards: Sequence[ShardRow]) -> int | None:
    """If the run does not contain it, the end of the last closed range: the open range after it is short."""
    ends = [row.shard.predicate["id"][1] for row in shards if "id" in row.shard.predicate]
    return run.id_max if run.id_max is not None else max((end for end in ends if isinstance(end, int)), default=None)


def shard_share(row: ShardRow, id_max: int | None) -> float | None:
    extent = by_rows(row, id_max) or by_ids(row, id_max)
    return None if extent is None or not extent.whole else min(extent.done / extent.whole, 1.0)


def by_rows(row: ShardRow, id_max: int | None) -> ShardExtent | None:
    if row.state in (ShardState.DONE, ShardState.SPLIT):  # the children of a split shard have the rest
        return ShardExtent(row.rows, row.rows)
    estimate = row.shard.estimated_rows
    return None if estimate is None else ShardExtent(row.rows, max(estimate, row.rows, 1))


def by_ids(row: ShardRow, id_max: int | None) -> ShardExtent | None:
    """The position of the cursor within a range of ids."""
    low, high = row.shard.predicate.get("id", (None, None))
    if high is None and id_max is not None:
        high = max(id_max, low or 0) + 1  # the last range is open, for records created during the run
    if not isinstance(low, int) or not isinstance(high, int):
        return None
    after = None if row.cursor is None else row.cursor.get("after")
    done = min(max(after + 1 - low, 0), high - low) if isinstance(after, int) else 0
    if row.state is ShardState.DONE:
        return ShardExtent(high - low, high - low)
    return ShardExtent(done, done if row.state is ShardState.SPLIT else high - low)


# -- problems ---------------------------------------------------------------------------------------------------------


def shard_problem(row: ShardRow) -> ShardProblem | None:
    if row.why is None or row.state in (ShardState.DONE, ShardState.SPLIT):
        return None
    return ShardProblem(row.shard.label, row.why, row.state is ShardState.PARKED)
