"""Reads of jobs and lanes, and inspection, in PostgreSQL."""

from collections.abc import Sequence
from datetime import UTC, datetime

from leaseway.domain.health import Finding
from leaseway.domain.ids import SECOND_US, Instant, JobId
from leaseway.domain.inspection import (
    NEWEST,
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
    SearchStep,
    merge_steps,
)
from leaseway.domain.job import ErrorRecord, Job
from leaseway.domain.lane import LaneCount
from leaseway.stores.postgres import rows
from leaseway.stores.postgres.connection import Record
from leaseway.stores.postgres.database import Database
from leaseway.stores.postgres.rows import STATES, filter_conditions
from leaseway.stores.postgres.search import Sought, render_search

DAY_US = 86_400 * SECOND_US
PAGES_MAX = 512
"""Pages of 8 KiB that are read at most; they hold about ENDED_MAX jobs with small payloads."""


class PostgresReads:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def job(self, job: JobId) -> Job | None:
        found = await self.jobs(JobFilter(ids=(job,)), limit=1)
        return found[0] if found else None

    async def jobs(self, which: JobFilter, *, before: JobId | None = None, limit: int = 50) -> list[Job]:
        conditions, values = filter_conditions(which, [max(min(limit, PAGE_MAX), 0)])
        if before is not None:
            values.append(before)
            conditions.append(f"id < ${len(values)}")
        text = self._database.sql["list_jobs"].replace(":conditions", " AND ".join(["true", *conditions]))
        return [rows.parse_job(row) for row in await self._database.connections.read(text, *values)]

    async def errors(self, job: JobId) -> list[ErrorRecord]:
        return [rows.parse_error(row) for row in await self._database.read("list_errors", job)]

    async def lanes(self) -> list[LaneCount]:
        return [rows.parse_lane(row) for row in await self._database.read("list_lanes")]

    async def now(self) -> Instant:
        return await self._database.now()


class PostgresInspection:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def search(
        self, which: JobFilter, *, before: JobId | None = None, limit: int = 50, looks: int = SCAN_MAX
    ) -> SearchPage:
        ((lanes, ready, scheduled, leased),) = await self._database.read("count_search", which.queue, which.tenant)
        counted = {"ready": int(ready), "scheduled": int(scheduled), "leased": int(leased)}
        is_any = which.queue is None and which.tenant is None
        sought = Sought(which, looks, None if is_any else lanes, counted)
        if sought.lanes == [] or not sought.states:
            return SearchPage([], None)
        text = render_search(sought)
        values = (before or NEWEST, limit + 1, sought.lanes, which.kind, which.error_code, which.shard_key)
        scanned = await self._database.connections.read(text.replace(":schema", self._database.address.quoted), *values)
        ids, upto = merge_steps([SearchStep(ids, upto) for ids, upto in scanned], limit)
        return SearchPage(
            await PostgresReads(self._database).jobs(JobFilter(ids=tuple(ids)), limit=limit) if ids else [], upto
        )

    async def recent(self, newest: int, ended_after: Instant, ended: int) -> tuple[Instant, list[JobSummary]]:
        now = await self._database.now()
        day = now - now % DAY_US
        table = f"{self._database.address.quoted}.history_{datetime.fromtimestamp(day // SECOND_US, UTC):%Y%m%d}"
        bounds = (day, day + DAY_US, table)
        found = await self._database.read("recent_summaries", max(newest, 0), ended_after, max(ended, 0), *bounds)
        return now, [parse_summary(row) for row in found]

    async def summaries(self, ids: Sequence[JobId]) -> list[JobSummary]:
        return [parse_summary(row) for row in await self._database.read("summaries_by_id", list(ids[:SUMMARIES_MAX]))]

    async def owners(self) -> list[LeaseOwner]:
        found = await self._database.read("list_owners", self._database.at(), OWNERS_MAX)
        return [
            LeaseOwner(name=name, leased=leased, late=late, heard_at=heard_at, until=until)
            for name, leased, late, heard_at, until in found
        ]

    async def waiting(self) -> list[LaneWait]:
        found = await self._database.read("oldest_waiting")
        return [LaneWait(queue=queue, tenant=tenant, needs=needs, since=since) for queue, tenant, needs, since in found]

    async def ended(self, after: Instant) -> tuple[Instant, list[EndedCount]]:
        now = await self._database.now()
        day = now - now % DAY_US
        table = f"{self._database.address.quoted}.history_{datetime.fromtimestamp(day // SECOND_US, UTC):%Y%m%d}"
        found = await self._database.read("recent_outcomes", after, day, day + DAY_US, table, PAGES_MAX)
        return int(found[0][0]), [
            EndedCount(queue=queue, tenant=tenant, state=STATES[state], count=count)
            for _, queue, tenant, state, count in found
            if count is not None
        ]

    async def job_for_key(self, tenant: str, key: str) -> JobId | None:
        for (job,) in await self._database.read("job_by_key", tenant, key, self._database.at()):
            return JobId(job)
        return None

    async def health(self, *, deep: bool = False) -> list[Finding]:
        from leaseway.stores.postgres.health import check_health  # imported here because workers do not need it

        return await check_health(self._database.connections, deep)


def parse_summary(row: Record) -> JobSummary:
    (id_, kind, queue, tenant, state, priority, attempts, most, progress, owner, until, cancel_requested, created_at,
     run_at, finished_at, error_code, error_at) = row  # fmt: skip
    return JobSummary(
        id=id_, kind=kind, queue=queue, tenant=tenant, state=STATES[state], priority=priority, attempts=attempts,
        attempts_max=most, progress=progress, lease_owner=owner, lease_until=until, cancel_requested=cancel_requested,
        created_at=created_at, run_at=run_at, finished_at=finished_at, last_error_code=error_code,
        last_error_at=error_at,
    )  # fmt: skip
