"""Hints between and inside processes: somebody wrote to the file.

Inside a process a bell rings. Other processes see it in the file's data version, which SQLite keeps in shared memory:
one look costs some microseconds and takes no lock.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

LOOK_SECONDS = 0.010


class Bell:
    """Wakes every waiter of this process, whatever loop and thread it waits in."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def ring(self) -> None:
        for event, loop in self._waiting.copy().items():
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(event.set)

    @contextlib.contextmanager
    def heard(self) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._waiting[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            del self._waiting[event]


class FileWakeups:
    def __init__(self, bell: Bell, connect: Callable[[], sqlite3.Connection]) -> None:
        self._bell = bell
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._seen: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        """The version that each waiting task has seen: what wakes one must not be taken from another."""

    async def wait(self, seconds: float) -> bool:
        with self._bell.heard() as rung:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + seconds
            while (left := deadline - loop.time()) > 0:
                if self._changed():
                    return True
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, LOOK_SECONDS)):
                        await rung.wait()
                        return True
        return False

    def _changed(self) -> bool:
        try:
            if self._connection is None:
                self._connection = self._connect()
            version = int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            return False  # a hint may be lost; the poll is on
        task = asyncio.current_task()
        changed = self._seen.get(task) != version
        self._seen[task] = version
        return changed

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
