"""`submit_in` joins the transaction of every library that programs use, and refuses a connection that has none."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.frameworks.callers import ASYNC, BLOCKING, django_database, with_driver
from tests.stores.postgres_support import SOON_SECONDS, Shop, connected, error_of, opened, until

from leaseway import App
from leaseway.domain.errors import KeyConflict, UsageError
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.postgres import PostgresServer


@pytest.fixture
async def shop(server: PostgresServer) -> AsyncIterator[Shop]:
    shop = Shop(server)
    await shop.open()
    yield shop
    await shop.app.close()


@pytest.fixture
def plain_shop(server: PostgresServer) -> Iterator[Shop]:
    """For tests without an event loop."""
    shop = Shop(server)
    shop.app.sync(shop.open())
    yield shop
    shop.app.close_sync()


def seen(shop: Shop) -> tuple[int, int]:
    """Orders and jobs, for code that is not async."""

    async def count() -> tuple[int, int]:
        return await shop.orders(), await shop.jobs()

    return shop.app.sync(count())


# -- both exist or none -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ASYNC)
async def test_async_rollback_leaves_nothing_and_commit_makes_the_job(shop: Shop, library: str) -> None:
    """There must be no order without its job, and no job without its order."""
    async with ASYNC[library](shop.dsn) as caller:
        await caller.execute(shop.insert)
        await shop.app.submit_in(caller.connection, shop.ship.bind(order=1))
        assert (await shop.orders(), await shop.jobs()) == (0, 0)
        await caller.rollback()
        assert (await shop.orders(), await shop.jobs()) == (0, 0)
        # Also with the submission as the first statement, before the library has begun a transaction.
        await shop.app.submit_in(caller.connection, shop.ship.bind(order=1))
        assert await shop.jobs() == 0
        await caller.rollback()
        (first,) = await shop.app.submit_in(caller.connection, shop.ship.options(key="one").bind(order=1))
        await caller.execute(shop.insert)
        (again,) = await shop.app.submit_in(caller.connection, shop.ship.options(key="one").bind(order=1))
        assert (again.id, again.replayed) == (first.id, True)
        await caller.commit()
        assert (await shop.orders(), await shop.jobs()) == (1, 1)


@pytest.mark.parametrize("library", BLOCKING)
def test_blocking_rollback_leaves_nothing_and_commit_makes_the_job(plain_shop: Shop, library: str) -> None:
    """There must be no order without its job, and no job without its order."""
    shop = plain_shop
    with BLOCKING[library](shop.dsn) as caller:
        caller.execute(shop.insert)
        shop.app.submit_in_sync(caller.connection, shop.ship.bind(order=1))
        assert seen(shop) == (0, 0)
        caller.rollback()
        shop.app.submit_in_sync(caller.connection, shop.ship.bind(order=1))
        assert seen(shop) == (0, 0)
        caller.rollback()
        (first,) = shop.app.submit_in_sync(caller.connection, shop.ship.options(key="one").bind(order=1))
        caller.execute(shop.insert)
        (again,) = shop.app.submit_in_sync(caller.connection, shop.ship.options(key="one").bind(order=1))
        assert (again.id, again.replayed) == (first.id, True)
        caller.commit()
        assert seen(shop) == (1, 1)


def test_django_atomic_blocks_decide(plain_shop: Shop) -> None:
    """Django programs write `atomic`, and views run in one with ATOMIC_REQUESTS."""
    with django_database(plain_shop.dsn):
        from django.db import connection, transaction

        with transaction.atomic():
            plain_shop.app.submit_in_sync(connection, plain_shop.ship.bind(order=1))
        with transaction.atomic():
            plain_shop.app.submit_in_sync(transaction.get_connection(), plain_shop.ship.bind(order=2))
            transaction.set_rollback(True)
    assert seen(plain_shop) == (0, 1)


# -- no transaction ---------------------------------------------------------------------------------------------------


async def async_psycopg_in_autocommit(dsn: str) -> Any:
    return await psycopg.AsyncConnection.connect(dsn, autocommit=True)


async def closed_asyncpg(dsn: str) -> Any:
    connection = await asyncpg.connect(dsn)
    await connection.close()
    return connection


async def async_session_in_autocommit(dsn: str) -> Any:
    return AsyncSession(create_async_engine(with_driver(dsn, "asyncpg"), isolation_level="AUTOCOMMIT"))


async def async_session_without_begin(dsn: str) -> Any:
    return AsyncSession(create_async_engine(with_driver(dsn, "asyncpg")), autobegin=False)


async def closed_async_connection(dsn: str) -> Any:
    async with create_async_engine(with_driver(dsn, "asyncpg")).connect() as connection:
        return connection


ASYNC_WITHOUT = {
    "asyncpg outside of a transaction": (asyncpg.connect, r"async with connection\.transaction\(\)"),
    "asyncpg, closed": (closed_asyncpg, "is closed"),
    "psycopg in autocommit": (async_psycopg_in_autocommit, "autocommit=False"),
    "session in autocommit": (async_session_in_autocommit, "AUTOCOMMIT"),
    "session without begin": (async_session_without_begin, r"session\.begin"),
    "closed connection": (closed_async_connection, "is closed"),
}


@pytest.mark.parametrize("case", ASYNC_WITHOUT)
async def test_an_async_connection_without_a_transaction_is_refused(shop: Shop, case: str) -> None:
    """The job would be committed at once and stay if the caller's own change fails. The error names the way out."""
    make, way_out = ASYNC_WITHOUT[case]
    connection = await make(shop.dsn)
    with pytest.raises(UsageError, match=way_out):
        await shop.app.submit_in(connection, shop.ship.bind(order=1))
    engine = getattr(connection, "bind", None) or getattr(connection, "engine", None)
    if hasattr(connection, "close"):
        await connection.close()
    if engine is not None:
        await engine.dispose()
    assert await shop.jobs() == 0


