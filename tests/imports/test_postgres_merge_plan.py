"""The statements of a page stay fast before PostgreSQL has analyzed a new table."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from tests.imports.sql_sink_fixtures import PostgresPlace, empty_postgres

from leaseway.imports.sinks.postgres.sink import PostgresSink
from leaseway.testing.postgres import PostgresServer

TABLE = "cities"
FILL = """
INSERT INTO cities (source, external_id, stamp, content_hash, document, run, first_seen, updated_at)
SELECT 'maps', n::text, 0, 'hash', '{}', 'run', 0, 0 FROM generate_series(1, 20000) AS n
"""
STAGE = "INSERT INTO pg_temp.leaseway_page SELECT n::text, 0, 'other', '{}', false FROM generate_series(1, 1000) AS n"
ARGUMENTS = {"merge": "'maps', 'run', 1, 'flagged', false", "stale": "'maps'"}


@pytest.fixture
async def sink(server: PostgresServer, tmp_path: Path) -> AsyncIterator[PostgresSink]:
    place: PostgresPlace = await empty_postgres(server.url)
    sink = PostgresSink(place.url, TABLE, {})
    await sink.open()
    yield sink
    await sink.close()


async def plan_of(connection: asyncpg.Connection, sink: PostgresSink, verb: str) -> str:
    await connection.execute(f"PREPARE {verb}_page AS {sink.tables.sql[verb].text}")
    lines = await connection.fetch(f"EXPLAIN EXECUTE {verb}_page({ARGUMENTS[verb]})")
    return "\n".join(line for (line,) in lines)


@pytest.mark.parametrize("verb", ARGUMENTS)
async def test_rows_are_looked_up_by_key_in_a_table_without_statistics(sink: PostgresSink, verb: str) -> None:
    """The server takes such a table for small and compared all its rows with each row of a page: a first import took
    longer for every page, until a minute later autovacuum came.
    """
    connection = await asyncpg.connect(sink.address.dsn)
    try:
        await connection.execute("ALTER TABLE cities SET (autovacuum_enabled = false)")
        await connection.execute(FILL)
        async with connection.transaction():
            await connection.execute(sink.tables.sql["stage"].text)
            await connection.execute(STAGE)
            plan = await plan_of(connection, sink, verb)
    finally:
        await connection.close()
    assert "Materialize" not in plan
    assert "(external_id = page.external_id))" in plan
