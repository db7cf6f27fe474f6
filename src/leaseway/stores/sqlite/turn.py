"""A waiting room of one in front of SQLite's write lock.

SQLite hands its write lock to whoever happens to ask when it is free, and the process that has just released it asks
first: measured, one of four processes did all the work. So a process takes the waiting room before it asks for the
write lock and leaves it when it has the lock. Whoever comes back for another turn finds the room occupied by the
one who is waiting, and cannot pass.

It is a courtesy, not a guarantee: SQLite's own lock protects the data. So nobody waits for the room for long; a
process that was stopped inside it does not stop the others.
"""

import os
import time
from collections.abc import Callable
from types import TracebackType

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock: safe there, but not fair
    fcntl = None  # type: ignore[assignment]

WAIT_SECONDS_MAX = 0.25
STEP_SECONDS = 0.0003


class Turn:
    def __init__(self, path: str, random: Callable[[], float]) -> None:
        self._random = random
        self._file = None if fcntl is None or path == ":memory:" else _open(f"{path}-turn")

    def __enter__(self) -> None:
        if self._file is None:
            return
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not _try_lock(self._file) and time.monotonic() < deadline:
            time.sleep(STEP_SECONDS * (0.5 + self._random()))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return None


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
