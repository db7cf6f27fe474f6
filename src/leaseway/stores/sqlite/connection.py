"""A writer thread and a reader thread for one SQLite file, and transactions.

sqlite3 blocks while it works, so it runs in threads. There is one writer per process, because SQLite has one writer
per file; readers never wait for it (WAL). Writes that are queued at the same time share one commit.

sqlite3 crashes the process if a connection is closed while another thread executes a statement. So each thread owns its
connection: it closes it when it ends, and nothing else does.
"""

import asyncio
import contextlib
import os
import random
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from leaseway.domain.errors import StoreBusy, TerminalError, UnknownOutcome
from leaseway.stores.sqlite import errors

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
Answer = tuple[Any, BaseException | None]

CHANCE = random.SystemRandom()
"""Parts processes that wait for the lock of a file."""
BATCH_MAX = 100
"""The most calls that one transaction serves."""
BUSY_STEP_SECONDS = 0.0005


class OpenedFiles:
    """The database file and its write-ahead log as they were opened.

    SQLite keeps writing to a file that was deleted or replaced, and every commit succeeds. What is written is lost.
    A `with` block fails at its end if that has happened, so that nothing is acknowledged.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._names: list[Path] = []
        self._opened: list[os.stat_result | None] = []

    def remember(self) -> None:
        """Call it in a transaction. The log exists from the first write on."""
        if self._path == ":memory:" or (self._opened and None not in self._opened):
            return
        if not self._names:
            # A relative path must stay valid if the process changes its folder. The log is beside the real file.
            self._names = [Path(self._path).absolute(), Path(f"{Path(self._path).resolve()}-wal")]
        found = self._look()
        self._opened = [before or now for before, now in zip(self._opened or found, found, strict=True)]

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.check()

    def check(self) -> None:
        for opened, found in zip(self._opened, self._look(), strict=True):
            if opened is not None and (found is None or not os.path.samestat(opened, found)):
                raise TerminalError(errors.replaced_text(self._path))

    def _look(self) -> list[os.stat_result | None]:
        return [stat_or_none(name) for name in self._names]


def create_private(path: str | Path) -> None:
    """Create the file so that only its owner can read it, whatever the umask is. SQLite gives its log the same mode. A
    file that exists keeps its mode."""
    with contextlib.suppress(OSError):  # it exists, or SQLite reports what is wrong
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            if hasattr(os, "fchmod"):
                os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)


def stat_or_none(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


class Connection:
    """The file, opened as often as there are threads that use it.

    Each thread has its own session. A store that is opened again while it is closing gets new threads, and shares
    nothing with those that are ending.
    """

    def __init__(self, path: str, random: Callable[[], float], *, durable: bool = True, inline: bool = False) -> None:
        self.path = path
        self.random = random
        self._durable = durable
        self.files = OpenedFiles(path)
        """Of the sessions that are open now."""
        self._inline = (self.write_session(), ReadSession(self))
        self._is_inline = inline
        """Run in the caller's thread: a simulation has only one."""
        self._lock = threading.Lock()
        self._write_thread: CallThread | None = None
        self._read_thread: CallThread | None = None

    async def open(self) -> None:
        with self._lock:
            if not self._is_inline and self._write_thread is None:
                self._write_thread = CallThread("leaseway-write", self.write_session())
        await self.write(lambda connection: None)

    async def write(self, work: Work[T]) -> T:
        """Run `work` in a write transaction: all of it happens or nothing.

        Queued works share a transaction. If that fails, each of them is run again in its own.
        """
        return await self._ask(self._write_thread, self._inline[0], work)

    def write_blocking(self, work: Work[T]) -> T:
        """Do the same in the caller's thread."""
        thread = self._write_thread
        if thread is None:
            raise TerminalError(f"{self.path}: the store is not open; open it first")
        return cast(T, thread.call_blocking(work))

    async def read(self, work: Work[T]) -> T:
        """Run `work` on a snapshot. Works on a store that is not open, because it changes nothing."""
        with self._lock:
            if not self._is_inline and self._read_thread is None:
                self._read_thread = CallThread("leaseway-read", ReadSession(self))
        return await self._ask(self._read_thread, self._inline[1], work)

    async def close(self) -> None:
        with self._lock:
            threads = (self._read_thread, self._write_thread)
            self._read_thread = self._write_thread = None
            inline, self.files = self._inline, OpenedFiles(self.path)
            self._inline = (self.write_session(), ReadSession(self))
        for thread in threads:
            if thread is not None:
                await thread.stop()
        for session in reversed(inline):  # SQLite removes its log when the writer closes last
            session.close()

    def connect(self) -> sqlite3.Connection:
        """Open a connection with the settings that durability needs."""
        create_private(self.path)
        # check_same_thread: blocking calls use the connection of the writer thread, one at a time.
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

    def write_session(self) -> "FileSession":
        return WriteSession(self)

    async def _ask(self, thread: "CallThread | None", inline: "FileSession", work: Work[T]) -> T:
        if thread is not None:
            served: T = await thread.call(work)
            return served
        if not self._is_inline:
            raise TerminalError(f"{self.path}: the store is not open; open it first")
        ((answer, error),) = inline.serve([work])
        if error is not None:
            raise error
        return cast(T, answer)


