"""Connections, timeouts, and the translation of errors.

An asyncpg connection belongs to one event loop, and a store is used from several: the worker's, the lease renewal's,
those of blocking callers. So each loop has a pool of its own. asyncpg's pool is not used, because it resets the session
after every call, which costs a round trip; leaseway leaves nothing to reset.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import asyncpg

from leaseway.domain.errors import LeasewayError, StoreBusy, TransientError, UnknownOutcome
from leaseway.stores.postgres.address import Address
from leaseway.stores.postgres.errors import Deadlocked, translate, translate_connect
from leaseway.stores.tenant_share import CALLING_TENANT, TenantShares

CONNECT_SECONDS_MAX = 5.0
CALL_SECONDS_MAX = 10.0
WAIT_SECONDS_MAX = 20.0
CLOSE_SECONDS_MAX = 2.0
UNUSED_SECONDS_MAX = 60.0
"""Close connections that were needed only for a peak after this time: a server has few for all processes."""

IDLE_SECONDS_MAX = 2.0
"""Between the statements of one call, for a client that stopped there. The rows that it locked have no lease yet, so
nothing else would release them."""

KEEPALIVE_SECONDS = (15, 5, 3)
"""When an idle connection is probed first, how often it is probed then, and how many probes may be lost."""
UNANSWERED_SECONDS_MAX = 20
"""The longest time that sent data may stay unacknowledged, or unread, before the connection is closed."""

NAME = "leaseway"
SESSION = """
SET default_transaction_isolation TO 'read committed';
SET tcp_keepalives_idle TO {}; SET tcp_keepalives_interval TO {}; SET tcp_keepalives_count TO {};
SET tcp_user_timeout TO {};
DO $$ BEGIN SET client_connection_check_interval TO 5000; EXCEPTION WHEN invalid_parameter_value THEN NULL; END $$
""".format(*KEEPALIVE_SECONDS, UNANSWERED_SECONDS_MAX * 1000)
"""Settings of a session, made after connecting, because poolers refuse startup parameters that they do not know.

