"""Rows as versions in Parquet files, and the books of the imports in an SQLite file beside them.

    places/leaseway.db                         the books, and which keys are known, with stamp and hash
    places/poi/000000000017.parquet            the news of one page, or of one run

Files cannot be changed, so a row is never rewritten: what is new, changed or deleted is written as one more version,
and what is unchanged is not written at all. The files are a log of changes; the row is its version with the largest
`leaseway_version`. Of a row that a sweep has buried the last version has the marks and the key, and no document: that
stands in the version before it.

A page becomes visible with one rename:

    hidden file, on the disk ─► books: rows known, cursor, name of the file, in one transaction ─► rename

A crash before the commit leaves a hidden file that nobody names; it is removed when the sink is opened the next time. A
crash after it leaves one that is named; it is shown then. Who reads in between misses a page, and never sees half of
one. Files are written while the books are locked: several workers take turns.

When a run ends its files are merged into one. For a moment old and new ones are there together: the same versions
twice, of which any is right.

Other than in the tables of a database, columns of somebody else's cannot be kept beside ours, and rows that are deleted
past the sink are unknown to it.
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
from leaseway.imports.sinks import run_tables
from leaseway.imports.sinks.bulk_encoding import PageEncoder, timestamps
from leaseway.imports.sinks.columns import check_columns
from leaseway.imports.sinks.parquet.files import VERSION, LoggedFile, LoggedPages, ParquetFolder, translate_errors
from leaseway.imports.sinks.port import closed_if_it_fails
from leaseway.imports.sinks.row_encoding import IS_DELETED, Line, replace_nul
from leaseway.imports.sinks.shard_transitions import FLAGGED, StoredRow, classify_rows
from leaseway.imports.sinks.sqlite.sink import SqliteSink, json_list
from leaseway.stores.sqlite.limiter_clock import wall_us

BOOKS = "leaseway.db"
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
    """Instants stay numbers: Parquet has a type for them."""

    def __init__(self, columns: Mapping[str, ColumnType]) -> None:
        super().__init__(columns, document=str)
        kinds = list(enumerate(columns.items(), start=IS_DELETED + 1))
        self._instants = [(place, name) for place, (name, kind) in kinds if kind is ColumnType.TIMESTAMP]
        for place, name in self._instants:
            self._wholes[place - IS_DELETED - 1] = (name, instants)

    def line(self, row: Row) -> Line:
        line = list(super().line(row))
        for place, name in self._instants:
            line[place] = row.values.get(name)
        return tuple(line)


def instants(values: list[Any]) -> list[Any]:
    timestamps(values)  # for what it refuses
    return values


class ParquetSink(SqliteSink):
    """One table of one folder. Any loop may call it; `now_us` is for tests that move time."""

    def __init__(
        self,
        folder: str,
        table: str,
        columns: Mapping[str, ColumnType] | None = None,
        now_us: Callable[[], Instant] = wall_us,
    ) -> None:
        self.folder = Path(folder)
        super().__init__(str(self.folder / BOOKS), check_folder_name(table), None, now_us)
        projected = check_columns(columns or {})
        if VERSION in projected:
            raise BadValue(f"columns.{VERSION}", "every file has a column of this name; choose another one")
        self._shelf = ParquetFolder(self.folder / table, projected)
        self._fitting = ParquetEncoder(projected)
        self._pages = LoggedPages(self.path, self._shelf)
        self._lasting = LoggedFile(self.path, self._shelf)

    async def open(self) -> None:
        async with closed_if_it_fails(self.close):
            await asyncio.to_thread(translate_errors, lambda: self._shelf.folder.mkdir(parents=True, exist_ok=True))
            await super().open()
            await self._lasting.write(self._catch_up)

    def _catch_up(self, connection: sqlite3.Connection) -> None:
        """While we hold the books nobody else is between a file and its commit."""
        connection.execute(FILES)
        numbers, gone = self._numbers(connection), self._numbers(connection, is_gone=True)
        translate_errors(lambda: self._shelf.catch_up(numbers, gone))
        connection.execute("DELETE FROM leaseway_files WHERE target = ? AND is_gone", (self.target,))

    def _numbers(self, connection: sqlite3.Connection, run: str | None = None, is_gone: bool = False) -> list[int]:
        asked = "SELECT number FROM leaseway_files WHERE target = ?1 AND is_gone = ?2 AND (?3 IS NULL OR run = ?3)"
        found = connection.execute(f"{asked} ORDER BY number", (self.target, is_gone, run))
        return [number for (number,) in found]

    # -- rows -------------------------------------------------------------------------------------------------------

    def _merge(
        self, connection: sqlite3.Connection, run: str, source: str, lines: Sequence[Line], now: Instant, bad: int
    ) -> WriteCounts:
        found = self._ask(connection, "known", {"source": source, "ids": json_list([line[0] for line in lines])})
        known = {key: StoredRow(stamp, content_hash, bool(deleted)) for key, stamp, content_hash, deleted in found}
        news = classify_rows(lines, known, bad)
        first_seen = self._first_seen(connection, source, [line[0] for line in news.changed])
        for verb, some in (("insert", news.new), ("update", news.changed)):
            keys = [(source, run, now, *line[:3], "", line[IS_DELETED]) for line in some]
            connection.executemany(self._sql[verb], keys)
        versions = [
            [
                *(source, *line[:4]),
                *((now, FLAGGED) if line[IS_DELETED] else (None, None)),
                *(run, first_seen.get(line[0], now), now, None),
                *line[IS_DELETED + 1 :],
            ]
            for line in (*news.new, *news.changed)
        ]
        self._log(connection, run, versions)
        return news.written

    def _first_seen(self, connection: sqlite3.Connection, source: str, ids: Sequence[str]) -> dict[str, Instant]:
        values = {"source": source, "ids": json_list(ids)}
        return dict(connection.execute(self._named(FIRST_SEEN), values).fetchall())

    async def bury(self, run: str, ids: Sequence[str], reason: str) -> int:
        marks = replace_nul(reason)

        def work(connection: sqlite3.Connection) -> int:
            source = self._run(connection, run).source
            values = {"run": run, "source": source, "ids": json_list(run_tables.storable_ids(ids))}
            now = self._now_us()
            living = connection.execute(self._named(LIVING), {"source": source, "ids": values["ids"]}).fetchall()
            self._ask(connection, "absent_remove", values)
            self._ask(connection, "bury", {**values, "now": now, "reason": marks})
            rest = [None] * (len(self._shelf.schema) - 11)
            versions = [
                [source, key, stamp, content_hash, None, now, marks, run, first_seen, now, None, *rest]
                for key, stamp, content_hash, first_seen in living
            ]
            self._log(connection, run, versions)
            return len(living)

        return await self._lasting.write(work)

    def _log(self, connection: sqlite3.Connection, run: str, versions: list[list[Any]]) -> None:
        """One more file, hidden. Its number is the version of all that is in it."""
        if not versions:
            return
        number = self._number(connection, run)
        place = self._shelf.schema.get_field_index(VERSION)
        for version in versions:
            version[place] = number
        translate_errors(lambda: self._shelf.write(number, versions))
        self._shelf.made.append(number)

    def _number(self, connection: sqlite3.Connection, run: str, is_gone: bool = False) -> int:
        """For the next file. One that is gone before it came is for a file in the making: who finds it removes it."""
        values = (self.target, run, is_gone)
        added = connection.execute("INSERT INTO leaseway_files (target, run, is_gone) VALUES (?, ?, ?)", values)
        assert added.lastrowid is not None
        return added.lastrowid

    def _named(self, sql: str) -> str:
        return sql.replace(":table", f'"{self.target}"')

    # -- files ------------------------------------------------------------------------------------------------------

    async def finish_run(
        self, run: str, state: RunState, why: str | None = None, notes: Mapping[str, Any] | None = None
    ) -> None:
        await super().finish_run(run, state, why, notes)
        if state is not RunState.RUNNING:
            await self.compact(run)

    async def compact(self, run: str) -> None:
        """One file instead of those of the run's pages. Interrupted, or called twice, it does no harm."""
        numbers = await self._lasting.read(lambda connection: self._numbers(connection, run))
        if len(numbers) < 2:
            return
        into = await self._lasting.write(lambda connection: self._number(connection, run, is_gone=True))
        # Long work, and so without the books. Who opens the sink meanwhile removes the file, and we leave it at that.
        if not await asyncio.to_thread(translate_errors, lambda: self._shelf.merge(numbers, into)):
            return
        if await self._lasting.write(lambda connection: self._swap(connection, run, numbers, into)):
            await asyncio.to_thread(translate_errors, lambda: self._shelf.remove(*numbers))

    def _swap(self, connection: sqlite3.Connection, run: str, numbers: Sequence[int], into: int) -> bool:
        is_ours = connection.execute("SELECT 1 FROM leaseway_files WHERE number = ? AND is_gone", (into,)).fetchall()
        if not is_ours or not self._shelf.hidden(into).exists():
            return False
        if not set(numbers) <= set(self._numbers(connection, run)):
            return False  # somebody else has merged them
        for is_gone, number in [(0, into), *((1, number) for number in numbers)]:
            connection.execute("UPDATE leaseway_files SET is_gone = ? WHERE number = ?", (is_gone, number))
        self._shelf.made.append(into)
        return True


def check_folder_name(table: str) -> str:
    if "/" in table or "\\" in table or table.startswith(".") or table.endswith((".", " ")):
        raise BadValue("table", f"{table!r}: is the name of a folder here: without / and \\, and no dot at its ends")
    return table