class FileSession(ABC):
    """A connection to the file, and how works are run with it. It belongs to one thread, or to the caller without
    threads.
    """

    def __init__(self, file: "Connection") -> None:
        self._file = file
        self._files = file.files
        self._connection: sqlite3.Connection | None = None

    @abstractmethod
    def serve(self, works: Sequence[Work[Any]]) -> list[Answer]: ...

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class WriteSession(FileSession):
    """Runs works in write transactions."""

    def serve(self, works: Sequence[Work[Any]]) -> list[Answer]:
        """Run all works in one transaction with one disk flush. If one fails, run each in its own transaction."""
        try:
            return [(answer, None) for answer in self._transact(works)]
        except Exception as error:  # noqa: BLE001 - it is delivered to the caller
            # If the transaction could not begin, no work is at fault: all get the same answer after one wait.
            if len(works) == 1 or isinstance(error, StoreBusy):
                return [(None, error)] * len(works)
        return [answer for work in works for answer in self.serve([work])]

    def _transact(self, works: Sequence[Work[Any]]) -> list[Any]:
        try:
            with self._files:
                connection = self._opened()
                retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"), self._file.random)
                self._files.remember()
                return commit_all(connection, works)
        except sqlite3.Error as error:
            raise errors.translate_error(error, self._file.path) from error

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            errors.refuse_impossible(Path(self._file.path))
            # Another process may hold the file exclusively while it creates, recovers or closes it.
            connection = retry_while_busy(self._file.connect, self._file.random)
            try:
                retry_while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL"), self._file.random)
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection
        return self._connection


class ReadSession(FileSession):
    """Runs works that only read, each on a snapshot."""

    def serve(self, works: Sequence[Work[Any]]) -> list[Answer]:
        return [self._look(work) for work in works]

    def _look(self, work: Work[Any]) -> Answer:
        def look() -> Any:
            if self._connection is None:
                self._files.check()  # connecting would create a file that is gone
                self._connection = self._file.connect()
                self._connection.execute("PRAGMA query_only = 1")
            answer = work(self._connection)
            self._files.remember()
            return answer

        try:
            with self._files:
                return retry_while_busy(look, self._file.random), None
        except sqlite3.Error as error:
            return None, errors.translate_error(error, self._file.path)
        except Exception as error:  # noqa: BLE001 - it is delivered to the caller
            return None, error


def decode_leniently(text: bytes) -> str:
    """Decode damaged text: it must fail the job it belongs to, not every statement that reads it."""
    return text.decode("utf-8", "replace")


def retry_while_busy(step: Callable[[], T], random: Callable[[], float]) -> T:
    """Repeat `step` until no other process holds the lock.

    The pauses are short and randomized. SQLite's own busy handler waits longer after every try, so that a process that
    has waited long falls behind a process that has just committed.
    """
    deadline = time.monotonic() + errors.BUSY_SECONDS_MAX
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


# -- threads ----------------------------------------------------------------------------------------------------------


class CallThread:
    """Serves calls in their order, and queued calls together. Closes its session when it ends.

    A daemon, so that a store that is not closed does not keep a program alive.
    """

    def __init__(self, name: str, session: FileSession) -> None:
        self._session = session
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
            if self._is_stopped:  # under the lock, which is also held to close the session
                raise TerminalError("the store is closed; open it again")
            ((answer, error),) = self._session.serve([what])
        if error is not None:
            raise error
        return answer

    async def stop(self) -> None:
        """End after all earlier calls."""
        with self._lock:
            self._is_stopped = True
            self._calls.put((None, None))
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        while True:  # ends when the thread is stopped
            waiting = self._taken()
            calls = [(what, future) for what, future in waiting if future is not None]
            if calls:
                with self._serving:
                    answers = self._session.serve([what for what, _ in calls])
                for (_, future), answer in zip(calls, answers, strict=True):
                    deliver(future, answer)
            if len(calls) < len(waiting):
                break
        with self._serving:  # a blocking call may still use the session
            self._session.close()

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
