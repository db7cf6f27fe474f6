"""Bad rows, numbered in the order in which they arrived."""

from collections.abc import Sequence
from typing import Any

from pymongo import ReturnDocument

from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import BadRow
from leaseway.imports.sinks import run_tables
from leaseway.imports.sinks.mongodb.collections import NUMBERS, QUARANTINE
from leaseway.imports.sinks.mongodb.connection import Database, Session
from leaseway.imports.sinks.mongodb.row_encoding import shorten_bad_row
from leaseway.imports.sinks.mongodb.shards import LockedShard
from leaseway.imports.sinks.port import PageWrite

COLUMNS = ("_id", "shard", "position", "external_id", "code", "problem", "document")


async def add(
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


async def find_all(database: Database, target: str, run: str | None, limit: int) -> list[tuple[int, str, BadRow]]:
    asked = {"target": target, **({} if run is None else {"run": run})}
    found = database[QUARANTINE].find(asked).sort("_id", 1).limit(limit)
    return [run_tables.decode_bad_row([each[name] for name in COLUMNS]) async for each in found]