def psycopg2_in_autocommit(dsn: str) -> Any:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    return connection


def closed_psycopg2(dsn: str) -> Any:
    connection = psycopg2.connect(dsn)
    connection.close()
    return connection


def connection_in_autocommit(dsn: str) -> Any:
    engine = create_engine(with_driver(dsn, "psycopg2"))
    return engine.connect().execution_options(isolation_level="AUTOCOMMIT")


BLOCKING_WITHOUT: dict[str, tuple[Callable[[str], Any], str]] = {
    "psycopg in autocommit": (lambda dsn: psycopg.connect(dsn, autocommit=True), r"connection\.transaction\(\)"),
    "psycopg2 in autocommit": (psycopg2_in_autocommit, r"connection\.autocommit = False"),
    "psycopg2, closed": (closed_psycopg2, "is closed"),
    "session without begin": (
        lambda dsn: Session(create_engine(with_driver(dsn, "psycopg")), autobegin=False),
        r"session\.begin",
    ),
    "connection in autocommit": (connection_in_autocommit, "AUTOCOMMIT"),
}


@pytest.mark.parametrize("case", BLOCKING_WITHOUT)
def test_a_blocking_connection_without_a_transaction_is_refused(plain_shop: Shop, case: str) -> None:
    """The same for code that is not async."""
    make, way_out = BLOCKING_WITHOUT[case]
    connection = make(plain_shop.dsn)
    with pytest.raises(UsageError, match=way_out):
        plain_shop.app.submit_in_sync(connection, plain_shop.ship.bind(order=1))
    connection.close()
    engine = getattr(connection, "bind", None) or getattr(connection, "engine", None)
    if engine is not None:
        engine.dispose()
    assert seen(plain_shop) == (0, 0)


def test_django_outside_of_atomic_is_refused(plain_shop: Shop) -> None:
    """Django is in autocommit mode by default."""
    with django_database(plain_shop.dsn):
        from django.db import connection

        with pytest.raises(UsageError, match=r"transaction\.atomic\(\)"):
            plain_shop.app.submit_in_sync(connection, plain_shop.ship.bind(order=1))
    assert seen(plain_shop) == (0, 0)


async def test_a_transaction_begun_by_hand_in_autocommit_is_accepted(shop: Shop) -> None:
    """`connection.transaction()` is how psycopg programs in autocommit mode open one."""
    connection = await psycopg.AsyncConnection.connect(shop.dsn, autocommit=True)
    async with connection, connection.transaction():
        await shop.app.submit_in(connection, shop.ship.bind(order=1))
    assert await shop.jobs() == 1


# -- the wrong object -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [create_async_engine, create_engine], ids=["async engine", "engine"])
async def test_an_engine_is_refused(shop: Shop, make: Callable[[str], Any]) -> None:
    """It would use a connection of its own, outside of the caller's transaction."""
    error = await error_of(shop.app.submit_in(make(with_driver(shop.dsn, "psycopg")), shop.ship.bind(order=1)))
    assert isinstance(error, UsageError)
    assert "an engine" in str(error)


async def test_a_blocking_session_in_async_code_names_both_ways_out(shop: Shop) -> None:
    """`submit_in` and `submit_in_sync` must not send the caller back and forth."""
    engine = create_engine(with_driver(shop.dsn, "psycopg"))
    with Session(engine) as session:
        error = await error_of(shop.app.submit_in(session, shop.ship.bind(order=1)))
        assert "submit_in_sync() in code that runs in a thread" in str(error)
        with pytest.raises(UsageError, match=r"asyncio\.to_thread"):
            shop.app.submit_in_sync(session, shop.ship.bind(order=1))
    engine.dispose()


def test_a_session_of_another_database_is_named(plain_shop: Shop) -> None:
    """Many programs have a second database."""
    memory = create_engine("sqlite://")
    with Session(memory) as session, pytest.raises(UsageError, match="another database"):
        plain_shop.app.submit_in_sync(session, plain_shop.ship.bind(order=1))
    memory.dispose()
    other = plain_shop.dsn.removesuffix("postgres") + "template1"
    engine = create_engine(with_driver(other, "psycopg"))
    with Session(engine) as session, pytest.raises(UsageError, match="not the database of the store"):
        plain_shop.app.submit_in_sync(session, plain_shop.ship.bind(order=1))
    engine.dispose()


