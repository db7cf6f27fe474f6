"""Runs, shards and bad rows as lines of SQL: the same lines in every database.

One verb per file: `sql/common`, or `sqlite` and `postgres` where they differ. Cursors, predicates, hashes and guards
are kept as canonical JSON, so that equal texts mean equal things.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from leaseway.domain.errors import BadValue, KeyConflict
from leaseway.domain.ids import Instant
from leaseway.domain.imports.page import BadRow
from leaseway.domain.imports.progress import RunRow, RunState, ShardRow, ShardState
from leaseway.domain.imports.shard import Shard, canonical
from leaseway.sinks.fitting import without_nul

SQL = files(__package__) / "sql"

COUNTERS = ("pages", "rows", "inserted", "updated", "unchanged", "stale", "quarantined", "requests", "size_bytes")
RUN_COLUMNS = ("id", "source", "spec_hash", "started_at", "finished_at", "state", "watermark", "why")
SHARD_COLUMNS = (
    *("run", "key", "label", "predicate", "estimated_rows", "depth", "state", "fence", "cursor"),
    *COUNTERS,
    *("attempts", "resumed_at", "page_limit", "recent", "guards", "why", "parent", "finished_at"),
)

Values = dict[str, Any]
"""The parameters of a statement, by name."""


@cache
def statements(dialect: str) -> Mapping[str, str]:
    """By file name; those of the dialect replace the common ones."""
    folders = (SQL / "common", SQL / dialect)
    return {
        file.name.removesuffix(".sql"): file.read_text("utf-8")
        for folder in folders
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".sql")
    }


# -- runs -----------------------------------------------------------------------------------------------------------


def of_run(run: RunRow, target: str) -> Values:
    why = None if run.why is None else without_nul(run.why)
    return {**msgspec.structs.asdict(run), "state": run.state.value, "why": why, "target": target}


def run_of(line: Sequence[Any]) -> RunRow:
    found = dict(zip(RUN_COLUMNS, line[: len(RUN_COLUMNS)], strict=True))
    return RunRow(**{**found, "state": RunState(found["state"])})


def refuse_other_run(asked: RunRow, line: Sequence[Any], target: str) -> RunRow:
    """One id, one spec, one table: else the rows of two imports would be counted as one."""
    found, found_target = run_of(line), line[len(RUN_COLUMNS)]
    if found_target != target:
        raise KeyConflict(f"run {asked.id}: writes to table {found_target}, not {target}; start a run with another id")
    if found.spec_hash != asked.spec_hash:
        raise KeyConflict(
            f"run {asked.id}: was started with another spec (hash {found.spec_hash}, now {asked.spec_hash}); resume it "
            "with the spec of that time, or start a new run with another id"
        )
    return found


def no_such_run(run: str) -> BadValue:
    return BadValue("run", f"there is no run {run!r} in this table's books; see `leaseway import status`")


# -- shards ---------------------------------------------------------------------------------------------------------


def of_shard(row: ShardRow) -> Values:
    values = {name: getattr(row, name) for name in ("run", "fence", "attempts", "page_limit", "finished_at", *COUNTERS)}
    shard = row.shard
    return values | {
        "key": shard.key,
        "label": without_nul(shard.label),
        "predicate": canonical(shard.predicate),
        "estimated_rows": shard.estimated_rows,
        "depth": shard.depth,
        "state": row.state.value,
        "cursor": text_of(row.cursor),
        "resumed_at": text_of(row.resumed_at),
        "recent": canonical(row.recent),
        "guards": canonical(row.guards),
        "why": None if row.why is None else without_nul(row.why),
        "parent": row.parent,
    }


def shard_row_of(line: Sequence[Any]) -> ShardRow:
    found = dict(zip(SHARD_COLUMNS, line[: len(SHARD_COLUMNS)], strict=True))
    predicate = msgspec.json.decode(found.pop("predicate"))
    shard = Shard(found.pop("key"), found.pop("label"), predicate, found.pop("estimated_rows"), found.pop("depth"))
    found |= {
        "state": ShardState(found["state"]),
        "cursor": value_of(found["cursor"]),
        "resumed_at": value_of(found["resumed_at"]),
        "recent": tuple(msgspec.json.decode(found["recent"])),
        "guards": msgspec.json.decode(found["guards"]),
    }
    return ShardRow(shard=shard, **found)


def text_of(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else canonical(value)


def value_of(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


# -- quarantine -----------------------------------------------------------------------------------------------------


def of_bad(run: str, shard: str, page: int, bad: BadRow, now: Instant) -> Values:
    return {
        "run": run,
        "shard": shard,
        "page": page,
        "position": bad.position,
        "external_id": None if bad.external_id is None else without_nul(bad.external_id),
        "code": bad.code,
        "problem": without_nul(bad.problem),
        "document": without_nul(bad.document),
        "first_seen": now,
    }


def bad_of(line: Sequence[Any]) -> tuple[int, str, BadRow]:
    number, shard, position, external_id, code, problem, document = line
    bad = BadRow(position=position, external_id=external_id, code=code, problem=problem, document=document)
    return number, shard, bad
