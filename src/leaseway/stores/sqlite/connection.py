"""A writer thread and a reader thread for one SQLite file, transactions, and the translation of SQLite's errors.

sqlite3 blocks while it works, so it runs in threads. There is one writer per process, because SQLite has one writer
per file; readers never wait for it (WAL). Writes that are queued at the same time share one commit.
"""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
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

BATCH_MAX = 100

Answer = tuple[Any, BaseException | None]
Serve = Callable[[Sequence[Any]], list[Answer]]


class CallThread:
    """Serves calls in their order, and queued calls together.

    A daemon, so that a store that is not closed does not keep a program alive.
    """

    def __init__(self, name: str, serve: Serve) -> None:
        self._serve = serve
        self._serving = threading.Lock()
        self._calls: SimpleQueue[tuple[Any, asyncio.Future[Any] | None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, what: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._is_stopped:
                raise TerminalError("the store is closed; open it again")
            self._calls.put((what, future))
        return await future

    def call_blocking(self, what: Any) -> Any:
        """Serve a call of code without an event loop in the caller's own thread, without a thread switch."""
        with self._serving:
            if self._is_stopped:  # under the lock, for which a closing thread waits
                raise TerminalError("the store is closed; open it again")
            ((answer, error),) = self._serve([what])
        if error is not None:
            raise error
        return answer

    async def stop(self) -> None:
        """End after all earlier calls."""
        with self._lock:
            self._is_stopped = True
            self._calls.put((None, None))
        await asyncio.get_running_loop().run_in_executor(None, self._ended)

    def _ended(self) -> None:
        self._thread.join()
        with self._serving:  # wait until a blocking call has left
            pass

    def _run(self) -> None:
        while True:  # ends when the thread is stopped
            waiting = self._taken()
            calls = [(what, future) for what, future in waiting if future is not None]
            if calls:
                with self._serving:
                    answers = self._serve([what for what, _ in calls])
                for (_, future), answer in zip(calls, answers, strict=True):
                    deliver(future, answer)
            if len(calls) < len(waiting):
                return

    def _taken(self) -> list[tuple[Any, asyncio.Future[Any] | None]]:
        """The next call, and those that were queued meanwhile."""
        taken = [self._calls.get()]
        while len(taken) < BATCH_MAX and not self._calls.empty():
            taken.append(self._calls.get())
        return taken


def deliver(future: asyncio.Future[Any], answer: Answer) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed: no task waits for the answer
        future.get_loop().call_soon_threadsafe(resolve, future, *answer)


def resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return  # the caller was cancelled; what was written stays written
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


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
        """Run in the caller's thread: a simulation has only one."""
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
        """Run `work` in a write transaction: all of it happens or nothing.

        Queued works share a transaction. If that fails, each of them is run again in its own.
        """
        return await self._ask(self._write_thread, self._write_all, work)

    def write_blocking(self, work: Work[T]) -> T:
        """Do the same in the caller's thread."""
        thread = self._write_thread
        if thread is None:
            raise TerminalError(f"{self.path}: the store is not open; open it first")
        return cast(T, thread.call_blocking(work))

    async def read(self, work: Work[T]) -> T:
        """Run `work` on a snapshot. Works on a store that is not open, because it changes nothing."""
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
        """Open a connection with the settings that durability needs."""
        # check_same_thread: each thread has its connection, but another thread may close it.
        # timeout=0: SQLite's own waiting is unfair; `retry_while_busy` waits instead.
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False, uri=False)
        connection.text_factory = decode_leniently
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
            raise TerminalError(f"{self.path}: the store is not open; open it first")
        ((answer, error),) = serve([work])
        if error is not None:
            raise error
        return cast(T, answer)

    def _write_all(self, works: Sequence[Work[Any]]) -> list[Answer]:
        """Run all works in one transaction with one disk flush. If one fails, run each in its own transaction."""
        try:
            return [(answer, None) for answer in self._transact(works)]
        except Exception as error:  # noqa: BLE001 - it is delivered to the caller
            # If the transaction could not begin, no work is at fault: all get the same answer after one wait.
            if len(works) == 1 or isinstance(error, StoreBusy):
                return [(None, error)] * len(works)
        return [answer for work in works for answer in self._write_all([work])]

    def _read_all(self, works: Sequence[Work[Any]]) -> list[Answer]:
        return [self._look(work) for work in works]

    def _transact(self, works: Sequence[Work[Any]]) -> list[Any]:
        try:
            writer = self._opened()
            retry_while_busy(lambda: writer.execute("BEGIN IMMEDIATE"), self._random)
            return commit_all(writer, works)
        except sqlite3.Error as error:
            raise translate_error(error, self.path) from error

    def _opened(self) -> sqlite3.Connection:
        if self._writer is None:
            refuse_impossible(Path(self.path))
            # Another process may hold the file exclusively while it creates, recovers or closes it.
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
            return None, translate_error(error, self.path)
        except Exception as error:  # noqa: BLE001 - it is delivered to the caller
            return None, error

    def _close(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._reader = self._writer = None


def decode_leniently(text: bytes) -> str:
    """Decode damaged text: it must fail the job it belongs to, not every statement that reads it."""
    return text.decode("utf-8", "replace")


def refuse_impossible(path: Path) -> None:
    if str(path) == ":memory:":
        return
    if not path.parent.is_dir():
        raise StoreRefused(f"{path}: the folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise StoreRefused(f"{path}: is a folder; use a file in it, for example {path}/work.db")


def retry_while_busy(step: Callable[[], T], random: Callable[[], float]) -> T:
    """Repeat `step` until no other process holds the lock.

    The pauses are short and randomized. SQLite's own busy handler waits longer after every try, so that a process that
    has waited long falls behind a process that has just committed.
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


def commit_all(connection: sqlite3.Connection, works: Sequence[Work[Any]]) -> list[Any]:
    """Run all works and commit, or roll back."""
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
    # SQLite has already rolled back after some errors, for example a full disk.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def translate_error(error: sqlite3.Error, path: str) -> LeasewayError:
    """Translate an error of SQLite: what happened, to what, and what to do next."""
    name = getattr(error, "sqlite_errorname", "")
    match name.removeprefix("SQLITE_").partition("_")[0]:
        case "BUSY" | "LOCKED":
            return StoreBusy(f"{path}: another process kept the file locked for {BUSY_SECONDS_MAX:.0f} s; try again")
        case "FULL":
            return StoreFull(f"{path}: the disk is full; nothing was written. Free some space and try again")
        case "NOTADB":
            return StoreRefused(f"{path}: is not an SQLite database; use another file")
        case "CANTOPEN":
            return StoreRefused(f"{path}: cannot be opened ({error}); check that the folder and the file are writable")
        case "READONLY":
            return StoreRefused(f"{path}: is read-only; make the file and its folder writable")
        case "CORRUPT":
            return TerminalError(f"{path}: the database is damaged ({error}); restore it from a backup")
        case "IOERR":
            return TransientError(f"{path}: the disk failed ({error}); check it and try again")
    return TerminalError(f"{path}: {error} ({name or type(error).__name__})")
