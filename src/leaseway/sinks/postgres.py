"""Rows in a table of PostgreSQL, and the books of the imports beside it, in the schema of the table.

Beside it and not in a schema of their own: whoever may make the table may make them, they move and are saved together
with it, and their names are those that SQLite has.

A page is one transaction: lock the shard, COPY the rows into a staging table of the session, merge, keep the shard.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import asyncpg

from leaseway.domain.errors import StoreRefused
from leaseway.domain.ids import Instant
from leaseway.domain.imports.columns import ColumnType
from leaseway.domain.imports.page import BadRow, Row, Written
from leaseway.domain.imports.progress import RunRow, RunState, ShardRow
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
from leaseway.sinks.fitting import Fitting, Line, Unfit, binary_json, refused, without_nul
from leaseway.sinks.turns import turned, waiting
from leaseway.stores.postgres.address import address_of
from leaseway.stores.postgres.connection import DEADLOCKS_MAX, Connections, Record
from leaseway.stores.postgres.failures import Deadlocked
from leaseway.stores.postgres.migrate import refuse_old_server, refuse_read_only

WRITE_SECONDS_MAX = 60.0
STAGING = "leaseway_page"
STAGED: Mapping[str, ColumnType] = {name: OWN[name] for name in ("external_id", "stamp", "content_hash", "document")}
BOOKS = ("leaseway_runs", "leaseway_shards", "leaseway_quarantine")

DECLARED: Mapping[ColumnType, str] = {
    ColumnType.TEXT: "text",
    ColumnType.INTEGER: "bigint",
    ColumnType.REAL: "double precision",
    ColumnType.BOOLEAN: "boolean",
    ColumnType.TIMESTAMP: "timestamp with time zone",
    ColumnType.JSON: "jsonb",
}
HELD_BY: Mapping[ColumnType, frozenset[str]] = {
    ColumnType.TEXT: frozenset({"text", "character varying"}),
    ColumnType.INTEGER: frozenset({"bigint", "numeric"}),
    ColumnType.REAL: frozenset({"double precision"}),
    ColumnType.BOOLEAN: frozenset({"boolean"}),
    ColumnType.TIMESTAMP: frozenset({"timestamp with time zone"}),
    ColumnType.JSON: frozenset({"jsonb"}),
}
"""Types that take every value of ours, and give it back."""


class Statement(NamedTuple):
    """SQL with numbered parameters, and their names in this order."""

    text: str
    names: tuple[str, ...]

    def of(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(values[name] for name in self.names)


class PostgresSink:
    """One table of one database, with connections of its own. `now_us` is for tests that move time.

    `table` is a name or schema.name; without a schema it is that of the address (?schema=…), or the server's own.
    """

    def __init__(
        self,
        url: str,
        table: str,
        columns: Mapping[str, ColumnType] | None = None,
        now_us: Callable[[], Instant] | None = None,
    ) -> None:
        self.address = address_of(url)
        self.connections = Connections(self.address)
        *schema, self.target = check_table(table, parts_max=2)
        self._schema = schema[0] if schema else dict(parse_qsl(urlsplit(url).query)).get("schema")
        self._columns = check_columns(columns or {})
        self._now_us = now_us
        self._fitting = Fitting(self._columns, document=binary_json)
        self._sql: dict[str, Statement] = {}
        self._staged = [*STAGED, *self._columns]

    async def open(self) -> None:
        async with self.connections.transaction() as connection:
            refuse_old_server(connection, self.address)
            await refuse_read_only(connection, self.address)
            schema = self._schema or await connection.fetchval("SELECT current_schema()")
            if schema is None or await connection.fetchval("SELECT to_regnamespace($1)", quoted(schema)) is None:
                raise StoreRefused(
                    f"{self.address.shown}: there is no schema {schema or 'in the search path'}; create it first, or "
                    "name the table with a schema that is there: public.places"
                )
            ending = "DELETE ROWS" if self.address.has_sessions else "DROP"
            self._sql = own_statements(schema, self.target, self._columns, ending)
            await self._prepare(connection, schema)

    async def close(self) -> None:
        await self.connections.close()

    # -- runs -------------------------------------------------------------------------------------------------------

    async def start_run(self, run: RunRow, shards: Sequence[Shard]) -> RunRow:
        turns.check_shards(shards)
        async with self._transaction() as connection:
            if await self._ask(connection, "run_add", books.of_run(run, self.target)):
                await self._add_shards(connection, [waiting(run.id, shard) for shard in shards])
            (found,) = await self._ask(connection, "run_find", {"id": run.id})
            return books.refuse_other_run(run, found, self.target)

    async def finish_run(self, run: str, state: RunState, why: str | None = None) -> None:
        why = None if why is None else without_nul(why)
        async with self._transaction() as connection:
            now = await self._now(connection)
            values = {"id": run, "target": self.target, "state": state.value, "why": why, "now": now}
            if not await self._ask(connection, "run_finish", values):
                raise books.no_such_run(run)

    async def runs(self, source: str | None = None, limit: int = 20) -> list[RunRow]:
        values = {"target": self.target, "source": source, "limit": limit}
        return [books.run_of(line) for line in await self._look("run_list", values)]

    # -- shards -----------------------------------------------------------------------------------------------------

    async def begin(self, run: str, shard: str, fence: int) -> ShardRow | None:
        async with self._transaction() as connection:
            for line in await self._lock(connection, run, shard):
                begun = turns.begun(books.shard_row_of(line), fence)
                if begun is not None:
                    await self._ask(connection, "shard_keep", books.of_shard(begun))
                return begun
        return None

    async def write(self, page: PageWrite) -> Written | None:
        turns.check(page)
        lines, unfit = self._fitting.lines(page.rows)
        deadlocks = 0
        while True:  # ends with an answer or an error, or with one deadlock too many
            try:
                return await self._write(page, lines, [*page.bad, *unfit])
            except Deadlocked:  # who had to give way did nothing, and goes again
                deadlocks += 1
                if deadlocks > DEADLOCKS_MAX:
                    raise

    async def _write(self, page: PageWrite, lines: Sequence[Line], bad: Sequence[BadRow]) -> Written | None:
        async with self._transaction() as connection:
            for line in await self._lock(connection, page.run, page.shard):
                shard, source, now = books.shard_row_of(line), line[-2], self._at(line[-1])
                if not turns.may_turn(shard, page):
                    return None
                written = await self._merge(connection, page.run, source, lines, now, len(bad))
                quarantine = [books.of_bad(page.run, page.shard, shard.pages, row, now) for row in bad]
                await self._each(connection, "bad_add", quarantine)
                await self._add_shards(connection, [waiting(page.run, child, page.shard) for child in page.children])
                await self._ask(connection, "shard_keep", books.of_shard(turned(shard, page, written, now)))
                return written
        return None

    async def shards(self, run: str) -> list[ShardRow]:
        found = [books.shard_row_of(line) for line in await self._look("shard_list", {"run": run})]
        return sorted(found, key=lambda row: row.shard.key)  # the server's order depends on its language

    # -- rows -------------------------------------------------------------------------------------------------------

    async def count(self) -> int:
        ((count,),) = await self._look("count", {})
        return int(count)

    async def bad_rows(self, run: str | None = None, limit: int = 100) -> list[tuple[int, str, BadRow]]:
        values = {"target": self.target, "run": run, "limit": limit}
        return [books.bad_of(line) for line in await self._look("bad_list", values)]

    async def release(self, number: int, row: Row | None) -> bool:
        lines = [] if row is None else [self._line(row)]
        async with self._transaction() as connection:
            for run, source in await self._ask(connection, "bad_remove", {"number": number, "target": self.target}):
                await self._merge(connection, run, source, lines, await self._now(connection), 0)
                return True
        return False

    def _line(self, row: Row) -> Line:
        try:
            return self._fitting.line(row)
        except Unfit as unfit:
            raise refused(unfit) from None

    async def _merge(
        self, connection: asyncpg.Connection, run: str, source: str, lines: Sequence[Line], now: Instant, bad: int
    ) -> Written:
        if not lines:
            return Written(quarantined=bad)
        await connection.execute(self._sql["stage"].text)
        await connection.copy_records_to_table(
            STAGING, schema_name="pg_temp", columns=self._staged, records=lines, timeout=None
        )
        ((inserted, updated),) = await connection.fetch(self._sql["merge"].text, source, run, now)
        stale = 0
        if inserted + updated < len(lines):
            stale = await connection.fetchval(self._sql["stale"].text, source)
        return Written(inserted, updated, len(lines) - inserted - updated - stale, stale, bad)

    # -- statements -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[asyncpg.Connection]:
        if not self._sql:
            raise StoreRefused(f"{self.address.shown}: the sink is not open")
        async with self.connections.transaction(WRITE_SECONDS_MAX) as connection:
            yield connection

    async def _lock(self, connection: asyncpg.Connection, run: str, shard: str) -> list[Record]:
        """The shard, ours until the transaction ends, with its source and the time."""
        return await self._ask(connection, "shard_find", {"run": run, "key": shard, "target": self.target})

    async def _ask(self, connection: asyncpg.Connection, verb: str, values: Mapping[str, Any]) -> list[Record]:
        statement = self._sql[verb]
        answer: list[Record] = await connection.fetch(statement.text, *statement.of(values))
        return answer

    async def _each(self, connection: asyncpg.Connection, verb: str, lines: Sequence[books.Values]) -> None:
        if lines:
            statement = self._sql[verb]
            await connection.executemany(statement.text, [statement.of(values) for values in lines])

    async def _add_shards(self, connection: asyncpg.Connection, shards: Sequence[ShardRow]) -> None:
        await self._each(connection, "shard_add", [books.of_shard(shard) for shard in shards])

    async def _look(self, verb: str, values: Mapping[str, Any]) -> list[Record]:
        if not self._sql:
            raise StoreRefused(f"{self.address.shown}: the sink is not open")
        statement = self._sql[verb]
        return await self.connections.look(statement.text, *statement.of(values))

    async def _now(self, connection: asyncpg.Connection) -> Instant:
        return self._at(await connection.fetchval(self._sql["now"].text))

    def _at(self, server_time: Instant) -> Instant:
        return server_time if self._now_us is None else self._now_us()

    # -- tables -----------------------------------------------------------------------------------------------------

    async def _prepare(self, connection: asyncpg.Connection, schema: str) -> None:
        """Make what is missing, and refuse a table of another shape. Who may only write finds all of it made."""
        # One at a time: two that create a table at once are in each other's way even with IF NOT EXISTS.
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext('leaseway.sinks'), hashtext($1))", schema)
        if await self._is_missing(connection, schema, BOOKS):
            await connection.execute(self._sql["schema"].text)
        if await self._is_missing(connection, schema, [self.target]):
            await connection.execute(self._sql["create"].text)
            return
        where, shown = self.address.shown, f"{quoted(schema)}.{quoted(self.target)}"
        number, kind = await connection.fetchrow(
            "SELECT oid::bigint, relkind::text FROM pg_class WHERE oid = CAST($1::text AS regclass)", shown
        )
        if kind not in ("r", "p"):
            raise StoreRefused(f"{where}: {shown} is no table; name another one")
        found = [Found(*line) for line in await connection.fetch(self._sql["columns"].text, number)]
        refuse_other_shape(where, shown, found, wanted_columns(self._columns))
        keys = await connection.fetch(self._sql["unique_keys"].text, number)
        refuse_without_key(where, shown, [key for (key,) in keys])

    async def _is_missing(self, connection: asyncpg.Connection, schema: str, tables: Sequence[str]) -> bool:
        names = [f"{quoted(schema)}.{quoted(table)}" for table in tables]
        sql = "SELECT bool_or(to_regclass(name) IS NULL) FROM unnest($1::text[]) AS name"
        return bool(await connection.fetchval(sql, names))


def own_statements(schema: str, table: str, columns: Mapping[str, ColumnType], ending: str) -> dict[str, Statement]:
    """All verbs, with the names that the user gave."""
    staged = [quoted(name) for name in (*STAGED, *columns)]
    changes = [f"{name} = excluded.{name}" for name in staged if name != quoted("external_id")]
    names = {
        ":table": f"{quoted(schema)}.{quoted(table)}",
        ":columns": ", ".join(staged),
        ":page_columns": ", ".join(unstaged(name, kind) for name, kind in {**STAGED, **columns}.items()),
        ":changes": ", ".join(changes),
        ":staged": ", ".join(f"{quoted(name)} {staged_as(kind)}" for name, kind in {**STAGED, **columns}.items()),
        ":ending": ending,
    }
    found = {verb: numbered(text, names, schema) for verb, text in books.statements("postgres").items()}
    lines = [f"{quoted(name)} {declared(name, kind)}" for name, kind in {**OWN, **columns}.items()]
    create = f"CREATE TABLE {names[':table']} ({', '.join(lines)}, PRIMARY KEY ({', '.join(KEY)}))"
    count = f"SELECT count(*) FROM {names[':table']} WHERE deleted_at IS NULL"
    return {**found, "create": Statement(create, ()), "count": Statement(count, ())}


def staged_as(kind: ColumnType) -> str:
    """The driver would make infinities of the first and the last instant, so timestamps travel as texts."""
    return "text" if kind is ColumnType.TIMESTAMP else DECLARED[kind]


def unstaged(name: str, kind: ColumnType) -> str:
    return f"CAST(page.{quoted(name)} AS {DECLARED[kind]})"


def numbered(text: str, names: Mapping[str, str], schema: str) -> Statement:
    """:name becomes $1, $2 …; the books get their schema. In one pass: names that users gave are not read again."""
    parameters: list[str] = []

    def written(found: re.Match[str]) -> str:
        word = found[0]
        if word.startswith("leaseway_"):
            return f"{quoted(schema)}.{word}"
        if word in names:
            return names[word]
        if word[1:] not in parameters:
            parameters.append(word[1:])
        return f"${parameters.index(word[1:]) + 1}"

    books_and_names = rf"\b(?:{'|'.join(BOOKS)})\b|(?<![:\w\[]):[a-z_]+"
    return Statement(re.sub(books_and_names, written, without_comments(text)), tuple(parameters))


def without_comments(text: str) -> str:
    return re.sub(r"--[^\n]*", "", text)


def declared(column: str, kind: ColumnType) -> str:
    return DECLARED[kind] + (" NOT NULL" if column in OWN and column not in OPTIONAL else "")


def wanted_columns(columns: Mapping[str, ColumnType]) -> list[Wanted]:
    return [Wanted(name, DECLARED[kind], partial(holds, kind)) for name, kind in {**OWN, **columns}.items()]


def holds(kind: ColumnType, found: str) -> bool:
    return found in HELD_BY[kind]
