"""A sink for SQLite: rows and run tables in one file.

A page is one transaction. Transactions that only write pages do not wait for the disk: after a power failure the last
pages are lost, rows and cursor together. A transaction that ends a shard or a run, or that spends budget, waits for the
disk and makes everything written before it durable.
"""

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import ColumnType, WriteCounts
from leaseway.imports.sinks import run_tables
from leaseway.imports.sinks.columns import check_columns, check_table
from leaseway.imports.sinks.port import RowMap, close_on_error
from leaseway.imports.sinks.row_encoding import PageEncoder
from leaseway.imports.sinks.row_map import GRID, RowMapPage, RowPosition, decode_cells, sqlite_names
from leaseway.imports.sinks.run_tables import Values
from leaseway.imports.sinks.shard_transitions import StoredRowState, classify_rows
from leaseway.imports.sinks.sql_tables import (
    DeleteRows,
    Execute,
    ExecuteMany,
    Lines,
    MergeRows,
    SqlQuarantine,
    SqlRows,
    SqlRuns,
    SqlShards,
    SqlSweeps,
    Step,
    Steps,
    Verb,
)
from leaseway.imports.sinks.sqlite.tables import own_statements, prepare
from leaseway.stores.sqlite.connection import CHANCE, Connection
from leaseway.system import wall_clock_us

T = TypeVar("T")

WAL_PAGES = 4_000
"""Size of the write-ahead log before a checkpoint: about twenty pages of an import instead of five."""


class PageConnection(Connection):
    """Commits without waiting for the disk. The file stays consistent; a power failure loses the last transactions."""

    def connect(self) -> sqlite3.Connection:
        connection = super().connect()
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        return connection


class SqliteTables:
    """Executes the steps of the shared verbs."""

    def __init__(
        self, target: str, columns: Mapping[str, ColumnType], encoder: PageEncoder, now_us: Callable[[], Instant]
    ) -> None:
        self.target = target
        self.encoder = encoder
        self.sql: Mapping[str, str] = own_statements(target, columns)
        self.now_us = now_us
        self.pages: Connection
        self.durable: Connection

    async def read(self, verb: str, values: Values) -> Lines:
        return await self.pages.read(partial(self.execute, verb=verb, values=values))

    async def call(self, verb: str, values: Values) -> Lines:
        return await self.durable.write(partial(self.execute, verb=verb, values=values))

    async def snapshot(self, verb: Verb[T]) -> T:
        return await self.pages.read(lambda connection: self.run(connection, verb()))

    async def transact(self, verb: Verb[T], *, is_durable: bool = True, is_long: bool = False) -> T:
        connection = self.durable if is_durable else self.pages
        return await connection.write(lambda connection: self.run(connection, verb()))

    def now(self, line: Sequence[Any]) -> Instant:
        return self.now_us()

    def id_list(self, ids: Sequence[str]) -> str:
        return json_list(ids)

    def run(self, connection: sqlite3.Connection, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:  # ends with the last step
                step = steps.send(self.execute_step(connection, step))
        except StopIteration as done:
            answer: T = done.value
            return answer

    def execute_step(self, connection: sqlite3.Connection, step: Step) -> Any:
        match step:
            case Execute(verb, values):
                return self.execute(connection, verb, values)
            case ExecuteMany(verb, many):
                return connection.executemany(self.sql[verb], many)
            case MergeRows():
                return self.merge(connection, step)
            case DeleteRows():
                return self.delete(connection, step)

    def execute(self, connection: sqlite3.Connection, verb: str, values: Values) -> list[Any]:
        return connection.execute(self.sql[verb], {"target": self.target, **values}).fetchall()

    def merge(self, connection: sqlite3.Connection, step: MergeRows) -> WriteCounts:
        # This transaction is the only writer, so what is read here cannot change before the commit.
        ids = json_list([line[0] for line in step.lines])
        found = self.execute(connection, "known", {"source": step.source, "ids": ids})
        stored = {
            key: StoredRowState(stamp, content_hash, bool(deleted)) for key, stamp, content_hash, deleted in found
        }
        changes = classify_rows(step.lines, stored, step.quarantined, step.overwrites)
        for verb, lines in (("insert", changes.new), ("update", changes.changed)):
            connection.executemany(self.sql[verb], [(step.source, step.run, step.now, *line) for line in lines])
        return changes.counts

    def delete(self, connection: sqlite3.Connection, step: DeleteRows) -> int:
        values = {"run": step.run, "source": step.source, "now": step.now, "reason": step.reason}
        return len(self.execute(connection, "delete_rows", {**values, "ids": json_list(step.ids)}))


class SqliteRowMap:
    def __init__(self, tables: SqliteTables) -> None:
        self._tables = tables

    async def read(self, source: str, run: str, position: RowPosition, after: str, rows_max: int) -> RowMapPage:
        begin = int(after or 0)
        names = sqlite_names(position, self._tables.target)
        # One pass, so that text inside user-given names is not replaced again.
        sql = re.sub(
            r":(?:latitude|longitude|table)\b",
            lambda found: names[found[0]],
            run_tables.statements("sqlite")["row_map"],
        )
        values = {**GRID, "source": source, "run": run, "after": begin, "rows_max": rows_max}

        def work(connection: sqlite3.Connection) -> RowMapPage:
            try:
                lines = connection.execute(sql, values).fetchall()
            except sqlite3.OperationalError as error:
                if "_rowid_" not in str(error):
                    raise
                return RowMapPage([], after, has_more=False)  # a table WITHOUT ROWID has no insertion order
            last = max((place for _, _, place in lines), default=begin)
            return RowMapPage(decode_cells(lines), str(last), has_more=sum(count for _, count, _ in lines) >= rows_max)

        return await self._tables.pages.read(work)


class SqliteSink:
    """One table of one file. Can be used from any event loop. `now_us` lets tests control time."""

    def __init__(
        self,
        path: str,
        table: str,
        columns: Mapping[str, ColumnType] | None = None,
        now_us: Callable[[], Instant] = wall_clock_us,
        *,
        inline: bool = False,
        random: Callable[[], float] = CHANCE.random,
    ) -> None:
        self.path = path
        (self.target,) = check_table(table, parts_max=1)
        self._columns = check_columns(columns or {})
        self.tables = self._make_tables(now_us)
        self.tables.pages = PageConnection(path, random, inline=inline)
        self.tables.durable = Connection(path, random, inline=inline)
        self.runs = SqlRuns(self.tables)
        self.shards = SqlShards(self.tables)
        self.quarantine = SqlQuarantine(self.tables)
        self.sweeps = SqlSweeps(self.tables)
        self.rows = SqlRows(self.tables)
        self.row_map: RowMap | None = SqliteRowMap(self.tables)

    def _make_tables(self, now_us: Callable[[], Instant]) -> SqliteTables:
        return SqliteTables(self.target, self._columns, PageEncoder(self._columns, document=str), now_us)

    async def open(self) -> None:
        async with close_on_error(self.close):
            await self.tables.durable.open()
            await self.tables.durable.write(
                partial(prepare, sql=self.tables.sql, path=self.path, table=self.target, columns=self._columns)
            )
            await self.tables.pages.open()

    async def close(self) -> None:
        await self.tables.pages.close()
        await self.tables.durable.close()


def json_list(ids: Sequence[str]) -> str:
    return msgspec.json.encode(ids).decode()
