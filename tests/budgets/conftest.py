"""Every ledger that leaseway ships, opened empty, with a clock that the test moves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.api.shared_service import service_in_memory
from tests.postgres_tables import empty_tables

from leaseway.ports.ledger import Ledger
from leaseway.stores.memory.budgets import MemoryLedger
from leaseway.stores.postgres.budgets import PostgresLedger
from leaseway.stores.sqlite.budgets import SqliteLedger
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock


async def empty(ledger: PostgresLedger) -> None:
    async with ledger.connections.borrow() as connection:
        await empty_tables(connection, ledger.address.quoted)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite", "postgres", "http"])
async def ledger(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Ledger]:
    if request.param == "memory":
        yield MemoryLedger(clock.now_us)
        return
    if request.param == "http":
        async with service_in_memory(clock) as world:
            yield world.ledger
        return
    if request.param == "postgres":
        ledger = PostgresLedger(request.getfixturevalue("server").url, clock.now_us)
        await ledger.open()
        await empty(ledger)
        yield ledger
        await ledger.close()
        return
    store = SqliteStore(str(tmp_path / "work.db"), now_us=clock.now_us)
    await store.open()
    yield SqliteLedger(store.database)
    await store.close()
