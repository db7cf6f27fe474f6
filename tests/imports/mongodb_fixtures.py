"""An empty MongoDB collection, and a way to read it without the sink."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pymongo import AsyncMongoClient
from tests.imports.sql_sink_fixtures import TABLE, Columns

from leaseway.domain.ids import Instant
from leaseway.imports.sinks.mongodb import MongoSink
from leaseway.imports.sinks.mongodb.rows import MARK
from leaseway.testing.sink_contract.fixtures import COLUMNS

ELSEWHERE = "other places"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MongoPlace:
    def __init__(self, url: str) -> None:
        self.url = url

    def sink(
        self, now_us: Callable[[], Instant] | None = None, table: str = TABLE, columns: Columns = COLUMNS
    ) -> MongoSink:
        return MongoSink(self.url, table, columns, now_us)

    def client(self) -> AsyncMongoClient[dict[str, Any]]:
        return AsyncMongoClient(self.url)

    async def found(self, collection: str, asked: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        async with self.client() as client:
            return await client.leaseway[collection].find(asked or {}).sort("_id", 1).to_list()

    async def add(self, collection: str, *documents: dict[str, Any]) -> None:
        async with self.client() as client:
            await client.leaseway[collection].insert_many(documents)

    async def empty(self) -> None:
        """The collection as a new user finds it, as far as a sink can tell. Collections are slow to create, so they are
        reused.
        """
        async with self.client() as client:
            for name in await client.leaseway.list_collection_names():
                if name in (TABLE, ELSEWHERE) or name.startswith("leaseway_"):
                    await client.leaseway[name].delete_many({})
                else:
                    await client.leaseway.drop_collection(name)

    async def rows(self) -> dict[str, dict[str, Any]]:
        return {row["_id"]["external_id"]: seen(row) for row in await self.found(TABLE)}

    async def delete(self, external_id: str, at: Instant) -> None:
        async with self.client() as client:
            await client.leaseway[TABLE].update_many({"_id.external_id": external_id}, {"$set": {"deleted_at": at}})


def seen(row: dict[str, Any]) -> dict[str, Any]:
    """The row in the names of the contract, without the internal page marker."""
    flat = {**row.pop("_id"), **row}
    flat.pop(MARK, None)
    return {name: instant(value) if COLUMNS.get(name) == "timestamp" else value for name, value in flat.items()}


def instant(value: str | None) -> Instant | None:
    return None if value is None else (datetime.fromisoformat(value) - EPOCH) // timedelta(microseconds=1)


def names(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [row["_id"]["external_id"] for row in rows]
