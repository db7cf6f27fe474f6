"""Every ledger that leaseway ships, opened empty, with a clock that the test moves."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from tests.api.shared_service import service_in_memory
from tests.mongodb_collections import empty_collections
from tests.postgres_tables import empty_tables

from leaseway.domain.budgets.budget import Crossed, HoldAnswer
from leaseway.domain.budgets.holds import Lines
from leaseway.ports.ledger import HoldRequest, Ledger, SettleHoldRequest
from leaseway.stores.memory.budgets import MemoryLedger
from leaseway.stores.mongodb.budgets import MongoLedger
from leaseway.stores.mongodb.schema import BUDGET_LAYOUTS
from leaseway.stores.postgres.budgets import PostgresLedger
from leaseway.stores.sqlite.budgets import SqliteLedger
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock
from leaseway.worker.ledger_client import LedgerClient


async def empty(ledger: PostgresLedger) -> None:
    async with ledger.connections.borrow() as connection:
        await empty_tables(connection, ledger.address.quoted)


async def empty_budgets(ledger: MongoLedger) -> None:
    await empty_collections(ledger.connections, *BUDGET_LAYOUTS)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class PostingLedger:
    """A ledger whose holds and settlements travel together, as those of a worker do."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._client = LedgerClient(ledger, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def emit(self, name: str, /, **facts: object) -> None:
        raise AssertionError(f"{name}: {facts}")

    async def hold(self, id: str, lines: Lines, ttl_us: int, *, owner: str = "", dispatch: bool = False) -> HoldAnswer:
        return await self._client.hold(HoldRequest(id, tuple(lines), ttl_us, owner, dispatch))

    async def settle(self, id: str, actuals: Mapping[str, int], *, owner: str | None = None) -> Crossed:
        return await self._client.settle(SettleHoldRequest(id, dict(actuals), owner))


STORES = ("memory", "sqlite", "postgres", "mongodb", "http")


@pytest.fixture(params=[*STORES, *(f"{store}, together" for store in STORES)])
async def ledger(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Ledger]:
    store, _, is_together = request.param.partition(", ")
    async with opened_ledger(store, request, clock, tmp_path) as ledger:
        yield cast(Ledger, PostingLedger(ledger)) if is_together else ledger


@asynccontextmanager
async def opened_ledger(
    name: str, request: pytest.FixtureRequest, clock: FakeClock, folder: Path
) -> AsyncIterator[Ledger]:
    if name == "memory":
        yield MemoryLedger(clock.now_us)
    elif name == "http":
        async with service_in_memory(clock) as world:
            yield world.ledger
    elif name == "postgres":
        ledger = PostgresLedger(request.getfixturevalue("server").url, clock.now_us)
        await ledger.open()
        await empty(ledger)
        yield ledger
        await ledger.close()
    elif name == "mongodb":
        mongo = MongoLedger(request.getfixturevalue("mongodb").url, clock.now_us)
        await mongo.open()
        await empty_budgets(mongo)
        yield mongo
        await mongo.close()
    else:
        store = SqliteStore(str(folder / "work.db"), now_us=clock.now_us)
        await store.open()
        yield SqliteLedger(store.database)
        await store.close()
