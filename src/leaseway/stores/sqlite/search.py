"""Filters as SQL, and bounded searches of one SQLite file.

A search scans the index that excludes most jobs, from new to old, and stops after a bounded number of jobs.
"""

import sqlite3
from collections.abc import Iterator, Set
from typing import NamedTuple

from leaseway.domain.ids import JobId
from leaseway.domain.inspection import SEARCH_LANES_MAX, JobFilter, SearchStep, merge_steps
from leaseway.stores.sqlite.database import FAILED, LEASED, READY, SCHEDULED, STATES, as_json

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


def state_condition(states: Set[str]) -> str:
    """A single state is compared by equality: only then does SQLite use the partial index on that state."""
    if len(states) == 1:
        return f"state = '{next(iter(states))}'"
    return f"state IN ({', '.join(repr(state) for state in sorted(states))})"
