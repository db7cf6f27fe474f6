"""Reads of jobs and lanes, inspection, and the history of the work, in PostgreSQL."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from leaseway.domain.health import Finding
from leaseway.domain.history.rows import HISTORY_PAGE, HistoryCell, HistoryLevel, HistoryRow
from leaseway.domain.ids import SECOND_US, Instant, JobId, WorkerId
from leaseway.domain.inspection import (
    NEWEST,
    OWNERS_MAX,
    PAGE_BYTES_MAX,
    PAGE_MAX,
    SCAN_MAX,
    SEARCH_LANES_MAX,
    SUMMARIES_MAX,
    EndedCount,
    JobFilter,
    JobSummary,
    LaneWait,
    LeaseOwner,
    SearchPage,
    SearchStep,
    is_cut,
    merge_steps,
    only_usable,
)
from leaseway.domain.job import ErrorRecord, Job
from leaseway.domain.lane import LaneCount
from leaseway.stores.postgres import rows
from leaseway.stores.postgres.connection import Record
from leaseway.stores.postgres.database import Database
from leaseway.stores.postgres.rows import STATES, encode_json, filter_conditions

FINISHED = {"done", "failed", "cancelled"}
UNSUCCESSFUL = "state IN ('failed', 'cancelled')"
"""The predicate of a partial index of the history; it must be the same text."""

# $1 ids before this one, $2 one more than wanted, $3 lanes, $4 kind, $5 error code, $6 shard key.
# SCAN_BY_ID reads at most so many rows from new to old, and filters them.
WINDOW = "FROM :schema.{table} WHERE {base} AND id < $1 ORDER BY id DESC LIMIT"
SCAN_BY_ID = f"""
WITH matching AS MATERIALIZED (
  SELECT id FROM (SELECT {{columns}} {WINDOW} {{rows_max}}) AS scanned WHERE {{fits}} ORDER BY id DESC LIMIT $2)
SELECT ARRAY(SELECT id FROM matching) AS ids,
       CASE WHEN (SELECT count(*) FROM matching) < $2 THEN (SELECT id {WINDOW} 1 OFFSET {{rows_max}} - 1)
            ELSE (SELECT min(id) FROM matching) END AS upto
"""
# SCAN_SUBSET reads all rows of a small subset, without ORDER BY and LIMIT, with which the planner would scan by id.
SCAN_SUBSET = """
WITH chosen AS MATERIALIZED (SELECT {columns} FROM :schema.{table} WHERE {base}),
matching AS MATERIALIZED (SELECT id FROM chosen AS scanned WHERE id < $1 AND {fits} ORDER BY id DESC LIMIT $2)
SELECT ARRAY(SELECT id FROM matching) AS ids,
       CASE WHEN (SELECT count(*) FROM matching) = $2 THEN (SELECT min(id) FROM matching) END AS upto
