"""Reads of jobs and lanes, and inspection, in memory."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from heapq import nlargest

from leaseway.domain.health import Finding, judge_failed
from leaseway.domain.ids import Instant, JobId, WorkerId
from leaseway.domain.inspection import (
    OWNERS_MAX,
    PAGE_MAX,
    SCAN_MAX,
    SUMMARIES_MAX,
    EndedCount,
    JobFilter,
    JobSummary,
    LaneWait,
    LeaseOwner,
    SearchPage,
)
from leaseway.domain.job import ErrorRecord, Job, State
from leaseway.domain.lane import LaneCount
from leaseway.stores.memory.rows import FINAL, JobRow, Lane, Place, build_job, count_lane, matches
from leaseway.stores.memory.state import MemoryState, atomic

ORDER = list(State)


class MemoryReads:
    def __init__(self, state: MemoryState) -> None:
        self._state = state

    @atomic
    async def job(self, job: JobId) -> Job | None:
        row = self._state.rows.get(job)
        return None if row is None else build_job(row)

    @atomic
    async def jobs(self, which: JobFilter, *, before: JobId | None = None, limit: int = 50) -> list[Job]:
        page = newest_first(self._state, which, before)
        return [build_job(row) for row in page[: max(min(limit, PAGE_MAX), 0)]]

    @atomic
    async def errors(self, job: JobId) -> list[ErrorRecord]:
        row = self._state.rows.get(job)
        return [] if row is None else list(row.errors)

    @atomic
    async def lanes(self) -> Sequence[LaneCount]:
        return [count_lane(lane) for _, lane in sorted(self._state.lanes.items())]

    async def now(self) -> Instant:
        return self._state.now_us()


class MemoryInspection:
    def __init__(self, state: MemoryState) -> None:
        self._state = state

    @atomic
    async def search(
        self, which: JobFilter, *, before: JobId | None = None, limit: int = 50, scan_max: int = SCAN_MAX
    ) -> SearchPage:
        rows = newest_first(self._state, JobFilter(queue=which.queue, tenant=which.tenant), before)
        scanned = rows[:scan_max]
        found = [build_job(row) for row in scanned if matches(row, which)][: limit + 1]
        if len(found) > limit:
            return SearchPage(found[:limit], found[limit - 1].id)
        return SearchPage(found, scanned[-1].id if len(scanned) < len(rows) else None)

    @atomic
    async def recent(self, newest: int, ended_after: Instant, ended: int) -> tuple[Instant, list[JobSummary]]:
        rows = self._state.rows.values()
        late = [row for row in rows if row.place in FINAL and row.finished_at > ended_after]
        found = nlargest(newest, rows, key=lambda row: row.id)
        found += nlargest(ended, late, key=lambda row: row.finished_at)
        return self._state.now_us(), [summarize(row) for row in found]

    @atomic
    async def summaries(self, ids: Sequence[JobId]) -> list[JobSummary]:
        rows = self._state.rows
        return [summarize(rows[each]) for each in set(ids[:SUMMARIES_MAX]) if each in rows]

    @atomic
    async def owners(self) -> list[LeaseOwner]:
        now, leases = self._state.now_us(), leases_by_worker(self._state.lanes)
        return [owner(name, rows, now) for name, rows in sorted(leases.items())[:OWNERS_MAX]]

    @atomic
    async def waiting(self) -> list[LaneWait]:
        return [
            LaneWait(queue=queue, tenant=tenant, needs=needs, since=min(row.run_at for row in ready.values()))
            for (queue, tenant, needs), lane in sorted(self._state.lanes.items())
            if (ready := lane.places[Place.READY])
        ]

    @atomic
    async def ended(self, after: Instant) -> tuple[Instant, list[EndedCount]]:
        late = [row for row in self._state.at(*FINAL) if row.finished_at > after]
        counts = Counter((row.lane.queue, row.lane.tenant, ORDER.index(row.state)) for row in late)
        return after, [
            EndedCount(queue=queue, tenant=tenant, state=ORDER[state], count=count)
            for (queue, tenant, state), count in sorted(counts.items())
        ]

    @atomic
    async def job_for_key(self, tenant: str, key: str) -> JobId | None:
        known = self._state.keys.get((tenant, key))
        return known.job if known is not None and known.expires_at > self._state.now_us() else None

    async def health(self, *, deep: bool = False) -> list[Finding]:
        return [judge_failed(list(await MemoryReads(self._state).lanes()))]


def newest_first(state: MemoryState, which: JobFilter, before: JobId | None) -> list[JobRow]:
    found = [row for row in state.rows.values() if matches(row, which) and (before is None or row.id < before)]
    return sorted(found, key=lambda row: row.id, reverse=True)


def summarize(row: JobRow) -> JobSummary:
    new, last_error = row.new, row.last_error
    return JobSummary(
        id=new.id, kind=new.kind, queue=new.queue, tenant=new.tenant, state=row.state, priority=new.priority,
        attempts=row.attempts, attempts_max=new.attempts_max, progress=row.progress, lease_owner=row.owner,
        lease_until=row.until if row.place is Place.LEASED else None, cancel_requested=row.cancel_requested,
        created_at=row.created_at, run_at=row.run_at, finished_at=row.finished_at if row.place in FINAL else None,
        last_error_code=last_error.code if last_error else None, last_error_at=last_error.at if last_error else None,
    )  # fmt: skip


def leases_by_worker(lanes: Mapping[tuple[str, str, str], Lane]) -> Mapping[WorkerId, list[JobRow]]:
    found: defaultdict[WorkerId, list[JobRow]] = defaultdict(list)
    for lane in lanes.values():
        for row in lane.places[Place.LEASED].values():
            assert row.owner is not None
            found[row.owner].append(row)
    return found


def owner(name: WorkerId, rows: list[JobRow], now: Instant) -> LeaseOwner:
    return LeaseOwner(
        name=name,
        leased=len(rows),
        expired=sum(row.until <= now for row in rows),
        seen_at=max(row.until - row.new.lease_us for row in rows),
        until=min(row.until for row in rows),
    )