Each statement must see everything committed before it, whatever the database's default is. A session whose client has
vanished must end within half a minute, also while it waits for a lock; not every platform can check the latter."""
BEGIN = """
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL idle_in_transaction_session_timeout TO {:.0f};
SET LOCAL tcp_user_timeout TO {:.0f}
"""
"""One round trip, and nothing stays in the session. A client that does not read its answer counts as unanswered."""
DEADLOCKS_MAX = 2
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)

Record = Sequence[Any]
"""A row of asyncpg: values by position and by name."""


class Connections:
    def __init__(self, address: Address) -> None:
        self.address = address
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, Pool] = WeakKeyDictionary()

    async def call(self, sql: str, *values: object, seconds: float = CALL_SECONDS_MAX) -> list[Record]:
        """Run one statement as one transaction in one round trip. If the reply is lost, the outcome is unknown."""
        deadlocks = 0
        while True:  # at most DEADLOCKS_MAX + 1 times
            try:
                async with Loan(self, self._pool(), seconds, has_scope=not self.address.has_sessions) as connection:
                    return await self.fetch(connection, sql, values, seconds)
            except Deadlocked:  # the transaction was rolled back, so it can be repeated
                deadlocks += 1
                if deadlocks > DEADLOCKS_MAX:
                    raise

    async def fetch(
        self, connection: asyncpg.Connection, sql: str, values: tuple[object, ...] = (), seconds: float | None = None
    ) -> list[Record]:
        """Run one statement on a borrowed connection."""
        if self.address.has_sessions:
            answer: list[Record] = await connection.fetch(sql, *values, timeout=seconds)
            return answer
        # The driver prepares a statement and then executes it. A pooler sends both to the same server connection only
        # inside a transaction.
        async with open_transaction(connection, IDLE_SECONDS_MAX):
            answer = await connection.fetch(sql, *values)
            return answer

    async def read(self, sql: str, *values: object) -> list[Record]:
        """Run one statement that changes nothing; if its reply is lost, repeat it once."""
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
        """Run several statements in one transaction."""
        async with self.borrow(seconds) as connection, open_transaction(connection, CALL_SECONDS_MAX):
            yield connection

    def borrow(self, seconds: float = CALL_SECONDS_MAX) -> "Loan":
        """Borrow a connection for several statements."""
        return Loan(self, self._pool(), seconds)

    def translate(self, error: BaseException, connection: asyncpg.Connection, seconds: float) -> BaseException:
        """The error to raise. A connection with an unfinished statement or transaction is closed, never reused."""
        if isinstance(error, LeasewayError):
            return error
        if isinstance(error, TimeoutError):
            connection.terminate()
            self._pool().close_idle_now()
            return UnknownOutcome(f"{self.address.shown}: no answer within {seconds:g} s; the call may be repeated")
        if isinstance(error, DRIVER_ERRORS):
            translated = translate(error, self.address)
            if isinstance(translated, UnknownOutcome) or connection.is_in_transaction():
                connection.terminate()
            return translated
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
        has_name = not has_sessions or "application_name" in self.address.options
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                connection = await asyncpg.connect(
                    host,
                    server_settings=None if has_name else {"application_name": NAME},
                    # A pooler may execute a statement on another connection than the one that prepared it.
                    statement_cache_size=100 if has_sessions else 0,
                )
                try:
                    keep_alive(connection)
                    if has_sessions:
                        await connection.execute(SESSION)
                except BaseException:
                    connection.terminate()
                    raise
                return connection
        except (*DRIVER_ERRORS, ValueError) as error:  # a TimeoutError is an OSError
            raise translate_connect(error, self.address) from error

    def _pool(self) -> "Pool":
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            pool = self._pools[loop] = Pool(self)
        return pool

    async def close(self) -> None:
        """Close all connections. Those of other loops are cut without a goodbye to the server."""
        here = asyncio.get_running_loop()
        for loop, pool in list(self._pools.items()):
            if loop is here:
                await pool.close()
            else:
                pool.abandon(loop)
        self._pools.clear()


class Loan:
    """A connection borrowed from a pool, with a timeout. A class, because a generator would slow down every call.

    Without a scope, only the statement has a timeout: the driver's own costs a third of a timeout scope.
    """

    __slots__ = ("_connection", "_connections", "_pool", "_scope", "_seconds", "_tenant")

    def __init__(self, connections: Connections, pool: "Pool", seconds: float, *, has_scope: bool = True) -> None:
        self._connections = connections
        self._pool = pool
        self._seconds = seconds
        self._scope = asyncio.timeout(seconds) if has_scope else None

    async def __aenter__(self) -> asyncpg.Connection:
        self._tenant = CALLING_TENANT.get()
        self._connection = await self._pool.acquire(self._tenant)
        try:
            if self._scope is not None:
                await self._scope.__aenter__()
        except BaseException:
            self._pool.release(self._connection, self._tenant)
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
                translated = self._connections.translate(error, self._connection, self._seconds)
                if translated is not error:
                    raise translated from error
        finally:
            self._pool.release(self._connection, self._tenant)


class Pool:
    """The connections of one event loop. The one used last is lent first, so that unneeded ones are closed."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._idle: list[tuple[asyncpg.Connection, float]] = []
        """Idle connections and since when; the longest idle first."""
        self._cleanup: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(connections.address.pool)
        self._shares = TenantShares(max(connections.address.pool // 2, 1))
        self._is_closed = False
        self._end_of_loop: AsyncGenerator[None, None] | None = None

    async def acquire(self, tenant: str | None = None) -> asyncpg.Connection:
        """For a tenant: one of its share, which is half of the connections."""
        if self._end_of_loop is None:
            self._end_of_loop = self._close_with_loop()
            await anext(self._end_of_loop)
        await self._wait_for_slot(tenant)
        try:
            while self._idle:
                connection, _ = self._idle.pop()
                if not connection.is_closed():
                    return connection
            return await self._connections.connect()
        except BaseException:
            self._leave_slot(tenant)
            raise

    async def _wait_for_slot(self, tenant: str | None) -> None:
        if tenant is None and not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await self._take_slot(tenant)
        except TimeoutError as error:
            count = self._connections.address.pool
            which = f"all {count} connections of this event loop"
            if tenant is not None and self._shares.is_used_up(tenant):
                which = f"the {self._shares.most} connections of one tenant"
            raise StoreBusy(
                f"{which} were in use for {WAIT_SECONDS_MAX:g} s; allow more with ?pool={2 * count}, or make fewer "
                "calls at once"
            ) from error

    async def _take_slot(self, tenant: str | None) -> None:
        if tenant is not None:
            await self._shares.acquire(tenant)
        try:
            await self._slots.acquire()
        except BaseException:
            if tenant is not None:
                self._shares.release(tenant)
            raise

    def _leave_slot(self, tenant: str | None) -> None:
        self._slots.release()
        if tenant is not None:
            self._shares.release(tenant)

    def close_idle_now(self) -> None:
        """After a timeout: if one connection is dead, the others probably are, and each would cost another timeout."""
        while self._idle:
            self._idle.pop()[0].terminate()

    def release(self, connection: asyncpg.Connection, tenant: str | None = None) -> None:
        if self._is_closed:
            connection.terminate()
        elif not connection.is_closed():
            self._idle.append((connection, asyncio.get_running_loop().time()))
            self._schedule_cleanup()
        self._leave_slot(tenant)

    def _schedule_cleanup(self) -> None:
        if self._cleanup is None and len(self._idle) > 1:
            self._cleanup = asyncio.get_running_loop().call_later(UNUSED_SECONDS_MAX, self._close_unused)

    def _close_unused(self) -> None:
        self._cleanup, loop = None, asyncio.get_running_loop()
        while len(self._idle) > 1 and self._idle[0][1] <= loop.time() - UNUSED_SECONDS_MAX:
            connection, _ = self._idle.pop(0)
            closing = loop.create_task(close_politely(connection))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._schedule_cleanup()

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        """Close what the program did not close: asyncio ends a loop's async generators before it closes the loop."""
        try:
            yield
        finally:
            await self._close_idle()

    async def close(self) -> None:
        self._is_closed = True
        if self._end_of_loop is not None:
            await self._end_of_loop.aclose()
        await self._close_idle()

    async def _close_idle(self) -> None:
        if self._cleanup is not None:
            self._cleanup.cancel()
            self._cleanup = None
        while self._idle:
            await close_politely(self._idle.pop()[0])
        if self._closing:
            await asyncio.wait(self._closing)

    def abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._terminate_idle)

    def _terminate_idle(self) -> None:
        self._is_closed = True
        self.close_idle_now()


@asynccontextmanager
async def open_transaction(connection: asyncpg.Connection, idle_seconds: float) -> AsyncIterator[None]:
    """A transaction that the server rolls back if the client stops inside it."""
    await connection.execute(BEGIN.format(idle_seconds * 1000, UNANSWERED_SECONDS_MAX * 1000))
    try:
        yield
    except Exception:
        if not connection.is_closed():
            await connection.execute("ROLLBACK")
        raise
    except BaseException:
        connection.terminate()  # the call was cancelled; its server may not answer any more
        raise
    await connection.execute("COMMIT")


def keep_alive(connection: asyncpg.Connection) -> None:
    """Let the system close this end of a connection whose server has vanished. A listener would wait forever."""
    found = connection._transport.get_extra_info("socket")
    if found is None or found.family == socket.AF_UNIX:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = dict(zip(("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"), KEEPALIVE_SECONDS, strict=True))
    for name, value in {**seconds, "TCP_USER_TIMEOUT": UNANSWERED_SECONDS_MAX * 1000}.items():
        if hasattr(socket, name):  # not every system has all of them
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def close_politely(connection: asyncpg.Connection) -> None:
    """Say goodbye to the server, if it answers."""
    with contextlib.suppress(*DRIVER_ERRORS):
        await connection.close(timeout=CLOSE_SECONDS_MAX)
