"""Notifications that the file was written, within a process and between processes.

Within a process the notifier wakes waiting tasks. Writes of other processes change the file's data version, which
SQLite keeps in shared memory: reading it takes microseconds and no lock.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from weakref import WeakKeyDictionary

from leaseway.stores.local_notifier import LocalNotifier

POLL_SECONDS = 0.010


class FileNotifications:
    def __init__(self, notifier: LocalNotifier, connect: Callable[[], sqlite3.Connection]) -> None:
        self._notifier = notifier
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._seen: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        """The version that each waiting task has seen, so that a change wakes every task."""

    async def wait(self, seconds: float) -> bool:
        with self._notifier.waiting() as notified:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + seconds
            while (left := deadline - loop.time()) > 0:
                if self._changed():
                    return True
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, POLL_SECONDS)):
                        await notified.wait()
                        return True
        return False

    def _changed(self) -> bool:
        try:
            if self._connection is None:
                self._connection = self._connect()
            version = int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            return False  # a notification may be lost; workers poll as well
        task = asyncio.current_task()
        changed = self._seen.get(task) != version
        self._seen[task] = version
        return changed

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
