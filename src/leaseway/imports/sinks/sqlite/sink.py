"""Rows in an SQLite file, and the books of the imports beside them in the same file.

A page is one transaction: look what is known, write what is news, keep the shard. Pages do not wait for the disk: a
power cut takes the last of them, rows and cursor together. What ends a shard or a run does wait, and takes along all
that was written before: nobody is told that something is finished that may be forgotten. What is spent waits as well:
the request leaves the house.
"""

import random  # noqa: TID251 - for waiting in threads, where no port reaches
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import BadRow, ColumnType, Row, WriteCounts
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardRow, ShardState
from leaseway.imports.domain.shard import Shard
from leaseway.imports.sinks import run_tables, shard_transitions
from leaseway.imports.sinks.bulk_encoding import PageEncoder
from leaseway.imports.sinks.columns import check_columns, check_table
from leaseway.imports.sinks.port import Changes, PageWrite, Sweep, closed_if_it_fails
from leaseway.imports.sinks.row_encoding import Line, replace_nul
from leaseway.imports.sinks.row_map import GRID, RowMapPage, RowPosition, decode_cells, sqlite_names
from leaseway.imports.sinks.shard_transitions import StoredRow, apply_page, classify_rows, new_shard_row
from leaseway.imports.sinks.sqlite.tables import own_statements, prepare
from leaseway.stores.sqlite.connection import Connection, Work
from leaseway.stores.sqlite.limiter_clock import wall_us


def read_row_map(
    table: str, source: str, run: str, position: RowPosition, after: str, rows_max: int
) -> Work[RowMapPage]:
    begin = int(after or 0)
    names = sqlite_names(position, table)
    # In one pass: names that users gave are not read again.
    sql = re.sub(
        r":(?:latitude|longitude|table)\b", lambda found: names[found[0]], run_tables.statements("sqlite")["places"]
    )
    values = {**GRID, "source": source, "run": run, "after": begin, "rows_max": rows_max}

    def work(connection: sqlite3.Connection) -> RowMapPage:
        try:
            lines = connection.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            if "_rowid_" not in str(error):
                raise
            return RowMapPage([], after, has_more=False)  # somebody's own table, WITHOUT ROWID: it has no such order
        last = max((place for _, _, place in lines), default=begin)
        return RowMapPage(decode_cells(lines), str(last), has_more=sum(count for _, count, _ in lines) >= rows_max)

    return work


Lines = list[tuple[Any, ...]]


LOG_PAGES = 4_000
"""Of SQLite's write-ahead log, until it is copied into the file: some twenty pages of an import, and not five."""


