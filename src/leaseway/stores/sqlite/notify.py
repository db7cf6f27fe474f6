"""Hints between and inside processes: somebody wrote to the file.

Inside a process a bell rings. Other processes see it in the file's data version, which SQLite keeps in shared memory:
one look costs some microseconds and takes no lock.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from weakref import WeakKeyDictionary

from leaseway.stores.local_notifier import Bell

LOOK_SECONDS = 0.010


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
