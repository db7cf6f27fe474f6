"""A sink for PostgreSQL: the run tables are in the schema of the target table.

They are not in a schema of their own, so that a role that may create the table may create them, and so that they are
dumped and moved together with it. Their names are the same as in SQLite.

A page is one transaction: lock the shard, COPY the rows into a temporary staging table, merge, update the shard.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import asyncpg

from leaseway.domain.errors import StoreRefused
from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import ColumnType, WriteCounts
from leaseway.imports.sinks import run_tables
from leaseway.imports.sinks.columns import check_columns, check_table, quote_name
from leaseway.imports.sinks.port import close_on_error
from leaseway.imports.sinks.postgres.tables import (
    STAGED,
    STAGING,
    Statement,
    number_parameters,
    own_statements,
    prepare,
)
from leaseway.imports.sinks.row_encoding import PageEncoder, jsonb_text
from leaseway.imports.sinks.row_map import GRID, RowMapPage, RowPosition, decode_cells, postgres_names
from leaseway.imports.sinks.run_tables import Values
from leaseway.imports.sinks.shard_transitions import FLAGGED
from leaseway.imports.sinks.sql_tables import (
    DeleteRows,
    Execute,
    ExecuteMany,
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
from leaseway.stores.postgres.address import parse_address
from leaseway.stores.postgres.connection import DEADLOCKS_MAX, Connections, Record
from leaseway.stores.postgres.errors import Deadlocked
from leaseway.stores.postgres.schema import refuse_old_server, refuse_read_only

T = TypeVar("T")

WRITE_SECONDS_MAX = 60.0
TABLE_SECONDS_MAX = 600.0
"""For statements that read the whole table. They run once per run, and tables can have many millions of rows."""
CTID = re.compile(r"\((\d{1,10}),(\d{1,5})\)")
FIRST_CTID = "(0,0)"
ROWS_PER_BLOCK = 5
"""Rows contain their documents: some tables have three or four rows per block, others fifty."""
COUNT_BLOCKS = "SELECT pg_relation_size(CAST($1::text AS regclass)) / current_setting('block_size')::bigint"


class PostgresTables:
    """Executes the steps of the shared verbs. `sql` is empty until the sink is open."""

    def __init__(
        self,
        connections: Connections,
        target: str,
        columns: Mapping[str, ColumnType],
        now_us: Callable[[], Instant] | None,
    ) -> None:
        self.connections = connections
        self.target = target
        self.encoder = PageEncoder(columns, document=jsonb_text)
        self.sql: dict[str, Statement] = {}
        self._staged = [*STAGED, *columns]
        self._now_us = now_us

    async def read(self, verb: str, values: Values) -> list[Record]:
        statement = self._statement(verb)
        return await self.connections.read(statement.text, *self._arguments(statement, values))

    async def call(self, verb: str, values: Values) -> list[Record]:
        statement = self._statement(verb)
        return await self.connections.call(statement.text, *self._arguments(statement, values))

    async def snapshot(self, verb: Verb[T]) -> T:
        return await self._transact(verb, TABLE_SECONDS_MAX)

    async def transact(self, verb: Verb[T], *, is_durable: bool = True, is_long: bool = False) -> T:
        seconds = TABLE_SECONDS_MAX if is_long else WRITE_SECONDS_MAX
        return await retry_deadlocks(lambda: self._transact(verb, seconds))

    def now(self, line: Sequence[Any]) -> Instant:
        """The server's time is the last column of every statement that locks something."""
        now: Instant = line[-1] if self._now_us is None else self._now_us()
        return now

    def id_list(self, ids: Sequence[str]) -> Sequence[str]:
        return ids

    async def _transact(self, verb: Verb[T], seconds: float) -> T:
        self.refuse_closed()
        async with self.connections.transaction(seconds) as connection:
            return await self._run(connection, verb())

    async def _run(self, connection: asyncpg.Connection, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:  # ends with the last step
                step = steps.send(await self._execute_step(connection, step))
        except StopIteration as done:
            answer: T = done.value
            return answer

    async def _execute_step(self, connection: asyncpg.Connection, step: Step) -> Any:
        match step:
            case Execute(verb, values):
                statement = self.sql[verb]
                return await connection.fetch(statement.text, *self._arguments(statement, values))
            case ExecuteMany(verb, many):
                if many:
                    statement = self.sql[verb]
                    await connection.executemany(statement.text, [statement.arguments(values) for values in many])
                return None
            case MergeRows():
                return await self._merge(connection, step)
            case DeleteRows(run, source, ids, now, reason):
                statement = self.sql["delete_rows"]
                values = {"run": run, "source": source, "ids": ids, "now": now, "reason": reason}
                return len(await connection.fetch(statement.text, *statement.arguments(values)))

    async def _merge(self, connection: asyncpg.Connection, step: MergeRows) -> WriteCounts:
        lines, bad = step.lines, step.quarantined
        if not lines:
            return WriteCounts(quarantined=bad)
        await connection.execute(self.sql["stage"].text)
        await connection.copy_records_to_table(
            STAGING, schema_name="pg_temp", columns=self._staged, records=lines, timeout=None
        )
        merge = self.sql["merge"].text
        ((inserted, updated),) = await connection.fetch(
            merge, step.source, step.run, step.now, FLAGGED, step.overwrites
        )
        stale = 0
        if inserted + updated < len(lines) and not step.overwrites:
            stale = await connection.fetchval(self.sql["stale"].text, step.source)
        return WriteCounts(inserted, updated, len(lines) - inserted - updated - stale, stale, bad)

    def _statement(self, verb: str) -> Statement:
        self.refuse_closed()
        return self.sql[verb]

    def _arguments(self, statement: Statement, values: Values) -> tuple[Any, ...]:
        return statement.arguments({"target": self.target, **values})

    def refuse_closed(self) -> None:
        if not self.sql:
            raise StoreRefused(f"{self.connections.address.shown}: the sink is not open")


class PostgresRowMap:
    def __init__(self, tables: PostgresTables, schema: str | None) -> None:
        self._tables, self._schema = tables, schema

    async def read(self, source: str, run: str, position: RowPosition, after: str, rows_max: int) -> RowMapPage:
        """Reads a range of blocks. A partitioned table has no blocks of its own, and its map is empty."""
        self._tables.refuse_closed()
        async with self._tables.connections.transaction(WRITE_SECONDS_MAX) as connection:
            schema = self._schema or await connection.fetchval("SELECT current_schema()")
            table = f"{quote_name(schema)}.{quote_name(self._tables.target)}"
            begin = after or FIRST_CTID
            until = parse_ctid(begin)[0] + max(rows_max // ROWS_PER_BLOCK, 1)
            has_more = until < await connection.fetchval(COUNT_BLOCKS, table)
            text = run_tables.statements("postgres")["row_map"]
            statement = number_parameters(text, postgres_names(position, table), "")
            values = {**GRID, "source": source, "run": run, "after": begin, "until": f"({until},0)"}
            lines = await connection.fetch(statement.text, *statement.arguments(values))
        last = max((line[-1] for line in lines), key=parse_ctid, default=begin)
        return RowMapPage(decode_cells(lines), f"({until},0)" if has_more else last, has_more)


def parse_ctid(text: str) -> tuple[int, int]:
    """Block and position of a row."""
    found = CTID.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a ctid")
    return int(found[1]), int(found[2])


class PostgresSink:
    """One table of one database, with its own connections. `now_us` lets tests control time.

    `table` is a name or schema.name. Without a schema, the schema of the URL (?schema=…) or the server's current schema
    is used.
    """

    def __init__(
        self,
        url: str,
        table: str,
        columns: Mapping[str, ColumnType] | None = None,
        now_us: Callable[[], Instant] | None = None,
    ) -> None:
        self.address = parse_address(url)
        self.connections = Connections(self.address)
        *schema, self.target = check_table(table, parts_max=2)
        self._schema = schema[0] if schema else dict(parse_qsl(urlsplit(url).query)).get("schema")
        self._columns = check_columns(columns or {})
        self.tables = PostgresTables(self.connections, self.target, self._columns, now_us)
        self.runs = SqlRuns(self.tables)
        self.shards = SqlShards(self.tables)
        self.quarantine = SqlQuarantine(self.tables)
        self.sweeps = SqlSweeps(self.tables)
        self.rows = SqlRows(self.tables)
        self.row_map = PostgresRowMap(self.tables, self._schema)

    async def open(self) -> None:
        async with close_on_error(self.close), self.connections.transaction() as connection:
            refuse_old_server(connection, self.address)
            await refuse_read_only(connection, self.address)
            schema = self._schema or await connection.fetchval("SELECT current_schema()")
            if schema is None or await connection.fetchval("SELECT to_regnamespace($1)", quote_name(schema)) is None:
                raise StoreRefused(
                    f"{self.address.shown}: schema {schema or 'of the search path'} does not exist; create it, or give "
                    "the table an existing schema, for example public.places"
                )
            ending = "DELETE ROWS" if self.address.has_sessions else "DROP"
            sql = own_statements(schema, self.target, self._columns, ending)
            await prepare(connection, sql, self.address.shown, schema, self.target, self._columns)
        self.tables.sql = sql

    async def close(self) -> None:
        await self.connections.close()


async def retry_deadlocks(work: Callable[[], Awaitable[T]]) -> T:
    """The victim of a deadlock has written nothing, so its transaction can be repeated."""
    for _ in range(DEADLOCKS_MAX):
        try:
            return await work()
        except Deadlocked:
            continue
    return await work()