@pytest.mark.parametrize("url", ["sqlite:///work.db", "memory://"])
async def test_a_store_that_cannot_join_says_why(url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error must say what to do instead, and nothing is created."""
    monkeypatch.chdir(tmp_path)
    app = App(url)

    @app.job
    async def ship() -> None: ...

    error = await error_of(app.submit_in(object(), ship.bind()))
    assert isinstance(error, UsageError)
    assert "use PostgreSQL" in str(error)
    assert ("across two files" in str(error)) == url.startswith("sqlite")
    assert list(tmp_path.iterdir()) == []


def test_no_library_of_a_caller_is_imported() -> None:
    """A program with asyncpg must not need SQLAlchemy or Django, and must not pay for their import."""
    script = """
import sys
import leaseway.stores.caller_connection
from leaseway import App
App("postgresql://127.0.0.1/none")
found = {"psycopg", "psycopg2", "sqlalchemy", "django", "aiosqlite"} & set(sys.modules)
assert not found, found
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ASYNC)
async def test_a_key_conflict_is_an_error_of_leaseway(shop: Shop, library: str) -> None:
    """The caller's library does not know what LW001 means."""
    await shop.ship.options(key="one").submit(order=1)
    async with ASYNC[library](shop.dsn) as caller:
        error = await error_of(shop.app.submit_in(caller.connection, shop.ship.options(key="one").bind(order=2)))
        await caller.rollback()
    assert isinstance(error, KeyConflict)
    assert str(error).startswith("key 'one' of tenant")
    assert "\n" not in str(error)
    assert await shop.jobs() == 1


@pytest.mark.parametrize("library", BLOCKING)
def test_a_key_conflict_is_an_error_of_leaseway_in_plain_code(plain_shop: Shop, library: str) -> None:
    """The same for code that is not async."""
    plain_shop.ship.options(key="one").submit_sync(order=1)
    with BLOCKING[library](plain_shop.dsn) as caller:
        with pytest.raises(KeyConflict, match=r"^key 'one' of tenant"):
            plain_shop.app.submit_in_sync(caller.connection, plain_shop.ship.options(key="one").bind(order=2))
        caller.rollback()


def test_errors_of_the_library_are_passed_on_unchanged(plain_shop: Shop) -> None:
    """The transaction had failed before; the caller handles that by the errors of its library."""
    with BLOCKING["sqlalchemy connection"](plain_shop.dsn) as caller:
        with pytest.raises(DBAPIError):
            caller.execute("SELECT * FROM nothing_of_the_kind")
        with pytest.raises(DBAPIError) as caught:
            plain_shop.app.submit_in_sync(caller.connection, plain_shop.ship.bind(order=1))
    assert isinstance(caught.value.orig, psycopg2.errors.InFailedSqlTransaction)
    assert caught.value.__cause__ is caught.value.orig


# -- notifications ----------------------------------------------------------------------------------------------------


async def woken_by(shop: Shop, waiter: PostgresStore, sql: str | None, notify: bool, seconds: float) -> bool:
    """Whether a commit ends the wait of another process. `sql`: submit by this function instead of `submit_in`."""
    waiting = asyncio.ensure_future(waiter.notifications.wait(seconds))
    await asyncio.sleep(0)
    listening = waiter.database.listener._listening[asyncio.get_running_loop()]

    async def listens() -> bool:
        return listening.is_open

    await until(listens)
    async with connected(shop.server) as connection, connection.transaction():
        if sql is None:
            await shop.app.submit_in(connection, shop.ship.bind(order=1), notify=notify)
        else:
            await connection.fetchval(f"SELECT {shop.schema}.{sql}('ship', notify => $1)", notify)
        assert not (waiting.done() and waiting.result()), "before the commit there is nothing to find"
    return await waiting


@pytest.mark.parametrize("sql", [None, "submit_job"])
async def test_the_commit_of_the_caller_notifies_workers(shop: Shop, sql: str | None) -> None:
    """An idle worker would otherwise find the job only when it polls, up to ten seconds later."""
    async with opened(shop.server, shop.schema) as waiter:
        assert await woken_by(shop, waiter, sql, notify=True, seconds=SOON_SECONDS)
        assert not await woken_by(shop, waiter, sql, notify=False, seconds=0.5)


async def test_the_commit_of_the_caller_still_waits_for_the_disk(shop: Shop) -> None:
    """leaseway's own notifications switch that off for their transactions; the caller's change must be durable."""
    async with connected(shop.server) as connection, connection.transaction():
        await connection.execute("SET LOCAL synchronous_commit TO 'on'")  # off on the tests' server
        await shop.app.submit_in(connection, shop.ship.bind(order=1))
        assert await connection.fetchval("SHOW synchronous_commit") == "on"
