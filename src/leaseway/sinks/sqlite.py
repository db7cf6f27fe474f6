"""Rows in an SQLite file, and the books of the imports beside them in the same file.

A page is one transaction: look what is known, write what is news, keep the shard. Pages do not wait for the disk: a
power cut takes the last of them, rows and cursor together. What ends a shard or a run does wait, and takes along all
that was written before: nobody is told that something is finished that may be forgotten.
"""

import random  # noqa: TID251 - for waiting in threads, where no port reaches
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from leaseway.domain.errors import StoreRefused
from leaseway.domain.ids import Instant
from leaseway.domain.imports.columns import ColumnType
from leaseway.domain.imports.page import BadRow, Row, Written
from leaseway.domain.imports.progress import RunRow, RunState, ShardRow, ShardState
from leaseway.domain.imports.shard import Shard
from leaseway.ports.sink import PageWrite
from leaseway.sinks import books, turns
from leaseway.sinks.columns import (
    KEY,
    OPTIONAL,
    OWN,
    Found,
    Wanted,
    check_columns,
    check_table,
    quoted,
    refuse_other_shape,
    refuse_without_key,
)
from leaseway.sinks.fitting import Fitting, Line, Unfit, refused, without_nul
from leaseway.sinks.turns import Known, sorted_out, turned, waiting
from leaseway.stores.sqlite.connection import Connection, Work
from leaseway.stores.sqlite.migrate import split
from leaseway.stores.sqlite.timepiece import wall_us

T = TypeVar("T")

DECLARED: Mapping[ColumnType, str] = {
    ColumnType.TEXT: "TEXT",
    ColumnType.INTEGER: "INTEGER",
    ColumnType.REAL: "REAL",
    ColumnType.BOOLEAN: "BOOLEAN",
    ColumnType.TIMESTAMP: "TEXT",
    ColumnType.JSON: "TEXT",
}
"""Timestamps are texts that SQLite's own functions of time understand."""
HELD_BY: Mapping[ColumnType, frozenset[str]] = {
    ColumnType.TEXT: frozenset({"TEXT", "BLOB"}),
    ColumnType.INTEGER: frozenset({"INTEGER", "NUMERIC", "BLOB"}),
    ColumnType.REAL: frozenset({"REAL", "NUMERIC", "BLOB"}),
    ColumnType.BOOLEAN: frozenset({"INTEGER", "NUMERIC", "BLOB"}),
    ColumnType.TIMESTAMP: frozenset({"TEXT", "BLOB"}),
    ColumnType.JSON: frozenset({"TEXT", "BLOB"}),
}
"""Affinities that leave a value as it is."""
AFFINITIES = (("INT", "INTEGER"), ("CHAR", "TEXT"), ("CLOB", "TEXT"), ("TEXT", "TEXT"), ("BLOB", "BLOB"))
REALS = ("REAL", "FLOA", "DOUB")


class PageFile(Connection):
    """Commits without waiting for the disk. The file stays whole; a power cut takes the last transactions."""

    def connect(self) -> sqlite3.Connection:
        connection = super().connect()
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection


