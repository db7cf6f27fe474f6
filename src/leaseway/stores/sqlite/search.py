"""Jobs sought in one SQLite file, by looks that end."""

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from leaseway.domain.ids import JobId
from leaseway.domain.inspection import SEARCH_LANES_MAX, JobFilter, SearchStep, merge_steps
from leaseway.stores.sqlite.rows import FAILED, LEASED, READY, SCHEDULED, STATES, as_json

ALIVE = {READY, SCHEDULED, LEASED}
WINDOW = "jobs {index} WHERE {base} AND id < :before ORDER BY id DESC LIMIT"
LOOKED = f"SELECT id, lane, stage, kind, last_error_code, shard_key FROM {WINDOW} :looks"
MATCHING = f"SELECT id FROM ({LOOKED}) WHERE {{fits}} LIMIT :most"
END = f"SELECT id FROM {WINDOW} 1 OFFSET :looks - 1"
# Without the plus SQLite would follow the order of ids, past all the others.
WHOLE = "SELECT id FROM jobs WHERE {base} AND +id < :before AND {fits} ORDER BY +id DESC LIMIT :most"


class Sought(NamedTuple):
    which: JobFilter
    before: JobId
    limit: int
    looks: int

    @property
    def stages(self) -> set[int]:
        states = self.which.states
        return {stage for stage, state in enumerate(STATES) if states is None or state in states}


class Way(NamedTuple):
    base: str
    """Which jobs it goes through."""
    hint: str = ""
    is_whole: bool = False
    """It holds so few that it is gone to its end, in whatever order."""


def looked(connection: sqlite3.Connection, sought: Sought) -> SearchStep:
    lanes = lanes_of(connection, sought.which)
    if lanes == [] or not sought.stages:
        return SearchStep([], None)
    ways = list(ways_of(connection, lanes, sought))
    share = sought._replace(looks=max(sought.looks // len(ways), 1))
    return merge_steps([gone(connection, way, lanes, share) for way in ways], sought.limit)


def lanes_of(connection: sqlite3.Connection, which: JobFilter) -> list[int] | None:
    """None: any."""
    named = {name: value for name, value in (("queue", which.queue), ("tenant", which.tenant)) if value is not None}
    if not named:
        return None
    conditions = " AND ".join(f"{name} = :{name}" for name in named)
    return [id_ for (id_,) in connection.execute(f"SELECT id FROM lanes WHERE {conditions}", named)]


def ways_of(connection: sqlite3.Connection, lanes: list[int] | None, sought: Sought) -> Iterator[Way]:
    """Along the index that leaves out most."""
    if sought.stages <= ALIVE and alive(connection) <= sought.looks:
        yield from (Way(f"stage = {stage}", is_whole=True) for stage in sought.stages)
    elif lanes is not None and len(lanes) <= SEARCH_LANES_MAX:
        yield from (Way(f"lane = {lane}", "INDEXED BY jobs_of_lane") for lane in lanes)
    elif sought.stages == {FAILED}:
        yield Way(f"stage = {FAILED}", "INDEXED BY jobs_failed")
    else:
        yield Way("TRUE")


def alive(connection: sqlite3.Connection) -> int:
    """By the lanes' counters, which only decide which way is taken."""
    ((count,),) = connection.execute("SELECT coalesce(sum(ready + scheduled + leased), 0) FROM lanes").fetchall()
    return int(count)


def gone(connection: sqlite3.Connection, way: Way, lanes: list[int] | None, sought: Sought) -> SearchStep:
    which, most = sought.which, sought.limit + 1
    values = {
        "before": sought.before, "looks": sought.looks, "most": most, "kind": which.kind,
        "error_code": which.error_code, "lanes": as_json(lanes), "shard_key": which.shard_key,
    }  # fmt: skip
    fits = fitting(which, lanes, sought.stages)
    text = WHOLE if way.is_whole else MATCHING
    ids = [id_ for (id_,) in connection.execute(text.format(base=way.base, index=way.hint, fits=fits), values)]
    if way.is_whole or len(ids) == most:
        return SearchStep(ids, ids[-1] if len(ids) == most else None)
    end = connection.execute(END.format(base=way.base, index=way.hint), values).fetchone()
    return SearchStep(ids, None if end is None else end[0])


def fitting(which: JobFilter, lanes: list[int] | None, stages: set[int]) -> str:
    """Fixed texts, values always bound."""
    conditions = [
        "TRUE" if len(stages) == len(STATES) else f"stage IN ({', '.join(map(str, sorted(stages)))})",
        "TRUE" if lanes is None else "lane IN (SELECT value FROM json_each(:lanes))",
        "TRUE" if which.kind is None else "kind = :kind",
        "TRUE" if which.error_code is None else "last_error_code = :error_code",
        "TRUE" if which.shard_key is None else "shard_key = :shard_key",
    ]
    return " AND ".join(conditions)
