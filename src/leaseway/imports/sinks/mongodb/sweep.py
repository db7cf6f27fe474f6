"""Rows that a complete run did not see, and changes between two instants.

A page that remembers its ids stores them in one document of `leaseway_seen`. A sweep reads these ids and the rows side
by side in order, so neither has to fit into memory. It needs no transaction: every step can be repeated, and the run's
notes record the end.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from pymongo import UpdateOne

from leaseway.domain.ids import Instant
from leaseway.imports.domain.run_state import RunRow
from leaseway.imports.sinks import run_tables
from leaseway.imports.sinks.mongodb.collections import ABSENT, SEEN, Collection, row_key, source_range
from leaseway.imports.sinks.mongodb.connection import Database, Document, Session
from leaseway.imports.sinks.mongodb.rows import batches
from leaseway.imports.sinks.mongodb.runs import keep_notes
from leaseway.imports.sinks.port import Changes, Sweep

BATCH = 1_000


async def remember(
    database: Database, run: str, shard: str, page: int, ids: Sequence[str], session: Session | None
) -> None:
    for part, some in enumerate(batches(ids)):
        key = {"run": run, "shard": shard, "page": page, "part": part}
        await database[SEEN].replace_one({"_id": key}, {"run": run, "ids": list(some)}, upsert=True, session=session)


async def sweep(database: Database, rows: Collection, run: RunRow) -> Sweep:
    found = run_tables.stored_sweep(run)
    if found is None:
        absent = await marked_absent(database, rows, run)
        # A row that is not absent in this sweep was seen, or has been deleted.
        others = {"target": rows.name, "source": run.source, "run": {"$ne": run.id}}
        await database[ABSENT].delete_many(others)
        stored = await rows.count_documents({**source_range(run.source), "deleted_at": None})
        found = Sweep(stored, absent)
        await keep_notes(database, run, run_tables.notes_with_sweep(run, found))
    await database[SEEN].delete_many({"run": run.id})
    return found


async def marked_absent(database: Database, rows: Collection, run: RunRow) -> int:
    # Rows that were written during the run are not considered: the run may have read their page before, and the writer
    # saw them.
    asked = {**source_range(run.source), "deleted_at": None, "updated_at": {"$lt": run.started_at}}
    stored = rows.find(asked, {"_id": 1}, batch_size=10 * BATCH).sort("_id", 1)
    count, batch = 0, []
    async for key in unseen((row["_id"]["external_id"] async for row in stored), seen_ids(database, run.id)):
        batch.append(missed(rows.name, run, key))
        count += 1
        if len(batch) == BATCH:
            await database[ABSENT].bulk_write(batch, ordered=False)
            batch = []
    if batch:
        await database[ABSENT].bulk_write(batch, ordered=False)
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


def missed(target: str, run: RunRow, key: str) -> UpdateOne:
    """Counted once per run, however often it is called."""
    again = {"$cond": [{"$eq": ["$run", run.id]}, "$sweeps", {"$add": [{"$ifNull": ["$sweeps", 0]}, 1]}]}
    own = {"target": target, "source": run.source, "external_id": key}
    literal = {name: {"$literal": value} for name, value in own.items()}
    change: list[Document] = [{"$set": {**literal, "sweeps": again}}, {"$set": {"run": {"$literal": run.id}}}]
    return UpdateOne({"_id": own}, change, upsert=True)


async def find_absent(database: Database, target: str, source: str, sweeps: int, limit: int, after: str) -> list[str]:
    asked = {"target": target, "source": source, "external_id": {"$gt": after}, "sweeps": {"$gte": sweeps}}
    found = database[ABSENT].find(asked, {"external_id": 1}).sort("external_id", 1).limit(limit)
    return [each["external_id"] async for each in found]


async def mark_present(database: Database, target: str, source: str, ids: Iterable[str]) -> None:
    for some in batches(list(ids)):
        asked = {"target": target, "source": source, "external_id": {"$in": list(some)}}
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
