"""Rows in a table of PostgreSQL, and the books of the imports beside it, in the schema of the table.

Beside it and not in a schema of their own: whoever may make the table may make them, they move and are saved together
with it, and their names are those that SQLite has.

A page is one transaction: lock the shard, COPY the rows into a staging table of the session, merge, keep the shard.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import asyncpg

from leaseway.domain.errors import StoreRefused
from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import BadRow, ColumnType, Row, WriteCounts
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardRow
from leaseway.imports.domain.shard import Shard
from leaseway.imports.sinks import run_tables, shard_transitions
from leaseway.imports.sinks.bulk_encoding import PageEncoder
from leaseway.imports.sinks.columns import check_columns, check_table, quote_name
from leaseway.imports.sinks.port import Changes, PageWrite, Sweep, closed_if_it_fails
from leaseway.imports.sinks.postgres.tables import (
    STAGED,
    STAGING,
    Statement,
    number_parameters,
    own_statements,
    prepare,
)
from leaseway.imports.sinks.row_encoding import Line, jsonb_text, replace_nul
from leaseway.imports.sinks.row_map import GRID, RowMapPage, RowPosition, decode_cells, postgres_names
from leaseway.imports.sinks.shard_transitions import FLAGGED, apply_page, new_shard_row
from leaseway.stores.postgres.address import address_of
from leaseway.stores.postgres.connection import DEADLOCKS_MAX, Connections, Record
from leaseway.stores.postgres.errors import Deadlocked
from leaseway.stores.postgres.migrate import refuse_old_server, refuse_read_only

PLACE = re.compile(r"\((\d{1,10}),(\d{1,5})\)")
BEGINNING = "(0,0)"
ROWS_OF_A_BLOCK = 5
"""Rows come with their documents: some fill a block by three or four, small ones by fifty."""
BLOCKS = "SELECT pg_relation_size(CAST($1::text AS regclass)) / current_setting('block_size')::bigint"


async def read_row_map(
    connection: asyncpg.Connection,
    table: str,
    source: str,
    run: str,
    position: RowPosition,
    after: str,
    rows_max: int,
) -> RowMapPage:
    """`table`: as SQL takes it. A table of partitions has no blocks of its own, and no map."""
    begin = after or BEGINNING
    until = block_of(begin) + max(rows_max // ROWS_OF_A_BLOCK, 1)
    has_more = until < await connection.fetchval(BLOCKS, table)
    statement = number_parameters(run_tables.statements("postgres")["places"], postgres_names(position, table), "")
    values = {**GRID, "source": source, "run": run, "after": begin, "until": f"({until},0)"}
    lines = await connection.fetch(statement.text, *statement.of(values))
    last = max((line[-1] for line in lines), key=parse_ctid, default=begin)
    return RowMapPage(decode_cells(lines), f"({until},0)" if has_more else last, has_more)


def block_of(place: str) -> int:
    return parse_ctid(place)[0]


def parse_ctid(place: str) -> tuple[int, int]:
    found = PLACE.fullmatch(place)
    if found is None:
        raise ValueError(f"{place!r} is no place in a table")
    return int(found[1]), int(found[2])


T = TypeVar("T")

WRITE_SECONDS_MAX = 60.0
TABLE_SECONDS_MAX = 600.0
"""For what reads the whole table: once in a run, and tables of many millions of rows are real."""


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
        self._fitting = PageEncoder(self._columns, document=jsonb_text)
        self._sql: dict[str, Statement] = {}
        self._staged = [*STAGED, *self._columns]

    async def open(self) -> None:
        async with closed_if_it_fails(self.close), self.connections.transaction() as connection:
            refuse_old_server(connection, self.address)
            await refuse_read_only(connection, self.address)
            schema = self._schema or await connection.fetchval("SELECT current_schema()")
            if schema is None or await connection.fetchval("SELECT to_regnamespace($1)", quote_name(schema)) is None:
                raise StoreRefused(
                    f"{self.address.shown}: there is no schema {schema or 'in the search path'}; create it first, or "
                    "name the table with a schema that is there: public.places"
                )
            ending = "DELETE ROWS" if self.address.has_sessions else "DROP"
            self._sql = own_statements(schema, self.target, self._columns, ending)
            await prepare(connection, self._sql, self.address.shown, schema, self.target, self._columns)

    async def close(self) -> None:
        await self.connections.close()

    # -- runs -------------------------------------------------------------------------------------------------------

    async def start_run(self, run: RunRow, shards: Sequence[Shard]) -> RunRow:
        shard_transitions.check_shards(shards)
        async with self._transaction() as connection:
            if await self._ask(connection, "run_add", run_tables.run_values(run, self.target)):
                await self._add_shards(connection, [new_shard_row(run.id, shard) for shard in shards])
            (found,) = await self._ask(connection, "run_find", {"id": run.id})
            return run_tables.refuse_other_run(run, found, self.target)

    async def finish_run(
        self, run: str, state: RunState, why: str | None = None, notes: Mapping[str, Any] | None = None
    ) -> None:
        async with self._transaction() as connection:
            found, now = await self._lock_run(connection, run)
            await self._ask(connection, "run_finish", run_tables.finish_values(found, state, why, notes, now))

    async def run(self, id: str) -> RunRow | None:
        return run_tables.find_own_run(await self._look("run_find", {"id": id}), self.target)

    async def runs(
        self,
        source: str | None = None,
        limit: int = 20,
        *,
        state: RunState | None = None,
        mode: RunMode | None = None,
    ) -> list[RunRow]:
        values = run_tables.list_values(source, limit, state, mode)
        return [run_tables.decode_run(line) for line in await self._look("run_list", values)]

    async def spend(self, run: str, requests: int) -> bool:
        run_tables.check_requests("requests", requests)
        found = await self._look("budget_find", {"id": run})
        if not found:
            raise run_tables.no_such_run(run)
        if found[0][0] is None:
            return True
        return bool(await self._call("budget_spend", {"id": run, "requests": requests}))

    async def set_budget(self, run: str, requests_max: int | None) -> None:
        run_tables.check_requests("requests_max", requests_max)
        if not await self._call("budget_set", {"id": run, "requests_max": requests_max}):
            raise run_tables.no_such_run(run)

    async def _lock_run(self, connection: asyncpg.Connection, run: str) -> tuple[RunRow, Instant]:
        """Ours until the transaction ends, with the time."""
        for line in await self._ask(connection, "run_lock", {"id": run}):
            return run_tables.decode_run(line), self._at(line[-1])
        raise run_tables.no_such_run(run)

    # -- shards -----------------------------------------------------------------------------------------------------

    async def begin(self, run: str, shard: str, fence: int) -> ShardRow | None:
        return await self._turn(run, shard, lambda row, now: shard_transitions.begin_shard(row, fence, now))

    async def note(self, run: str, shard: str, fence: int, guards: Mapping[str, int], why: str | None = None) -> bool:
        return (
            await self._turn(run, shard, lambda row, now: shard_transitions.note_shard(row, fence, guards, why))
            is not None
        )

    async def _turn(
        self, run: str, shard: str, turn: Callable[[ShardRow, Instant], ShardRow | None]
    ) -> ShardRow | None:
        async with self._transaction() as connection:
            for line in await self._lock(connection, run, shard):
                after = turn(run_tables.decode_shard(line), self._at(line[-1]))
                if after is not None:
                    await self._ask(connection, "shard_keep", run_tables.shard_values(after))
                return after
        return None

    async def write(self, page: PageWrite) -> WriteCounts | None:
        shard_transitions.check_page_write(page)
        lines, unfit = self._fitting.lines(page.rows)
        return await patiently(partial(self._write, page, lines, [*page.bad, *unfit]))

    async def _write(self, page: PageWrite, lines: Sequence[Line], bad: Sequence[BadRow]) -> WriteCounts | None:
        async with self._transaction() as connection:
            for line in await self._lock(connection, page.run, page.shard):
                shard, source, now = run_tables.decode_shard(line), line[-2], self._at(line[-1])
                if not shard_transitions.accepts_page(shard, page):
                    return None
                written = await self._merge(connection, page.run, source, lines, now, len(bad))
                quarantine = [run_tables.bad_row_values(page.run, page.shard, shard.pages, row, now) for row in bad]
                await self._each(connection, "bad_add", quarantine)
                if page.remembers:
                    await self._ask(
                        connection, "seen_add", {"run": page.run, "ids": shard_transitions.ids_seen(lines, bad)}
                    )
                await self._add_shards(
                    connection, [new_shard_row(page.run, child, page.shard) for child in page.children]
                )
                await self._ask(
                    connection, "shard_keep", run_tables.shard_values(apply_page(shard, page, written, now))
                )
                return written
        return None

    async def shards(self, run: str) -> list[ShardRow]:
        found = [run_tables.decode_shard(line) for line in await self._look("shard_list", {"run": run})]
        return sorted(found, key=lambda row: row.shard.key)  # the server's order depends on its language

    async def open_shards(self, run: str) -> int:
        ((count,),) = await self._look("shard_open", {"run": run})
        return int(count)

    async def _lock(self, connection: asyncpg.Connection, run: str, shard: str) -> list[Record]:
        """The shard, ours until the transaction ends, with its source and the time."""
        return await self._ask(connection, "shard_find", {"run": run, "key": shard})

    async def _add_shards(self, connection: asyncpg.Connection, shards: Sequence[ShardRow]) -> None:
        await self._each(connection, "shard_add", [run_tables.shard_values(shard) for shard in shards])

    # -- rows -------------------------------------------------------------------------------------------------------

    async def count(self) -> int:
        ((count,),) = await self._look("count", {})
        return int(count)

    async def bad_rows(self, run: str | None = None, limit: int = 100) -> list[tuple[int, str, BadRow]]:
        return [run_tables.decode_bad_row(line) for line in await self._look("bad_list", {"run": run, "limit": limit})]

    async def release(self, number: int, row: Row | None) -> bool:
        lines = [] if row is None else [self._fitting.single(row)]
        async with self._transaction() as connection:
            for run, source in await self._ask(connection, "bad_remove", {"number": number}):
                now = self._at(await connection.fetchval(self._sql["now"].text))
                await self._merge(connection, run, source, lines, now, 0)
                return True
        return False

    async def _merge(
        self, connection: asyncpg.Connection, run: str, source: str, lines: Sequence[Line], now: Instant, bad: int
    ) -> WriteCounts:
        if not lines:
            return WriteCounts(quarantined=bad)
        await connection.execute(self._sql["stage"].text)
        await connection.copy_records_to_table(
            STAGING, schema_name="pg_temp", columns=self._staged, records=lines, timeout=None
        )
        ((inserted, updated),) = await connection.fetch(self._sql["merge"].text, source, run, now, FLAGGED)
        stale = 0
        if inserted + updated < len(lines):
            stale = await connection.fetchval(self._sql["stale"].text, source)
        return WriteCounts(inserted, updated, len(lines) - inserted - updated - stale, stale, bad)

    async def changes(self, source: str, after: Instant, until: Instant, samples: int = 10) -> Changes:
        values = {"source": source, "after": after, "until": until, "limit": samples}
        async with self._transaction(TABLE_SECONDS_MAX) as connection:
            ((added, changed, removed),) = await self._ask(connection, "changes", values)
            kinds = ("added", "changed", "removed")
            found = {kind: tuple(key for (key,) in await self._ask(connection, kind, values)) for kind in kinds}
            return Changes(added, changed, removed, found)

    async def places(self, source: str, run: str, position: RowPosition, after: str, rows_max: int) -> RowMapPage:
        async with self._transaction() as connection:
            schema = self._schema or await connection.fetchval("SELECT current_schema()")
            table = f"{quote_name(schema)}.{quote_name(self.target)}"
            return await read_row_map(connection, table, source, run, position, after, rows_max)

    # -- sweeps -----------------------------------------------------------------------------------------------------

    async def sweep(self, run: str) -> Sweep:
        return await patiently(partial(self._sweep, run))

    async def _sweep(self, run: str) -> Sweep:
        async with self._transaction(TABLE_SECONDS_MAX) as connection:
            row, _ = await self._lock_run(connection, run)
            known = run_tables.stored_sweep(row)
            if known is not None:
                return known
            values = {"run": run, "source": row.source, "started_at": row.started_at}
            await self._ask(connection, "absent_add", values)
            await self._ask(connection, "absent_keep", values)
            ((stored,),) = await self._ask(connection, "stored", values)
            ((absent,),) = await self._ask(connection, "absent_count", values)
            await self._ask(connection, "seen_clear", values)
            sweep = Sweep(stored, absent)
            await self._ask(connection, "run_note", {"id": run, "notes": run_tables.notes_with_sweep(row, sweep)})
            return sweep

    async def absentees(self, source: str, sweeps: int, limit: int, after: str = "") -> list[str]:
        values = {"source": source, "sweeps": sweeps, "limit": limit, "after": after}
        return [key for (key,) in await self._look("absent_list", values)]

    async def forgive(self, source: str, ids: Sequence[str]) -> None:
        await self._call("absent_remove", {"source": source, "ids": run_tables.storable_ids(ids)})

    async def bury(self, run: str, ids: Sequence[str], reason: str) -> int:
        return await patiently(partial(self._bury, run, run_tables.storable_ids(ids), replace_nul(reason)))

    async def _bury(self, run: str, ids: Sequence[str], reason: str) -> int:
        async with self._transaction() as connection:
            row, now = await self._lock_run(connection, run)
            values = {"run": run, "source": row.source, "ids": ids, "reason": reason, "now": now}
            await self._ask(connection, "absent_remove", values)
            return len(await self._ask(connection, "bury", values))

    # -- statements -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _transaction(self, seconds: float = WRITE_SECONDS_MAX) -> AsyncIterator[asyncpg.Connection]:
        self._refuse_closed()
        async with self.connections.transaction(seconds) as connection:
            yield connection

    async def _ask(self, connection: asyncpg.Connection, verb: str, values: Mapping[str, Any]) -> list[Record]:
        statement = self._sql[verb]
        answer: list[Record] = await connection.fetch(statement.text, *statement.of(self._whole(values)))
        return answer

    async def _each(self, connection: asyncpg.Connection, verb: str, lines: Sequence[run_tables.Values]) -> None:
        if lines:
            statement = self._sql[verb]
            await connection.executemany(statement.text, [statement.of(values) for values in lines])

    async def _look(self, verb: str, values: Mapping[str, Any]) -> list[Record]:
        self._refuse_closed()
        statement = self._sql[verb]
        return await self.connections.look(statement.text, *statement.of(self._whole(values)))

    async def _call(self, verb: str, values: Mapping[str, Any]) -> list[Record]:
        """One statement that changes something, and is a transaction of its own."""
        self._refuse_closed()
        statement = self._sql[verb]
        return await self.connections.call(statement.text, *statement.of(self._whole(values)))

    def _whole(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"target": self.target, **values}

    def _refuse_closed(self) -> None:
        if not self._sql:
            raise StoreRefused(f"{self.address.shown}: the sink is not open")

    def _at(self, server_time: Instant) -> Instant:
        return server_time if self._now_us is None else self._now_us()


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Who had to give way in a deadlock did nothing, and goes again."""
    for _ in range(DEADLOCKS_MAX):
        try:
            return await work()
        except Deadlocked:
            continue
    return await work()
