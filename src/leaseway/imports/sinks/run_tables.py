"""Runs, shards and bad rows ─► parameters of statements, and lines of results ─► values; the same for every database.

Each statement is a file in `sql/common`, or in `sql/sqlite` and `sql/postgres` where they differ. Cursors, predicates,
hashes and guards are stored as canonical JSON, so equal values have equal texts.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from leaseway.domain.errors import BadValue, KeyConflict, StoreRefused
from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import BadRow
from leaseway.imports.domain.partition import Shard, canonical
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardRow, ShardState
from leaseway.imports.sinks.port import Sweep
from leaseway.imports.sinks.row_encoding import is_storable_id, replace_nul

SQL = files(__package__) / "sql"

COUNTERS = ("pages", "rows", "inserted", "updated", "unchanged", "stale", "quarantined", "requests", "size_bytes")
RUN_COLUMNS = (
    *("id", "source", "spec_hash", "started_at", "finished_at", "state", "mode", "since", "watermark", "concurrency"),
    *("id_max", "requests_max", "requests", "notes", "why"),
)
SHARD_COLUMNS = (
    *("run", "key", "label", "predicate", "estimated_rows", "depth", "state", "fence", "cursor"),
    *COUNTERS,
    *("attempts", "resumed_at", "page_limit", "recent", "guards", "why", "parent"),
    *("started_at", "finished_at", "profile"),
)
KEPT_AS_THEY_ARE = (
    *("run", "fence", "attempts", "page_limit", "parent", "started_at", "finished_at"),
    *COUNTERS,
)

TABLES = (
    *("leaseway_runs", "leaseway_shards", "leaseway_quarantine", "leaseway_seen", "leaseway_absent"),
    "leaseway_import_version",
)
UPGRADE = "upgrade_"
"""`upgrade_2.sql` brings run tables of version 1 to version 2."""
SWEEP = "sweep"
"""The note that contains the result of a run's sweep."""

Values = dict[str, Any]
"""Parameters of a statement by name."""


@cache
def statements(dialect: str) -> Mapping[str, str]:
    """Statements by file name. Those of the dialect replace the common ones."""
    folders = (SQL / "common", SQL / dialect)
    return {
        file.name.removesuffix(".sql"): file.read_text("utf-8")
        for folder in folders
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".sql")
    }


# -- versions --------------------------------------------------------------------------------------------------------


def schema_version(statements: Mapping[str, object]) -> int:
    """The version of the run tables that this build uses: 1, plus one for each `upgrade_N.sql`."""
    return 1 + sum(verb.startswith(UPGRADE) for verb in statements)


def upgrade_verbs(where: str, version: int, statements: Mapping[str, object]) -> list[str]:
    """The upgrades that tables of this version need, in order. Refuses tables of a newer build."""
    newest = schema_version(statements)
    if version > newest:
        raise StoreRefused(
            f"{where}: the run tables have version {version}, and this build of leaseway knows versions up to "
            f"{newest}; upgrade leaseway"
        )
    return [f"{UPGRADE}{number}" for number in range(version + 1, newest + 1)]


# -- runs -----------------------------------------------------------------------------------------------------------


def run_values(run: RunRow, target: str) -> Values:
    return {
        **msgspec.structs.asdict(run),
        "state": run.state.value,
        "mode": run.mode.value,
        "notes": canonical(run.notes),
        "why": None if run.why is None else replace_nul(run.why),
        "target": target,
    }


def decode_run(line: Sequence[Any]) -> RunRow:
    found = dict(zip(RUN_COLUMNS, line[: len(RUN_COLUMNS)], strict=True))
    found |= {
        "state": RunState(found["state"]),
        "mode": RunMode(found["mode"]),
        "notes": msgspec.json.decode(found["notes"]),
    }
    return RunRow(**found)


def finish_values(
    run: RunRow, state: RunState, why: str | None, notes: Mapping[str, Any] | None, now: Instant
) -> Values:
    """The result of a sweep is always kept, because it marks the run as swept."""
    swept = {name: note for name, note in run.notes.items() if name == SWEEP}
    kept = run.notes if notes is None else {**notes, **swept}
    why = None if why is None else replace_nul(why)
    ended = None if state is RunState.RUNNING else now
    return {"id": run.id, "state": state.value, "why": why, "notes": canonical(kept), "now": ended}


def list_values(source: str | None, limit: int, state: RunState | None, mode: RunMode | None) -> Values:
    return {
        "source": source,
        "limit": limit,
        "state": None if state is None else state.value,
        "mode": None if mode is None else mode.value,
    }


