"""Every limiter that leaseway ships, opened empty, with a clock that the test moves.

To add a limiter, write a function that opens it and add one entry to `OPENINGS`.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from tests.api.shared_service import service_in_memory
from tests.mongodb_collections import empty_collections
from tests.postgres_tables import empty_tables

from leaseway.ports.limiter import Limiter
from leaseway.stores.memory.limits import MemoryLimiter
from leaseway.stores.mongodb.connection import META
from leaseway.stores.mongodb.limits import FENCE_ID, MongoLimiter
from leaseway.stores.mongodb.schema import LEVELS, LIMITS
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
            # As after a crash: earlier use is not known.
            await connection.execute(f"INSERT INTO {limiter.address.quoted}.limiter_history VALUES (true)")
        yield limiter
    finally:
        await limiter.close()


async def forget_use(limiter: MongoLimiter) -> None:
    """As after a restored backup: nothing is defined, and earlier use is not known."""
    await empty_collections(limiter.connections, LIMITS, LEVELS)
    async with limiter.connections.calling() as database:
        restored = {"since": 0, "levels": "of another database"}
        await database[META].replace_one({"_id": FENCE_ID}, restored, upsert=True)
    await limiter.open()


@asynccontextmanager
async def in_mongodb(request: pytest.FixtureRequest, clock: FakeClock, folder: Path) -> AsyncIterator[Limiter]:
    limiter = MongoLimiter(request.getfixturevalue("mongodb").url, clock.now_us)
    try:
        await limiter.open()
        await forget_use(limiter)
        yield limiter
    finally:
        await limiter.close()


async def create_used(path: Path) -> None:
    """A file as after a restart of the machine: earlier use is not known."""
    limiter = SqliteLimiter(str(path), lambda: 0, "earlier", durable=False)
    await limiter.open()
    await limiter.close()


@asynccontextmanager
async def in_sqlite(request: pytest.FixtureRequest, clock: FakeClock, folder: Path) -> AsyncIterator[Limiter]:
    await create_used(folder / "work.db")
    limiter = SqliteLimiter(str(folder / "work.db"), now_us=clock.now_us, durable=False)
    await limiter.open()
    yield limiter
    await limiter.close()


@asynccontextmanager
async def over_http(request: pytest.FixtureRequest, clock: FakeClock, folder: Path) -> AsyncIterator[Limiter]:
    async with service_in_memory(clock) as world:
        yield world.limiter


OPENINGS: dict[str, Opening] = {"memory": in_memory, "sqlite": in_sqlite, "postgres": in_postgres, "valkey": in_valkey}
OPENINGS |= {"mongodb": in_mongodb, "http": over_http}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=sorted(OPENINGS))
async def limiter(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Limiter]:
    async with OPENINGS[request.param](request, clock, tmp_path) as limiter:
        yield limiter
