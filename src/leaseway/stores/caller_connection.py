"""The caller's own connection, in whose transaction jobs are submitted.

    recognize the library ─► require an open transaction ─► run one statement

The connection may belong to asyncpg, psycopg, psycopg2, SQLAlchemy or Django. None of them is imported to find out: an
object of a library exists only where the library is loaded, so its class is recognized by the module that defines it.
A connection that would commit each statement by itself is refused before anything is sent. Errors of the driver are
passed on unchanged.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from leaseway.domain.errors import UsageError

Values = tuple[object, ...]
Rows = list[Any]

MARKS = {
    "asyncpg": "is_in_transaction",
    "psycopg": "pgconn",
    "psycopg2": "get_transaction_status",
    "sqlalchemy": "begin_nested",
    "django": "in_atomic_block",
}
"""Library → an attribute that its connections and sessions have, and its pools, engines and factories do not have."""

IDLE = 0
"""The transaction status of libpq, and so of both psycopgs: no transaction is open."""


async def fetch(connection: Any, sql: str, values: Values) -> Rows:
    """Run a statement in the transaction of an async connection."""
    library = recognize(connection)
    if not is_async(connection, library):
        raise UsageError(
            f"this connection of {library} is not async; call app.submit_in_sync() in code that runs in a thread: a "
            "plain function of your framework, asyncio.to_thread() or sync_to_async()"
        )
    rows: Rows = await ASYNC[library](connection, sql, values)
    return rows


def fetch_blocking(connection: Any, sql: str, values: Values) -> Rows:
    """Run a statement in the transaction of a connection that is not async."""
    library = recognize(connection)
    if is_async(connection, library):
        raise UsageError(f"this connection of {library} is async; use `await app.submit_in()`")
    return BLOCKING[library](connection, sql, values)


def recognize(connection: Any) -> str:
    # Not type(): tracing libraries pass proxies, whose __class__ is the class of the real connection.
    for part in connection.__class__.__mro__:
        library: str = part.__module__.partition(".")[0]
        if library in MARKS and hasattr(connection, MARKS[library]):
            return library
    given = type(connection)
    raise UsageError(
        f"{given.__module__}.{given.__qualname__} is not a connection or session in whose transaction jobs can be "
        "submitted. Those of asyncpg, psycopg, psycopg2, SQLAlchemy and Django are; of a pool, an engine or a session "
        "factory, take a connection first"
    )


def is_async(connection: Any, library: str) -> bool:
    match library:
        case "asyncpg":
            return True
        case "psycopg":
            return inspect.iscoroutinefunction(connection.execute)
        case "sqlalchemy":
            return inspect.iscoroutinefunction(connection.commit)
        case _:
            return False


# -- drivers ----------------------------------------------------------------------------------------------------------


async def fetch_asyncpg(connection: Any, sql: str, values: Values) -> Rows:
    refuse_closed(connection.is_closed())
    if not connection.is_in_transaction():
        raise no_transaction("`async with connection.transaction():`")
    return list(await connection.fetch(sql, *values))


async def fetch_psycopg_async(connection: Any, sql: str, values: Values) -> Rows:
    require_psycopg(connection, "`async with connection.transaction():`")
    import psycopg

    # The caller's own cursors may use another row factory and other placeholders.
    async with psycopg.AsyncCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
        await cursor.execute(with_format_marks(sql).encode(), values)
        return await cursor.fetchall()


def fetch_psycopg(connection: Any, sql: str, values: Values) -> Rows:
    require_psycopg(connection, "`with connection.transaction():`")
    import psycopg

    with psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
        return cursor.execute(with_format_marks(sql).encode(), values).fetchall()


def require_psycopg(connection: Any, way_out: str) -> None:
    refuse_closed(connection.closed)
    if connection.autocommit and connection.info.transaction_status == IDLE:
        raise no_transaction(f"{way_out}, or connect with autocommit=False")


def fetch_psycopg2(connection: Any, sql: str, values: Values) -> Rows:
    refuse_closed(connection.closed)
    if connection.autocommit and connection.get_transaction_status() == IDLE:
        raise no_transaction("`connection.autocommit = False`")
    import psycopg2.extensions

    with connection.cursor(cursor_factory=psycopg2.extensions.cursor) as cursor:
        cursor.execute(with_format_marks(sql), values)
        return list(cursor.fetchall())


# -- frameworks -------------------------------------------------------------------------------------------------------


def fetch_django(connection: Any, sql: str, values: Values) -> Rows:
    if connection.vendor != "postgresql":
        raise other_database(f"{connection.vendor}, by Django")
    if not connection.in_atomic_block and connection.get_autocommit():
        raise no_transaction("`with transaction.atomic():` (django.db.transaction)")
    with connection.cursor() as cursor:
        cursor.execute(with_format_marks(sql), values)
        return list(cursor.fetchall())


def fetch_sqlalchemy(given: Any, sql: str, values: Values) -> Rows:
    """`given`: a session, a scoped session or a connection."""
    connection = given if hasattr(given, "exec_driver_sql") else connection_of_session(given)
    refuse_closed(connection.closed)
    if connection.dialect.name != "postgresql":
        raise other_database(f"{connection.dialect.name}, by SQLAlchemy")
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise no_transaction("an isolation level other than AUTOCOMMIT")
    # Not on the driver's connection: SQLAlchemy begins the driver's transaction with the first statement it sends.
    text = sql if connection.dialect.paramstyle == "numeric_dollar" else with_format_marks(sql)
    return list(connection.exec_driver_sql(text, values).fetchall())


def connection_of_session(session: Any) -> Any:
    try:
        return session.connection()
    except Exception as error:
        if session.in_transaction() or type(error).__name__ != "InvalidRequestError":
            raise
        raise no_transaction("`with session.begin():`") from error


async def fetch_sqlalchemy_async(given: Any, sql: str, values: Values) -> Rows:
    # A scoped session stands for the session of the current scope, which calling it returns.
    session = given if hasattr(given, "run_sync") else given()
    if getattr(session, "closed", False):  # a connection; a session opens one when it needs it
        refuse_closed(True)
    rows: Rows = await session.run_sync(fetch_sqlalchemy, sql, values)
    return rows


ASYNC: dict[str, Callable[..., Any]] = {
    "asyncpg": fetch_asyncpg,
    "psycopg": fetch_psycopg_async,
    "sqlalchemy": fetch_sqlalchemy_async,
}
BLOCKING: dict[str, Callable[..., Rows]] = {
    "psycopg": fetch_psycopg,
    "psycopg2": fetch_psycopg2,
    "sqlalchemy": fetch_sqlalchemy,
    "django": fetch_django,
}


# -- shared -----------------------------------------------------------------------------------------------------------


@cache
def with_format_marks(sql: str) -> str:
    """Replace $1, $2, … by %s. The statement must use each parameter once and in order, and contain no %."""
    return re.sub(r"\$\d+", "%s", sql)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it wraps, outermost first: SQLAlchemy and Django wrap the errors of the driver."""
    for _ in range(10):
        if error is None:
            return
        yield error
        error = getattr(error, "orig", None) or error.__cause__


def refuse_closed(is_closed: object) -> None:
    if is_closed:
        raise UsageError("this connection is closed; open another one, and submit before you close it")


def no_transaction(way_out: str) -> UsageError:
    return UsageError(
        "no transaction is open on this connection, so each statement would be committed at once, also if your own "
        f"change fails; write {way_out}. Without a transaction of your own, use submit() or submit_sync()"
    )


def other_database(name: str) -> UsageError:
    return UsageError(f"this connection is to another database ({name}) than the store, which is in PostgreSQL")
