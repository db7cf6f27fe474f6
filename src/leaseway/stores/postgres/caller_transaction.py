"""Submitting in the caller's own transaction: the job exists if and only if the caller commits.

The caller's connection may come from asyncpg or psycopg, async or blocking. Errors of the driver are passed on
unchanged; only errors that the schema's functions raise are translated.
"""

import inspect
import re
from functools import cache
from typing import Any

from leaseway.domain.errors import UsageError
from leaseway.stores.postgres.address import Address
from leaseway.stores.postgres.errors import OWN_CODES, translate

CONNECTION_ATTRIBUTES = {"asyncpg": "is_in_transaction", "psycopg": "pgconn"}
"""An attribute that the driver's connections have and its pools do not have."""


async def fetch_in_transaction(connection: Any, address: Address, sql: str, *values: object) -> list[Any]:
    """Run one statement on an async connection of the caller."""
    driver = detect_driver(connection)
    if driver == "psycopg" and not is_async(connection):
        raise UsageError("this psycopg connection is not async; use app.submit_in_sync()")
    try:
        if driver == "asyncpg":
            return list(await connection.fetch(sql, *values))
        import psycopg

        # The caller's own cursors may use another row factory.
        async with psycopg.AsyncCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(psycopg_sql(sql), values)
            return await cursor.fetchall()
    except Exception as error:
        raise translate_own(error, address) from error


def fetch_in_transaction_blocking(connection: Any, address: Address, sql: str, *values: object) -> list[Any]:
    """Run one statement on a blocking connection of the caller."""
    if detect_driver(connection) == "asyncpg" or is_async(connection):
        raise UsageError("this connection is async; use `await app.submit_in()`")
    try:
        import psycopg

        with psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            return cursor.execute(psycopg_sql(sql), values).fetchall()
    except Exception as error:
        raise translate_own(error, address) from error


def detect_driver(connection: Any) -> str:
    for part in type(connection).__mro__:
        driver = part.__module__.partition(".")[0]
        if driver in CONNECTION_ATTRIBUTES and hasattr(connection, CONNECTION_ATTRIBUTES[driver]):
            return driver
    raise UsageError(
        f"{type(connection).__module__}.{type(connection).__qualname__} is not a connection of asyncpg or psycopg; "
        "take one out of its pool, or unwrap it first (SQLAlchemy: connection.get_raw_connection(), then its "
        "driver_connection)"
    )


def is_async(connection: Any) -> bool:
    return inspect.iscoroutinefunction(connection.execute)


@cache
def psycopg_sql(sql: str) -> str:
    """Replace $1, $2, … by psycopg's %s. The statement must use each parameter once and in order."""
    return re.sub(r"\$\d+", "%s", sql)


def translate_own(error: Exception, address: Address) -> Exception:
    return translate(error, address) if getattr(error, "sqlstate", None) in OWN_CODES else error
