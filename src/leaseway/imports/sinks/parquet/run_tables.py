"""The books of Parquet files: an SQLite file, and what is shown when a transaction of it is committed."""

import asyncio
import errno
import random  # noqa: TID251 - for waiting in threads, where no port reaches
import sqlite3
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from leaseway.domain.errors import LeasewayError, StoreFull, StoreRefused, TerminalError, TransientError
from leaseway.imports.sinks.parquet.files import ParquetFolder
from leaseway.imports.sinks.sqlite.sink import PageFile
from leaseway.stores.sqlite.connection import Connection, Work

T = TypeVar("T")


class LoggedFile(Connection):
    """The books. What a transaction wrote beside them is shown as soon as it is committed."""

    def __init__(self, path: str, shelf: ParquetFolder) -> None:
        super().__init__(path, random.random)
        self._shelf = shelf

    async def write(self, work: Work[T]) -> T:
        made: list[int] = []

        def logged(connection: sqlite3.Connection) -> T:
            made.clear()  # what failed in company runs again alone
            self._shelf.made = made  # the books are ours until we commit, and so is this
            return work(connection)

        answer = await super().write(logged)
        if made:
            await asyncio.to_thread(translate_errors, lambda: self._shelf.show(*made))
        return answer


class LoggedPages(LoggedFile, PageFile):
    """For pages, which do not wait until the books are on the disk. Their files are there before, in any case."""


def translate_errors(step: Callable[[], T]) -> T:
    """What happened, to what, and what to do next."""
    try:
        return step()
    except LeasewayError:
        raise
    except PermissionError as error:
        raise StoreRefused(f"{error.filename}: may not be written; check the rights of the folder") from error
    except NotADirectoryError as error:
        raise StoreRefused(f"{error.filename}: a folder is needed, and a file is there; name another one") from error
    except FileExistsError as error:
        raise StoreRefused(f"{error.filename}: a folder is needed, and a file is there; name another one") from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise StoreFull(f"{error.filename}: the disk is full; nothing was written. Free some space") from error
        raise TransientError(f"{error.filename}: the disk failed ({error}); check it and try again") from error
    except pa.ArrowException as error:
        raise TerminalError(f"a Parquet file cannot be read or written ({error}); restore it from a backup") from error
