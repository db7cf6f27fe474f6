"""Reads of jobs and lanes, inspection, and the history of the work, in one SQLite file."""

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence, Set
from contextlib import closing
from typing import NamedTuple

import msgspec

from leaseway.domain.health import Finding
from leaseway.domain.history.rows import HISTORY_PAGE, LENGTH_US, HistoryCell, HistoryLevel, HistoryRow
from leaseway.domain.ids import Instant, JobId, WorkerId
from leaseway.domain.inspection import (
    ENDED_MAX,
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
    cut_page,
    is_cut,
    merge_steps,
    only_usable,
)
from leaseway.domain.job import ErrorRecord, Job
from leaseway.domain.lane import LaneCount
from leaseway.stores.sqlite.database import (
    FAILED,
    LEASED,
    READY,
    SCHEDULED,
    STATES,
    Database,
    Row,
    Transaction,
    as_json,
    parse_lane,
    parse_state,
)

UNFINISHED = {READY, SCHEDULED, LEASED}
SCAN = "jobs {index} WHERE {base} AND id < :before ORDER BY id DESC LIMIT"
SCANNED = f"SELECT id, lane, state, kind, last_error_code, shard_key FROM {SCAN} :scan_max"
MATCHING = f"SELECT id FROM ({SCANNED}) WHERE {{matches}} LIMIT :most"
END = f"SELECT id FROM {SCAN} 1 OFFSET :scan_max - 1"
# The plus keeps SQLite from using the index on ids, which would lead through all other jobs.
COMPLETE = "SELECT id FROM jobs WHERE {base} AND +id < :before AND {matches} ORDER BY +id DESC LIMIT :most"


class SearchQuery(NamedTuple):
    which: JobFilter
    before: JobId
    limit: int
    scan_max: int

    @property
    def states(self) -> set[str]:
        wanted = self.which.states
        return {name for name, state in STATES.items() if wanted is None or state in wanted}


class IndexScan(NamedTuple):
    base: str
    """The condition of the index: which jobs it contains."""
    hint: str = ""
    is_complete: bool = False
    """The index contains few jobs: all of them are examined, in any order."""


