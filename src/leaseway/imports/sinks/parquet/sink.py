"""A sink for Parquet files: row versions in Parquet files, and run tables in an SQLite file next to them.

    places/leaseway.db                         the run tables, and the known keys with stamp and hash
    places/poi/000000000017.parquet            the changes of one page, or of one run

Files are immutable, so a row is never rewritten: every new, changed or deleted row is written as another version, and
unchanged rows are not written. The files are a log of changes; the current row is the version with the largest
`leaseway_version`. The last version of a row that a sweep deleted has the key and the deletion marks but no document:
the document is in the version before it.

A page becomes visible with one rename:

    hidden file, fsynced ─► one SQLite transaction: known rows, cursor, file number ─► rename

After a crash before the commit, the hidden file is unreferenced; the next `open` removes it. After a crash after the
commit, the file is referenced; the next `open` renames it. A reader in between misses a page but never sees part of
one. Files are written while the SQLite write lock is held, so several workers take turns.

At the end of a run, its files are merged into one. For a moment old and new files exist together: the same versions
twice, each of them correct.

Unlike in a database table, extra columns of your own cannot be kept, and the sink does not notice rows that are deleted
without it.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import ColumnType, Row, WriteCounts
from leaseway.imports.domain.run_state import RunState
from leaseway.imports.sinks.columns import check_columns
from leaseway.imports.sinks.parquet.files import VERSION, LoggedConnection, LoggedPages, ParquetFolder, translate_errors
from leaseway.imports.sinks.port import close_on_error
from leaseway.imports.sinks.row_encoding import IS_DELETED, Line, PageEncoder, timestamps
from leaseway.imports.sinks.shard_transitions import FLAGGED, StoredRowState, classify_rows
from leaseway.imports.sinks.sql_tables import DeleteRows, MergeRows, SqlRuns
from leaseway.imports.sinks.sqlite.sink import SqliteSink, SqliteTables, json_list
from leaseway.system import wall_clock_us

RUN_TABLES = "leaseway.db"
FILES = """
CREATE TABLE IF NOT EXISTS leaseway_files (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  target TEXT NOT NULL,
  run TEXT NOT NULL,
  is_gone INTEGER NOT NULL DEFAULT 0
)
"""
LIVING = """
SELECT external_id, stamp, content_hash, first_seen
  FROM :table
 WHERE source = :source AND deleted_at IS NULL AND external_id IN (SELECT value FROM json_each(:ids))
"""
FIRST_SEEN = """
SELECT external_id, first_seen
  FROM :table
 WHERE source = :source AND external_id IN (SELECT value FROM json_each(:ids))
