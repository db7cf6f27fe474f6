"""Hints between processes: LISTEN and NOTIFY, as far as they reach.

Whoever made work rings: the bell of his own process at once, and everybody else's by a NOTIFY in a transaction of its
own, at most one in ten milliseconds. Whoever waits listens on a connection of its own. A hint may be lost; behind a
pooler that lends connections by the transaction there are none, and looking does all of it.

Jobs that are submitted in a caller's own transaction are not announced. Of all processes that listen, one is the
watchman: it looks as often as it polls, and rings for the others. They believe what they saw last for some seconds.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import asyncpg

from leaseway.domain.errors import LeasewayError
from leaseway.domain.ids import SECOND_US
from leaseway.stores.local_notifier import Bell
from leaseway.stores.postgres.connection import DRIVER_ERRORS, Connections, hang_up
from leaseway.stores.postgres.statements import statements_for

COALESCE_SECONDS = 0.010
HOME_FIRST_SECONDS = 0.004
"""Where somebody in this process waits, he is on his way to the job: the word to the others would be in his way."""
RETRY_SECONDS = 1.0
"""How long after a failed try to listen the next one is made."""
BELIEF_SECONDS = 10.0
"""How long a process that hears every hint believes that there is nothing to do."""
WATCH_SECONDS = 15.0
"""How often a process looks whether the watchman is still there."""

WATCH = "SELECT pg_try_advisory_lock(hashtext('leaseway.watch'), hashtext($1))"

Loop = asyncio.AbstractEventLoop


class Ringer:
    """Tells all processes, not more often than useful."""

    def __init__(self, connections: Connections, bell: Bell) -> None:
        self._connections = connections
        self._bell = bell
        self._sql = statements_for(connections.address.quoted)["notify_workers"]
        self._telling: WeakKeyDictionary[Loop, asyncio.Task[None]] = WeakKeyDictionary()
        self._is_travelling = False
        self._rings = 0
        """Our own, and not those that we hear."""
        self._sessions: WeakKeyDictionary[Loop, int] = WeakKeyDictionary()
        """The server's number of the connection that told last."""

    def ring(self) -> None:
        telling = self._tell_after_home if self._bell.is_awaited else self._tell
        self._bell.ring()
        self._rings += 1
        self._begin(asyncio.get_running_loop(), telling)

    @contextlib.contextmanager
    def travelling(self) -> Iterator[bool]:
        """Around a call that makes work. True: it shall tell the others itself, which saves a round trip. All is quiet:
        nobody at home waits, and nobody was told a moment ago. Otherwise they are told afterwards."""
        loop = asyncio.get_running_loop()
        if not self._is_quiet(loop):
            yield False
            self.ring()
            return
        self._is_travelling, told = True, self._rings
        try:
            yield True
        finally:
            self._is_travelling = False
        self._bell.ring()  # somebody may have come home meanwhile
        self._begin(loop, partial(self._tell_later, told))

    def _is_quiet(self, loop: Loop) -> bool:
        has_company = self._bell.is_awaited or self._is_travelling or not self._connections.address.has_sessions
        return not has_company and self._is_silent(loop)

    def _is_silent(self, loop: Loop) -> bool:
        task = self._telling.get(loop)
        return task is None or task.done()

    def _begin(self, loop: Loop, telling: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._is_silent(loop):
            # This store is the parent of these tasks: it ends them when it closes.
            self._telling[loop] = loop.create_task(telling())

    def is_echo(self, session: int) -> bool:
        """Whether a hint is our own: all who wait here have heard the bell before."""
        return session in self._sessions.values()

    async def _tell(self) -> None:
        await self._tell_from(-1)

    async def _tell_after_home(self) -> None:
        await asyncio.sleep(HOME_FIRST_SECONDS)
        await self._tell()

    async def _tell_later(self, told: int) -> None:
        """The others were told just now: what happened since that call began, and within a moment from now, they hear
        together."""
        await asyncio.sleep(COALESCE_SECONDS)
        await self._tell_from(told)

    async def _tell_from(self, told: int) -> None:
        while told != self._rings:
            told = self._rings
            with contextlib.suppress(LeasewayError):  # a hint may be lost
                await self._tell_once()
            await asyncio.sleep(COALESCE_SECONDS)

    async def _tell_once(self) -> None:
        async with self._connections.lent() as connection:
            self._sessions[asyncio.get_running_loop()] = connection.get_server_pid()
            await self._connections.fetch(connection, self._sql)

    async def close(self) -> None:
        await ended(self._telling.pop(asyncio.get_running_loop(), None))


class Listener:
    """Hears the others, on one connection for each event loop that waits."""

    def __init__(self, connections: Connections, bell: Bell, is_echo: Callable[[int], bool]) -> None:
        self._connections = connections
        self._bell = bell
        self._is_echo = is_echo
        self._ears: WeakKeyDictionary[Loop, Ear] = WeakKeyDictionary()

    async def wait(self, seconds: float) -> bool:
        self.ear()
        with self._bell.heard() as rung, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await rung.wait()
                return True
        return False

    def ear(self) -> "Ear | None":
        """The one of this loop, opened if it is not; None behind a pooler, where nobody can listen."""
        if not self._connections.address.has_sessions:
            return None
        loop = asyncio.get_running_loop()
        ear = self._ears.get(loop)
        if ear is None:
            ear = self._ears[loop] = Ear(self._connections, self._bell, self._is_echo)
        ear.open_soon(loop)
        return ear

    async def close(self) -> None:
        """In this loop with a word to the server, in others without."""
        here = asyncio.get_running_loop()
        for loop, ear in list(self._ears.items()):
            if loop is here:
                await ear.close()
            else:
                with contextlib.suppress(RuntimeError):  # the loop was closed before
                    loop.call_soon_threadsafe(ear.terminate)
        self._ears.clear()


class Ear:
    """One connection that listens. If it is lost, the next one who waits has it opened again, but not all the time."""

    def __init__(self, connections: Connections, bell: Bell, is_echo: Callable[[int], bool]) -> None:
        self._connections = connections
        self._bell = bell
        self._is_echo = is_echo
        self._connection: asyncpg.Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._tried_at = self._asked_at = float("-inf")
        self._until_the_end: AsyncGenerator[None, None] | None = None
        self.is_watchman = False

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    def open_soon(self, loop: Loop) -> None:
        """Beside the caller, whose wait may be shorter than connecting takes."""
        is_opening = self._opening is not None and not self._opening.done()
        if not self.is_open and not is_opening and loop.time() - self._tried_at >= RETRY_SECONDS:
            self._tried_at = loop.time()
            self._opening = loop.create_task(self._open())

    async def _open(self) -> None:
        if self._until_the_end is None:
            self._until_the_end = self._closed_with_the_loop()
            await anext(self._until_the_end)
        self.is_watchman, self._asked_at = False, float("-inf")
        with contextlib.suppress(LeasewayError, *DRIVER_ERRORS):  # the next one who waits tries again
            connection = await self._connections.connect()
            try:
                await connection.add_listener(f"leaseway.{self._connections.address.schema}", self._heard)
            except BaseException:
                connection.terminate()
                raise
            self._connection = connection
            self._bell.rings += 1  # what happened before is not known, so nothing is believed any more

    def _heard(self, connection: object, session: int, *_: object) -> None:
        if not self._is_echo(session):
            self._bell.ring()

    async def keeps_watch(self) -> bool:
        """Whether this is the watchman; it becomes one if there is none, which is looked for now and then."""
        now = time.monotonic()
        if self.is_watchman or self._connection is None or not self.is_open or now - self._asked_at < WATCH_SECONDS:
            return self.is_watchman
        self._asked_at = now
        with contextlib.suppress(TimeoutError, *DRIVER_ERRORS):
            async with asyncio.timeout(RETRY_SECONDS):
                self.is_watchman = await self._connection.fetchval(WATCH, self._connections.address.schema)
        return self.is_watchman

    async def _closed_with_the_loop(self) -> AsyncGenerator[None, None]:
        """See Pool: the one moment in which it can still be closed."""
        try:
            yield
        finally:
            await self._hang_up()

    async def close(self) -> None:
        await ended(self._opening)
        if self._until_the_end is not None:
            await self._until_the_end.aclose()
        await self._hang_up()

    def terminate(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.terminate()

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await hang_up(connection)


class Belief:
    """What a look said: for how long there is nothing to do, unless somebody rings."""

    def __init__(self, rings: int) -> None:
        self._rings = rings
        self._seen_at = time.monotonic()
        self.said: int | None = None

    def holds(self, rings: int) -> bool:
        left = self.wait_us()
        return rings == self._rings and time.monotonic() - self._seen_at < BELIEF_SECONDS and left != 0

    def wait_us(self) -> int | None:
        if self.said is None:
            return None
        return max(self.said - int((time.monotonic() - self._seen_at) * SECOND_US), 0)

    def is_news_to(self, before: "Belief | None") -> bool:
        """There is work, and nobody has rung since the look before."""
        return self.said == 0 and before is not None and before.said != 0 and before._rings == self._rings


async def ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
