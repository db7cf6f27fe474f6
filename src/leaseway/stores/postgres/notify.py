"""Notifications between processes: LISTEN and NOTIFY.

A process that creates work wakes its own waiting workers at once, and notifies the other processes by a NOTIFY in a
transaction of its own, at most once in COALESCE_SECONDS. A process that waits listens on a separate connection. A
notification may be lost, and behind a pooler in transaction mode there are none; polling finds the work in any case.

Jobs that are submitted in a caller's own transaction are announced by its commit, or not at all. Therefore one of the
listening processes is the designated poller: it polls at its usual interval and notifies the others when it finds work.
The others trust their last poll for FORECAST_SECONDS.

Every listening process receives every notification, because any of them may be the only one that can run the job. If
all of them claimed at once, they would delay each other, so a few claim at once, at random, and the others one after
the other. A shared advisory lock of each listening connection tells how many there are.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextvars import Context
from typing import Any
from weakref import WeakKeyDictionary

import asyncpg

from leaseway.domain.errors import LeasewayError
from leaseway.stores.event_loops import LocalNotifier
from leaseway.stores.postgres.connection import CLOSE_SECONDS_MAX, DRIVER_ERRORS, Connections, close_politely
from leaseway.stores.postgres.statements import statements_for

COALESCE_SECONDS = 0.010
LOCAL_FIRST_SECONDS = 0.004
"""If a worker of this process waits, it claims the job first; a NOTIFY at the same time would only slow it down."""
RETRY_SECONDS = 1.0
"""The time between two tries to open a listening connection."""
FORECAST_SECONDS = 10.0
"""How long a process that receives notifications trusts that there is nothing to do."""
POLLER_CHECK_SECONDS = 15.0
"""How often a process checks whether the designated poller is gone."""

FIRST = 1.5
"""How many processes a notification wakes at once, on average."""
NEXT_SECONDS = 0.002
"""The average time between the others."""
LAST_SECONDS = 0.2
"""The longest time by which a process delays a notification."""

JOIN_LISTENERS = "SELECT pg_advisory_lock_shared(hashtext('leaseway.listeners'), hashtext($1))"
COUNT_LISTENERS = """
SELECT count(*) FROM pg_locks
 WHERE locktype = 'advisory' AND classid = hashtext('leaseway.listeners')::oid AND objid = hashtext($1)::oid
   AND objsubid = 2 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
BECOME_POLLER = "SELECT pg_try_advisory_lock(hashtext('leaseway.poller'), hashtext($1))"

Loop = asyncio.AbstractEventLoop


