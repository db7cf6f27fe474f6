"""A shard is read with the server's time, and updated only if it has not changed since.

Each update increments its version, so two workers that read the same shard cannot both update it, with or without a
transaction. Bad rows are numbered in the order in which they arrive.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from bson import ObjectId
from pymongo import ReturnDocument

from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import BadRow
from leaseway.imports.domain.run_state import ShardRow
from leaseway.imports.sinks import run_tables
from leaseway.imports.sinks.mongodb.collections import NUMBERS, QUARANTINE, SHARDS
from leaseway.imports.sinks.mongodb.connection import Database, Document, Session, WriteConflict
from leaseway.imports.sinks.mongodb.rows import shorten_bad_row
from leaseway.imports.sinks.port import PageWrite

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LockedShard(NamedTuple):
    """A shard as it was read."""

    row: ShardRow
    source: str
    version: int
    writer: Document | None
    """The worker that started writing a page, on a server without transactions."""
    server_time: Instant


def shard_key(run: str, key: str) -> Document:
    return {"run": run, "key": key}


def decode_shard(found: Document) -> ShardRow:
    return run_tables.decode_shard([found[name] for name in run_tables.SHARD_COLUMNS])


async def read(database: Database, target: str, run: str, key: str, session: Session | None) -> LockedShard | None:
    stages: list[Document] = [
        {"$match": {"_id": shard_key(run, key), "target": target}},
        {"$set": {"now": "$$NOW"}},
    ]
    async for found in await database[SHARDS].aggregate(stages, session=session):
        return LockedShard(
            decode_shard(found), found["source"], found["version"], found["writer"], instant(found["now"])
        )
    return None


async def find_all(database: Database, target: str, run: str) -> list[ShardRow]:
    """Ordered by key."""
    found = database[SHARDS].find({"run": run, "target": target}).sort("key", 1)
    return [decode_shard(each) async for each in found]


async def update(
    database: Database, held: LockedShard, row: ShardRow, session: Session | None = None, **more: Any
) -> None:
    result = await database[SHARDS].update_one(
        {"_id": shard_key(row.run, row.shard.key), "version": held.version},
        {"$set": {**run_tables.shard_values(row), "writer": None, **more}, "$inc": {"version": 1}},
        session=session,
    )
    if not result.matched_count:
        raise WriteConflict(f"shard {row.shard.key}: another writer changed it; try again")


async def claim(database: Database, held: LockedShard, fence: int, sink: ObjectId) -> bool:
    """Claim a shard before a page that may be half written, so that only one of two workers with one fence writes rows.
    False: the other one has the claim.
    """
    if held.writer is not None and held.writer["fence"] == fence and held.writer["sink"] != sink:
        return False
    claimed = await database[SHARDS].update_one(
        {"_id": shard_key(held.row.run, held.row.shard.key), "version": held.version},
        {"$set": {"writer": {"fence": fence, "sink": sink}, "fence": fence}, "$inc": {"version": 1}},
    )
    if not claimed.matched_count:
        raise WriteConflict(f"shard {held.row.shard.key}: another writer changed it; try again")
    return True


async def add(database: Database, target: str, source: str, rows: Sequence[ShardRow], session: Session | None) -> None:
    """An existing shard is the same part of the source, because the key is derived from the predicate."""
    if not rows:
        return
    known = database[SHARDS].find({"run": rows[0].run}, {"key": 1}, session=session)
    keys = {found["key"] async for found in known}
    own = {"target": target, "source": source, "version": 0, "writer": None}
    new = [
        {"_id": shard_key(row.run, row.shard.key), **run_tables.shard_values(row), **own}
        for row in rows
        if row.shard.key not in keys
    ]
    if new:
        await database[SHARDS].insert_many(new, ordered=False, session=session)


def instant(moment: datetime) -> Instant:
    return (moment - EPOCH) // timedelta(microseconds=1)


COLUMNS = ("_id", "shard", "position", "external_id", "code", "problem", "document")


async def add_bad_rows(
    database: Database,
    target: str,
    page: PageWrite,
    held: LockedShard,
    bad: Sequence[BadRow],
    now: Instant,
    session: Session | None,
) -> None:
    number = held.row.pages
    if session is None:  # remove what an interrupted write of this page left
        await database[QUARANTINE].delete_many({"run": page.run, "shard": page.shard, "page": number})
    if not bad:
        return
    # Numbers are assigned outside the transaction, so that pages do not wait for each other; gaps do no harm.
    last: Any = await database[NUMBERS].find_one_and_update(
        {"_id": QUARANTINE}, {"$inc": {"last": len(bad)}}, upsert=True, return_document=ReturnDocument.AFTER
    )
    own = {"target": target, "source": held.source}
    first = last["last"] - len(bad) + 1
    lines = [
        {
            "_id": first + place,
            **run_tables.bad_row_values(page.run, page.shard, number, shorten_bad_row(row), now),
            **own,
        }
        for place, row in enumerate(bad)
    ]
    await database[QUARANTINE].insert_many(lines, session=session)


async def find_bad_rows(database: Database, target: str, run: str | None, limit: int) -> list[tuple[int, str, BadRow]]:
    asked = {"target": target, **({} if run is None else {"run": run})}
    found = database[QUARANTINE].find(asked).sort("_id", 1).limit(limit)
    return [run_tables.decode_bad_row([each[name] for name in COLUMNS]) async for each in found]
