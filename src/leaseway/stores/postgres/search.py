"""Jobs sought in PostgreSQL, by looks that end. All ways are gone in one statement, which sees one moment."""

from collections.abc import Iterator
from typing import NamedTuple

from leaseway.domain.inspection import SEARCH_LANES_MAX, JobFilter
from leaseway.stores.postgres.rows import STATES

FINISHED = {"done", "failed", "cancelled"}
UNSUCCESSFUL = "state IN ('failed', 'cancelled')"
"""As the partial index of the history says it."""

# $1 the id before which is sought, $2 one more than are wanted, $3 lanes, $4 kind, $5 error.
WINDOW = "FROM :schema.{table} WHERE {base} AND id < $1 ORDER BY id DESC LIMIT"
ALONG = f"""
WITH matching AS MATERIALIZED (
  SELECT id FROM (SELECT {{columns}} {WINDOW} {{looks}}) AS looked WHERE {{fits}} ORDER BY id DESC LIMIT $2)
SELECT ARRAY(SELECT id FROM matching) AS ids,
       CASE WHEN (SELECT count(*) FROM matching) < $2 THEN (SELECT id {WINDOW} 1 OFFSET {{looks}} - 1)
            ELSE (SELECT min(id) FROM matching) END AS upto
"""
# What is chosen first has neither order nor end, or the order of ids would be followed past all the others.
WHOLE = """
WITH chosen AS MATERIALIZED (SELECT {columns} FROM :schema.{table} WHERE {base}),
matching AS MATERIALIZED (SELECT id FROM chosen AS looked WHERE id < $1 AND {fits} ORDER BY id DESC LIMIT $2)
SELECT ARRAY(SELECT id FROM matching) AS ids,
       CASE WHEN (SELECT count(*) FROM matching) = $2 THEN (SELECT min(id) FROM matching) END AS upto
"""
EACH_LANE = "SELECT ids, upto FROM unnest($3::integer[]) AS each (lane) CROSS JOIN LATERAL ({way}) AS gone"
ALL_WAYS = "SELECT ids, upto FROM ({ways}) AS ways, (SELECT $3::integer[], $4::text, $5::text, $6::text) AS told"
"""Every statement is told the same, and PostgreSQL wants to know the type of each value."""

COLUMNS = {"jobs": "id, lane, state, last_error_code", "history": "id, lane, state, last_error_code, kind, shard_key"}
OF_PAYLOAD = {"jobs": "(SELECT {column} FROM :schema.payloads WHERE payloads.id = looked.id)", "history": "{column}"}
"""What never changes is kept beside a job that lives, and with one that has finished."""


class Sought(NamedTuple):
    """What is asked for, and what the lanes say before anybody looks at jobs."""

    which: JobFilter
    looks: int
    lanes: list[int] | None
    """Those that fit; None: any."""
    counted: dict[str, int]
    """How many would be gone through by state. It only decides which way is taken."""

    @property
    def lanes_are_few(self) -> bool:
        return self.lanes is not None and len(self.lanes) <= SEARCH_LANES_MAX

    @property
    def states(self) -> set[str]:
        wanted = self.which.states
        return {name for name, state in STATES.items() if wanted is None or state in wanted}


def statement_of(sought: Sought) -> str:
    ways = [*living_ways(sought), *finished_ways(sought)]
    return ALL_WAYS.format(ways=" UNION ALL ".join(f"({way})" for way in ways))


def living_ways(sought: Sought) -> Iterator[str]:
    """By state and lane where that leaves few, else all from new to old."""
    states = sought.states - FINISHED
    by_lane = states & {"scheduled"} if sought.lanes_are_few else set()
    if sum(sought.counted[state] for state in states - by_lane) > sought.looks:
        yield way(ALONG, "jobs", "true", sought, sought.looks)
        return
    if by_lane:
        yield each_lane("jobs", "state = 'scheduled'", sought)
    for state in sorted(states - by_lane):
        lanes = "" if sought.lanes is None else " AND lane = ANY ($3)"
        yield way(WHOLE, "jobs", f"state = '{state}'{lanes}", sought, 0)


def finished_ways(sought: Sought) -> Iterator[str]:
    """By lane where they are few; or by failure; else all from new to old."""
    states = sought.states & FINISHED
    if not states:
        return
    if sought.lanes_are_few:
        yield each_lane("history", "true", sought)
    else:
        yield way(ALONG, "history", "true" if "done" in states else UNSUCCESSFUL, sought, sought.looks)


def each_lane(table: str, base: str, sought: Sought) -> str:
    share = max(sought.looks // len(sought.lanes or [0]), 1)
    return EACH_LANE.format(way=way(ALONG, table, f"{table}.lane = each.lane AND {base}", sought, share))


def way(form: str, table: str, base: str, sought: Sought, looks: int) -> str:
    fits = fitting(sought, OF_PAYLOAD[table])
    return form.format(table=table, base=base, columns=COLUMNS[table], fits=fits, looks=looks)


def fitting(sought: Sought, of_payload: str) -> str:
    """Fixed texts, values always bound."""
    which, states = sought.which, ", ".join(f"'{state}'" for state in sorted(sought.states))
    conditions = [
        "true" if which.states is None else f"state IN ({states})",
        "true" if sought.lanes is None else "lane = ANY ($3)",
        "true" if which.kind is None else f"{of_payload.format(column='kind')} = $4",
        "true" if which.error_code is None else "last_error_code = $5",
        "true" if which.shard_key is None else f"{of_payload.format(column='shard_key')} = $6",
    ]
    return " AND ".join(conditions)
