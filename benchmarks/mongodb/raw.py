"""Plain PyMongo on one plain collection: what a team writes without a queue.

    python -m benchmarks.mongodb.raw insert URL COUNT      one document, one durable write, each
    python -m benchmarks.mongodb.raw insert_many URL COUNT the same documents, a thousand in each write
    python -m benchmarks.mongodb.raw drain URL COUNT       the loop: findOneAndUpdate, run, updateOne
    python -m benchmarks.mongodb.raw upsert URL COUNT      one row, one durable upsert, each
    python -m benchmarks.mongodb.raw pickup URL COUNT      one insert and one findOneAndUpdate, from an idle system

Every write is majority and journaled, as leaseway's are. The inserted documents are those of leaseway's jobs, in a
collection with the same indexes and the same validator.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from pymongo import ASCENDING, AsyncMongoClient, MongoClient, ReturnDocument
from pymongo.asynchronous.collection import AsyncCollection

from benchmarks.mongodb.database import PAYLOAD, new_document
from benchmarks.mongodb.rows import new_rows
from benchmarks.processes import done, ready
from leaseway.bench.probe import IDLE_SECONDS, SINGLE_SECONDS_MAX
from leaseway.stores.mongodb.connection import MAJORITY
from leaseway.stores.mongodb.schema import JOB_VALIDATOR, JOBS, LAYOUTS

Collection = AsyncCollection[dict[str, Any]]
BULK = 1_000
WINDOWS = "import_windows"


async def with_collection(url: str, work: Callable[[Collection], Awaitable[None]]) -> None:
    async with AsyncMongoClient[dict[str, Any]](url) as client:
        database = client.get_default_database(write_concern=MAJORITY)
        await database.create_collection("raw", validator=dict(JOB_VALIDATOR))
        await database["raw"].create_indexes(list(LAYOUTS[JOBS].indexes))
        await database["raw"].insert_one(new_document(now()))
        await work(database["raw"])


async def insert(url: str, count: int) -> None:
    async def work(collection: Collection) -> None:
        docs = [new_document(now()) for _ in range(count)]
        started_at, number, seconds = time.perf_counter(), 0, 0.0
        while number < count and seconds < SINGLE_SECONDS_MAX:
            await collection.insert_one(docs[number])
            number += 1
            seconds = time.perf_counter() - started_at
        print(json.dumps({"count": number, "seconds": seconds}))

    await with_collection(url, work)


async def insert_many(url: str, count: int) -> None:
    async def work(collection: Collection) -> None:
        docs = [new_document(now()) for _ in range(count)]
        started_at = time.perf_counter()
        for first in range(0, count, BULK):
            await collection.insert_many(docs[first : first + BULK])
        print(json.dumps({"count": count, "seconds": time.perf_counter() - started_at}))

    await with_collection(url, work)


async def upsert(url: str, count: int) -> None:
    """The rows that the sink gets, with the fields that a team would store."""
    async with AsyncMongoClient[dict[str, Any]](url) as client:
        places = client.get_default_database(write_concern=MAJORITY)["places"]
        rows = new_rows(count)
        started_at, number, seconds = time.perf_counter(), 0, 0.0
        while number < count and seconds < SINGLE_SECONDS_MAX:
            row = rows[number]
            fields = {"document": row.document, **row.values, "updated_at": datetime.now(UTC)}
            key = {"_id": {"source": "bench", "external_id": row.external_id}}
            await places.update_one(key, {"$set": fields}, upsert=True)
            number += 1
            seconds = time.perf_counter() - started_at
        print(json.dumps({"count": number, "seconds": seconds}))


def drain(url: str, count: int) -> None:
    """`findOneAndUpdate` sets owner and lease; the result is a second write. Expired leases are left out, which favours
    the loop."""
    with MongoClient[dict[str, Any]](url) as client:
        windows = client.get_default_database(write_concern=MAJORITY)[WINDOWS]
        windows.create_index([("status", ASCENDING), ("created_at", ASCENDING)])
        at, owner, settled = datetime.now(UTC), uuid4().hex, 0
        windows.insert_many(
            {"status": "pending", "created_at": at, "attempts": 0, "payload": PAYLOAD} for _ in range(count)
        )
        ready()
        begun_ns = time.monotonic_ns()
        while True:
            until = datetime.now(UTC) + timedelta(seconds=15)
            claim = {"$set": {"status": "leased", "lease": {"owner": owner, "until": until}}, "$inc": {"attempts": 1}}
            found = windows.find_one_and_update(
                {"status": "pending"}, claim, sort=[("created_at", ASCENDING)], return_document=ReturnDocument.AFTER
            )
            if found is None:
                break
            json.loads(found["payload"])
            held = {"_id": found["_id"], "lease.owner": owner}
            settled += windows.update_one(held, {"$set": {"status": "done"}, "$unset": {"lease": ""}}).modified_count
        done(settled, begun_ns, time.monotonic_ns())


async def pickup(url: str, count: int) -> None:
    """One insert and one claim, two durable writes, without notification and handler: the lower bound."""

    async def work(collection: Collection) -> None:
        chance, waits_ms = random.Random(count), []
        for _ in range(count):
            await asyncio.sleep(chance.uniform(*IDLE_SECONDS))
            doc, sent_ns = new_document(now()), time.monotonic_ns()
            await collection.insert_one(doc)
            await collection.find_one_and_update({"_id": doc["_id"]}, {"$inc": {"attempts": 1}})
            waits_ms.append((time.monotonic_ns() - sent_ns) / 1e6)
        print(json.dumps({"waits_ms": waits_ms}))

    await with_collection(url, work)


def now() -> int:
    return int(time.time() * 1e6)


def main(name: str, url: str, count: str) -> None:
    if name == "drain":
        drain(url, int(count))
    else:
        verbs = {"insert": insert, "insert_many": insert_many, "upsert": upsert, "pickup": pickup}
        asyncio.run(verbs[name](url, int(count)))


if __name__ == "__main__":
    main(*sys.argv[1:])