"""


class ParquetEncoder(PageEncoder):
    """Keeps instants as numbers, because Parquet has a type for them."""

    def __init__(self, columns: Mapping[str, ColumnType]) -> None:
        super().__init__(columns, document=str)
        kinds = list(enumerate(columns.items(), start=IS_DELETED + 1))
        self._instants = [(place, name) for place, (name, kind) in kinds if kind is ColumnType.TIMESTAMP]
        for place, name in self._instants:
            self._encoders[place - IS_DELETED - 1] = (name, check_instants)

    def line(self, row: Row) -> Line:
        line = list(super().line(row))
        for place, name in self._instants:
            line[place] = row.values.get(name)
        return tuple(line)


def check_instants(values: list[Any]) -> list[Any]:
    timestamps(values)  # raises for values that are not instants
    return values


class ParquetTables(SqliteTables):
    """Writes each change to a Parquet file as well; SQLite stores only keys, stamps and hashes."""

    def __init__(
        self, target: str, folder: ParquetFolder, encoder: ParquetEncoder, now_us: Callable[[], Instant]
    ) -> None:
        super().__init__(target, {}, encoder, now_us)
        self.folder = folder

    def merge(self, connection: sqlite3.Connection, step: MergeRows) -> WriteCounts:
        source, run, now = step.source, step.run, step.now
        ids = json_list([line[0] for line in step.lines])
        found = self.execute(connection, "known", {"source": source, "ids": ids})
        stored = {
            key: StoredRowState(stamp, content_hash, bool(deleted)) for key, stamp, content_hash, deleted in found
        }
        changes = classify_rows(step.lines, stored, step.quarantined, step.overwrites)
        first_seen = self._first_seen(connection, source, [line[0] for line in changes.changed])
        for verb, lines in (("insert", changes.new), ("update", changes.changed)):
            keys = [(source, run, now, *line[:3], "", line[IS_DELETED]) for line in lines]
            connection.executemany(self.sql[verb], keys)
        # As after a sweep: the last content of a deleted row is in its version before.
        no_values = [None] * (len(self.folder.schema) - 11)
        versions = [
            [
                *(source, *line[:3], None if line[IS_DELETED] and line[0] in stored else line[3]),
                *((now, FLAGGED) if line[IS_DELETED] else (None, None)),
                *(run, first_seen.get(line[0], now), now, None),
                *(no_values if line[IS_DELETED] and line[0] in stored else line[IS_DELETED + 1 :]),
            ]
            for line in (*changes.new, *changes.changed)
        ]
        self._write_file(connection, run, versions)
        return changes.counts

    def _first_seen(self, connection: sqlite3.Connection, source: str, ids: Sequence[str]) -> dict[str, Instant]:
        values = {"source": source, "ids": json_list(ids)}
        return dict(connection.execute(self._with_table(FIRST_SEEN), values).fetchall())

    def delete(self, connection: sqlite3.Connection, step: DeleteRows) -> int:
        source, run, now = step.source, step.run, step.now
        values = {"source": source, "ids": json_list(step.ids)}
        living = connection.execute(self._with_table(LIVING), values).fetchall()
        super().delete(connection, step)
        rest = [None] * (len(self.folder.schema) - 11)
        versions = [
            [source, key, stamp, content_hash, None, now, step.reason, run, first_seen, now, None, *rest]
            for key, stamp, content_hash, first_seen in living
        ]
        self._write_file(connection, run, versions)
        return len(living)

    def _write_file(self, connection: sqlite3.Connection, run: str, versions: list[list[Any]]) -> None:
        """Write a hidden file. Its number is the version of every row in it."""
        if not versions:
            return
        number = self.add_file(connection, run)
        place = self.folder.schema.get_field_index(VERSION)
        for version in versions:
            version[place] = number
        translate_errors(lambda: self.folder.write(number, versions))
        self.folder.made.append(number)

    def add_file(self, connection: sqlite3.Connection, run: str, is_gone: bool = False) -> int:
        """The number of a new file. A file that is still being written is `is_gone`: another process removes it."""
        values = (self.target, run, is_gone)
        added = connection.execute("INSERT INTO leaseway_files (target, run, is_gone) VALUES (?, ?, ?)", values)
        assert added.lastrowid is not None
        return added.lastrowid

    def file_numbers(self, connection: sqlite3.Connection, run: str | None = None, is_gone: bool = False) -> list[int]:
        sql = "SELECT number FROM leaseway_files WHERE target = ?1 AND is_gone = ?2 AND (?3 IS NULL OR run = ?3)"
        found = connection.execute(f"{sql} ORDER BY number", (self.target, is_gone, run))
        return [number for (number,) in found]

    def recover(self, connection: sqlite3.Connection) -> None:
        """Publish referenced files and remove the others. The write lock keeps other writers out."""
        connection.execute(FILES)
        numbers, gone = self.file_numbers(connection), self.file_numbers(connection, is_gone=True)
        translate_errors(lambda: self.folder.recover(numbers, gone))
        connection.execute("DELETE FROM leaseway_files WHERE target = ? AND is_gone", (self.target,))

    def _with_table(self, sql: str) -> str:
        return sql.replace(":table", f'"{self.target}"')

    # -- compaction -------------------------------------------------------------------------------------------------

    async def compact(self, run: str) -> None:
        """Replace the files of the run's pages by one. Can be interrupted or repeated."""
        numbers = await self.durable.read(lambda connection: self.file_numbers(connection, run))
        if len(numbers) < 2:
            return
        into = await self.durable.write(lambda connection: self.add_file(connection, run, is_gone=True))
        # Merging takes long, so it does not hold the write lock. If another process opens the sink meanwhile, it
        # removes the new file, and the old files stay.
        if not await asyncio.to_thread(translate_errors, lambda: self.folder.merge(numbers, into)):
            return
        if await self.durable.write(lambda connection: self.swap_files(connection, run, numbers, into)):
            await asyncio.to_thread(translate_errors, lambda: self.folder.remove(*numbers))

    def swap_files(self, connection: sqlite3.Connection, run: str, numbers: Sequence[int], into: int) -> bool:
        is_ours = connection.execute("SELECT 1 FROM leaseway_files WHERE number = ? AND is_gone", (into,)).fetchall()
        if not is_ours or not self.folder.hidden(into).exists():
            return False
        if not set(numbers) <= set(self.file_numbers(connection, run)):
            return False  # another process has merged them
        for is_gone, number in [(0, into), *((1, number) for number in numbers)]:
            connection.execute("UPDATE leaseway_files SET is_gone = ? WHERE number = ?", (is_gone, number))
        self.folder.made.append(into)
        return True


class ParquetRuns(SqlRuns):
    def __init__(self, tables: ParquetTables) -> None:
        super().__init__(tables)
        self._tables = tables

    async def finish(
        self, run: str, state: RunState, why: str | None = None, notes: Mapping[str, Any] | None = None
    ) -> None:
        await super().finish(run, state, why, notes)
        if state is not RunState.RUNNING:
            await self._tables.compact(run)


class ParquetSink(SqliteSink):
    """One table of one folder. Can be used from any event loop. `now_us` lets tests control time."""

    tables: ParquetTables

    def __init__(
        self,
        folder: str,
        table: str,
        columns: Mapping[str, ColumnType] | None = None,
        now_us: Callable[[], Instant] = wall_clock_us,
    ) -> None:
        self.folder = Path(folder)
        projected = check_columns(columns or {})
        if VERSION in projected:
            raise BadValue(f"columns.{VERSION}", "every file has a column with this name; choose another name")
        self._files = ParquetFolder(self.folder / check_folder_name(table), projected)
        self._encoder = ParquetEncoder(projected)
        super().__init__(str(self.folder / RUN_TABLES), table, None, now_us)
        self.tables.pages = LoggedPages(self.path, self._files)
        self.tables.durable = LoggedConnection(self.path, self._files)
        self.runs = ParquetRuns(self.tables)
        self.row_map = None

    def _make_tables(self, now_us: Callable[[], Instant]) -> ParquetTables:
        return ParquetTables(self.target, self._files, self._encoder, now_us)

    async def open(self) -> None:
        async with close_on_error(self.close):
            await asyncio.to_thread(translate_errors, lambda: self._files.folder.mkdir(parents=True, exist_ok=True))
            await super().open()
            await self.tables.durable.write(self.tables.recover)


def check_folder_name(table: str) -> str:
    if "/" in table or "\\" in table or table.startswith(".") or table.endswith((".", " ")):
        raise BadValue(
            "table", f"{table!r}: is a folder name here; it must not contain / or \\, nor start or end with a dot"
        )
    return table
