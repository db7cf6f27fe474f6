"""Copies of a store that processes are using, and their return.

A backup is a store itself: FILE with the jobs, and FILE-limits with the definitions of limits. A plain copy of a file
that is in use lacks what is still in its write-ahead log.

What happened after the backup is unknown when it is restored, so a restored store is careful: permits that were granted
meanwhile count as used, and fences continue above all earlier ones.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from leaseway.domain.errors import StoreRefused
from leaseway.stores.sqlite.connection import create_private
from leaseway.stores.sqlite.errors import refuse_impossible, translate_error
from leaseway.stores.sqlite.limits import SUFFIX
from leaseway.stores.sqlite.schema import check_version, connect_read_only, refuse_foreign

PAGES = 2_000
"""How many pages are copied between two reports of progress."""

Progress = Callable[[int, int], None]
"""Called with the number of copied pages and of all pages."""

# A fence of another machine: all levels count as used. Without a fence, the file would count as new.
FORGET_LEVELS = (
    "DELETE FROM levels",
    "INSERT INTO fence (one, identity, since, ahead_us, latest) VALUES (1, 'backup', 0, 0, 0) "
    "ON CONFLICT DO UPDATE SET identity = 'backup'",
)
FORGET_LIMITS = (*FORGET_LEVELS, "DELETE FROM definitions")
# A restored job was claimed at most once per second since the backup was made.
RAISE_FENCES = "UPDATE jobs SET fence = fence + CAST(? AS INTEGER) WHERE state NOT IN ('done', 'failed', 'cancelled')"


def back_up(path: Path, copy: Path, progress: Progress) -> None:
    """Copy the store at `path` as it is at one moment. Other processes continue to read and write."""
    if not path.is_file():
        raise StoreRefused(f"{path}: there is no such file; name a store with --store")
    for each in (copy, limits_file(copy)):
        if each.exists():
            raise StoreRefused(f"{each}: already exists; name another file, or delete it first")
    check_copy(path)
    copy_file(path, copy, progress)
    if limits_file(path).exists():
        copy_file(limits_file(path), limits_file(copy), progress, forget_levels)


def restore(copy: Path, path: Path, progress: Progress, *, replace: bool = False) -> None:
    """Make the store at `path` a copy of the backup. No process may have it open."""
    if not copy.is_file():
        raise StoreRefused(f"{copy}: there is no such file; name a file that `leaseway backup` has made")
    check_copy(copy)
    present = [each for each in (path, limits_file(path)) if each.exists()]
    if present and not replace:
        raise StoreRefused(f"{present[0]}: already exists; --replace deletes what it contains and restores the backup")
    for each in present:
        close_log(each)
    copy_file(copy, path, progress, raise_fences)
    if limits_file(copy).exists():
        copy_file(limits_file(copy), limits_file(path), progress, forget_levels)
    elif limits_file(path).exists():
        with translated(limits_file(path)), closing(sqlite3.connect(limits_file(path), isolation_level=None)) as limits:
            forget(limits, FORGET_LIMITS)


def limits_file(path: Path) -> Path:
    return Path(f"{path}{SUFFIX}")


def forget_levels(connection: sqlite3.Connection) -> None:
    forget(connection, FORGET_LEVELS)


def forget(connection: sqlite3.Connection, statements: Sequence[str]) -> None:
    for statement in statements:
        connection.execute(statement)


def raise_fences(connection: sqlite3.Connection) -> None:
    """Outside systems have seen the fences of leases after the backup; none may be granted again."""
    connection.execute(RAISE_FENCES, [time.time()])


def check_copy(path: Path) -> None:
    """Refuse files that this leaseway cannot read, and damaged ones."""
    with translated(path), closing(connect_read_only(str(path))) as connection:
        check_version(connection, str(path))
        found = [text for (text,) in connection.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        raise StoreRefused(f"{path}: is damaged ({'; '.join(found)}); use another backup")


def close_log(path: Path) -> None:
    """Bring the write-ahead log into the file, which only works if no other process has it open."""
    with translated(path), closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        refuse_foreign(connection, str(path))
        try:
            connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise
            text = f"{path}: another process has the store open; stop all workers and services, then restore"
            raise StoreRefused(text) from error


def copy_file(
    source: Path, target: Path, progress: Progress, change: Callable[[sqlite3.Connection], None] | None = None
) -> None:
    """Copy a database, change the copy, and give it its name when it is complete and on the disk."""
    refuse_impossible(target)
    part = target.with_name(f"{target.name}.part")
    part.unlink(missing_ok=True)
    create_private(part)
    try:
        with (
            translated(source),
            closing(connect_read_only(str(source))) as reader,
            closing(sqlite3.connect(part, isolation_level=None)) as writer,
        ):
            # One snapshot: without it, each write of another process would start the copy again.
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            reader.backup(writer, pages=PAGES, progress=lambda _, left, total: progress(total - left, total), sleep=0)
            # One file, so that a plain copy of the backup is complete.
            writer.execute("PRAGMA journal_mode = DELETE")
            if change is not None:
                change(writer)
        flush(part)
        part.replace(target)
        flush(target.absolute().parent)
    finally:
        part.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise translate_error(error, str(path)) from error
