"""Which part of a source a run asks for: all there is, or what has changed since the last run that became complete.

The watermark of a run is the source's own time when the run began, never the largest stamp that it saw: a change that
was made before a page was read, and became visible after it, has an older stamp than the newest row of that page. The
next run begins at the watermark less the overlap, which is at least as long as a change can stay invisible.
"""

from datetime import timedelta
from typing import NamedTuple

from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.ids import Instant
from leaseway.imports.domain.partition import format_instant
from leaseway.imports.domain.run_state import RunMode, RunRow
from leaseway.imports.spec.model import Incremental


class RunHistory(NamedTuple):
    """Runs of a source that became complete. A partial, failed or suspect one is none: it moves nothing."""

    base: RunRow | None = None
    """The newest with this spec and a watermark: what is newer is what has changed since."""
    last_full: RunRow | None = None
    """The newest with this spec that has read everything."""
    known: RunRow | None = None
    """The newest with a watermark, whatever its spec was: the rows that are there were true then."""


class StampGrain(NamedTuple):
    """How exact and how late the stamps of a source are."""

    granularity_us: int
    lag_us: int

    def floored(self, instant: Instant) -> Instant:
        return instant - instant % max(self.granularity_us, 1)


class RunScope(NamedTuple):
    mode: RunMode
    since: Instant | None
    """None: all there is."""
    watermark: Instant | None
    why: str
    deleted_since: Instant | None = None
    """From when on to ask for records that are no more. None: nothing is there that could have been deleted."""


def choose_scope(
    incremental: Incremental | None, grain: StampGrain, history: RunHistory, wanted: RunMode | None, now: Instant | None
) -> RunScope:
    """`now` is the source's time, or ours if it does not tell; None: nobody knows, and no watermark is set."""
    watermark = None if now is None else grain.floored(now)
    if incremental is None:
        if wanted is RunMode.INCREMENTAL:
            raise UsageError(
                "the spec does not say how to ask for changes; add [resource.incremental], or run without --incremental"
            )
        return RunScope(RunMode.FULL, None, watermark, "the spec has no [resource.incremental]")
    check_overlap(incremental, grain)
    deleted_since = changes_since(history.base or history.known, incremental, grain, watermark)
    since = changes_since(history.base, incremental, grain, watermark)
    obstacle = full_run_reason(history, incremental, now)
    if wanted is RunMode.INCREMENTAL and since is None:
        raise UsageError(f"an incremental run is not possible: {obstacle}; run without --incremental first")
    if since is None or wanted is RunMode.FULL or (wanted is None and obstacle is not None):
        why = "it was asked for" if wanted is RunMode.FULL else str(obstacle)
        return RunScope(RunMode.FULL, None, watermark, why, deleted_since)
    return RunScope(RunMode.INCREMENTAL, since, watermark, incremental_reason(history, incremental), deleted_since)


def full_run_reason(history: RunHistory, incremental: Incremental, now: Instant | None) -> str | None:
    """Why everything has to be read; None: it does not have to."""
    if history.base is None:
        return "no run of this spec has become complete yet"
    if history.last_full is None:
        return "no full run of this spec is on record"
    # By the source's own clock, if it has told us one both times.
    then = history.last_full.watermark or history.last_full.started_at
    age_us = 0 if now is None else now - then
    if age_us >= incremental.reconcile_us:
        age = timedelta(seconds=age_us // 1_000_000)
        return f"the last full run is {age} old, and resource.incremental.reconcile is {incremental.reconcile}"
    return None


def incremental_reason(history: RunHistory, incremental: Incremental) -> str:
    base = history.base.id if history.base is not None else ""
    return f"changes since run {base}, which is complete, and {incremental.overlap} of overlap"


def changes_since(
    base: RunRow | None, incremental: Incremental, grain: StampGrain, watermark: Instant | None
) -> Instant | None:
    if base is None or base.watermark is None:
        return None
    # A source whose clock was set back gives stamps that lie before the last watermark.
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
    """No upper end: what is changed while we read is written, too, and moves no watermark."""
    return [format_instant(since), None]
