"""Submitting in the caller's own transaction: the job exists if and only if the caller commits."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row
from tests.stores.postgres_support import SOON_SECONDS, USER_TABLE, Shop, connected, error_of, value

from leaseway import App
from leaseway.domain.errors import KeyConflict, UsageError
from leaseway.domain.job import State
from leaseway.testing.postgres import PostgresServer


@pytest.fixture
async def shop(server: PostgresServer) -> AsyncIterator[Shop]:
    shop = Shop(server)
    await shop.open()
    yield shop
    await shop.app.close()


# -- asyncpg ----------------------------------------------------------------------------------------------------------


async def test_asyncpg_rollback_leaves_nothing_and_commit_makes_the_job(shop: Shop) -> None:
    """There must be no order without its job, and no job without its order."""
    async with connected(shop.server) as connection:
        for _ in range(2):
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(shop.insert)
            (submitted,) = await shop.app.submit_in(connection, shop.ship.options(tenant="new").bind(order=1))
            assert not submitted.replayed
            await transaction.rollback()
            assert (await shop.orders(), await shop.jobs()) == (0, 0)
            assert await shop.app.find(submitted) is None
        async with connection.transaction():
            await connection.execute(shop.insert)
            (submitted,) = await shop.app.submit_in(connection, shop.ship.options(tenant="new").bind(order=1))
            assert await shop.app.find(submitted) is None, "it must not be visible before the commit"
    assert (await shop.orders(), await shop.jobs()) == (1, 1)
    await shop.drain()
    job = await shop.app.find(submitted)
    assert job is not None
    assert (job.state, shop.ran) == (State.DONE, [1])


async def test_a_connection_from_an_asyncpg_pool_is_accepted(shop: Shop) -> None:
    """A pool lends a proxy object of another class."""
    async with asyncpg.create_pool(shop.dsn, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await shop.app.submit_in(connection, shop.ship.bind(order=1))
        await transaction.rollback()
        assert await shop.jobs() == 0
        async with connection.transaction():
            await shop.app.submit_in(connection, *(shop.ship.bind(order=n) for n in range(3)))
    assert await shop.jobs() == 3


async def test_a_pool_is_refused(shop: Shop) -> None:
    """It would use a connection of its own and commit outside of the caller's transaction."""
    async with asyncpg.create_pool(shop.dsn, min_size=1, max_size=1) as pool:
        error = await error_of(shop.app.submit_in(pool, shop.ship.bind(order=1)))
    assert isinstance(error, UsageError)
    assert "connection" in str(error)
    assert await shop.jobs() == 0


async def test_type_codecs_of_the_caller_do_not_change_the_values(shop: Shop) -> None:
    """Many programs set a codec for json, as the asyncpg manual shows; it would encode a text twice."""
    async with connected(shop.server) as connection:
        for name in ("json", "jsonb"):
            await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        async with connection.transaction():
            await shop.app.submit_in(connection, shop.ship.bind(order=1))
            await shop.app.submit_in(connection, shop.ship.options(key="k").bind(order=2))
    await shop.drain()
    assert sorted(shop.ran) == [1, 2]


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
async def test_every_isolation_level_of_the_caller_works(shop: Shop, isolation: str) -> None:
    """Financial applications use serializable transactions."""
    await shop.ship.submit(order=0)
    async with connected(shop.server) as connection, connection.transaction(isolation=isolation):
        await connection.execute(shop.insert)
        await shop.app.submit_in(connection, shop.ship.options(key="one").bind(order=1))
        await shop.ship.submit(order=2)
        (again,) = await shop.app.submit_in(connection, shop.ship.options(key="one").bind(order=1))
        assert again.replayed
    assert (await shop.orders(), await shop.jobs()) == (1, 3)


# -- psycopg ----------------------------------------------------------------------------------------------------------


