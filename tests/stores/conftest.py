"""Every store that leaseway ships, opened empty, with a clock that the test moves."""

from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

pytest.register_assert_rewrite("leaseway.testing")

from leaseway.stores.memory.store import MemoryStore  # noqa: E402 - after the registration
from leaseway.stores.postgres.store import PostgresStore  # noqa: E402
from leaseway.stores.sqlite.store import SqliteStore  # noqa: E402
from leaseway.testing.clock import FakeClock  # noqa: E402
from leaseway.testing.postgres import PostgresServer, postgres_server  # noqa: E402

Stores = MemoryStore | SqliteStore | PostgresStore

numbers = count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """One server for all tests of a process; each test has a schema of its own."""
    with postgres_server() as server:
        yield server


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
        server = request.getfixturevalue("server")
        store = PostgresStore(f"{server.url}?schema=test_{next(numbers)}", now_us=clock.now_us)
    await store.open()
    yield store
    await store.close()
