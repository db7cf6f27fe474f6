"""Reads of jobs and lanes, inspection, and the history of the work, in memory."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from heapq import nlargest

from msgspec.structs import replace

from leaseway.domain.health import Finding, judge_failed
from leaseway.domain.history.rows import HISTORY_PAGE, HistoryLevel, HistoryRow, start_of
from leaseway.domain.ids import Instant, JobId, WorkerId
from leaseway.domain.inspection import (
    OWNERS_MAX,
    PAGE_BYTES_MAX,
    PAGE_MAX,
    SCAN_MAX,
    SUMMARIES_MAX,
    SUMMARY_PROGRESS_BYTES_MAX,
    EndedCount,
    JobFilter,
    JobSummary,
    LaneWait,
    LeaseOwner,
    SearchPage,
    cut_page,
)
from leaseway.domain.job import ErrorRecord, Job, State
from leaseway.domain.lane import LaneCount
from leaseway.domain.outcome import usable_lease_us
from leaseway.stores.memory.state import FINAL, JobRow, Lane, MemoryState, Place, atomic, build_job, count_lane, matches

ORDER = list(State)


class MemoryReads:
    def __init__(self, state: MemoryState) -> None:
        self._state = state

    @atomic
    async def job(self, job: JobId) -> Job | None:
        row = self._state.rows.get(job)
        return None if row is None else build_job(row)

    @atomic
    async def jobs(
        self, which: JobFilter, *, before: JobId | None = None, limit: int = 50, bytes_max: int | None = None
    ) -> list[Job]:
        page = newest_first(self._state, which, before)
        return cut_page(map(build_job, page[: max(min(limit, PAGE_MAX), 0)]), bytes_max)

    @atomic
    async def errors(self, job: JobId) -> list[ErrorRecord]:
        row = self._state.rows.get(job)
        return [] if row is None else list(row.errors)

    @atomic
    async def lanes(self, tenant: str | None = None) -> Sequence[LaneCount]:
        lanes = (lane for _, lane in sorted(self._state.lanes.items()))
        return [count_lane(lane) for lane in lanes if tenant in (None, lane.tenant)]

    async def now(self) -> Instant:
        return self._state.now_us()

    async def locked_by(self, job: JobId) -> str | None:
        return None


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
        page = cut_page(found[:limit], PAGE_BYTES_MAX)
        if len(page) < len(found):
            return SearchPage(page, page[-1].id)
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
    async def jobs_for_keys(self, tenant: str, keys: Sequence[str]) -> dict[str, JobId]:
        known = {key: self._state.keys.get((tenant, key)) for key in keys}
        now = self._state.now_us()
        return {key: each.job for key, each in known.items() if each is not None and each.expires_at > now}

    async def health(self, *, deep: bool = False) -> list[Finding]:
        return [judge_failed(list(await MemoryReads(self._state).lanes()))]


def newest_first(state: MemoryState, which: JobFilter, before: JobId | None) -> list[JobRow]:
    found = [row for row in state.rows.values() if matches(row, which) and (before is None or row.id < before)]
    return sorted(found, key=lambda row: row.id, reverse=True)


def summarize(row: JobRow) -> JobSummary:
    new, last_error = row.new, row.last_error
    return JobSummary(
        id=new.id, kind=new.kind, queue=new.queue, tenant=new.tenant, state=row.state, priority=new.priority,
        attempts=row.attempts, attempts_max=new.attempts_max, progress=short_progress(row), lease_owner=row.owner,
        lease_until=row.until if row.place is Place.LEASED else None, cancel_requested=row.cancel_requested,
        created_at=row.created_at, run_at=row.run_at, finished_at=row.finished_at if row.place in FINAL else None,
        last_error_code=last_error.code if last_error else None, last_error_at=last_error.at if last_error else None,
    )  # fmt: skip


def short_progress(row: JobRow) -> str | None:
    is_short = row.progress is not None and len(row.progress.encode()) <= SUMMARY_PROGRESS_BYTES_MAX
    return row.progress if is_short else None


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
        seen_at=max(row.until - usable_lease_us(row.new.lease_us) for row in rows),
        until=min(row.until for row in rows),
    )


class MemoryHistory:
    def __init__(self, state: MemoryState) -> None:
        self._state = state
        self._rows: dict[str, HistoryRow] = {}

    @atomic
    async def record(self, rows: Sequence[HistoryRow]) -> None:
        self._record(rows)

    def _record(self, rows: Sequence[HistoryRow]) -> None:
        minute = start_of(self._state.now_us(), HistoryLevel.MINUTE)
        for row in rows:
            self._rows.setdefault(row.id, replace(row, at=row.at or minute))

    @atomic
    async def rows(
        self,
        level: HistoryLevel,
        since: Instant,
        until: Instant,
        *,
        tenant: str | None = None,
        after: str = "",
        limit: int = HISTORY_PAGE,
    ) -> list[HistoryRow]:
        found = [
            row
            for row in self._rows.values()
            if row.level is level and since <= row.at < until and tenant in (None, row.tenant)
            if row.at > since or row.id > after
        ]
        return sorted(found, key=lambda row: (row.at, row.id))[:limit]

    @atomic
    async def replace(self, ids: Sequence[str], rows: Sequence[HistoryRow]) -> None:
        for id_ in ids:
            self._rows.pop(id_, None)
        self._record(rows)

    @atomic
    async def prune(self, level: HistoryLevel, before: Instant, limit: int) -> int:
        old = [row.id for row in self._rows.values() if row.level is level and row.at < before][:limit]
        for id_ in old:
            del self._rows[id_]
        return len(old)
