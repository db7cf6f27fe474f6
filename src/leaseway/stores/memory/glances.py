"""Jobs seen in passing, in memory: the rules that the other stores follow."""

from collections.abc import Callable, Iterator, Sequence
from heapq import nlargest
from threading import RLock
from typing import Protocol

from leaseway.domain.ids import Instant, JobId
from leaseway.domain.inspection import SUMMARIES_MAX, JobSummary
from leaseway.stores.memory.rows import FINAL, Lane, Place, Row


class Keeping(Protocol):
    """The store of which this is a part."""

    _lock: RLock
    _now: Callable[[], Instant]
    _lanes: dict[tuple[str, str, str], Lane]


class MemoryGlances:
    async def lately(self: Keeping, newest: int, ended_after: Instant, ended: int) -> tuple[Instant, list[JobSummary]]:
        with self._lock:
            rows = list(rows_of(self._lanes))
            late = [row for row in rows if row.place in FINAL and row.finished_at > ended_after]
            found = nlargest(newest, rows, key=lambda row: row.id)
            found += nlargest(ended, late, key=lambda row: row.finished_at)
            return self._now(), [glimpse_of(row) for row in found]

    async def glimpses(self: Keeping, ids: Sequence[JobId]) -> list[JobSummary]:
        asked = set(ids[:SUMMARIES_MAX])
        with self._lock:
            return [glimpse_of(row) for row in rows_of(self._lanes) if row.id in asked]


def rows_of(lanes: dict[tuple[str, str, str], Lane]) -> Iterator[Row]:
    return (row for lane in lanes.values() for place in lane.places.values() for row in place.values())


def glimpse_of(row: Row) -> JobSummary:
    new, last_error = row.new, row.last_error
    return JobSummary(
        id=new.id, kind=new.kind, queue=new.queue, tenant=new.tenant, state=row.state, priority=new.priority,
        attempts=row.attempts, attempts_max=new.attempts_max, progress=row.progress, lease_owner=row.owner,
        lease_until=row.until if row.place is Place.LEASED else None, cancel_requested=row.cancel_requested,
        created_at=row.created_at, run_at=row.run_at, finished_at=row.finished_at if row.place in FINAL else None,
        last_error_code=last_error.code if last_error else None, last_error_at=last_error.at if last_error else None,
    )  # fmt: skip
