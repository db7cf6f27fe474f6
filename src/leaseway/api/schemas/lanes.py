"""Lanes and their pauses."""

from collections.abc import Mapping, Sequence
from typing import Any

from leaseway.api.schemas.jobs import WaitsForDocument, waits_for_document
from leaseway.api.schemas.values import Document, Timestamp, extend, parse_stored, seconds, timestamp
from leaseway.domain.gates import Closure, longest_closure
from leaseway.domain.ids import Instant
from leaseway.domain.lane import LaneCount, Pause

COUNTS = ("ready", "scheduled", "leased", "done", "failed", "cancelled")
ReadySince = Mapping[tuple[str, str, str], Instant]
"""By queue, tenant and needs: since when the oldest ready job of a lane has been ready."""


class CountsDocument(Document, kw_only=True):
    ready: int
    scheduled: int
    leased: int
    done: int
    failed: int
    cancelled: int


class LaneCountsDocument(Document, kw_only=True):
    queue: str
    tenant: str
    needs: Any
    ready: int
    scheduled: int
    leased: int
    done: int
    failed: int
    cancelled: int
    waits_for: list[WaitsForDocument]


class LaneDocument(LaneCountsDocument, kw_only=True):
    oldest_ready_seconds: float | None
    reason: str | None
    """The reason that lasts longest_closure."""
    until: Timestamp | None
    """null: the lane does not wait, or the end of the wait is not known."""


class LanesDocument(Document, kw_only=True):
    items: list[LaneDocument]
    next: str | None
    total: CountsDocument


class LanesPauseDocument(Document, kw_only=True):
    """The lanes of a queue from which no jobs are claimed."""

    queue: str
    tenant: str | None
    """null: all tenants."""
    since: Timestamp | None


class LanesPausedDocument(LanesPauseDocument, kw_only=True):
    paused: bool


def lane_counts_document(lane: LaneCount, closures: Sequence[Closure] = ()) -> LaneCountsDocument:
    return LaneCountsDocument(
        queue=lane.queue,
        tenant=lane.tenant,
        needs=parse_stored(lane.needs or None),
        waits_for=[waits_for_document(closure) for closure in closures],
        **lane_counts(lane),
    )


def lane_document(lane: LaneCount, closures: Sequence[Closure], since: ReadySince, now: Instant) -> LaneDocument:
    closure = longest_closure(closures) if closures else None
    oldest = since.get((lane.queue, lane.tenant, lane.needs))
    return extend(
        LaneDocument,
        lane_counts_document(lane, closures),
        oldest_ready_seconds=None if oldest is None else seconds(max(now - oldest, 0)),
        reason=None if closure is None else f"{closure.what} {closure.name}: {closure.why}",
        until=None if closure is None or closure.wait_us is None else timestamp(now + closure.wait_us),
    )


def lane_counts(lane: LaneCount) -> dict[str, int]:
    return {name: getattr(lane, name) for name in COUNTS}


def total_counts(lanes: Sequence[LaneCount]) -> CountsDocument:
    return CountsDocument(**{name: sum(getattr(lane, name) for lane in lanes) for name in COUNTS})


def pause_document(pause: Pause) -> LanesPauseDocument:
    return LanesPauseDocument(queue=pause.queue, tenant=pause.tenant, since=timestamp(pause.since))
