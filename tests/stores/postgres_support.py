"""Shared functions of the PostgreSQL tests. Every test has its own schema on one server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar

import asyncpg

from leaseway import App
from leaseway.domain.errors import LeasewayError
from leaseway.domain.ids import Instant
from leaseway.domain.lane import LaneCount
from leaseway.stores.postgres.health import RECOUNT
from leaseway.stores.postgres.rows import parse_lane
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.postgres import PostgresServer

T = TypeVar("T")

_numbers = count(1)

SOON_SECONDS = 30.0
"""Longer than any of these tests takes on any machine."""


def new_name(prefix: str = "plot") -> str:
    """A name for a schema or a role that no other test uses."""
    return f"{prefix}_{next(_numbers)}"


def address(server: PostgresServer, schema: str, user: str = "postgres", **words: str) -> str:
    more = "".join(f"&{name}={value}" for name, value in words.items())
    return f"postgresql://{user}@127.0.0.1:{server.port}/postgres?schema={schema}{more}"


@asynccontextmanager
async def closing(store: PostgresStore) -> AsyncIterator[PostgresStore]:
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def opened(
    server: PostgresServer,
    schema: str | None = None,
    user: str = "postgres",
    now_us: Callable[[], Instant] | None = None,
    **words: str,
) -> AsyncIterator[PostgresStore]:
    """An open store, in a new schema unless one is given."""
    async with closing(PostgresStore(address(server, schema or new_name(), user, **words), now_us)) as store:
        await store.open()
        yield store


@asynccontextmanager
async def connected(server: PostgresServer, user: str = "postgres", **settings: Any) -> AsyncIterator[Any]:
    """A connection that does not belong to a store."""
    connection = await asyncpg.connect(f"postgresql://{user}@127.0.0.1:{server.port}/postgres", **settings)
    try:
        yield connection
    finally:
        await connection.close()


async def new_role(server: PostgresServer, *rights: str) -> str:
    """A role that may log in and execute these statements, in which {0} stands for its name."""
    name = new_name("role")
    async with connected(server) as connection:
        await connection.execute(f"CREATE ROLE {name} LOGIN")
        for right in rights:
            await connection.execute(right.format(name))
    return name


async def value(server: PostgresServer, sql: str, *values: object, user: str = "postgres") -> Any:
    """The first value of the first row, on a connection of its own."""
    async with connected(server, user) as connection:
        return await connection.fetchval(sql, *values)


async def waiting_for_a_lock(connection: Any, number: int = 1) -> list[int]:
    """The server processes that wait for a lock of this connection, once there are `number` of them."""
    sql = "SELECT pid FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)) ORDER BY pid"

    async def enough() -> list[int]:
        found = [pid for (pid,) in await seen_now(connection, sql)]
        return found if len(found) >= number else []

    return await until(enough)


async def until_gone(connection: Any, pid: int) -> None:
    async def is_gone() -> bool:
        return not await seen_now(connection, "SELECT FROM pg_stat_activity WHERE pid = $1", pid)

    await until(is_gone)


async def until(ask: Callable[[], Awaitable[T]]) -> T:
    """Poll until the answer is true, and return it."""
    async with asyncio.timeout(SOON_SECONDS):
        while True:
            if answer := await ask():
                return answer
            await asyncio.sleep(0.005)


async def seen_now(connection: Any, sql: str, *values: object) -> list[Any]:
    """Query without the statistics snapshot, which the server otherwise keeps during a transaction."""
    await connection.execute("SELECT pg_stat_clear_snapshot()")
    return list(await connection.fetch(sql, *values))


async def error_of(answer: Any) -> LeasewayError:
    """The leaseway error that this call must raise."""
    try:
        await answer
    except LeasewayError as error:
        return error
    raise AssertionError("this was accepted")


async def recounted(store: PostgresStore) -> list[LaneCount]:
    """The counters of all lanes, computed from the rows."""
    async with store.connections.borrow() as connection:
        return [parse_lane(row) for row in await connection.fetch(RECOUNT.format(store.address.schema))]


USER_TABLE = "CREATE TABLE IF NOT EXISTS {0}_orders (id integer)"


class Shop:
    """An app, and a table of its user beside it."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.schema = new_name()
        self.dsn = f"postgresql://postgres@127.0.0.1:{server.port}/postgres"
        self.app = App(address(server, self.schema))
        self.ran: list[int] = []
        self.insert = f"INSERT INTO {self.schema}_orders VALUES (1)"

        @self.app.job
        async def ship(order: int) -> int:
            self.ran.append(order)
            return order

        self.ship = ship

    async def open(self) -> None:
        await self.store()
        await value(self.server, USER_TABLE.format(self.schema))

    async def store(self) -> PostgresStore:
        store = await self.app.store()
        assert isinstance(store, PostgresStore)
        return store

    async def orders(self) -> int:
        return int(await value(self.server, f"SELECT count(*) FROM {self.schema}_orders"))

    async def jobs(self) -> int:
        """The number of ready jobs by the counters, which must equal the number of rows."""
        store = await self.store()
        lanes = await store.reads.lanes()
        assert lanes == await recounted(store)
        return sum(lane.ready for lane in lanes)

    async def drain(self) -> None:
        await self.app.run_worker(until_empty=True)
