"""Hostile values in every column of the tables that hold no jobs: definitions, workers, history, keys and so on.

`test_hostile_columns` does the same for jobs, and `test_hostile_documents` for MongoDB. Of a row of each table, copies
are inserted that differ in one column. Whatever the schema accepts, readers and workers must go on with the rest.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
from tests.api.live_clients import by_polling
from tests.api.running_service import run_service
from tests.attacks.test_hostile_columns import POSTGRES_VALUES, SQLITE_VALUES, failing_routes, list_jobs
from tests.attacks.test_hostile_documents import build_app, fill_store
from tests.sqlite_files import open_sqlite

from leaseway.domain.job import State

WITH_JOBS = {"jobs", "payloads", "large_payloads", "errors", "history", "history_default", "keys", "idempotency_keys"}
"""Tables of the tests beside this one."""
OWN = {
    "clock",
    "promotion",
    "held_clock",
    "limiter_fence",
    "limiter_history",
    "sqlite_sequence",
    "schema_version",
    "migrations",
}
"""Tables of the store itself, with one row each."""
JSON_VALUES = {
    "sqlite": {
        "an empty object": "'{}'", "a list": "'[]'", "a wrong type": "'{\"name\": 5}'",
        "the values doubled": "replace({column}, ':', ':-9999999999999999999999')",
        "names with commands": "replace({column}, ':\"', ':\"' || char(27) || '[2J')",
        "empty names": "replace(replace({column}, 'maps', ''), 'spend', '')",
        "negative numbers": "replace(replace({column}, ':1', ':-1'), ':2', ':-9')",
        "huge numbers": "replace(replace({column}, ':1', ':1000000000000000'), ':2', ':900000000000000000')",
    },
    "postgres": {
        "an empty object": "'{}'", "a list": "'[]'", "a wrong type": "'{\"name\": 5}'",
        "names with commands": "replace({column}::text, ': \"', ': \"\\u001b[2J')::{type}",
        "negative numbers": "replace(replace({column}::text, ': 1', ': -1'), ': 2', ': -9')::{type}",
        "huge numbers": "replace({column}::text, ': 1', ': 1000000000000000')::{type}",
    },
}  # fmt: skip


class SqliteFile:
    """The tables of a file, their columns (name, type, whether it is part of the key), and inserts."""

    def __init__(self, url: str) -> None:
        self._path = url.removeprefix("sqlite:///")

    async def tables(self) -> Sequence[str]:
        with open_sqlite(self._path) as connection:
            return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]

    async def columns(self, table: str) -> Sequence[tuple[str, str, bool]]:
        with open_sqlite(self._path) as connection:
            found = connection.execute(f"PRAGMA table_info({table})").fetchall()
        return [(name, kind, bool(key)) for _, name, kind, _, _, key in found]

    async def insert(self, statement: str) -> int:
        with suppress(sqlite3.Error), open_sqlite(self._path) as connection:
            return connection.execute(statement).rowcount
        return 0


class PostgresSchema:
    """The same for a schema of a server."""

    def __init__(self, url: str) -> None:
        self._address, _, self._schema = url.partition("?schema=")
        self._connection: asyncpg.Connection | None = None

    async def connection(self) -> asyncpg.Connection:
        if self._connection is None:
            self._connection = await asyncpg.connect(self._address, server_settings={"search_path": self._schema})
        return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def tables(self) -> Sequence[str]:
        rows = await (await self.connection()).fetch(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema() "
            "AND table_type = 'BASE TABLE'"
        )
        return [name for (name,) in rows]

    async def columns(self, table: str) -> Sequence[tuple[str, str, bool]]:
        rows = await (await self.connection()).fetch(
            "SELECT attname, format_type(atttypid, atttypmod), EXISTS (SELECT FROM pg_index WHERE indrelid = attrelid "
            "AND indisprimary AND attnum = ANY (indkey)) FROM pg_attribute WHERE attrelid = $1::regclass "
            "AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND attidentity = ''",
            table,
        )
        return [(name, kind, is_key) for name, kind, is_key in rows]

    async def insert(self, statement: str) -> int:
        with suppress(asyncpg.PostgresError):
            return int((await (await self.connection()).execute(statement)).rpartition(" ")[2])
        return 0


async def insert_changed(database: Any, backend: str, table: str) -> int:
    """Copies of a row of the table, each with another value in one column. Returns how many the schema accepted."""
    columns, accepted, number = await database.columns(table), 0, 0
    plain = SQLITE_VALUES if backend == "sqlite" else POSTGRES_VALUES
    for changed, kind, is_row_id in columns:
        if is_row_id and kind == "INTEGER":
            continue  # SQLite itself adds no row behind the highest one
        values = [*plain.values()]
        values += [each.replace("{column}", changed).replace("{type}", kind) for each in JSON_VALUES[backend].values()]
        for value in values:
            number += 1
            chosen = []
            for name, type_, is_key in columns:
                if name == changed:
                    chosen.append(value)
                elif is_key and type_.lower() in ("text", "uuid"):
                    chosen.append(f"{name} || '-{number}'")
                elif is_key:
                    chosen.append(f"{name} + {number}")
                else:
                    chosen.append(name)
            names = ", ".join(name for name, *_ in columns)
            statement = f"INSERT INTO {table} ({names}) SELECT {', '.join(chosen)} FROM {table} LIMIT 1"
            accepted += await database.insert(statement)
    return accepted


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Any]:
    if url.startswith("sqlite"):
        yield SqliteFile(url)
        return
    schema = PostgresSchema(url)
    try:
        yield schema
    finally:
        await schema.close()


async def test_everything_else_goes_on(store_url: str) -> None:
    """One schedule, key or heartbeat that cannot be read made the service unready, and hid the lists from operators."""
    app, backend = build_app(store_url), store_url.partition(":")[0].removesuffix("ql")
    async with app:
        await fill_store(app)
        async with opened(store_url) as database:
            tables = sorted(name for name in await database.tables() if name.partition("_2")[0] not in WITH_JOBS | OWN)
            accepted = {table: await insert_changed(database, backend, table) for table in tables}
        assert {table for table, count in accepted.items() if not count} <= {"in_flight_calls"}, "nothing was tested"
        async with run_service(app) as served:
            honest = [await app.submit(app.bind(kind, {"a": 1})) for kind in ("add", "metered")]
            assert await failing_routes(served, []) == []
            assert {str(job.id) for job in honest} <= set(await list_jobs(served))
            async with by_polling(served.url) as watcher:
                await watcher.frame()
            working = asyncio.create_task(app.run_worker(queues=["default", "metered", "setup"]))
            try:
                assert [(await app.wait(job, 60)).state for job in honest] == [State.DONE] * 2
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
