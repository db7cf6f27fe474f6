"""Every store that leaseway ships, opened empty, with a clock that the test moves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from leaseway.stores.memory.store import MemoryStore
from leaseway.stores.postgres.store import PostgresStore
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock

Stores = MemoryStore | SqliteStore | PostgresStore

TABLES = "lanes, lane_changes, jobs, payloads, errors, history, keys, schedules, tenants"


async def empty(store: PostgresStore) -> None:
    """Emptying the tables is faster than making them anew for every test."""
    async with store.connections.transaction() as connection:
        await connection.execute(f"SET LOCAL search_path TO {store.address.quoted}")
        await connection.execute(f"TRUNCATE {TABLES} RESTART IDENTITY")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Stores]:
    store: Stores
    if request.param == "memory":
        store = MemoryStore(clock.now_us)
    elif request.param == "sqlite":
        store = SqliteStore(str(tmp_path / "work.db"), now_us=clock.now_us)
    else:
        store = PostgresStore(request.getfixturevalue("server").url, now_us=clock.now_us)
    await store.open()
    if isinstance(store, PostgresStore):
        await empty(store)
    yield store
    await store.close()
