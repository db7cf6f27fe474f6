"""Opens SQLite files that a test wants to read or change directly."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def open_sqlite(path: Path | str) -> Iterator[sqlite3.Connection]:
    """Commit if the block succeeds, roll back if it fails, and close in either case.

    `with sqlite3.connect(path)` does not close the connection, of which Python 3.13 and later warn.
    """
    with closing(sqlite3.connect(path)) as connection, connection:
        yield connection
