"""The runs of one collection."""

from collections.abc import Mapping
from typing import Any

from pymongo import ReturnDocument

from leaseway.domain.ids import Instant
from leaseway.imports.domain.partition import canonical
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardRow
from leaseway.imports.sinks import run_tables
from leaseway.imports.sinks.mongodb import shards
from leaseway.imports.sinks.mongodb.collections import RUNS, SHARDS
from leaseway.imports.sinks.mongodb.connection import Database, Document, Session, WriteConflict


def run_columns(found: Document) -> list[Any]:
    """The columns of a run, with its target at the end, as `run_tables` expects them."""
    return [found["_id" if name == "id" else name] for name in (*run_tables.RUN_COLUMNS, "target")]


def known(target: str, run: str) -> dict[str, Any]:
    return {"_id": run, "target": target, "is_planned": True}


async def start(database: Database, target: str, run: RunRow, rows: list[ShardRow], session: Session | None) -> RunRow:
    """A run is visible only after all its shards are stored; until then, starting it plans it again."""
    values = run_tables.run_values(run, target)
    new = {name: value for name, value in values.items() if name != "id"} | {"is_planned": False}
    found: Any = await database[RUNS].find_one_and_update(
        {"_id": run.id}, {"$setOnInsert": new}, upsert=True, return_document=ReturnDocument.AFTER, session=session
    )
    started = run_tables.refuse_other_run(run, run_columns(found), target)
    if not found["is_planned"]:
        await database[SHARDS].delete_many({"run": run.id, "state": "waiting", "fence": 0}, session=session)
        await shards.add(database, target, run.source, rows, session)
        await database[RUNS].update_one({"_id": run.id}, {"$set": {"is_planned": True}}, session=session)
    return started


async def find(database: Database, target: str, run: str) -> RunRow | None:
    found = await database[RUNS].find_one(known(target, run))
    return None if found is None else run_tables.decode_run(run_columns(found))


async def require(database: Database, target: str, run: str) -> RunRow:
    found = await find(database, target, run)
    if found is None:
        raise run_tables.no_such_run(run)
    return found


async def find_all(
    database: Database, target: str, source: str | None, limit: int, state: RunState | None, mode: RunMode | None
) -> list[RunRow]:
    asked = {"target": target, "source": source, "state": state, "mode": mode}
    given = {name: str(value) for name, value in asked.items() if value is not None}
    found = database[RUNS].find({**given, "is_planned": True}).sort([("started_at", -1), ("_id", -1)])
    return [run_tables.decode_run(run_columns(each)) async for each in found.limit(limit)]


async def finish(
    database: Database, run: RunRow, now: Instant, state: RunState, why: str | None, notes: Mapping[str, Any] | None
) -> None:
    values = run_tables.finish_values(run, state, why, notes, now)
    change = {"state": values["state"], "why": values["why"], "finished_at": values["now"]}
    await keep_notes(database, run, values["notes"], **change)


async def keep_notes(database: Database, run: RunRow, notes: str, **more: Any) -> None:
    """Only if the notes are unchanged: one process may finish the run while another one sweeps it."""
    same = {"_id": run.id, "notes": canonical(run.notes)}
    result = await database[RUNS].update_one(same, {"$set": {"notes": notes, **more}})
    if not result.matched_count:
        raise WriteConflict(f"run {run.id}: another writer changed it; try again")


async def spend(database: Database, target: str, run: str, requests: int) -> bool:
    found = await require(database, target, run)
    if found.requests_max is None:
        return True
    # The limit is part of the update, so concurrent calls cannot exceed it.
    room = {"$lte": [{"$add": ["$requests", requests]}, "$requests_max"]}
    bounded = {**known(target, run), "requests_max": {"$ne": None}, "$expr": room}
    taken = await database[RUNS].update_one(bounded, {"$inc": {"requests": requests}})
    return bool(taken.matched_count)


async def set_budget(database: Database, target: str, run: str, requests_max: int | None) -> None:
    result = await database[RUNS].update_one(known(target, run), {"$set": {"requests_max": requests_max}})
    if not result.matched_count:
        raise run_tables.no_such_run(run)
