"""Every limiter that leaseway ships, opened empty, with a clock that the test moves.

To add a limiter, write a function that opens it and add one entry to `OPENINGS`.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from tests.api.shared_service import service_in_memory
from tests.postgres_tables import empty_tables

from leaseway.ports.limiter import Limiter
from leaseway.stores.memory.limits import MemoryLimiter
from leaseway.stores.postgres.limits import PostgresLimiter
from leaseway.stores.redis.limits import RedisLimiter
from leaseway.stores.sqlite.limits import SqliteLimiter
from leaseway.testing.clock import FakeClock
from leaseway.testing.valkey import ValkeyServer, valkey_server

Opening = Callable[[pytest.FixtureRequest, FakeClock, Path], AbstractAsyncContextManager[Limiter]]


@asynccontextmanager
async def in_memory(request: pytest.FixtureRequest, clock: FakeClock, folder: Path) -> AsyncIterator[Limiter]:
    yield MemoryLimiter(clock.now_us)


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """One server for all tests of a process."""
    with valkey_server() as server:
        yield server


@asynccontextmanager
async def in_valkey(request: pytest.FixtureRequest, clock: FakeClock, folder: Path) -> AsyncIterator[Limiter]:
    server: ValkeyServer = request.getfixturevalue("valkey")
    server.command("FLUSHALL")
    limiter = RedisLimiter(server.url, clock.now_us)
    await limiter.open()
    yield limiter
    await limiter.close()


@asynccontextmanager
async def in_postgres(request: pytest.FixtureRequest, clock: FakeClock, folder: Path) -> AsyncIterator[Limiter]:
    limiter = PostgresLimiter(request.getfixturevalue("server").url, clock.now_us)
    try:
        await limiter.open()
        async with limiter.connections.borrow() as connection:
            await empty_tables(connection, limiter.address.quoted)
        yield limiter
    finally:
        await limiter.close()


@asynccontextmanager
async def in_sqlite(request: pytest.FixtureRequest, clock: FakeClock, folder: Path) -> AsyncIterator[Limiter]:
    limiter = SqliteLimiter(str(folder / "work.db"), now_us=clock.now_us, durable=False)
    await limiter.open()
    yield limiter
    await limiter.close()


@asynccontextmanager
async def over_http(request: pytest.FixtureRequest, clock: FakeClock, folder: Path) -> AsyncIterator[Limiter]:
    async with service_in_memory(clock) as world:
        yield world.limiter


OPENINGS: dict[str, Opening] = {"memory": in_memory, "sqlite": in_sqlite, "postgres": in_postgres, "valkey": in_valkey}
OPENINGS["http"] = over_http


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=sorted(OPENINGS))
async def limiter(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Limiter]:
    async with OPENINGS[request.param](request, clock, tmp_path) as limiter:
        yield limiter
