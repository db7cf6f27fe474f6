"""Which part of a source a run reads: everything, or the changes since the last complete run.

The watermark of a run is the source's time when the run started, never the largest stamp that it saw: a change made
before a page was read can become visible after it and has an older stamp than the newest row of that page. The next run
starts at the watermark minus the overlap, which is at least as long as a change can stay invisible.
"""

from datetime import timedelta
from typing import NamedTuple

from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.ids import Instant
from leaseway.imports.domain.partition import format_instant
from leaseway.imports.domain.run_state import RunMode, RunRow
from leaseway.imports.spec.model import Incremental


class RunHistory(NamedTuple):
    """Complete runs of a source. Partial, failed and suspect runs do not count."""

    base: RunRow | None = None
    """The newest with this spec and a watermark. An incremental run reads the changes since then."""
    last_full: RunRow | None = None
    """The newest full run with this spec."""
    known: RunRow | None = None
    """The newest with a watermark, with any spec: the stored rows were current then."""


class StampGrain(NamedTuple):
    """Granularity and lag of a source's stamps."""

    granularity_us: int
    lag_us: int

    def floored(self, instant: Instant) -> Instant:
        return instant - instant % max(self.granularity_us, 1)


class RunScope(NamedTuple):
    mode: RunMode
    since: Instant | None
    """None: everything."""
    watermark: Instant | None
    why: str
    deleted_since: Instant | None = None
    """The instant from which deleted records are requested. None: no row is stored that could have been deleted."""


def choose_scope(
    incremental: Incremental | None, grain: StampGrain, history: RunHistory, wanted: RunMode | None, now: Instant | None
) -> RunScope:
    """`now` is the source's time, or the local time if the source does not report it. None: unknown; no watermark is
    set.
    """
    watermark = None if now is None else grain.floored(now)
    if incremental is None:
        if wanted is RunMode.INCREMENTAL:
            raise UsageError("the spec has no [resource.incremental]; add it, or run without --incremental")
        return RunScope(RunMode.FULL, None, watermark, "the spec has no [resource.incremental]")
    check_overlap(incremental, grain)
    deleted_since = changes_since(history.base or history.known, incremental, grain, watermark)
    since = changes_since(history.base, incremental, grain, watermark)
    obstacle = full_run_reason(history, incremental, now)
    if wanted is RunMode.INCREMENTAL and since is None:
        raise UsageError(f"an incremental run is not possible: {obstacle}; run without --incremental first")
    if since is None or wanted is RunMode.FULL or (wanted is None and obstacle is not None):
        why = "it was requested" if wanted is RunMode.FULL else str(obstacle)
        return RunScope(RunMode.FULL, None, watermark, why, deleted_since)
    return RunScope(RunMode.INCREMENTAL, since, watermark, incremental_reason(history, incremental), deleted_since)


def full_run_reason(history: RunHistory, incremental: Incremental, now: Instant | None) -> str | None:
    """Why a full run is needed. None if it is not."""
    if history.base is None:
        return "no run of this spec is complete yet"
    if history.last_full is None:
        return "no full run of this spec is stored"
    # Measured with the source's clock if it was known both times.
    then = history.last_full.watermark or history.last_full.started_at
    age_us = 0 if now is None else now - then
    if age_us >= incremental.reconcile_us:
        age = timedelta(seconds=age_us // 1_000_000)
        return f"the last full run is {age} old, and resource.incremental.reconcile is {incremental.reconcile}"
    return None


def incremental_reason(history: RunHistory, incremental: Incremental) -> str:
    base = history.base.id if history.base is not None else ""
    return f"changes since run {base} (complete), with an overlap of {incremental.overlap}"


def changes_since(
    base: RunRow | None, incremental: Incremental, grain: StampGrain, watermark: Instant | None
) -> Instant | None:
    if base is None or base.watermark is None:
        return None
    # If the source's clock was set back, new stamps are before the last watermark.
    start = base.watermark if watermark is None else min(base.watermark, watermark)
    return grain.floored(start - incremental.overlap_us)


def check_overlap(incremental: Incremental, grain: StampGrain) -> None:
    least_us = grain.granularity_us + grain.lag_us
    if incremental.overlap_us < least_us:
        raise BadValue(
            "resource.incremental.overlap",
            f"must be at least lag + granularity of the source, {least_us / 1_000_000:g} s, or changes are lost "
            f"(is {incremental.overlap!r})",
        )


def open_window(since: Instant) -> list[str | None]:
    """Without an upper end: changes made during the run are written as well, and do not move the watermark."""
    return [format_instant(since), None]
