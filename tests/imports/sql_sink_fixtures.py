"""Every sink that leaseway ships, empty, and a way to read its table without the sink.

To add a sink, write a place that opens it and add its name to `PLACES`.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import asyncpg
import pytest

from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import ColumnType
from leaseway.imports.sinks.port import Sink
from leaseway.imports.sinks.postgres.sink import PostgresSink
from leaseway.imports.sinks.sqlite.sink import SqliteSink
from leaseway.system import wall_clock_us
from leaseway.testing.sink_contract.fixtures import COLUMNS, Witness

TABLE = "my places"
PLACES = ["sqlite", "postgres"]
DATABASE = "sinks"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Columns = Mapping[str, ColumnType]


class Place(Witness, Protocol):
    def sink(
        self, now_us: Callable[[], Instant] | None = None, table: str = TABLE, columns: Columns = COLUMNS
    ) -> Sink: ...

    async def execute(self, sql: str) -> list[Any]: ...


class SqlitePlace:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def sink(self, now_us: Callable[[], Instant] | None = None, table: str = TABLE, columns: Columns = COLUMNS) -> Sink:
        return SqliteSink(self.path, table, columns, now_us or wall_clock_us)

    async def execute(self, sql: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=10, isolation_level=None)) as connection:
            connection.row_factory = sqlite3.Row
            return connection.execute(sql, values).fetchall()

    async def rows(self) -> dict[str, dict[str, Any]]:
        found = [dict(line) for line in await self.execute(f'SELECT * FROM "{TABLE}"')]
        return {line["external_id"]: {name: self._seen(name, value) for name, value in line.items()} for line in found}

    def _seen(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        match COLUMNS.get(name, "json" if name == "document" else ""):
            case "json":
                return json.loads(value)
            case "boolean":
                return bool(value)
            case "timestamp":
                return (datetime.fromisoformat(value) - EPOCH) // timedelta(microseconds=1)
        return value

    async def delete(self, external_id: str, at: Instant) -> None:
        await self.execute(f'UPDATE "{TABLE}" SET deleted_at = ? WHERE external_id = ?', at, external_id)


class PostgresPlace:
    def __init__(self, url: str) -> None:
        self.url = url

    def sink(self, now_us: Callable[[], Instant] | None = None, table: str = TABLE, columns: Columns = COLUMNS) -> Sink:
        return PostgresSink(self.url, table, columns, now_us)

    async def execute(self, sql: str, *values: object) -> list[Any]:
        connection = await asyncpg.connect(self.url)
        try:
            return list(await connection.fetch(sql, *values))
        finally:
            await connection.close()

    async def rows(self) -> dict[str, dict[str, Any]]:
        found = [dict(line) for line in await self.execute(f'SELECT * FROM "{TABLE}"')]
        return {line["external_id"]: {name: self._seen(name, value) for name, value in line.items()} for line in found}

    def _seen(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        match COLUMNS.get(name, "json" if name == "document" else ""):
            case "json":
                return json.loads(value)
            case "timestamp":
                return (value - EPOCH) // timedelta(microseconds=1)
        return value

    async def delete(self, external_id: str, at: Instant) -> None:
        await self.execute(f'UPDATE "{TABLE}" SET deleted_at = $1 WHERE external_id = $2', at, external_id)


async def empty_postgres(server_url: str) -> PostgresPlace:
    """A database of its own, with the empty schema that a new user has."""
    place = PostgresPlace(f"{server_url.rpartition('/')[0]}/{DATABASE}")
    databases = PostgresPlace(server_url)
    if not await databases.execute("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE):
        await databases.execute(f"CREATE DATABASE {DATABASE}")
    await place.execute("DROP SCHEMA public CASCADE")
    await place.execute("CREATE SCHEMA public")
    return place


async def empty_place(request: pytest.FixtureRequest, folder: Path) -> SqlitePlace | PostgresPlace:
    """Parameters for a fixture: the names of the places."""
    if request.param == "sqlite":
        return SqlitePlace(folder / "places.db")
    return await empty_postgres(request.getfixturevalue("server").url)
