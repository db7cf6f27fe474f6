"""Search in PostgreSQL: bounded scans that end, combined in one statement, so that they share a snapshot."""

from collections.abc import Iterator
from typing import NamedTuple

from leaseway.domain.inspection import SEARCH_LANES_MAX, JobFilter
from leaseway.stores.postgres.rows import STATES

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
