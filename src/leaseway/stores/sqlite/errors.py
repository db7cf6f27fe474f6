"""SQLite's errors, and those of a path that cannot be a store: what happened, to what, and what to do next."""

import sqlite3
from pathlib import Path

from leaseway.domain.errors import (
    LeasewayError,
    StoreBusy,
    StoreFull,
    StoreRefused,
    TerminalError,
    TransientError,
)

BUSY_SECONDS_MAX = 10.0
"""How long a call waits while another process holds the lock of the file."""


def translate_error(error: sqlite3.Error, path: str) -> LeasewayError:
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_READONLY_DBMOVED":
        return TerminalError(replaced_text(path))
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


def replaced_text(path: str) -> str:
    return (
        f"{path}: the file or its write-ahead log ({path}-wal) was deleted or replaced while this process had it open; "
        "what this process writes is lost. Stop all processes that use the file and restore it from a backup"
    )


def refuse_impossible(path: Path) -> None:
    if str(path) == ":memory:":
        return
    if not path.parent.is_dir():
        raise StoreRefused(f"{path}: the folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise StoreRefused(f"{path}: is a folder; use a file in it, for example {path}/work.db")
