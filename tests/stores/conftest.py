"""Every store that leaseway ships, opened empty, with a clock that the test moves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from tests.api.shared_service import service_in_memory
from tests.mongodb_collections import empty_schema
from tests.postgres_tables import empty_tables

from leaseway.stores.http.store import HttpStore
from leaseway.stores.memory.store import MemoryStore
from leaseway.stores.mongodb.store import MongoStore
from leaseway.stores.postgres.store import PostgresStore
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock

Keeping = MemoryStore | SqliteStore | PostgresStore | MongoStore
Stores = Keeping | HttpStore
KEEPING = ("memory", "sqlite", "postgres", "mongodb")
"""Stores that hold their own data; over HTTP, the service holds it."""


async def empty(store: Keeping) -> None:
    """Delete what earlier tests left on a server that they share."""
    if isinstance(store, MongoStore):
        await empty_schema(store.connections)
    if not isinstance(store, PostgresStore):
        return
    async with store.connections.borrow() as connection:
        await empty_tables(connection, store.address.quoted)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@asynccontextmanager
async def kept(request: pytest.FixtureRequest, clock: FakeClock, folder: Path) -> AsyncIterator[Keeping]:
    """A store that holds its own data, open and empty; `request.param` selects it."""
    store: Keeping
    if request.param == "memory":
        store = MemoryStore(clock.now_us)
    elif request.param == "sqlite":
        store = SqliteStore(str(folder / "work.db"), now_us=clock.now_us)
    elif request.param == "mongodb":
        store = MongoStore(request.getfixturevalue("mongodb").url, now_us=clock.now_us)
    else:
        store = PostgresStore(request.getfixturevalue("server").url, now_us=clock.now_us)
    await store.open()
    await empty(store)
    yield store
    await store.close()


@pytest.fixture(params=[*KEEPING, "http"])
async def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Stores]:
    if request.param == "http":
        async with service_in_memory(clock) as world:
            yield cast(HttpStore, world.store)
    else:
        async with kept(request, clock, tmp_path) as store:
            yield store
