"""Connections, deadlines, and what the errors of driver and server mean to us.

An asyncpg connection belongs to one event loop, and a store is used from several: the worker's, the keeper's, that of
plain callers. So each loop has connections of its own. asyncpg's pool is not used, because it asks the server to reset
the session after every call, which is one more round trip; ours leaves nothing to reset.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import asyncpg

from leaseway.domain.errors import LeasewayError, StoreBusy, TransientError, UnknownOutcome
from leaseway.stores.postgres.address import Address
from leaseway.stores.postgres.errors import Deadlocked, not_connected, translated

CONNECT_SECONDS_MAX = 5.0
CALL_SECONDS_MAX = 10.0
WAIT_SECONDS_MAX = 20.0
CLOSE_SECONDS_MAX = 2.0
UNUSED_SECONDS_MAX = 60.0
"""How long a connection that only a crowd needed is kept. Servers have few, and many processes share them."""

NAME = "leaseway"
ISOLATION = "SET default_transaction_isolation TO 'read committed'"
"""Each statement must see what was committed before it, whatever the default of the database is. Said to a session that
has begun: poolers refuse to begin one with words that they do not know."""
DEADLOCKS_MAX = 2
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)

Record = Sequence[Any]
"""What asyncpg calls a record: values by place and by name."""


class Connections:
    def __init__(self, address: Address) -> None:
        self.address = address
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, Pool] = WeakKeyDictionary()

    async def call(self, sql: str, *values: object, seconds: float = CALL_SECONDS_MAX) -> list[Record]:
        """One statement, which is one transaction and one round trip. If its reply is lost, nobody knows what became
        of it."""
        deadlocks = 0
        while True:  # ends with an answer or with an error that is no deadlock, or one too many
            try:
                async with Loan(self, self._pool(), seconds, has_scope=not self.address.has_sessions) as connection:
                    return await self.fetch(connection, sql, values, seconds)
            except Deadlocked:  # who had to give way did nothing, and goes again
                deadlocks += 1
                if deadlocks > DEADLOCKS_MAX:
                    raise

    async def fetch(
        self, connection: asyncpg.Connection, sql: str, values: tuple[object, ...] = (), seconds: float | None = None
    ) -> list[Record]:
        """One statement on a connection that was lent."""
        if self.address.has_sessions:
            answer: list[Record] = await connection.fetch(sql, *values, timeout=seconds)
            return answer
        # The driver first describes a statement and then executes it. Only inside a transaction does a pooler let both
        # reach the same server.
        async with connection.transaction(isolation="read_committed"):
            answer = await connection.fetch(sql, *values)
            return answer

    async def look(self, sql: str, *values: object) -> list[Record]:
        """One statement that changes nothing: if its reply is lost, it is asked once more."""
        try:
            return await self.call(sql, *values)
        except UnknownOutcome:
            pass
        try:
            return await self.call(sql, *values)
        except UnknownOutcome as error:
            raise TransientError(str(error)) from error

    @asynccontextmanager
    async def transaction(self, seconds: float = CALL_SECONDS_MAX) -> AsyncIterator[asyncpg.Connection]:
        """Several statements, all or nothing."""
        async with self.lent(seconds) as connection, connection.transaction(isolation="read_committed"):
            yield connection

    def lent(self, seconds: float = CALL_SECONDS_MAX) -> "Loan":
        """A connection for several statements."""
        return Loan(self, self._pool(), seconds)

    def meaning(self, error: BaseException, connection: asyncpg.Connection, seconds: float) -> BaseException:
        """Every wait for the server has an end, and every failure a meaning. A connection in which something may be
        unfinished is never lent again."""
        if isinstance(error, LeasewayError):
            return error
        if isinstance(error, TimeoutError):
            connection.terminate()
            self._pool().distrust()
            return UnknownOutcome(f"{self.address.shown}: no answer within {seconds:g} s; the call may be repeated")
        if isinstance(error, DRIVER_ERRORS):
            meaning = translated(error, self.address)
            if isinstance(meaning, UnknownOutcome) or connection.is_in_transaction():
                connection.terminate()
            return meaning
        connection.terminate()
        return error

    async def connect(self) -> asyncpg.Connection:
        *others, last = self.address.hosts
        for host in others:
            with contextlib.suppress(TransientError):
                return await self._connect_to(host)
        return await self._connect_to(last)

    async def _connect_to(self, host: str) -> asyncpg.Connection:
        has_sessions = self.address.has_sessions
        has_name = not has_sessions or "application_name" in self.address.words
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                connection = await asyncpg.connect(
                    host,
                    server_settings=None if has_name else {"application_name": NAME},
                    # A pooler hands our statements to other connections than those that prepared them.
                    statement_cache_size=100 if has_sessions else 0,
                )
                try:
                    if has_sessions:
                        await connection.execute(ISOLATION)
                except BaseException:
                    connection.terminate()
                    raise
                return connection
        except (*DRIVER_ERRORS, ValueError) as error:  # a TimeoutError is an OSError
            raise not_connected(error, self.address) from error

    def _pool(self) -> "Pool":
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            pool = self._pools[loop] = Pool(self)
        return pool

    async def close(self) -> None:
        """Let go of all connections; those of other loops without a word to the server."""
        here = asyncio.get_running_loop()
        for loop, pool in list(self._pools.items()):
            if loop is here:
                await pool.close()
            else:
                pool.abandon(loop)
        self._pools.clear()


class Loan:
    """A connection from a pool, for a time. A class, and not a generator, because every call goes through it.

    Without a scope of its own the time is the statement's, which the driver watches for a third of the price.
    """

    __slots__ = ("_connection", "_connections", "_pool", "_scope", "_seconds")

    def __init__(self, connections: Connections, pool: "Pool", seconds: float, *, has_scope: bool = True) -> None:
        self._connections = connections
        self._pool = pool
        self._seconds = seconds
        self._scope = asyncio.timeout(seconds) if has_scope else None

    async def __aenter__(self) -> asyncpg.Connection:
        self._connection = await self._pool.take()
        try:
            if self._scope is not None:
                await self._scope.__aenter__()
        except BaseException:
            self._pool.give_back(self._connection)
            raise
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._scope is not None:
            try:
                await self._scope.__aexit__(kind, error, trace)
            except TimeoutError as late:
                error = late
        try:
            if error is not None:
                meaning = self._connections.meaning(error, self._connection, self._seconds)
                if meaning is not error:
                    raise meaning from error
        finally:
            self._pool.give_back(self._connection)


class Pool:
    """The connections of one event loop. The one that was used last is lent first; the others are for a crowd, and go
    when none has come for a while."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._idle: list[tuple[asyncpg.Connection, float]] = []
        """And since when, the longest first."""
        self._looking: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(connections.address.pool)
        self._is_closed = False
        self._until_the_end: AsyncGenerator[None, None] | None = None

    async def take(self) -> asyncpg.Connection:
        if self._until_the_end is None:
            self._until_the_end = self._closed_with_the_loop()
            await anext(self._until_the_end)
        await self._wait_for_room()
        try:
            while self._idle:
                connection, _ = self._idle.pop()
                if not connection.is_closed():
                    return connection
            return await self._connections.connect()
        except BaseException:
            self._room.release()
            raise

    async def _wait_for_room(self) -> None:
        if not self._room.locked():
            await self._room.acquire()
            return
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await self._room.acquire()
        except TimeoutError as error:
            count = self._connections.address.pool
            raise StoreBusy(
                f"all {count} connections of this process were in use for {WAIT_SECONDS_MAX:g} s; "
                f"allow more with ?pool={2 * count}, or do less at once"
            ) from error

    def distrust(self) -> None:
        """Where one connection is dead without a word, the others may be as well: each would cost another deadline."""
        while self._idle:
            self._idle.pop()[0].terminate()

    def give_back(self, connection: asyncpg.Connection) -> None:
        if self._is_closed:
            connection.terminate()
        elif not connection.is_closed():
            self._idle.append((connection, asyncio.get_running_loop().time()))
            self._look_later()
        self._room.release()

    def _look_later(self) -> None:
        if self._looking is None and len(self._idle) > 1:
            self._looking = asyncio.get_running_loop().call_later(UNUSED_SECONDS_MAX, self._look_for_unused)

    def _look_for_unused(self) -> None:
        self._looking, loop = None, asyncio.get_running_loop()
        while len(self._idle) > 1 and self._idle[0][1] <= loop.time() - UNUSED_SECONDS_MAX:
            connection, _ = self._idle.pop(0)
            leaving = loop.create_task(hang_up(connection))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        self._look_later()

    async def _closed_with_the_loop(self) -> AsyncGenerator[None, None]:
        """asyncio ends the async generators of a loop before it closes it: the one moment in which connections that
        nobody closed can still be closed."""
        try:
            yield
        finally:
            await self._close_idle()

    async def close(self) -> None:
        self._is_closed = True
        if self._until_the_end is not None:
            await self._until_the_end.aclose()
        await self._close_idle()

    async def _close_idle(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        while self._idle:
            await hang_up(self._idle.pop()[0])
        if self._leaving:
            await asyncio.wait(self._leaving)

    def abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed before
            loop.call_soon_threadsafe(self._terminate_idle)

    def _terminate_idle(self) -> None:
        self._is_closed = True
        self.distrust()


async def hang_up(connection: asyncpg.Connection) -> None:
    """With a word to the server, if it listens."""
    with contextlib.suppress(*DRIVER_ERRORS):
        await connection.close(timeout=CLOSE_SECONDS_MAX)
