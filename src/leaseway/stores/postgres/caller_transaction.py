"""Submitting inside the caller's own transaction: the job exists if and only if the caller commits.

The caller's connection may come from asyncpg or from psycopg, async or not. Its errors are the caller's, as they come
from the driver; only what our own functions refuse is said in our words.
"""

import inspect
import re
from functools import cache
from typing import Any

from leaseway.domain.errors import UsageError
from leaseway.stores.postgres.address import Address
from leaseway.stores.postgres.errors import OWN_CODES, translated

MARKS = {"asyncpg": "is_in_transaction", "psycopg": "pgconn"}
"""What a connection has and a pool of connections has not, by driver."""


async def fetch_within(connection: Any, address: Address, sql: str, *values: object) -> list[Any]:
    """Run one statement on a connection of the caller's, which awaits."""
    driver = driver_of(connection)
    if driver == "psycopg" and not is_async(connection):
        raise UsageError("this psycopg connection is not async; use app.submit_in_sync()")
    try:
        if driver == "asyncpg":
            return list(await connection.fetch(sql, *values))
        import psycopg

        # A cursor of our own: the caller's may make rows of another shape.
        async with psycopg.AsyncCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(for_psycopg(sql), values)
            return await cursor.fetchall()
    except Exception as error:
        raise own_words(error, address) from error


def fetch_within_now(connection: Any, address: Address, sql: str, *values: object) -> list[Any]:
    """Run one statement on a connection of the caller's, which waits."""
    if driver_of(connection) == "asyncpg" or is_async(connection):
        raise UsageError("this connection is async; use `await app.submit_in()`")
    try:
        import psycopg

        with psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            return cursor.execute(for_psycopg(sql), values).fetchall()
    except Exception as error:
        raise own_words(error, address) from error


def driver_of(connection: Any) -> str:
    for part in type(connection).__mro__:
        driver = part.__module__.partition(".")[0]
        if driver in MARKS and hasattr(connection, MARKS[driver]):
            return driver
    raise UsageError(
        f"a {type(connection).__module__}.{type(connection).__qualname__} is no connection of asyncpg or psycopg; "
        "take one out of its pool, or unwrap it first (SQLAlchemy: connection.get_raw_connection(), then its "
        "driver_connection)"
    )


def is_async(connection: Any) -> bool:
    return inspect.iscoroutinefunction(connection.execute)


@cache
def for_psycopg(sql: str) -> str:
    """$1, $2, … as psycopg writes them; our statements name each value once and in order."""
    return re.sub(r"\$\d+", "%s", sql)


def own_words(error: Exception, address: Address) -> Exception:
    return translated(error, address) if getattr(error, "sqlstate", None) in OWN_CODES else error