def find_own_run(lines: Sequence[Sequence[Any]], target: str) -> RunRow | None:
    """Ignores a run of another table in the same database."""
    return next((decode_run(line) for line in lines if line[len(RUN_COLUMNS)] == target), None)


def refuse_other_run(asked: RunRow, line: Sequence[Any], target: str) -> RunRow:
    """One id has one spec and one table; otherwise the rows of two imports would be counted as one run."""
    found, found_target = decode_run(line), line[len(RUN_COLUMNS)]
    if found_target != target:
        raise KeyConflict(f"run {asked.id}: belongs to table {found_target}, not {target}; start a run with another id")
    if found.spec_hash != asked.spec_hash:
        raise KeyConflict(
            f"run {asked.id}: was started with another spec (hash {found.spec_hash}, now {asked.spec_hash}); resume it "
            "with the spec it was started with, or start a new run with another id"
        )
    return found


def check_requests(field: str, requests: int | None) -> None:
    if requests is not None and requests < 0:
        raise BadValue(field, f"must be at least 0 (is {requests}); spent requests cannot be returned")


def no_such_run(run: str) -> BadValue:
    return BadValue("run", f"there is no run {run!r} for this table; see `leaseway import status`")


# -- shards ---------------------------------------------------------------------------------------------------------


def shard_values(row: ShardRow) -> Values:
    values = {name: getattr(row, name) for name in KEPT_AS_THEY_ARE}
    shard = row.shard
    return values | {
        "key": shard.key,
        "label": replace_nul(shard.label),
        "predicate": canonical(shard.predicate),
        "estimated_rows": shard.estimated_rows,
        "depth": shard.depth,
        "state": row.state.value,
        "cursor": encode_json(row.cursor),
        "resumed_at": encode_json(row.resumed_at),
        "recent": canonical(row.recent),
        "guards": canonical(row.guards),
        "why": None if row.why is None else replace_nul(row.why),
        "profile": canonical(row.profile),
    }


def decode_shard(line: Sequence[Any]) -> ShardRow:
    found = dict(zip(SHARD_COLUMNS, line[: len(SHARD_COLUMNS)], strict=True))
    predicate = msgspec.json.decode(found.pop("predicate"))
    shard = Shard(found.pop("key"), found.pop("label"), predicate, found.pop("estimated_rows"), found.pop("depth"))
    found |= {
        "state": ShardState(found["state"]),
        "cursor": decode_json(found["cursor"]),
        "resumed_at": decode_json(found["resumed_at"]),
        "recent": tuple(msgspec.json.decode(found["recent"])),
        "guards": msgspec.json.decode(found["guards"]),
        "profile": msgspec.json.decode(found["profile"]),
    }
    return ShardRow(shard=shard, **found)


def shard_source(line: Sequence[Any]) -> str:
    """The source of a shard, in the line of `shard_find`."""
    source: str = line[len(SHARD_COLUMNS)]
    return source


def encode_json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else canonical(value)


def decode_json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


# -- quarantine -----------------------------------------------------------------------------------------------------


def bad_row_values(run: str, shard: str, page: int, bad: BadRow, now: Instant) -> Values:
    return {
        "run": run,
        "shard": shard,
        "page": page,
        "position": bad.position,
        "external_id": None if bad.external_id is None else replace_nul(bad.external_id),
        "code": bad.code,
        "problem": replace_nul(bad.problem),
        "document": replace_nul(bad.document),
        "first_seen": now,
    }


def decode_bad_row(line: Sequence[Any]) -> tuple[int, str, BadRow]:
    number, shard, position, external_id, code, problem, document = line
    bad = BadRow(position=position, external_id=external_id, code=code, problem=problem, document=document)
    return number, shard, bad


# -- sweeps ---------------------------------------------------------------------------------------------------------


def stored_sweep(run: RunRow) -> Sweep | None:
    """The result of the run's sweep, if there was one."""
    found = run.notes.get(SWEEP)
    return None if found is None else Sweep(found["stored"], found["absent"])


def notes_with_sweep(run: RunRow, sweep: Sweep) -> str:
    """The run's notes as stored."""
    return canonical({**run.notes, SWEEP: {"stored": sweep.stored, "absent": sweep.absent}})


def storable_ids(ids: Sequence[str]) -> list[str]:
    """Drop ids that no table can contain: they would fail the statement."""
    return [key for key in ids if is_storable_id(key)]