"""
EACH_LANE = "SELECT ids, upto FROM unnest($3::integer[]) AS each (lane) CROSS JOIN LATERAL ({scan}) AS scanned"
ALL_SCANS = "SELECT ids, upto FROM ({scans}) AS scans, (SELECT $3::integer[], $4::text, $5::text, $6::text) AS typed"
"""Every statement gets the same parameters, and PostgreSQL must know their types even if one is not used."""

COLUMNS = {"jobs": "id, lane, state, last_error_code", "history": "id, lane, state, last_error_code, kind, shard_key"}
PAYLOAD_COLUMN = {
    "jobs": "(SELECT {column} FROM :schema.payloads WHERE payloads.id = scanned.id)",
    "history": "{column}",
}
"""Immutable columns are in `payloads` until a job finishes, and then in its history row."""


class Sought(NamedTuple):
    """The filter, and what the counters of the lanes say before jobs are read."""

    which: JobFilter
    rows_max: int
    lanes: list[int] | None
    """The lanes that match; None: all."""
    counted: dict[str, int]
    """How many jobs of each state a scan would read. It only decides which scan is used."""

    @property
    def lanes_are_few(self) -> bool:
        return self.lanes is not None and len(self.lanes) <= SEARCH_LANES_MAX

    @property
    def states(self) -> set[str]:
        wanted = self.which.states
        return {name for name, state in STATES.items() if wanted is None or state in wanted}


def render_search(sought: Sought) -> str:
    scans = [*unfinished_scans(sought), *finished_scans(sought)]
    return ALL_SCANS.format(scans=" UNION ALL ".join(f"({scan})" for scan in scans))


def unfinished_scans(sought: Sought) -> Iterator[str]:
    """By state and lane if that leaves few rows, else from new to old."""
    states = sought.states - FINISHED
    by_lane = states & {"scheduled"} if sought.lanes_are_few else set()
    if sum(sought.counted[state] for state in states - by_lane) > sought.rows_max:
        yield scan(SCAN_BY_ID, "jobs", "true", sought, sought.rows_max)
        return
    if by_lane:
        yield scan_each_lane("jobs", "state = 'scheduled'", sought)
    for state in sorted(states - by_lane):
        lanes = "" if sought.lanes is None else " AND lane = ANY ($3)"
        yield scan(SCAN_SUBSET, "jobs", f"state = '{state}'{lanes}", sought, 0)


def finished_scans(sought: Sought) -> Iterator[str]:
    """By lane if there are few; by the index of unsuccessful jobs if possible; else from new to old."""
    states = sought.states & FINISHED
    if not states:
        return
    if sought.lanes_are_few:
        yield scan_each_lane("history", "true", sought)
    else:
        yield scan(SCAN_BY_ID, "history", "true" if "done" in states else UNSUCCESSFUL, sought, sought.rows_max)


def scan_each_lane(table: str, base: str, sought: Sought) -> str:
    share = max(sought.rows_max // len(sought.lanes or [0]), 1)
    return EACH_LANE.format(scan=scan(SCAN_BY_ID, table, f"{table}.lane = each.lane AND {base}", sought, share))


def scan(form: str, table: str, base: str, sought: Sought, rows_max: int) -> str:
    fits = render_conditions(sought, PAYLOAD_COLUMN[table])
    return form.format(table=table, base=base, columns=COLUMNS[table], fits=fits, rows_max=rows_max)


def render_conditions(sought: Sought, payload_column: str) -> str:
    """The conditions as SQL; the texts are fixed, and every value is bound."""
    which, states = sought.which, ", ".join(f"'{state}'" for state in sorted(sought.states))
    conditions = [
        "true" if which.states is None else f"state IN ({states})",
        "true" if sought.lanes is None else "lane = ANY ($3)",
        "true" if which.kind is None else f"{payload_column.format(column='kind')} = $4",
        "true" if which.error_code is None else "last_error_code = $5",
        "true" if which.shard_key is None else f"{payload_column.format(column='shard_key')} = $6",
    ]
    return " AND ".join(conditions)


DAY_US = 86_400 * SECOND_US
PAGES_MAX = 512
"""Pages of 8 KiB that are read at most; they hold about ENDED_MAX jobs with small payloads."""


class PostgresReads:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def job(self, job: JobId) -> Job | None:
        found = await self.jobs(JobFilter(ids=(job,)), limit=1)
        return found[0] if found else None

    async def jobs(
        self, which: JobFilter, *, before: JobId | None = None, limit: int = 50, bytes_max: int | None = None
    ) -> list[Job]:
        conditions, values = filter_conditions(which, [max(min(limit, PAGE_MAX), 0), bytes_max])
        if before is not None:
            values.append(before)
            conditions.append(f"id < ${len(values)}")
        text = self._database.sql["list_jobs"].replace(":conditions", " AND ".join(["true", *conditions]))
        return [rows.parse_job(row) for row in await self._database.connections.read(text, *values)]

    async def errors(self, job: JobId) -> list[ErrorRecord]:
        return [rows.parse_error(row) for row in await self._database.read("list_errors", job)]

    async def lanes(self, tenant: str | None = None) -> list[LaneCount]:
        return [rows.parse_lane(row) for row in await self._database.read("list_lanes", tenant)]

    async def now(self) -> Instant:
        return await self._database.now()

    async def locked_by(self, job: JobId) -> str | None:
        for (session,) in await self._database.read("locked_by", job):
            return str(session)
        return None


class PostgresInspection:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def search(
        self, which: JobFilter, *, before: JobId | None = None, limit: int = 50, scan_max: int = SCAN_MAX
    ) -> SearchPage:
        ((lanes, ready, scheduled, leased),) = await self._database.read("count_search", which.queue, which.tenant)
        counted = {"ready": int(ready), "scheduled": int(scheduled), "leased": int(leased)}
        is_any = which.queue is None and which.tenant is None
        sought = Sought(which, scan_max, None if is_any else lanes, counted)
        if sought.lanes == [] or not sought.states:
            return SearchPage([], None)
        text = render_search(sought)
        values = (before or NEWEST, limit + 1, sought.lanes, which.kind, which.error_code, which.shard_key)
        scanned = await self._database.connections.read(text.replace(":schema", self._database.address.quoted), *values)
        ids, upto = merge_steps([SearchStep(ids, upto) for ids, upto in scanned], limit)
        if not ids:
            return SearchPage([], upto)
        # Not `limit`: an id can be stored twice if a row is damaged, and the others must not fall off the page.
        jobs = await PostgresReads(self._database).jobs(
            JobFilter(ids=tuple(ids)), limit=PAGE_MAX, bytes_max=PAGE_BYTES_MAX
        )
        return SearchPage(jobs, jobs[-1].id if is_cut(jobs) else upto)

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
            LeaseOwner(name=name or WorkerId(""), leased=leased, expired=expired, seen_at=seen_at, until=until)
            for name, leased, expired, seen_at, until in found
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

    async def jobs_for_keys(self, tenant: str, keys: Sequence[str]) -> dict[str, JobId]:
        found = await self._database.read("jobs_by_key", tenant, list(keys), self._database.at())
        return {key: JobId(job) for key, job in found}

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


_decode_cell = msgspec.json.Decoder(HistoryCell).decode


def parse_history(row: Record) -> HistoryRow:
    id_, level, at, tenant, queue, kind, cell = row
    return HistoryRow(
        id=id_, level=HistoryLevel(level), at=at, tenant=tenant, queue=queue, kind=kind, cell=_decode_cell(cell)
    )


class PostgresHistory:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, rows: Sequence[HistoryRow]) -> None:
        await self.replace((), rows)

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
        found = await self._database.read("list_work_history", level.value, since, until, tenant, limit, after)
        return only_usable(found, parse_history)

    async def replace(self, ids: Sequence[str], rows: Sequence[HistoryRow]) -> None:
        columns = (
            [row.id for row in rows], [row.level.value for row in rows], [row.at for row in rows],
            [row.tenant for row in rows], [row.queue for row in rows], [row.kind for row in rows],
            [encode_json(row.cell) for row in rows],
        )  # fmt: skip
        await self._database.call("replace_work_history", list(ids), *columns, self._database.at())

    async def prune(self, level: HistoryLevel, before: Instant, limit: int) -> int:
        ((count,),) = await self._database.call("prune_work_history", level.value, before, limit)
        return int(count)