class Notifier:
    """Notifies all processes, and coalesces notifications that follow each other closely."""

    def __init__(self, connections: Connections, local: LocalNotifier) -> None:
        self._connections = connections
        self._local = local
        self._sql = statements_for(connections.address.quoted)["notify_workers"]
        self._sending: WeakKeyDictionary[Loop, asyncio.Task[None]] = WeakKeyDictionary()
        self._is_in_call = False
        self._requested = 0
        """The number of notifications that this process has asked for."""
        self._covered = 0
        """How many of them the last notification covers, whether it was sent or failed."""
        self._sessions: WeakKeyDictionary[Loop, int] = WeakKeyDictionary()
        """The server process of the connection that sent the last notification."""

    def notify(self) -> None:
        send = self._send_after_local if self._local.is_awaited else self._send
        self._local.notify()
        self._requested += 1
        self._start(asyncio.get_running_loop(), send)

    @contextlib.contextmanager
    def notify_in_call(self) -> Iterator[bool]:
        """Wrap a call that creates work. True: the call should send the notification itself, which saves a round trip.

        It is true in a quiet process: no worker waits here, and no notification was sent a moment ago. Otherwise the
        notification is sent afterwards.
        """
        loop = asyncio.get_running_loop()
        if not self._is_quiet(loop):
            yield False
            self.notify()
            return
        self._is_in_call, requested = True, self._requested
        try:
            yield True
        finally:
            self._is_in_call = False
        self._covered = requested
        self._local.notify()  # a worker of this process may have started to wait meanwhile
        self._start(loop, self._send_later)

    def _is_quiet(self, loop: Loop) -> bool:
        is_busy = self._local.is_awaited or self._is_in_call or not self._connections.address.has_sessions
        return not is_busy and not self._is_sending(loop)

    def _is_sending(self, loop: Loop) -> bool:
        task = self._sending.get(loop)
        return task is not None and not task.done()

    def _start(self, loop: Loop, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._is_sending(loop):
            # The store owns these tasks: it ends them when it closes. They send for all tenants.
            self._sending[loop] = loop.create_task(send(), context=Context())

    def is_own(self, session: int) -> bool:
        """Whether a notification was sent by this process, whose waiting workers have been woken already."""
        return session in self._sessions.values()

    async def _send(self) -> None:
        while self._covered != self._requested:
            await self._send_now()
            await asyncio.sleep(COALESCE_SECONDS)

    async def _send_after_local(self) -> None:
        await asyncio.sleep(LOCAL_FIRST_SECONDS)
        await self._send()

    async def _send_later(self) -> None:
        """A notification was sent just now. Requests since then are coalesced into the next one."""
        await asyncio.sleep(COALESCE_SECONDS)
        await self._send()

    async def _send_now(self) -> None:
        requested = self._requested
        with contextlib.suppress(LeasewayError):  # a notification may be lost
            await self._send_once()
        self._covered = requested

    async def _send_once(self) -> None:
        async with self._connections.borrow() as connection:
            self._sessions[asyncio.get_running_loop()] = connection.get_server_pid()
            await self._connections.fetch(connection, self._sql)

    async def close(self) -> None:
        """Send what is still to be sent: the jobs that a leaving worker releases must not wait for the next poll of
        another worker."""
        await cancel(self._sending.pop(asyncio.get_running_loop(), None))
        if self._covered != self._requested:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await self._send_now()


class NotificationListener:
    """Receives notifications, on one connection for each event loop that waits."""

    def __init__(self, connections: Connections, local: LocalNotifier, is_own: Callable[[int], bool]) -> None:
        self._connections = connections
        self._local = local
        self._is_own = is_own
        self._listening: WeakKeyDictionary[Loop, ListeningConnection] = WeakKeyDictionary()

    async def wait(self, seconds: float) -> bool:
        self.connection()
        with self._local.waiting() as notified, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await notified.wait()
                return True
        return False

    def connection(self) -> "ListeningConnection | None":
        """The connection of this loop, opened if necessary; None behind a pooler, where LISTEN does not work."""
        if not self._connections.address.has_sessions:
            return None
        loop = asyncio.get_running_loop()
        connection = self._listening.get(loop)
        if connection is None:
            connection = self._listening[loop] = ListeningConnection(self._connections, self._local, self._is_own)
        connection.open_soon(loop)
        return connection

    async def close(self) -> None:
        """Close the connections. Those of other loops are cut without a goodbye to the server."""
        here = asyncio.get_running_loop()
        for loop, connection in list(self._listening.items()):
            if loop is here:
                await connection.close()
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(connection.terminate)
        self._listening.clear()


class ListeningConnection:
    """One connection that listens. If it is lost, the next wait opens it again, at most once in RETRY_SECONDS."""

    def __init__(self, connections: Connections, local: LocalNotifier, is_own: Callable[[int], bool]) -> None:
        self._connections = connections
        self._local = local
        self._is_own = is_own
        self._connection: asyncpg.Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._tried_at = self._checked_at = float("-inf")
        self._end_of_loop: AsyncGenerator[None, None] | None = None
        self._delayed: asyncio.TimerHandle | None = None
        self.is_poller = False
        self.listeners = 1
        """How many processes listened when they were last counted, this one included."""

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    def open_soon(self, loop: Loop) -> None:
        """Connect in the background, because the caller's wait may be shorter than connecting takes."""
        is_opening = self._opening is not None and not self._opening.done()
        if not self.is_open and not is_opening and loop.time() - self._tried_at >= RETRY_SECONDS:
            self._tried_at = loop.time()
            self._opening = loop.create_task(self._open())

    async def _open(self) -> None:
        if self._end_of_loop is None:
            self._end_of_loop = self._close_with_loop()
            await anext(self._end_of_loop)
        self.is_poller, self._checked_at = False, float("-inf")
        with contextlib.suppress(LeasewayError, *DRIVER_ERRORS):  # the next wait tries again
            connection = await self._connections.connect()
            try:
                await connection.fetchval(JOIN_LISTENERS, self._connections.address.schema)
                self.listeners = await connection.fetchval(COUNT_LISTENERS, self._connections.address.schema)
                await connection.add_listener(f"leaseway.{self._connections.address.schema}", self._receive)
            except BaseException:
                connection.terminate()
                raise
            self._connection = connection
            self._local.count += 1  # earlier notifications were missed, so no forecast is valid any more

    def _receive(self, connection: object, session: int, *_: object) -> None:
        if self._is_own(session) or self._delayed is not None:
            return
        seconds = wake_delay_seconds(self.listeners, random.random())
        if seconds:
            self._delayed = asyncio.get_running_loop().call_later(seconds, self._notify_delayed)
        else:
            self._local.notify()

    def _notify_delayed(self) -> None:
        self._delayed = None
        self._local.notify()

    async def check_poller(self) -> bool:
        """Whether this process is the designated poller. It becomes the poller if there is none. Listening processes
        are counted at the same time."""
        now, schema = time.monotonic(), self._connections.address.schema
        if self._connection is None or not self.is_open or now - self._checked_at < POLLER_CHECK_SECONDS:
            return self.is_poller
        self._checked_at = now
        with contextlib.suppress(TimeoutError, *DRIVER_ERRORS):
            async with asyncio.timeout(RETRY_SECONDS):
                if not self.is_poller:
                    self.is_poller = await self._connection.fetchval(BECOME_POLLER, schema)
                self.listeners = await self._connection.fetchval(COUNT_LISTENERS, schema)
        return self.is_poller

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        """See Pool._close_with_loop."""
        try:
            yield
        finally:
            await self._close()

    async def close(self) -> None:
        await cancel(self._opening)
        if self._end_of_loop is not None:
            await self._end_of_loop.aclose()
        await self._close()

    def terminate(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.terminate()

    async def _close(self) -> None:
        if self._delayed is not None:
            self._delayed.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_politely(connection)


def wake_delay_seconds(listeners: int, chance: float) -> float:
    """By how much one of these processes delays a notification. `chance`: at least 0, and below 1."""
    place = listeners * chance - FIRST
    if listeners <= 2 or place <= 0:
        return 0.0
    return place * min(NEXT_SECONDS, LAST_SECONDS / listeners)


async def cancel(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
