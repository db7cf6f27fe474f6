"""Empties PostgreSQL tables that tests share one after the other.

Truncating tables is ten times cheaper than creating a schema, and cheaper still for only the tables that contain rows.
"""

from typing import Any

import asyncpg

NOT_EMPTY = """
SELECT string_agg(relid::text, ', ') FROM (
    SELECT c.oid::regclass AS relid FROM pg_class AS c
     WHERE c.relnamespace = to_regnamespace($1) AND c.relkind = 'r' AND c.relname <> 'migrations'
       AND pg_relation_size(c.oid) > 0
) AS used
"""
"""A table has a size from its first row until it is truncated. Partitions are tables of their own."""


async def empty_schema(url: str, schema: str) -> None:
    """Delete all rows of a schema; do nothing if the schema does not exist."""
    connection = await asyncpg.connect(url)
    try:
        await empty_tables(connection, schema)
    finally:
        await connection.close()


async def empty_tables(connection: Any, schema: str) -> None:
    async with connection.transaction():
        await connection.execute("SET LOCAL lock_timeout = '30s'")
        if tables := await connection.fetchval(NOT_EMPTY, schema):
            await connection.execute(f"TRUNCATE {tables} RESTART IDENTITY")