class PageFile(Connection):
    """Commits without waiting for the disk. The file stays whole; a power cut takes the last transactions."""

    def connect(self) -> sqlite3.Connection:
        connection = super().connect()
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
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
        self._fitting = PageEncoder(self._columns, document=str)
        self._sql = own_statements(self.target, self._columns)
        self._pages = PageFile(path, random, inline=inline)
        self._lasting = Connection(path, random, inline=inline)

    async def open(self) -> None:
        async with closed_if_it_fails(self.close):
            await self._lasting.open()
            await self._lasting.write(
                partial(prepare, sql=self._sql, path=self.path, table=self.target, columns=self._columns)
            )
            await self._pages.open()

    async def close(self) -> None:
        await self._pages.close()
        await self._lasting.close()

    # -- runs -------------------------------------------------------------------------------------------------------

    async def start_run(self, run: RunRow, shards: Sequence[Shard]) -> RunRow:
        shard_transitions.check_shards(shards)

        def work(connection: sqlite3.Connection) -> RunRow:
            if self._ask(connection, "run_add", run_tables.run_values(run, self.target)):
                self._add_shards(connection, [new_shard_row(run.id, shard) for shard in shards])
            (found,) = self._ask(connection, "run_find", {"id": run.id})
            return run_tables.refuse_other_run(run, found, self.target)

        return await self._lasting.write(work)

    async def finish_run(
        self, run: str, state: RunState, why: str | None = None, notes: Mapping[str, Any] | None = None
    ) -> None:
        def work(connection: sqlite3.Connection) -> None:
            found = self._run(connection, run)
            self._ask(connection, "run_finish", run_tables.finish_values(found, state, why, notes, self._now_us()))

        await self._lasting.write(work)

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
        return bool(await self._lasting.write(self._asking("budget_spend", {"id": run, "requests": requests})))

    async def set_budget(self, run: str, requests_max: int | None) -> None:
        run_tables.check_requests("requests_max", requests_max)
        values = {"id": run, "requests_max": requests_max}
        if not await self._lasting.write(self._asking("budget_set", values)):
            raise run_tables.no_such_run(run)

    def _run(self, connection: sqlite3.Connection, run: str) -> RunRow:
        for line in self._ask(connection, "run_lock", {"id": run}):
            return run_tables.decode_run(line)
        raise run_tables.no_such_run(run)

    # -- shards -----------------------------------------------------------------------------------------------------

    async def begin(self, run: str, shard: str, fence: int) -> ShardRow | None:
        return await self._pages.write(
            partial(
                self._turn,
                run=run,
                shard=shard,
                turn=lambda row: shard_transitions.begin_shard(row, fence, self._now_us()),
            )
        )

    async def note(self, run: str, shard: str, fence: int, guards: Mapping[str, int], why: str | None = None) -> bool:
        turn = partial(shard_transitions.note_shard, fence=fence, guards=guards, why=why)
        return await self._pages.write(partial(self._turn, run=run, shard=shard, turn=turn)) is not None

    async def write(self, page: PageWrite) -> WriteCounts | None:
        shard_transitions.check_page_write(page)
        lines, unfit = self._fitting.lines(page.rows)
        work = partial(self._write, page=page, lines=lines, bad=[*page.bad, *unfit])
        file = self._pages if page.state is ShardState.RUNNING else self._lasting
        return await file.write(work)

    def _write(
        self, connection: sqlite3.Connection, page: PageWrite, lines: Sequence[Line], bad: Sequence[BadRow]
    ) -> WriteCounts | None:
        found = self._shard(connection, page.run, page.shard)
        if found is None or not shard_transitions.accepts_page(found[0], page):
            return None
        (shard, source), now = found, self._now_us()
        written = self._merge(connection, page.run, source, lines, now, len(bad))
        quarantine = [run_tables.bad_row_values(page.run, page.shard, shard.pages, row, now) for row in bad]
        connection.executemany(self._sql["bad_add"], quarantine)
        if page.remembers:
            self._ask(
                connection, "seen_add", {"run": page.run, "ids": json_list(shard_transitions.ids_seen(lines, bad))}
            )
        self._add_shards(connection, [new_shard_row(page.run, child, page.shard) for child in page.children])
        self._ask(connection, "shard_keep", run_tables.shard_values(apply_page(shard, page, written, now)))
        return written

    def _turn(
        self, connection: sqlite3.Connection, run: str, shard: str, turn: Callable[[ShardRow], ShardRow | None]
    ) -> ShardRow | None:
        found = self._shard(connection, run, shard)
        after = None if found is None else turn(found[0])
        if after is not None:
            self._ask(connection, "shard_keep", run_tables.shard_values(after))
        return after

    async def shards(self, run: str) -> list[ShardRow]:
        return [run_tables.decode_shard(line) for line in await self._look("shard_list", {"run": run})]

    async def open_shards(self, run: str) -> int:
        ((count,),) = await self._look("shard_open", {"run": run})
        return int(count)

    def _shard(self, connection: sqlite3.Connection, run: str, shard: str) -> tuple[ShardRow, str] | None:
        """With the name of its source."""
        for line in self._ask(connection, "shard_find", {"run": run, "key": shard}):
            return run_tables.decode_shard(line), line[-1]
        return None

    def _add_shards(self, connection: sqlite3.Connection, shards: Sequence[ShardRow]) -> None:
        connection.executemany(self._sql["shard_add"], [run_tables.shard_values(shard) for shard in shards])

    # -- rows -------------------------------------------------------------------------------------------------------

    async def count(self) -> int:
        ((count,),) = await self._look("count", {})
        return int(count)

    async def bad_rows(self, run: str | None = None, limit: int = 100) -> list[tuple[int, str, BadRow]]:
        return [run_tables.decode_bad_row(line) for line in await self._look("bad_list", {"run": run, "limit": limit})]

    async def release(self, number: int, row: Row | None) -> bool:
        lines = [] if row is None else [self._fitting.single(row)]

        def work(connection: sqlite3.Connection) -> bool:
            for run, source in self._ask(connection, "bad_remove", {"number": number}):
                self._merge(connection, run, source, lines, self._now_us(), 0)
                return True
            return False

        return await self._lasting.write(work)

    def _merge(
        self, connection: sqlite3.Connection, run: str, source: str, lines: Sequence[Line], now: Instant, bad: int
    ) -> WriteCounts:
        # Nobody else writes until we commit: what is known now is known then.
        found = self._ask(connection, "known", {"source": source, "ids": json_list([line[0] for line in lines])})
        known = {key: StoredRow(stamp, content_hash, bool(deleted)) for key, stamp, content_hash, deleted in found}
        news = classify_rows(lines, known, bad)
        for verb, some in (("insert", news.new), ("update", news.changed)):
            connection.executemany(self._sql[verb], [(source, run, now, *line) for line in some])
        return news.written

    async def changes(self, source: str, after: Instant, until: Instant, samples: int = 10) -> Changes:
        values = {"source": source, "after": after, "until": until, "limit": samples}
        ((added, changed, removed),) = await self._look("changes", values)
        kinds = ("added", "changed", "removed")
        found = {kind: tuple(key for (key,) in await self._look(kind, values)) for kind in kinds}
        return Changes(added, changed, removed, found)

    async def places(self, source: str, run: str, position: RowPosition, after: str, rows_max: int) -> RowMapPage:
        return await self._pages.read(read_row_map(self.target, source, run, position, after, rows_max))

    # -- sweeps -----------------------------------------------------------------------------------------------------

    async def sweep(self, run: str) -> Sweep:
        return await self._lasting.write(partial(self._sweep, run=run))

    def _sweep(self, connection: sqlite3.Connection, run: str) -> Sweep:
        row = self._run(connection, run)
        known = run_tables.stored_sweep(row)
        if known is not None:
            return known
        values = {"run": run, "source": row.source, "started_at": row.started_at}
        self._ask(connection, "absent_add", values)
        self._ask(connection, "absent_keep", values)
        ((stored,),) = self._ask(connection, "stored", values)
        ((absent,),) = self._ask(connection, "absent_count", values)
        self._ask(connection, "seen_clear", values)
        sweep = Sweep(stored, absent)
        self._ask(connection, "run_note", {"id": run, "notes": run_tables.notes_with_sweep(row, sweep)})
        return sweep

    async def absentees(self, source: str, sweeps: int, limit: int, after: str = "") -> list[str]:
        values = {"source": source, "sweeps": sweeps, "limit": limit, "after": after}
        return [key for (key,) in await self._look("absent_list", values)]

    async def forgive(self, source: str, ids: Sequence[str]) -> None:
        values = {"source": source, "ids": json_list(run_tables.storable_ids(ids))}
        await self._lasting.write(self._asking("absent_remove", values))

    async def bury(self, run: str, ids: Sequence[str], reason: str) -> int:
        def work(connection: sqlite3.Connection) -> int:
            values = {
                "run": run,
                "source": self._run(connection, run).source,
                "ids": json_list(run_tables.storable_ids(ids)),
            }
            self._ask(connection, "absent_remove", values)
            buried = self._ask(connection, "bury", {**values, "now": self._now_us(), "reason": replace_nul(reason)})
            return len(buried)

        return await self._lasting.write(work)

    # -- statements -------------------------------------------------------------------------------------------------

    def _ask(self, connection: sqlite3.Connection, verb: str, values: run_tables.Values) -> Lines:
        return connection.execute(self._sql[verb], {"target": self.target, **values}).fetchall()

    def _asking(self, verb: str, values: run_tables.Values) -> Work[Lines]:
        return lambda connection: self._ask(connection, verb, values)

    async def _look(self, verb: str, values: run_tables.Values) -> Lines:
        return await self._pages.read(self._asking(verb, values))


def json_list(ids: Sequence[str]) -> str:
    return msgspec.json.encode(ids).decode()
