"""The collections of a sink. Missing ones are created; a collection with other documents is refused.

A row's `_id` is {source, external_id}: the key is unique without another index, and rows of a source are stored in the
order of their ids.
"""

from collections.abc import Sequence
from typing import Any

from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo import ASCENDING, DESCENDING
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import CollectionInvalid, OperationFailure

from leaseway.domain.errors import BadValue, StoreRefused
from leaseway.imports.sinks.columns import KEY, check_table
from leaseway.imports.sinks.mongodb.connection import Database, Document

RUNS, SHARDS, QUARANTINE = "leaseway_runs", "leaseway_shards", "leaseway_quarantine"
SEEN, ABSENT, NUMBERS = "leaseway_seen", "leaseway_absent", "leaseway_numbers"
INDEXES: dict[str, tuple[str, ...]] = {
    RUNS: ("target", "started_at"),
    SHARDS: ("run", "key"),
    QUARANTINE: ("run", "shard", "page"),
    SEEN: ("run",),
    ABSENT: ("target", "source", "generation", "external_id"),
}
"""Indexes of the run tables, besides `_id`."""
VERSION = 1
"""Of the run tables."""
VERSION_KEY = "run_tables_version"
NAMESPACE_EXISTS = 48
VERSION_MIN = (5, 0)
"""The first version that accepts field names with dots and dollars."""

Collection = AsyncCollection[dict[str, Any]]


def check_collection(name: str) -> str:
    (checked,) = check_table(name, parts_max=1)
    if "$" in checked or checked.startswith(("system.", ".")) or checked.endswith("."):
        raise BadValue("table", f"{name!r}: is not a valid collection name; choose one without $ and system.")
    return checked


def row_key(source: str, external_id: str) -> Document:
    return {"source": source, "external_id": external_id}


def source_range(source: str, after: str | None = None) -> dict[str, Any]:
    """All rows of a source, or those after an id: a range of the index."""
    lowest = MinKey() if after is None else after
    return {
        "_id": {
            "$gt": {"source": source, "external_id": lowest},
            "$lt": {"source": source, "external_id": MaxKey()},
        }
    }


async def prepare(database: Database, target: str, shown: str) -> bool:
    """Create missing collections, and return whether the server has transactions. If a collection is refused, nothing
    is created.
    """
    await refuse_old_server(database, shown)
    hello = await database.client.admin.command("hello")
    found = {each["name"]: each async for each in await database.list_collections()}
    if target in found:
        refuse_other_kind(shown, target, found[target])
        await refuse_other_documents(shown, database[target])
    for name in (target, *INDEXES, NUMBERS):
        if name not in found:
            await create_if_missing(database, name)
    for name, fields in INDEXES.items():
        await database[name].create_index([(field, ASCENDING) for field in fields])
    await check_version(database, shown)
    return "setName" in hello or hello.get("msg") == "isdbgrid"


async def refuse_old_server(database: Database, shown: str) -> None:
    version: Sequence[int] = (await database.client.server_info())["versionArray"]
    if tuple(version[:2]) < VERSION_MIN:
        least = ".".join(map(str, VERSION_MIN))
        raise StoreRefused(f"{shown}: is MongoDB {'.'.join(map(str, version[:3]))}; {least} or newer is required")


def refuse_other_kind(shown: str, target: str, found: Document) -> None:
    options = found.get("options", {})
    if found["type"] != "collection":
        raise StoreRefused(f"{shown}: {target} is a {found['type']}, not a collection; choose another name")
    if options.get("capped"):
        raise StoreRefused(f"{shown}: {target} is a capped collection, which drops rows; choose another collection")
    if options.get("collation", {}).get("locale", "simple") != "simple":
        raise StoreRefused(
            f"{shown}: {target} has a collation, which can treat two ids as equal; choose another collection"
        )


async def refuse_other_documents(shown: str, rows: Collection) -> None:
    """Other key types sort before or after, so checking the first and the last document is enough."""
    for direction in (ASCENDING, DESCENDING):
        first = await rows.find_one({}, {"_id": 1}, sort=[("_id", direction)])
        key = {} if first is None else first["_id"]
        if first is not None and not (isinstance(key, dict) and tuple(key) == KEY):
            raise StoreRefused(
                f"{shown}: collection {rows.name} contains other documents: one has the _id {key!r:.60}, and the rows "
                "of an import have {source, external_id}; choose another collection and it will be created"
            )


async def create_if_missing(database: Database, name: str) -> None:
    try:
        await database.create_collection(name)
    except CollectionInvalid:
        return  # created concurrently
    except OperationFailure as error:
        if error.code != NAMESPACE_EXISTS:
            raise


async def check_version(database: Database, shown: str) -> None:
    """Store the version of the run tables, and refuse those of a newer build."""
    await database[NUMBERS].update_one({"_id": VERSION_KEY}, {"$setOnInsert": {"last": VERSION}}, upsert=True)
    found: Any = await database[NUMBERS].find_one({"_id": VERSION_KEY})
    if found["last"] > VERSION:
        raise StoreRefused(
            f"{shown}: the run tables have version {found['last']}, and this build of leaseway knows versions up to "
            f"{VERSION}; upgrade leaseway"
        )