async def test_async_psycopg_rollback_leaves_nothing_and_commit_makes_the_jobs(shop: Shop) -> None:
    """psycopg is the other common driver; the promise is the same."""
    async with await psycopg.AsyncConnection.connect(shop.dsn) as connection:
        await connection.execute(shop.insert.encode())
        await shop.app.submit_in(connection, shop.ship.bind(order=1))
        await connection.rollback()
        assert (await shop.orders(), await shop.jobs()) == (0, 0)
        await connection.execute(shop.insert.encode())
        answers = await shop.app.submit_in(connection, *(shop.ship.options(key=f"{n}").bind(order=n) for n in range(3)))
        assert [answer.replayed for answer in answers] == [False] * 3
        await connection.commit()
    assert (await shop.orders(), await shop.jobs()) == (1, 3)
    await shop.drain()
    assert sorted(shop.ran) == [0, 1, 2]


async def test_row_factories_of_the_caller_do_not_matter(shop: Shop) -> None:
    """Web applications set `dict_row` for all their connections."""
    rows: Any = dict_row
    async with await psycopg.AsyncConnection.connect(shop.dsn, row_factory=rows) as connection:
        bound = [
            shop.ship.options(key=f"{n}").bind(order=n) for n in range(6)
        ]  # as many as the function's name has letters
        first = await shop.app.submit_in(connection, *bound)
        again = await shop.app.submit_in(connection, *bound)
    assert [answer.id for answer in again] == [answer.id for answer in first]
    assert [answer.replayed for answer in first + again] == [False] * 6 + [True] * 6
    assert await shop.jobs() == 6


def in_sync(shop: Shop, connection: "psycopg.Connection[Any]") -> None:
    connection.execute(shop.insert.encode())
    shop.app.submit_in_sync(connection, shop.ship.bind(order=1))
    connection.rollback()
    connection.execute(shop.insert.encode())
    (first,) = shop.app.submit_in_sync(connection, shop.ship.options(key="one").bind(order=1))
    (again,) = shop.app.submit_in_sync(connection, shop.ship.options(key="one").bind(order=1))
    assert (again.id, again.replayed) == (first.id, True)
    connection.commit()
    shop.app.close_sync()


@pytest.mark.parametrize("shape", ["tuples", "dicts"])
def test_blocking_psycopg_rollback_leaves_nothing_and_commit_makes_the_job(server: PostgresServer, shape: str) -> None:
    """Most web applications are not async."""
    shop = Shop(server)
    asyncio.run(value(server, USER_TABLE.format(shop.schema)))
    rows: dict[str, Any] = {"row_factory": dict_row} if shape == "dicts" else {}
    with psycopg.connect(shop.dsn, **rows) as connection:
        in_sync(shop, connection)

    async def look() -> tuple[int, int]:
        try:
            return await shop.orders(), await shop.jobs()
        finally:
            await shop.app.close()

    assert asyncio.run(look()) == (1, 1)


# -- what is no connection --------------------------------------------------------------------------------------------


async def test_a_blocking_connection_is_refused_in_async_code(shop: Shop) -> None:
    """It would block the event loop; the error names the call to use."""
    with psycopg.connect(shop.dsn) as connection:
        error = await error_of(shop.app.submit_in(connection, shop.ship.bind(order=1)))
    assert isinstance(error, UsageError)
    assert "submit_in_sync" in str(error)
    assert await shop.jobs() == 0


def test_an_async_connection_is_refused_in_blocking_code(server: PostgresServer) -> None:
    """A coroutine that is never awaited would submit nothing."""
    shop = Shop(server)
    with asyncio.Runner() as runner:
        for connect in (asyncpg.connect(shop.dsn), psycopg.AsyncConnection.connect(shop.dsn)):

            async def wait(connect: Any = connect) -> Any:
                return await connect

            connection = runner.run(wait())
            with pytest.raises(UsageError, match=r"await app\.submit_in"):
                shop.app.submit_in_sync(connection, shop.ship.bind(order=1))
            runner.run(connection.close())
    shop.app.close_sync()