def search(connection: sqlite3.Connection, query: SearchQuery) -> SearchStep:
    lanes = find_lanes(connection, query.which)
    if lanes == [] or not query.states:
        return SearchStep([], None)
    scans = list(choose_scans(connection, lanes, query))
    share = query._replace(scan_max=max(query.scan_max // len(scans), 1))
    return merge_steps([run_scan(connection, scan, lanes, share) for scan in scans], query.limit)


def find_lanes(connection: sqlite3.Connection, which: JobFilter) -> list[int] | None:
    """The lanes that match the filter. None: any lane."""
    named = {name: value for name, value in (("queue", which.queue), ("tenant", which.tenant)) if value is not None}
    if not named:
        return None
    conditions = " AND ".join(f"{name} = :{name}" for name in named)
    return [id_ for (id_,) in connection.execute(f"SELECT id FROM lanes WHERE {conditions}", named)]


def choose_scans(connection: sqlite3.Connection, lanes: list[int] | None, query: SearchQuery) -> Iterator[IndexScan]:
    """The index that excludes most jobs; one scan per state or lane."""
    if query.states <= UNFINISHED and count_unfinished(connection) <= query.scan_max:
        yield from (IndexScan(f"state = '{state}'", is_complete=True) for state in query.states)
    elif lanes is not None and len(lanes) <= SEARCH_LANES_MAX:
        yield from (IndexScan(f"lane = {lane}", "INDEXED BY jobs_of_lane") for lane in lanes)
    elif query.states == {FAILED}:
        yield IndexScan(f"state = '{FAILED}'", "INDEXED BY jobs_failed")
    else:
        yield IndexScan("TRUE")


def count_unfinished(connection: sqlite3.Connection) -> int:
    """From the counters of the lanes; the count only decides which index is scanned."""
    ((count,),) = connection.execute("SELECT coalesce(sum(ready + scheduled + leased), 0) FROM lanes").fetchall()
    return int(count)


def run_scan(
    connection: sqlite3.Connection, scan: IndexScan, lanes: list[int] | None, query: SearchQuery
) -> SearchStep:
    which, most = query.which, query.limit + 1
    values = {
        "before": query.before, "scan_max": query.scan_max, "most": most, "kind": which.kind,
        "error_code": which.error_code, "lanes": as_json(lanes), "shard_key": which.shard_key,
    }  # fmt: skip
    text = COMPLETE if scan.is_complete else MATCHING
    matches = search_conditions(which, lanes, query.states)
    ids = [id_ for (id_,) in connection.execute(text.format(base=scan.base, index=scan.hint, matches=matches), values)]
    if scan.is_complete or len(ids) == most:
        return SearchStep(ids, ids[-1] if len(ids) == most else None)
    end = connection.execute(END.format(base=scan.base, index=scan.hint), values).fetchone()
    return SearchStep(ids, None if end is None else end[0])


def search_conditions(which: JobFilter, lanes: list[int] | None, states: Set[str]) -> str:
    conditions = [
        "TRUE" if len(states) == len(STATES) else state_condition(states),
        "TRUE" if lanes is None else "lane IN (SELECT value FROM json_each(:lanes))",
        "TRUE" if which.kind is None else "kind = :kind",
        "TRUE" if which.error_code is None else "last_error_code = :error_code",
        "TRUE" if which.shard_key is None else "shard_key = :shard_key",
    ]
    return " AND ".join(conditions)


def filter_conditions(which: JobFilter) -> tuple[list[str], dict[str, object]]:
    """A filter as SQL: the texts are fixed, and every value is bound."""
    conditions = []
    values: dict[str, object] = {}
    if which.ids is not None:
        conditions.append("jobs.id IN (SELECT value FROM json_each(:ids))")
        values["ids"] = as_json(which.ids)
    if which.states is not None:
        conditions.append(state_condition({name for name, state in STATES.items() if state in which.states}))
    for field in ("kind", "queue", "tenant", "shard_key"):
        if getattr(which, field) is not None:
            conditions.append(f"{field} = :{field}")
            values[field] = getattr(which, field)
    if which.error_code is not None:
        conditions.append("last_error_code = :error_code")
        values["error_code"] = which.error_code
    return conditions, values


def jobs_and_lanes(which: JobFilter) -> str:
    """With ids, jobs are found by their ids, and then their lanes. Otherwise SQLite may look for each id in each lane
    of a tenant, which is their product."""
    return f"jobs {'JOIN' if which.ids is None else 'CROSS JOIN'} lanes ON lanes.id = jobs.lane"


def state_condition(states: Set[str]) -> str:
    """A single state is compared by equality: only then does SQLite use the partial index on that state."""
    if len(states) == 1:
        return f"state = '{next(iter(states))}'"
    return f"state IN ({', '.join(repr(state) for state in sorted(states))})"


class SqliteReads:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def job(self, job: JobId) -> Job | None:
        found = await self.jobs(JobFilter(ids=(job,)), limit=1)
        return found[0] if found else None

    async def jobs(
        self, which: JobFilter, *, before: JobId | None = None, limit: int = 50, bytes_max: int | None = None
    ) -> list[Job]:
        page = JobsPage(which, before, limit, bytes_max)
        return await self._database.connection.read(
            lambda connection: select_jobs(connection, self._database.sql["select_jobs"], page)
        )

    async def errors(self, job: JobId) -> list[ErrorRecord]:
        return [parse_error(row) for row in await self._database.read("error_list", job=job)]

    async def lanes(self, tenant: str | None = None) -> list[LaneCount]:
        return [parse_lane(row) for row in await self._database.read("lane_list", tenant=tenant)]

    async def now(self) -> Instant:
        return self._database.now_us()

    async def locked_by(self, job: JobId) -> str | None:
        """SQLite locks the whole file, and only while a transaction writes."""
        return None


class SqliteInspection:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def search(
        self, which: JobFilter, *, before: JobId | None = None, limit: int = 50, scan_max: int = SCAN_MAX
    ) -> SearchPage:
        query = SearchQuery(which, before or NEWEST, limit, scan_max)
        ids, upto = await self._database.connection.read(lambda connection: search(connection, query))
        if not ids:
            return SearchPage([], upto)
        jobs = await SqliteReads(self._database).jobs(JobFilter(ids=tuple(ids)), limit=limit, bytes_max=PAGE_BYTES_MAX)
        return SearchPage(jobs, jobs[-1].id if is_cut(jobs) else upto)

    async def recent(self, newest: int, ended_after: Instant, ended: int) -> tuple[Instant, list[JobSummary]]:
        now = self._database.now_us()
        bounds = {"newest": max(newest, 0), "after": ended_after, "ended": max(ended, 0)}
        return now, [parse_summary(row) for row in await self._database.read("recent_summaries", **bounds)]

    async def summaries(self, ids: Sequence[JobId]) -> list[JobSummary]:
        found = await self._database.read("summaries_by_id", ids=as_json(list(ids[:SUMMARIES_MAX])))
        return [parse_summary(row) for row in found]

    async def owners(self) -> list[LeaseOwner]:
        found = await self._database.read("owner_list", now=self._database.now_us(), most=OWNERS_MAX)
        return [
            LeaseOwner(name=name or WorkerId(""), leased=leased, expired=expired, seen_at=seen_at, until=until)
            for name, leased, expired, seen_at, until in found
        ]

    async def waiting(self) -> list[LaneWait]:
        found = await self._database.read("oldest_waiting")
        return [LaneWait(queue=queue, tenant=tenant, needs=needs, since=since) for queue, tenant, needs, since in found]

    async def ended(self, after: Instant) -> tuple[Instant, list[EndedCount]]:
        found = await self._database.read("recent_outcomes", after=after, most=ENDED_MAX)
        counts = [
            EndedCount(queue=queue, tenant=tenant, state=parse_state(state), count=count)
            for queue, tenant, state, count, _ in found
        ]
        is_all = sum(each.count for each in counts) < ENDED_MAX
        return after if is_all else min(first for *_, first in found), counts

    async def jobs_for_keys(self, tenant: str, keys: Sequence[str]) -> dict[str, JobId]:
        asked, now = as_json(list(keys)), self._database.now_us()
        return {
            key: JobId(job) for key, job in await self._database.read("keys_find", tenant=tenant, keys=asked, now=now)
        }

    async def health(self, *, deep: bool = False) -> list[Finding]:
        from leaseway.stores.sqlite.health import run_checks  # imported here because workers do not need it

        return await asyncio.to_thread(run_checks, self._database.connection.path, self._database.now_us(), deep)


class JobsPage(NamedTuple):
    which: JobFilter
    before: JobId | None
    limit: int
    bytes_max: int | None


def select_jobs(connection: sqlite3.Connection, select: str, page: JobsPage) -> list[Job]:
    conditions, values = filter_conditions(page.which)
    if page.before is not None:
        conditions.append("jobs.id < :before")
    where = " AND ".join(conditions) or "TRUE"
    text = f"{select} FROM {jobs_and_lanes(page.which)} WHERE {where} ORDER BY jobs.id DESC LIMIT :limit"
    with closing(connection.cursor()) as cursor:
        cursor.row_factory = sqlite3.Row
        found = cursor.execute(text, {**values, "before": page.before, "limit": max(min(page.limit, PAGE_MAX), 0)})
        return cut_page(map(parse_job, found), page.bytes_max)


def parse_summary(row: Row) -> JobSummary:
    (id_, kind, queue, tenant, state, priority, attempts, most, progress, owner, until, cancel_requested, created_at,
     run_at, finished_at, error_code, error_at) = row  # fmt: skip
    return JobSummary(
        id=id_, kind=kind, queue=queue, tenant=tenant, state=parse_state(state), priority=priority, attempts=attempts,
        attempts_max=most, progress=progress, lease_owner=owner, lease_until=until,
        cancel_requested=bool(cancel_requested), created_at=created_at, run_at=run_at, finished_at=finished_at,
        last_error_code=error_code, last_error_at=error_at,
    )  # fmt: skip


def parse_job(row: sqlite3.Row) -> Job:
    return Job(
        id=JobId(row["id"]), kind=row["kind"], queue=row["queue"], tenant=row["tenant"],
        state=parse_state(row["state"]), priority=row["priority"], attempts=row["attempts"],
        attempts_max=row["attempts_max"], fence=row["fence"],
        payload=row["payload"], shard_key=row["shard_key"], cursor=row["cursor"], progress=row["progress"],
        result=row["result"], lease_owner=row["owner"], lease_until=row["until"], lease_us=row["lease_us"],
        timeout_us=row["timeout_us"], cancel_requested=bool(row["cancel_requested"]), created_at=row["created_at"],
        run_at=row["run_at"], finished_at=row["finished_at"], last_error_code=row["last_error_code"],
        last_error_at=row["last_error_at"], needs=row["needs"],
    )  # fmt: skip


def parse_error(row: Row) -> ErrorRecord:
    job, attempt, at, code, message, traceback = row
    return ErrorRecord(job=job, attempt=attempt, at=at, code=code, message=message, traceback=traceback)


_decode_cell = msgspec.json.Decoder(HistoryCell).decode


class SqliteHistory:
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
        found = await self._database.read(
            "history_rows", level=level.value, since=since, until=until, tenant=tenant, after=after, limit=limit
        )
        return only_usable(found, parse_history)

    async def replace(self, ids: Sequence[str], rows: Sequence[HistoryRow]) -> None:
        def work(transaction: Transaction) -> None:
            minute = transaction.now - transaction.now % LENGTH_US[HistoryLevel.MINUTE]
            transaction.run_each("history_delete", [(id_,) for id_ in ids])
            transaction.run_each("history_record", [render_history(row, minute) for row in rows])

        await self._database.write(work)

    async def prune(self, level: HistoryLevel, before: Instant, limit: int) -> int:
        values = {"level": level.value, "before": before, "limit": limit}
        return await self._database.write(lambda transaction: transaction.change("history_prune", **values))


def render_history(row: HistoryRow, minute: Instant) -> Row:
    return row.id, row.level.value, row.at or minute, row.tenant, row.queue, row.kind, as_json(row.cell)


def parse_history(row: Row) -> HistoryRow:
    id_, level, at, tenant, queue, kind, cell = row
    return HistoryRow(
        id=id_, level=HistoryLevel(level), at=at, tenant=tenant, queue=queue, kind=kind, cell=_decode_cell(cell)
    )
