"""The Parquet files of one table: written under a hidden name, and published with a rename after the commit.

A file is flushed before the run tables reference it, so every referenced file can be published after any crash.
"""

import asyncio
import errno
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from leaseway.domain.errors import LeasewayError, StoreFull, StoreRefused, TerminalError, TransientError
from leaseway.imports.domain.page import ColumnType
from leaseway.imports.sinks.sqlite.sink import PageConnection
from leaseway.stores.sqlite.connection import CHANCE, Connection, Work

VERSION = "leaseway_version"
INSTANT = pa.timestamp("us", tz="UTC")
OWN = {
    "source": pa.string(),
    "external_id": pa.string(),
    "stamp": INSTANT,
    "content_hash": pa.string(),
    "document": pa.string(),
    "deleted_at": INSTANT,
    "deleted_reason": pa.string(),
    "run": pa.string(),
    "first_seen": INSTANT,
    "updated_at": INSTANT,
    VERSION: pa.int64(),
}
STORED_AS = {
    ColumnType.TEXT: pa.string(),
    ColumnType.INTEGER: pa.int64(),
    ColumnType.REAL: pa.float64(),
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.TIMESTAMP: INSTANT,
    ColumnType.JSON: pa.string(),
}
GROUP_ROWS = 50_000
"""Rows of a row group in a merged file: what is in memory at once."""


class ParquetFolder:
    """The folder of one table."""

    def __init__(self, folder: Path, columns: Mapping[str, ColumnType]) -> None:
        self.folder = folder
        self.made: list[int] = []
        """Files of the current transaction."""
        self.schema = pa.schema([*OWN.items(), *((name, STORED_AS[kind]) for name, kind in columns.items())])

    def path(self, number: int) -> Path:
        return self.folder / f"{number:012d}.parquet"

    def hidden(self, number: int) -> Path:
        """Readers of folders ignore names that start with a dot, and other extensions."""
        return self.folder / f".{number:012d}.parquet.part"

    def write(self, number: int, lines: Sequence[Sequence[Any]]) -> None:
        """Write a hidden file and flush it."""
        columns = zip(*lines, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=True)]
        self._keep(number, [pa.Table.from_arrays(arrays, schema=self.schema)])

    def merge(self, numbers: Iterable[int], into: int) -> bool:
        """Merge files into a hidden file, with bounded memory. Returns False if another process has merged and removed
        them.
        """
        try:
            self._keep(into, self._groups(numbers))
        except FileNotFoundError:
            self.hidden(into).unlink(missing_ok=True)
            return False
        return True

    def _groups(self, numbers: Iterable[int]) -> Iterator[pa.Table]:
        held: list[pa.Table] = []
        for number in numbers:
            held.append(pq.read_table(self.path(number), schema=self.schema, partitioning=None))
            if sum(table.num_rows for table in held) >= GROUP_ROWS:
                yield pa.concat_tables(held)
                held = []
        if held:
            yield pa.concat_tables(held)

    def _keep(self, number: int, tables: Iterable[pa.Table]) -> None:
        with self.hidden(number).open("wb") as file:
            with pq.ParquetWriter(file, self.schema, compression="zstd") as writer:
                for table in tables:
                    writer.write_table(table)
            file.flush()
            os.fsync(file.fileno())
        self._settle()

    def show(self, *numbers: int) -> None:
        """Another process may have published the file already."""
        for number in numbers:
            try:
                self.hidden(number).replace(self.path(number))
            except FileNotFoundError:
                if not self.path(number).exists():
                    raise

    def remove(self, *numbers: int) -> None:
        for number in numbers:
            self.path(number).unlink(missing_ok=True)
            self.hidden(number).unlink(missing_ok=True)

    def recover(self, named: Sequence[int], gone: Iterable[int]) -> None:
        """Publish referenced files and remove unreferenced ones. Only while no other process writes."""
        for number in named:
            if not self.path(number).exists():
                self._show_or_refuse(number)
        self.remove(*gone)
        for path in self.folder.glob(".*.parquet.part"):  # all unreferenced by now
            path.unlink(missing_ok=True)
        if named:
            self._refuse_other_shape(named[-1])

    def _show_or_refuse(self, number: int) -> None:
        try:
            self.show(number)
        except FileNotFoundError:
            raise StoreRefused(
                f"{self.path(number)}: is referenced by the run tables but missing; restore it from a backup, or "
                "choose another folder and import again"
            ) from None

    def _refuse_other_shape(self, number: int) -> None:
        """Columns may be added or removed, but must not change their type."""
        found = pq.read_schema(self.path(number))
        for field in self.schema:
            place = found.get_field_index(field.name)
            if place >= 0 and not found.field(place).type.equals(field.type):
                raise StoreRefused(
                    f"{self.folder}: column {field.name!r} is {found.field(place).type} in its files, and {field.type} "
                    "is required; rename it in the spec, or choose another table"
                )

    def _settle(self) -> None:
        """Flush the directory entry as well."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


T = TypeVar("T")


class LoggedConnection(Connection):
    """A connection to the run tables that publishes the files of a transaction after its commit."""

    def __init__(self, path: str, folder: ParquetFolder) -> None:
        super().__init__(path, CHANCE.random)
        self._folder = folder

    async def write(self, work: Work[T]) -> T:
        made: list[int] = []

        def logged(connection: sqlite3.Connection) -> T:
            made.clear()  # a failed batch runs again one by one
            self._folder.made = made  # this transaction holds the write lock
            return work(connection)

        answer = await super().write(logged)
        if made:
            await asyncio.to_thread(translate_errors, lambda: self._folder.show(*made))
        return answer


class LoggedPages(LoggedConnection, PageConnection):
    """For pages, whose commits do not wait for the disk. Their files are flushed before."""


def translate_errors(step: Callable[[], T]) -> T:
    """Translate errors of the file system and of Arrow."""
    try:
        return step()
    except LeasewayError:
        raise
    except PermissionError as error:
        raise StoreRefused(f"{error.filename}: permission denied; check the permissions of the folder") from error
    except NotADirectoryError as error:
        raise StoreRefused(f"{error.filename}: is a file, and a folder is required; choose another folder") from error
    except FileExistsError as error:
        raise StoreRefused(f"{error.filename}: is a file, and a folder is required; choose another folder") from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise StoreFull(f"{error.filename}: the disk is full; nothing was written. Free some space") from error
        raise TransientError(
            f"{error.filename}: the disk reported an error ({error}); check it and try again"
        ) from error
    except pa.ArrowException as error:
        raise TerminalError(f"a Parquet file cannot be read or written ({error}); restore it from a backup") from error