async def test_an_object_that_is_not_a_connection_is_named(shop: Shop) -> None:
    """The error lists what is accepted."""
    error = await error_of(shop.app.submit_in(object(), shop.ship.bind(order=1)))
    assert isinstance(error, UsageError)
    assert "builtins.object is not a connection" in str(error)
    assert "SQLAlchemy" in str(error)


async def test_other_stores_name_the_one_that_supports_it() -> None:
    """The error must say what to do instead."""
    app = App("memory://")

    @app.job
    async def ship() -> None: ...

    error = await error_of(app.submit_in(object(), ship.bind()))
    assert isinstance(error, UsageError)
    assert "use PostgreSQL" in str(error)


# -- keys -------------------------------------------------------------------------------------------------------------


async def test_after_a_conflict_in_a_savepoint_the_transaction_continues(shop: Shop) -> None:
    """The order is still wanted although its job exists already."""
    await shop.ship.options(key="one").submit(order=1)
    async with connected(shop.server) as connection, connection.transaction():
        await connection.execute(shop.insert)
        with pytest.raises(KeyConflict):
            async with connection.transaction():
                await shop.app.submit_in(connection, shop.ship.options(key="one").bind(order=2))
        await shop.app.submit_in(connection, shop.ship.bind(order=3))
    assert (await shop.orders(), await shop.jobs()) == (1, 2)


async def test_a_key_that_was_rolled_back_is_free(shop: Shop) -> None:
    """A key must not be taken by a job that does not exist."""
    async with connected(shop.server) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await shop.app.submit_in(connection, shop.ship.options(key="one").bind(order=1))
        await transaction.rollback()
    assert not (await shop.ship.options(key="one").submit(order=2)).replayed


async def test_the_same_key_waits_for_the_end_of_the_other_transaction(shop: Shop) -> None:
    """Only then it is known which of the two is first."""
    async with connected(shop.server) as connection:
        transaction = connection.transaction()
        await transaction.start()
        (first,) = await shop.app.submit_in(connection, shop.ship.options(key="one").bind(order=1))
        second = asyncio.ensure_future(shop.ship.options(key="one").submit(order=1))
        await transaction.commit()
        async with asyncio.timeout(SOON_SECONDS):
            answer = await second
    assert (answer.id, answer.replayed) == (first.id, True)


# -- other people's work ----------------------------------------------------------------------------------------------


async def test_a_long_transaction_does_not_block_other_submissions_to_its_lane(shop: Shop) -> None:
    """A caller may submit and commit an hour later: counters must not be a lock."""
    await shop.ship.submit(order=1)
    async with connected(shop.server) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await shop.app.submit_in(connection, shop.ship.bind(order=2))
        async with asyncio.timeout(SOON_SECONDS):
            await shop.ship.submit(order=3)
            await shop.ship.submit_many({"order": order} for order in range(4, 1_300))
            await shop.drain()
        assert len(shop.ran) == 1_298
        assert 2 not in shop.ran
        await transaction.commit()
    await shop.drain()
    assert len(shop.ran) == 1_299
    assert await shop.jobs() == 0


async def test_an_empty_submission_does_nothing(shop: Shop) -> None:
    """Programs submit lists that may be empty."""
    async with connected(shop.server) as connection, connection.transaction():
        assert await shop.app.submit_in(connection) == []
    assert await shop.jobs() == 0


async def test_errors_of_the_driver_are_passed_on_unchanged(shop: Shop) -> None:
    """The transaction had failed before; the caller handles that by the errors of its driver."""
    async with connected(shop.server) as connection:
        transaction = connection.transaction()
        await transaction.start()
        with pytest.raises(asyncpg.UndefinedTableError):
            await connection.execute("SELECT * FROM nothing_of_the_kind")
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await shop.app.submit_in(connection, shop.ship.bind(order=1))
        await transaction.rollback()
