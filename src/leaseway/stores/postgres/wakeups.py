"""Hints between processes: LISTEN and NOTIFY, as far as they reach.

Whoever made work rings: the bell of his own process at once, and everybody else's by a NOTIFY in a transaction of its
own, at most one in ten milliseconds. Whoever waits listens on a connection of its own. A hint may be lost; behind a
pooler that lends connections by the transaction there are none, and the poll does all of it.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from weakref import WeakKeyDictionary

import asyncpg

from leaseway.domain.errors import LeasewayError
from leaseway.stores.bell import Bell
from leaseway.stores.postgres.connection import CLOSE_SECONDS_MAX, DRIVER_ERRORS, Connections

COALESCE_SECONDS = 0.010
RETRY_SECONDS = 1.0
"""How long after a failed try to listen the next one is made."""


class Ringer:
    """Tells all processes, not more often than useful."""

    def __init__(self, connections: Connections, bell: Bell) -> None:
        self._connections = connections
        self._bell = bell
        self._sql = f"SELECT {connections.address.schema}.ring()"
        self._telling: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()
        self._rings = 0

    def ring(self) -> None:
        self._bell.ring()
        self._rings += 1
        loop = asyncio.get_running_loop()
        task = self._telling.get(loop)
        if task is None or task.done():
            # This store is the parent of these tasks: it ends them when it closes.
            self._telling[loop] = loop.create_task(self._tell())

    async def _tell(self) -> None:
        told = -1
        while told != self._rings:
            told = self._rings
            with contextlib.suppress(LeasewayError):  # a hint may be lost
                await self._connections.call(self._sql)
            await asyncio.sleep(COALESCE_SECONDS)

    async def close(self) -> None:
        task = self._telling.pop(asyncio.get_running_loop(), None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


class Listener:
    """Hears the others, on one connection for each event loop that waits."""

    def __init__(self, connections: Connections, bell: Bell) -> None:
        self._connections = connections
        self._bell = bell
        self._channel = f"leaseway.{connections.address.schema}"
        self._ears: WeakKeyDictionary[asyncio.AbstractEventLoop, Ear] = WeakKeyDictionary()

    async def wait(self, seconds: float) -> bool:
        with self._bell.heard() as rung, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._listen()
                await rung.wait()
                return True
        return False

    async def _listen(self) -> None:
        if not self._connections.address.has_sessions:
            return
        loop = asyncio.get_running_loop()
        ear = self._ears.get(loop)
        if ear is None:
            ear = self._ears[loop] = Ear()
        await ear.open(self._connections, self._channel, self._bell)

    async def close(self) -> None:
        ear = self._ears.pop(asyncio.get_running_loop(), None)
        if ear is not None:
            await ear.close()


class Ear:
    """One connection that listens. If it is lost, the next one who waits opens it again, but not all the time."""

    def __init__(self) -> None:
        self._connection: asyncpg.Connection | None = None
        self._tried_at = -RETRY_SECONDS
        self._until_the_end: AsyncGenerator[None, None] | None = None

    async def open(self, connections: Connections, channel: str, bell: Bell) -> None:
        now = asyncio.get_running_loop().time()
        if self._is_open or now - self._tried_at < RETRY_SECONDS:
            return
        self._tried_at = now
        if self._until_the_end is None:
            self._until_the_end = self._closed_with_the_loop()
            await anext(self._until_the_end)
        with contextlib.suppress(LeasewayError, *DRIVER_ERRORS):
            connection = await connections.connect()
            try:
                await connection.add_listener(channel, lambda *_: bell.ring())
            except BaseException:
                connection.terminate()
                raise
            self._connection = connection

    @property
    def _is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    async def _closed_with_the_loop(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self._hang_up()

    async def close(self) -> None:
        if self._until_the_end is not None:
            await self._until_the_end.aclose()
        await self._hang_up()

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*DRIVER_ERRORS):
                await connection.close(timeout=CLOSE_SECONDS_MAX)
