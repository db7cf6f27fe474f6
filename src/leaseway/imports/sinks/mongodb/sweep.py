"""Rows that a complete run did not see, and changes between two instants.

A page that remembers its ids stores them in one document of `leaseway_seen`. A sweep reads these ids and the rows side
by side in order, so neither has to fit into memory. Several processes may sweep a run at once, and a standalone server
has no transactions, so one document per source decides: a sweep that replaces it counts, with all its marks.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bson.objectid import ObjectId

from leaseway.domain.ids import Instant
from leaseway.imports.domain.run_state import RunRow
from leaseway.imports.sinks import run_tables
from leaseway.imports.sinks.mongodb.collections import ABSENT, NUMBERS, SEEN, Collection, row_key, source_range
from leaseway.imports.sinks.mongodb.connection import Database, Document, Session, WriteConflict
from leaseway.imports.sinks.mongodb.rows import batches
from leaseway.imports.sinks.mongodb.runs import find, keep_notes, require
from leaseway.imports.sinks.port import Changes, Sweep

BATCH = 1_000


async def remember(
    database: Database, run: str, shard: str, page: int, ids: Sequence[str], session: Session | None
) -> None:
    for part, some in enumerate(batches(ids)):
        key = {"run": run, "shard": shard, "page": page, "part": part}
        await database[SEEN].replace_one({"_id": key}, {"run": run, "ids": list(some)}, upsert=True, session=session)


class LastSweep(NamedTuple):
    """The sweep of a source that was committed last. It is one document, which each sweep replaces in one step."""

    version: int = 0
    generation: ObjectId | None = None
    """Of the marks in `leaseway_absent` that count."""
    run: str = ""
    stored: int = 0
    absent: int = 0


async def sweep(database: Database, rows: Collection, run: RunRow) -> Sweep:
    # This document is read first. A sweep replaces it, then stores its result in the notes, and then deletes the seen
    # ids; so a sweep that finds no result in the notes and misses some ids cannot replace it any more.
    last = await last_sweep(database, rows.name, run.source)
    run = await require(database, rows.name, run.id)
    found = run_tables.stored_sweep(run)
    if found is None:
        if last.run != run.id:
            await store_result(database, rows.name, last)
            last = await sweep_anew(database, rows, run, last)
        found = Sweep(last.stored, last.absent)
        await keep_notes(database, run, run_tables.notes_with_sweep(run, found))
    await database[SEEN].delete_many({"run": run.id})
    return found


async def last_sweep(database: Database, target: str, source: str) -> LastSweep:
    found = await database[NUMBERS].find_one({"_id": sweep_key(target, source)})
    if found is None:
        return LastSweep()
    return LastSweep(found["last"], *(found[name] for name in LastSweep._fields[1:]))


def sweep_key(target: str, source: str) -> Document:
    return {"sweep": {"target": target, "source": source}}


async def store_result(database: Database, target: str, last: LastSweep) -> None:
    """A process can end after it has committed its sweep and before it has stored the result in the run's notes. If
    another run replaced the sweep now, this one would be repeated and counted again."""
    run = await find(database, target, last.run) if last.run else None
    if run is not None and run_tables.stored_sweep(run) is None:
        await keep_notes(database, run, run_tables.notes_with_sweep(run, Sweep(last.stored, last.absent)))


async def sweep_anew(database: Database, rows: Collection, run: RunRow, last: LastSweep) -> LastSweep:
    """Write the marks of a new generation, and then commit it. Until then nothing reads the marks, so a process that
    is late, or that has read seen ids while they were deleted, changes nothing: it cannot commit."""
    generation = ObjectId()
    absent = await mark_absent(database, rows, run, last, generation)
    stored = await rows.count_documents({**source_range(run.source), "deleted_at": None})
    new = LastSweep(last.version + 1, generation, run.id, stored, absent)
    fields = new._asdict() | {"last": new.version}
    del fields["version"]
    unchanged = {"_id": sweep_key(rows.name, run.source), "last": last.version}
    done = await database[NUMBERS].update_one(unchanged, {"$set": fields}, upsert=last.version == 0)
    if not done.matched_count and done.upserted_id is None:
        raise WriteConflict(f"run {run.id}: another process has swept {run.source}; try again")
    # Older generations can no longer be committed. One that is newer may be in the making.
    older = {"target": rows.name, "source": run.source, "base": {"$lte": last.version}}
    await database[ABSENT].delete_many({**older, "generation": {"$ne": generation}})
    return new


async def mark_absent(database: Database, rows: Collection, run: RunRow, last: LastSweep, generation: ObjectId) -> int:
    # Rows that were written during the run are not considered: the run may have read their page before, and the writer
    # saw them.
    asked = {**source_range(run.source), "deleted_at": None, "updated_at": {"$lt": run.started_at}}
    stored = rows.find(asked, {"_id": 1}, batch_size=10 * BATCH).sort("_id", 1)
    own = {"target": rows.name, "source": run.source}
    count, batch = 0, list[str]()

    async def write() -> None:
        before = database[ABSENT].find({**own, "generation": last.generation, "external_id": {"$in": batch}})
        sweeps = {mark["external_id"]: mark["sweeps"] async for mark in before}
        new = {**own, "generation": generation, "base": last.version}
        marks = [{**new, "external_id": key, "sweeps": sweeps.get(key, 0) + 1} for key in batch]
        await database[ABSENT].insert_many(marks, ordered=False)

    async for key in unseen((row["_id"]["external_id"] async for row in stored), seen_ids(database, run.id)):
        batch.append(key)
        count += 1
        if len(batch) == BATCH:
            await write()
            batch = []
    if batch:
        await write()
    return count


async def seen_ids(database: Database, run: str) -> AsyncIterator[str]:
    """In order, with duplicates."""
    stages: list[Document] = [
        {"$match": {"run": run}},
        {"$unwind": "$ids"},
        {"$project": {"_id": 0, "ids": 1}},
        {"$sort": {"ids": 1}},
    ]
    async for found in await database[SEEN].aggregate(stages, allowDiskUse=True, batchSize=10 * BATCH):
        yield found["ids"]


async def unseen(stored: AsyncIterator[str], seen: AsyncIterator[str]) -> AsyncIterator[str]:
    """Both are sorted, so one pass is enough."""
    at: str | None = await anext(seen, None)
    async for key in stored:
        while at is not None and at < key:
            at = await anext(seen, None)
        if at != key:
            yield key


async def find_absent(database: Database, target: str, source: str, sweeps: int, limit: int, after: str) -> list[str]:
    last = await last_sweep(database, target, source)
    own = {"target": target, "source": source, "generation": last.generation}
    asked = {**own, "external_id": {"$gt": after}, "sweeps": {"$gte": sweeps}}
    found = database[ABSENT].find(asked, {"external_id": 1}).sort("external_id", 1).limit(limit)
    return [each["external_id"] async for each in found]


async def mark_present(database: Database, target: str, source: str, ids: Iterable[str]) -> None:
    last = await last_sweep(database, target, source)
    own = {"target": target, "source": source, "generation": last.generation}
    for some in batches(list(ids)):
        asked = {**own, "external_id": {"$in": list(some)}}
        await database[ABSENT].delete_many(asked)


async def delete_rows(rows: Collection, run: RunRow, ids: Sequence[str], reason: str, now: Instant) -> int:
    count = 0
    marks = {"deleted_at": now, "deleted_reason": reason, "run": run.id, "updated_at": now}
    for some in batches(ids):
        keys = [row_key(run.source, key) for key in some]
        result = await rows.update_many({"_id": {"$in": keys}, "deleted_at": None}, {"$set": marks})
        count += result.modified_count
    return count


async def find_changes(rows: Collection, source: str, after: Instant, until: Instant, samples: int) -> Changes:
    window = {"$gt": after, "$lte": until}
    asked: dict[str, Mapping[str, Any]] = {
        "added": {"first_seen": window},
        "changed": {"updated_at": window, "first_seen": {"$lte": after}, "deleted_at": None},
        "removed": {"deleted_at": window},
    }
    counts, shown = {}, {}
    for kind, condition in asked.items():
        those = {**source_range(source), **condition}
        counts[kind] = await rows.count_documents(those)
        found = rows.find(those, {"_id": 1}).sort("_id", 1).limit(samples) if samples > 0 else None
        shown[kind] = [] if found is None else [row["_id"]["external_id"] async for row in found]
    return Changes(**counts, samples=shown)
