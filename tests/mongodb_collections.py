"""Empties MongoDB collections that tests share one after the other. Collections are slow to create.

Most tests use a few of two dozen collections, so one query asks which ones have documents.
"""

from collections.abc import Iterable
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase

from leaseway.stores.mongodb.connection import META, Connections
from leaseway.stores.mongodb.schema import LAYOUTS

Database = AsyncDatabase[dict[str, Any]]


async def empty_collections(connections: Connections, *names: str) -> None:
    async with connections.calling() as database:
        await delete_all(database, names)


async def empty_schema(connections: Connections) -> None:
    """Delete everything but the version of the schema."""
    await empty_collections(connections, *LAYOUTS.keys() - {META})


async def empty_database(url: str) -> None:
    """Delete everything but the version of the schema, also if there is no schema."""
    client: AsyncMongoClient[dict[str, Any]]
    async with AsyncMongoClient(url) as client:
        await delete_all(client.get_default_database(), LAYOUTS.keys() - {META})


async def delete_all(database: Database, names: Iterable[str]) -> None:
    for name in await used_collections(database, sorted(names)):
        await database[name].delete_many({})


async def used_collections(database: Database, names: list[str]) -> list[str]:
    """Those that have documents."""
    first, *others = (lookup_name(name) for name in names)
    unions = [{"$unionWith": {"coll": name, "pipeline": stages}} for name, stages in others]
    async with await database[first[0]].aggregate([*first[1], *unions]) as found:
        return [each["_id"] async for each in found]


def lookup_name(name: str) -> tuple[str, list[dict[str, Any]]]:
    return name, [{"$limit": 1}, {"$project": {"_id": name}}]
