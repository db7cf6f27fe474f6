"""One thread that writes and one that reads; transactions; what SQLite's errors mean to us.

sqlite3 waits while it works, so it works in threads. There is one writer per process, because SQLite has one writer
per file; readers never wait for it (WAL). Writes that wait at the same time are committed together.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from leaseway.domain.errors import (
    LeasewayError,
    StoreBusy,
    StoreFull,
    StoreRefused,
    TerminalError,
    TransientError,
    UnknownOutcome,
)
from leaseway.stores.sqlite.threads import Answer, CallThread, Serve

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

BUSY_SECONDS_MAX = 10.0
BUSY_STEP_SECONDS = 0.0005


class Connection:
    def __init__(self, path: str, random: Callable[[], float], *, durable: bool = True, inline: bool = False) -> None:
        self.path = path
        self._random = random
        self._durable = durable
        self._inline = inline
        """Without threads: for a simulation, whose time has none."""
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._write_thread: CallThread | None = None
        self._read_thread: CallThread | None = None

    async def open(self) -> None:
        with self._lock:
            if not self._inline and self._write_thread is None:
                self._write_thread = CallThread("leaseway-write", self._write_all)
        await self.write(lambda connection: None)

    async def write(self, work: Work[T]) -> T:
        """Run `work` in one write transaction: all of it, or nothing. If it fails in company, it is run again alone."""
        return await self._ask(self._write_thread, self._write_all, work)

    def write_now(self, work: Work[T]) -> T:
        """The same, waiting in the caller's thread."""
        thread = self._write_thread
        if thread is None:
            raise TerminalError(f"{self.path}: the store is not open")
        return cast(T, thread.call_now(work))

    async def read(self, work: Work[T]) -> T:
        """Run `work` on a snapshot that no writer disturbs. Looking needs no opening: it changes nothing."""
        with self._lock:
            if not self._inline and self._read_thread is None:
                self._read_thread = CallThread("leaseway-read", self._read_all)
        return await self._ask(self._read_thread, self._read_all, work)

    async def close(self) -> None:
        with self._lock:
            threads = (self._read_thread, self._write_thread)
            self._read_thread = self._write_thread = None
        for thread in threads:
            if thread is not None:
                await thread.stop()
        self._close()

    def connect(self) -> sqlite3.Connection:
        """A connection with the settings that the promises need."""
        # check_same_thread: the threads above are one each, and a closing thread may differ from the opening one.
        # timeout=0: SQLite's own waiting is unfair, ours is in `retry_while_busy`.
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False, uri=False)
        connection.text_factory = lenient
        try:
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'OFF'}")
            connection.execute("PRAGMA cache_size = -16000")
            connection.execute("PRAGMA temp_store = MEMORY")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    async def _ask(self, thread: CallThread | None, serve: Serve, work: Work[T]) -> T:
        if thread is not None:
            served: T = await thread.call(work)
            return served
        if not self._inline:
            raise TerminalError(f"{self.path}: the store is not open")
        ((answer, error),) = serve([work])
        if error is not None:
            raise error
        return cast(T, answer)

    def _write_all(self, works: Sequence[Work[Any]]) -> list[Answer]:
        """All in one transaction, with one wait for the disk. If one of them fails, each in its own."""
        try:
            return [(answer, None) for answer in self._transact(works)]
        except Exception as error:  # noqa: BLE001 - it travels to whoever waits for it
            # Who could not even begin did not fail by its company: the same answer for all, after one wait.
            if len(works) == 1 or isinstance(error, StoreBusy):
                return [(None, error)] * len(works)
        return [answer for work in works for answer in self._write_all([work])]

    def _read_all(self, works: Sequence[Work[Any]]) -> list[Answer]:
        return [self._look(work) for work in works]

    def _transact(self, works: Sequence[Work[Any]]) -> list[Any]:
        try:
            writer = self._opened()
            retry_while_busy(lambda: writer.execute("BEGIN IMMEDIATE"), self._random)
            return finished(writer, works)
        except sqlite3.Error as error:
            raise translated(error, self.path) from error

    def _opened(self) -> sqlite3.Connection:
        if self._writer is None:
            refuse_impossible(Path(self.path))
            # Somebody else may be creating the file, repairing it or leaving it: for a moment it is his alone.
            writer = retry_while_busy(self.connect, self._random)
            try:
                retry_while_busy(lambda: writer.execute("PRAGMA journal_mode = WAL"), self._random)
            except sqlite3.Error:
                writer.close()
                raise
            self._writer = writer
        return self._writer

    def _look(self, work: Work[Any]) -> Answer:
        def look() -> Any:
            if self._reader is None:
                self._reader = self.connect()
                self._reader.execute("PRAGMA query_only = 1")
            return work(self._reader)

        try:
            return retry_while_busy(look, self._random), None
        except sqlite3.Error as error:
            return None, translated(error, self.path)
        except Exception as error:  # noqa: BLE001 - it travels to whoever waits for it
            return None, error

    def _close(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._reader = self._writer = None


def lenient(text: bytes) -> str:
    """A damaged text must fail the job that it belongs to, not every statement that meets it."""
    return text.decode("utf-8", "replace")


def refuse_impossible(path: Path) -> None:
    if str(path) == ":memory:":
        return
    if not path.parent.is_dir():
        raise StoreRefused(f"{path}: the folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise StoreRefused(f"{path}: is a folder; name a file in it, for example {path}/work.db")


def retry_while_busy(step: Callable[[], T], random: Callable[[], float]) -> T:
    """Ask again and again, until another process lets go.

    Evenly and often, with a little chance: SQLite's own waiting grows longer with every try, so that whoever waits
    long waits ever longer, and the process that has just committed comes first again and again.
    """
    deadline = time.monotonic() + BUSY_SECONDS_MAX
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise
            if time.monotonic() > deadline:
                raise
        time.sleep(BUSY_STEP_SECONDS * (0.5 + random()))


def finished(connection: sqlite3.Connection, works: Sequence[Work[Any]]) -> list[Any]:
    """All the works and their COMMIT, or nothing."""
    try:
        answers = [work(connection) for work in works]
    except BaseException:
        roll_back(connection)
        raise
    try:
        connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        roll_back(connection)
        if error.sqlite_errorname.startswith("SQLITE_IOERR"):
            raise UnknownOutcome(f"the disk failed while committing ({error}); the call may be repeated") from error
        raise
    return answers


def roll_back(connection: sqlite3.Connection) -> None:
    # SQLite has rolled back by itself after some errors, a full disk among them.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def translated(error: sqlite3.Error, path: str) -> LeasewayError:
    """What happened, to what, and what to do next."""
    name = getattr(error, "sqlite_errorname", "")
    match name.removeprefix("SQLITE_").partition("_")[0]:
        case "BUSY" | "LOCKED":
            return StoreBusy(f"{path}: another process kept the file locked for {BUSY_SECONDS_MAX:.0f} s; try again")
        case "FULL":
            return StoreFull(f"{path}: the disk is full; nothing was written. Free some space and try again")
        case "NOTADB":
            return StoreRefused(f"{path}: is not an SQLite database; name another file")
        case "CANTOPEN":
            return StoreRefused(f"{path}: cannot be opened ({error}); check that folder and file may be written")
        case "READONLY":
            return StoreRefused(f"{path}: is read-only; jobs need a file and a folder that may be written")
        case "CORRUPT":
            return TerminalError(f"{path}: the database is damaged ({error}); restore it from a backup")
        case "IOERR":
            return TransientError(f"{path}: the disk failed ({error}); check it and try again")
    return TerminalError(f"{path}: {error} ({name or type(error).__name__})")
