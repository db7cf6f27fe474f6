"""Submitting in a transaction of the caller's own client: the job exists if and only if the caller commits."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from tests.stores.conftest import empty

from leaseway import App, UsageError
from leaseway.domain.errors import KeyConflict
from leaseway.stores.mongodb.store import MongoStore
from leaseway.testing.job_store_contract.fixtures import counts
from leaseway.testing.mongodb import MongoServer, mongodb_server

Client = AsyncMongoClient[dict[str, Any]]


@pytest.fixture
async def store(mongodb: MongoServer) -> AsyncIterator[MongoStore]:
    store = MongoStore(mongodb.url)
    await store.open()
    await empty(store)
    yield store
    await store.close()


@pytest.fixture
async def client(store: MongoStore, mongodb: MongoServer) -> AsyncIterator[Client]:
    async with AsyncMongoClient[dict[str, Any]](mongodb.url) as client:
        await client.leaseway.orders.delete_many({})
        await client.leaseway.orders.insert_one({"_id": 0})
        yield client


@pytest.fixture
async def app(store: MongoStore, mongodb: MongoServer) -> AsyncIterator[App]:
    async with App(mongodb.url) as app:
        yield app


async def test_a_rollback_leaves_nothing_and_a_commit_makes_the_job(
    app: App, client: Client, store: MongoStore
) -> None:
    """There must be no order without its job, and no job without its order."""
    ran: list[int] = []

    @app.job
    async def ship(order: int) -> None:
        ran.append(order)

    async with client.start_session() as session:
        await session.start_transaction()
        await client.leaseway.orders.insert_one({"_id": 1}, session=session)
        (gone,) = await app.submit_in(session, ship.bind(order=1))
        await session.abort_transaction()
        assert await app.find(gone) is None
        async with await session.start_transaction():
            await client.leaseway.orders.insert_one({"_id": 2}, session=session)
            (kept,) = await app.submit_in(session, ship.bind(order=2))
            assert await app.find(kept) is None, "it must not be visible before the commit"
    assert [order["_id"] async for order in client.leaseway.orders.find()] == [0, 2]
    assert await counts(store) == {"ready": 1}, "the lane counts it"
    await app.run_worker(until_empty=True)
    assert ran == [2]


async def test_work_that_the_driver_repeats_submits_one_job(app: App, client: Client, store: MongoStore) -> None:
    """`with_transaction` runs the caller's function again after a conflict."""
    tries: list[int] = []

    @app.job
    async def ship(order: int) -> None: ...

    async def work(session: Any) -> None:
        tries.append(1)
        await app.submit_in(session, ship.options(key="order-1").bind(order=1))
        if len(tries) == 1:
            await client.leaseway.orders.update_one({"_id": 0}, {"$inc": {"n": 1}})
        await client.leaseway.orders.update_one({"_id": 0}, {"$inc": {"n": 1}}, session=session)

    async with client.start_session() as session:
        await session.with_transaction(work)
    assert len(tries) == 2
    assert await counts(store) == {"ready": 1}
    async with client.start_session() as session, await session.start_transaction():
        (again,) = await app.submit_in(session, ship.options(key="order-1").bind(order=1))
        assert again.replayed
        with pytest.raises(KeyConflict):
            await app.submit_in(session, ship.options(key="order-1").bind(order=2))


async def test_what_cannot_keep_the_promise_is_refused(app: App, client: Client, mongodb: MongoServer) -> None:
    """A job that is stored although the caller's change fails is worse than an error."""

    @app.job
    async def ship(order: int) -> None: ...

    job = ship.bind(order=1)
    with pytest.raises(UsageError, match="not a session of PyMongo's AsyncMongoClient"):
        await app.submit_in(client, job)
    async with client.start_session() as session:
        with pytest.raises(UsageError, match="no transaction is open"):
            await app.submit_in(session, job)
    with (
        MongoClient[dict[str, Any]](mongodb.url) as plain,
        plain.start_session() as blocking,
        pytest.raises(UsageError, match="belongs to a MongoClient"),
    ):
        await app.submit_in(blocking, job)


@pytest.mark.slow
async def test_a_session_of_another_cluster_is_refused(app: App) -> None:
    """The jobs would be stored where no worker looks for them."""

    @app.job
    async def ship(order: int) -> None: ...

    with mongodb_server() as elsewhere:
        async with (
            AsyncMongoClient[dict[str, Any]](elsewhere.url) as client,
            client.start_session() as session,
            await session.start_transaction(),
        ):
            await client.leaseway.orders.find_one({}, session=session)
            with pytest.raises(UsageError, match="another cluster"):
                await app.submit_in(session, ship.bind(order=1))
