"""Connections of every supported library, as programs open them: the object that is passed to `submit_in`, and how the
program executes, commits and rolls back."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker


class Caller(NamedTuple):
    connection: Any
    execute: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


class AsyncCaller(NamedTuple):
    connection: Any
    execute: Callable[[str], Awaitable[Any]]
    commit: Callable[[], Awaitable[Any]]
    rollback: Callable[[], Awaitable[Any]]


def with_driver(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://")


# -- plain code -------------------------------------------------------------------------------------------------------


@contextmanager
def by_psycopg(dsn: str) -> Iterator[Caller]:
    rows: Any = dict_row
    with psycopg.connect(dsn, row_factory=rows) as connection:
        yield Caller(connection, lambda sql: connection.execute(sql.encode()), connection.commit, connection.rollback)


@contextmanager
def by_psycopg2(dsn: str) -> Iterator[Caller]:
    connection = psycopg2.connect(dsn, cursor_factory=psycopg2.extras.RealDictCursor)
    try:
        yield Caller(connection, lambda sql: connection.cursor().execute(sql), connection.commit, connection.rollback)
    finally:
        connection.close()


@contextmanager
def by_sqlalchemy_connection(dsn: str) -> Iterator[Caller]:
    engine = create_engine(with_driver(dsn, "psycopg2"))
    with engine.connect() as connection:
        yield Caller(connection, connection.exec_driver_sql, connection.commit, connection.rollback)
    engine.dispose()


@contextmanager
def by_sqlalchemy_session(dsn: str) -> Iterator[Caller]:
    engine = create_engine(with_driver(dsn, "psycopg"))
    with Session(engine) as session:
        yield Caller(session, lambda sql: session.execute(text(sql)), session.commit, session.rollback)
    engine.dispose()


@contextmanager
def by_scoped_session(dsn: str) -> Iterator[Caller]:
    """As Flask-SQLAlchemy has it."""
    engine = create_engine(with_driver(dsn, "psycopg"))
    session = scoped_session(sessionmaker(engine))
    yield Caller(session, lambda sql: session.execute(text(sql)), session.commit, session.rollback)
    session.remove()
    engine.dispose()


@contextmanager
def by_django(dsn: str) -> Iterator[Caller]:
    with django_database(dsn):
        from django.db import connection

        connection.set_autocommit(False)
        yield Caller(connection, lambda sql: connection.cursor().execute(sql), connection.commit, connection.rollback)


@contextmanager
def django_database(dsn: str) -> Iterator[None]:
    """Django with this database as its default."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.frameworks.django_settings"
    import django
    from django.db import connections

    django.setup()
    name = dsn.rpartition("/")[2]
    host, _, port = dsn.rpartition("/")[0].rpartition("@")[2].partition(":")
    database = {"NAME": name, "USER": "postgres", "HOST": host, "PORT": port}
    before = dict(connections.databases["default"])
    connections.databases["default"].update(database)
    try:
        yield
    finally:
        connections["default"].close()
        del connections["default"]
        connections.databases["default"].update(before)


BLOCKING: dict[str, Callable[[str], AbstractContextManager[Caller]]] = {
    "psycopg": by_psycopg,
    "psycopg2": by_psycopg2,
    "sqlalchemy connection": by_sqlalchemy_connection,
    "sqlalchemy session": by_sqlalchemy_session,
    "sqlalchemy scoped session": by_scoped_session,
    "django": by_django,
}


# -- async code -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def by_asyncpg(dsn: str) -> AsyncIterator[AsyncCaller]:
    connection = await asyncpg.connect(dsn)

    async def begin() -> None:
        await connection.execute("BEGIN")

    async def end(word: str) -> None:
        await connection.execute(word)
        await begin()

    await begin()
    yield AsyncCaller(connection, connection.execute, lambda: end("COMMIT"), lambda: end("ROLLBACK"))
    await connection.close()


@asynccontextmanager
async def by_async_psycopg(dsn: str) -> AsyncIterator[AsyncCaller]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        yield AsyncCaller(
            connection, lambda sql: connection.execute(sql.encode()), connection.commit, connection.rollback
        )


def by_async_connection(driver: str) -> Callable[[str], AbstractAsyncContextManager[AsyncCaller]]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[AsyncCaller]:
        engine = create_async_engine(with_driver(dsn, driver))
        async with engine.connect() as connection:
            yield AsyncCaller(connection, connection.exec_driver_sql, connection.commit, connection.rollback)
        await engine.dispose()

    return opened


def by_async_session(driver: str) -> Callable[[str], AbstractAsyncContextManager[AsyncCaller]]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[AsyncCaller]:
        engine = create_async_engine(with_driver(dsn, driver))
        async with AsyncSession(engine) as session:
            yield AsyncCaller(session, lambda sql: session.execute(text(sql)), session.commit, session.rollback)
        await engine.dispose()

    return opened


@asynccontextmanager
async def by_async_scoped_session(dsn: str) -> AsyncIterator[AsyncCaller]:
    engine = create_async_engine(with_driver(dsn, "asyncpg"))
    session = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: "request")
    yield AsyncCaller(session, lambda sql: session.execute(text(sql)), session.commit, session.rollback)
    await session.remove()
    await engine.dispose()


ASYNC: dict[str, Callable[[str], AbstractAsyncContextManager[AsyncCaller]]] = {
    "asyncpg": by_asyncpg,
    "psycopg": by_async_psycopg,
    "sqlalchemy connection, asyncpg": by_async_connection("asyncpg"),
    "sqlalchemy connection, psycopg": by_async_connection("psycopg"),
    "sqlalchemy session, asyncpg": by_async_session("asyncpg"),
    "sqlalchemy session, psycopg": by_async_session("psycopg"),
    "sqlalchemy scoped session": by_async_scoped_session,
}