class SqliteSink:
    """One table of one file. Any loop may call it; `now_us` is for tests that move time."""

    def __init__(
        self,
        path: str,
        table: str,
        columns: Mapping[str, ColumnType] | None = None,
        now_us: Callable[[], Instant] = wall_us,
        *,
        inline: bool = False,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.path = path
        (self.target,) = check_table(table, parts_max=1)
        self._columns = check_columns(columns or {})
        self._now_us = now_us
        self._fitting = Fitting(self._columns, document=str)
        self._sql = {**books.statements("sqlite"), **own_statements(self.target, self._columns)}
        self._pages = PageFile(path, random, inline=inline)
        self._lasting = Connection(path, random, inline=inline)

    async def open(self) -> None:
        await self._lasting.open()
        await self._lasting.write(self._prepare)
        await self._pages.open()

    async def close(self) -> None:
        await self._pages.close()
        await self._lasting.close()

    # -- runs -------------------------------------------------------------------------------------------------------

    async def start_run(self, run: RunRow, shards: Sequence[Shard]) -> RunRow:
        turns.check_shards(shards)

        def work(connection: sqlite3.Connection) -> RunRow:
            if connection.execute(self._sql["run_add"], books.of_run(run, self.target)).fetchall():
                self._add_shards(connection, [waiting(run.id, shard) for shard in shards])
            (found,) = connection.execute(self._sql["run_find"], {"id": run.id}).fetchall()
            return books.refuse_other_run(run, found, self.target)

        return await self._lasting.write(work)

    async def finish_run(self, run: str, state: RunState, why: str | None = None) -> None:
        why = None if why is None else without_nul(why)
        values = {"id": run, "target": self.target, "state": state.value, "why": why, "now": self._now_us()}
        if not await self._lasting.write(
            lambda connection: connection.execute(self._sql["run_finish"], values).fetchall()
        ):
            raise books.no_such_run(run)

    async def runs(self, source: str | None = None, limit: int = 20) -> list[RunRow]:
        values = {"target": self.target, "source": source, "limit": limit}
        return [books.run_of(line) for line in await self._look("run_list", values)]

    # -- shards -----------------------------------------------------------------------------------------------------

    async def begin(self, run: str, shard: str, fence: int) -> ShardRow | None:
        def work(connection: sqlite3.Connection) -> ShardRow | None:
            found = self._shard(connection, run, shard)
            begun = None if found is None else turns.begun(found[0], fence)
            if begun is not None:
                connection.execute(self._sql["shard_keep"], books.of_shard(begun)).fetchall()
            return begun

        return await self._pages.write(work)

    async def write(self, page: PageWrite) -> Written | None:
        turns.check(page)
        lines, unfit = self._fitting.lines(page.rows)
        work = partial(self._write, page=page, lines=lines, bad=[*page.bad, *unfit])
        file = self._pages if page.state is ShardState.RUNNING else self._lasting
        return await file.write(work)

    def _write(
        self, connection: sqlite3.Connection, page: PageWrite, lines: Sequence[Line], bad: Sequence[BadRow]
    ) -> Written | None:
        found = self._shard(connection, page.run, page.shard)
        if found is None or not turns.may_turn(found[0], page):
            return None
        (shard, source), now = found, self._now_us()
        written = self._merge(connection, page.run, source, lines, now, len(bad))
        quarantine = [books.of_bad(page.run, page.shard, shard.pages, row, now) for row in bad]
        connection.executemany(self._sql["bad_add"], quarantine)
        self._add_shards(connection, [waiting(page.run, child, page.shard) for child in page.children])
        connection.execute(self._sql["shard_keep"], books.of_shard(turned(shard, page, written, now))).fetchall()
        return written

    async def shards(self, run: str) -> list[ShardRow]:
        return [books.shard_row_of(line) for line in await self._look("shard_list", {"run": run})]

    # -- rows -------------------------------------------------------------------------------------------------------

    async def count(self) -> int:
        ((count,),) = await self._look("count", {})
        return int(count)

    async def bad_rows(self, run: str | None = None, limit: int = 100) -> list[tuple[int, str, BadRow]]:
        values = {"target": self.target, "run": run, "limit": limit}
        return [books.bad_of(line) for line in await self._look("bad_list", values)]

    async def release(self, number: int, row: Row | None) -> bool:
        lines = [] if row is None else [self._line(row)]

        def work(connection: sqlite3.Connection) -> bool:
            values = {"number": number, "target": self.target}
            for run, source in connection.execute(self._sql["bad_remove"], values).fetchall():
                self._merge(connection, run, source, lines, self._now_us(), 0)
                return True
            return False

        return await self._lasting.write(work)

    def _line(self, row: Row) -> Line:
        try:
            return self._fitting.line(row)
        except Unfit as unfit:
            raise refused(unfit) from None

    def _merge(
        self, connection: sqlite3.Connection, run: str, source: str, lines: Sequence[Line], now: Instant, bad: int
    ) -> Written:
        # Nobody else writes until we commit: what is known now is known then.
        ids = msgspec.json.encode([line[0] for line in lines]).decode()
        found = connection.execute(self._sql["known"], {"source": source, "ids": ids})
        known = {key: Known(stamp, content_hash, bool(deleted)) for key, stamp, content_hash, deleted in found}
        news = sorted_out(lines, known, bad)
        connection.executemany(self._sql["insert"], [(source, run, now, now, *line) for line in news.new])
        changed = [(run, now, *line[1:], source, line[0]) for line in news.changed]
        connection.executemany(self._sql["update"], changed)
        return news.written

    def _shard(self, connection: sqlite3.Connection, run: str, shard: str) -> tuple[ShardRow, str] | None:
        """With the name of its source."""
        values = {"run": run, "key": shard, "target": self.target}
        for line in connection.execute(self._sql["shard_find"], values).fetchall():
            return books.shard_row_of(line), line[-1]
        return None

    def _add_shards(self, connection: sqlite3.Connection, shards: Sequence[ShardRow]) -> None:
        connection.executemany(self._sql["shard_add"], [books.of_shard(shard) for shard in shards])

    async def _look(self, verb: str, values: books.Values) -> list[tuple[Any, ...]]:
        work: Work[list[tuple[Any, ...]]] = lambda connection: connection.execute(self._sql[verb], values).fetchall()  # noqa: E731
        return await self._pages.read(work)

    # -- tables -----------------------------------------------------------------------------------------------------

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make what is missing, and refuse a table of another shape. All in one transaction."""
        for statement in split(self._sql["schema"]):
            connection.execute(statement)
        name, shown = self.target, quoted(self.target)
        kinds = connection.execute("SELECT type FROM sqlite_schema WHERE lower(name) = lower(?)", (name,)).fetchall()
        if not kinds:
            connection.execute(self._sql["create"])
        elif kinds != [("table",)]:
            raise StoreRefused(f"{self.path}: {shown} is no table but a {kinds[0][0]}; name another table")
        else:
            refuse_other_shape(self.path, shown, found_columns(connection, name), wanted_columns(self._columns))
            refuse_without_key(self.path, shown, unique_keys(connection, name))


def own_statements(table: str, columns: Mapping[str, ColumnType]) -> dict[str, str]:
    """Those whose columns the user names."""
    name, projected = quoted(table), [quoted(column) for column in columns]
    written = ["stamp", "content_hash", "document", *projected]
    inserted = ["source", "run", "first_seen", "updated_at", "external_id", *written]
    changes = ", ".join(f"{column} = ?" for column in ("run", "updated_at", *written))
    lines = [f"{quoted(column)} {declared(column, kind)}" for column, kind in {**OWN, **columns}.items()]
    return {
        "create": f"CREATE TABLE {name} ({', '.join(lines)}, PRIMARY KEY ({', '.join(KEY)}))",
        "insert": f"INSERT INTO {name} ({', '.join(inserted)}) VALUES ({', '.join('?' * len(inserted))})",
        "update": f"UPDATE {name} SET deleted_at = NULL, {changes} WHERE source = ? AND external_id = ?",
        "known": books.statements("sqlite")["known"].replace(":table", name),
        "count": f"SELECT count(*) FROM {name} WHERE deleted_at IS NULL",
    }


def declared(column: str, kind: ColumnType) -> str:
    return DECLARED[kind] + (" NOT NULL" if column in OWN and column not in OPTIONAL else "")


def wanted_columns(columns: Mapping[str, ColumnType]) -> list[Wanted]:
    return [Wanted(name, DECLARED[kind], partial(holds, kind)) for name, kind in {**OWN, **columns}.items()]


def holds(kind: ColumnType, declared_type: str) -> bool:
    return affinity(declared_type) in HELD_BY[kind]


def affinity(declared_type: str) -> str:
    """How SQLite reads a declared type: section 3.1 of its page on datatypes."""
    upper = declared_type.upper()
    if not upper:
        return "BLOB"
    for part, meaning in AFFINITIES:
        if part in upper:
            return meaning
    return "REAL" if any(part in upper for part in REALS) else "NUMERIC"


def found_columns(connection: sqlite3.Connection, table: str) -> list[Found]:
    found = connection.execute(
        'SELECT name, type, "notnull" AND dflt_value IS NULL FROM pragma_table_info(?)', (table,)
    )
    return [Found(name, kind, bool(is_required)) for name, kind, is_required in found]


def unique_keys(connection: sqlite3.Connection, table: str) -> list[list[str]]:
    indexes = connection.execute('SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial', (table,))
    keys = [
        [name for (name,) in connection.execute("SELECT name FROM pragma_index_info(?)", index)]
        for index in indexes.fetchall()
    ]
    primary = connection.execute("SELECT name FROM pragma_table_info(?) WHERE pk > 0", (table,))
    return [*keys, [name for (name,) in primary]]
