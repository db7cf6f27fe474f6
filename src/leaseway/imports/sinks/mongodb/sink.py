"""A sink for MongoDB: rows in a collection, and the run tables in collections next to it.

On a replica set or a sharded cluster, a page is one transaction: rows, bad rows, child shards and the shard's cursor
are visible together or not at all.

A standalone server has no transactions. There the order of the steps keeps the guarantees, and every step can be
repeated:

    claim the shard ─► rows ─► bad rows ─► children ─► seen ids ─► cursor and counters, if the claim still holds

Only the last step makes the page count. If an earlier step fails, the next worker repeats the page: it writes the same
rows, rows with the mark of the first try are counted as that try would have counted them, and bad rows are replaced.
Two guarantees are weaker than with transactions. A worker that is frozen in the middle of a page and continues after
another worker took over can still write rows: real rows of the source, never older than the stored ones, which are not
counted as inserted. And a record that the source moved to another page between the two tries is stored but not counted
as inserted.

Timestamps in columns are texts, as in SQLite, because MongoDB dates have no microseconds. `$toDate` converts them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar

from bson import ObjectId
from pymongo.write_concern import WriteConcern

from leaseway.domain.errors import StoreRefused
from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import BadRow, ColumnType, Row, WriteCounts
from leaseway.imports.domain.partition import Shard
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardRow, ShardState
from leaseway.imports.sinks import run_tables, shard_transitions
from leaseway.imports.sinks.mongodb import runs, shards, sweep
from leaseway.imports.sinks.mongodb.collections import QUARANTINE, RUNS, SHARDS, check_collection, prepare
from leaseway.imports.sinks.mongodb.connection import Database, Document, Session, SinkClients, Work, parse_address
from leaseway.imports.sinks.mongodb.rows import MongoEncoder, PageMark, RowMerge, check_fields
from leaseway.imports.sinks.port import Changes, PageWrite, Sweep, close_on_error
from leaseway.imports.sinks.row_encoding import Line, replace_nul
from leaseway.imports.sinks.shard_transitions import apply_page, new_shard_row

T = TypeVar("T")

OPEN = [state.value for state in shard_transitions.OPEN]


class MongoTables:
    """What the parts of the sink share: the database, its transactions and its time."""

    def __init__(
        self,
        clients: SinkClients,
        target: str,
        columns: Mapping[str, ColumnType],
        now_us: Callable[[], Instant] | None,
    ) -> None:
        self.clients = clients
        self.target = target
        self.columns = [*columns]
        self.encoder = MongoEncoder(columns)
        self.id = ObjectId()
        self.has_transactions: bool | None = None
        """None until the sink is open."""
        self._now_us = now_us

    async def transact(self, work: Work[T], *, in_transaction: bool = True) -> T:
        self._refuse_closed()
        return await self.clients.together(work, in_transaction=in_transaction and bool(self.has_transactions))

    async def flush(self, run: str) -> None:
        """Wait until everything written so far is in the journal.

        A server that is killed can lose the last writes. Lost pages are fetched again, but the start or the end of a
        run or a shard must not be lost after it was reported.
        """

        async def work(session: Session | None) -> None:
            collection = (await self.clients.database())[RUNS]
            journaled = collection.with_options(write_concern=WriteConcern("majority", j=True))
            await journaled.update_one({"_id": run}, {"$set": {"is_planned": True}})

        await self.transact(work, in_transaction=False)

    def calling(self) -> AbstractAsyncContextManager[Database]:
        self._refuse_closed()
        return self.clients.calling()

    async def read(self, query: Callable[[Database], Awaitable[T]]) -> T:
        self._refuse_closed()
        return await self.clients.read(query)

    async def count(self, collection: str, condition: Document) -> int:
        return await self.read(lambda database: database[collection].count_documents(condition))

    async def now(self) -> Instant:
        if self._now_us is not None:
            return self._now_us()
        database = await self.clients.database()
        hello = await database.command("hello", codec_options=database.codec_options)
        return shards.instant(hello["localTime"])

    def at(self, server_time: Instant) -> Instant:
        return server_time if self._now_us is None else self._now_us()

    def merge(
        self, database: Database, source: str, run: str, now: Instant, mark: PageMark | None, session: Session | None
    ) -> RowMerge:
        return RowMerge(database[self.target], self.columns, source, run, now, mark, session)

    def _refuse_closed(self) -> None:
        if self.has_transactions is None:
            raise StoreRefused(f"{self.clients.address.shown}: the sink is not open")


class MongoRuns:
    def __init__(self, tables: MongoTables) -> None:
        self._tables = tables

    async def start(self, run: RunRow, shards: Sequence[Shard]) -> RunRow:
        shard_transitions.check_shards(shards)
        rows = [new_shard_row(run.id, shard) for shard in shards]

        async def work(session: Session | None) -> RunRow:
            return await runs.start(await self._tables.clients.database(), self._tables.target, run, rows, session)

        found = await self._tables.transact(work)
        await self._tables.flush(run.id)
        return found

    async def find(self, id: str) -> RunRow | None:
        return await self._tables.read(lambda database: runs.find(database, self._tables.target, id))

    async def find_all(
        self,
        source: str | None = None,
        limit: int = 20,
        *,
        state: RunState | None = None,
        mode: RunMode | None = None,
    ) -> list[RunRow]:
        target = self._tables.target
        return await self._tables.read(lambda database: runs.find_all(database, target, source, limit, state, mode))

    async def finish(
        self, run: str, state: RunState, why: str | None = None, notes: Mapping[str, Any] | None = None
    ) -> None:
        async def work(session: Session | None) -> None:
            database = await self._tables.clients.database()
            found = await runs.require(database, self._tables.target, run)
            await runs.finish(database, found, await self._tables.now(), state, why, notes)

        await self._tables.transact(work, in_transaction=False)
        await self._tables.flush(run)

    async def spend(self, run: str, requests: int) -> bool:
        run_tables.check_requests("requests", requests)
        async with self._tables.calling() as database:
            return await runs.spend(database, self._tables.target, run, requests)

    async def set_budget(self, run: str, requests_max: int | None) -> None:
        run_tables.check_requests("requests_max", requests_max)
        async with self._tables.calling() as database:
            await runs.set_budget(database, self._tables.target, run, requests_max)


class MongoShards:
    def __init__(self, tables: MongoTables) -> None:
        self._tables = tables

    async def begin(self, run: str, shard: str, fence: int) -> ShardRow | None:
        return await self._change(run, shard, lambda row, now: shard_transitions.begin_shard(row, fence, now))

    async def note(
        self,
        run: str,
        shard: str,
        fence: int,
        guards: Mapping[str, int],
        why: str | None = None,
        requests: int = 0,
    ) -> bool:
        def change(row: ShardRow, now: Instant) -> ShardRow | None:
            return shard_transitions.note_shard(row, fence, guards, why, requests)

        return await self._change(run, shard, change) is not None

    async def _change(
        self, run: str, shard: str, change: Callable[[ShardRow, Instant], ShardRow | None]
    ) -> ShardRow | None:
        """Changes one document, so it needs no transaction."""

        async def work(session: Session | None) -> ShardRow | None:
            database = await self._tables.clients.database()
            held = await shards.read(database, self._tables.target, run, shard, session)
            row = None if held is None else change(held.row, self._tables.at(held.server_time))
            if held is not None and row is not None and row != held.row:
                # The worker that writes a page keeps its claim as long as its fence is the largest.
                writer = held.writer if row.fence == held.row.fence else None
                await shards.update(database, held, row, writer=writer)
            return row

        return await self._tables.transact(work, in_transaction=False)

    async def write(self, page: PageWrite) -> WriteCounts | None:
        shard_transitions.check_page_write(page)
        lines, unstorable = self._tables.encoder.lines(page.rows)
        found = await self._tables.transact(partial(self._write, page, lines, [*page.bad, *unstorable]))
        if found is not None and page.state is not ShardState.RUNNING:
            await self._tables.flush(page.run)
        return found

    async def _write(
        self, page: PageWrite, lines: Sequence[Line], bad: Sequence[BadRow], session: Session | None
    ) -> WriteCounts | None:
        target, database = self._tables.target, await self._tables.clients.database()
        held = await shards.read(database, target, page.run, page.shard, session)
        if held is None or not shard_transitions.accepts_page(held.row, page):
            return None
        if session is None:
            if not await shards.claim(database, held, page.fence, self._tables.id):
                return None
            held = held._replace(version=held.version + 1)
        number, now = held.row.pages, self._tables.at(held.server_time)
        mark = PageMark(page.run, page.shard, number) if session is None else None
        merge = self._tables.merge(database, held.source, page.run, now, mark, session)
        counts = await merge._replace(overwrites=page.overwrites).merge(lines, len(bad))
        await shards.add_bad_rows(database, target, page, held, bad, now, session)
        children = [new_shard_row(page.run, child, page.shard) for child in page.children]
        await shards.add(database, target, held.source, children, session)
        if page.remembers:
            ids = shard_transitions.ids_seen(lines, bad)
            await sweep.remember(database, page.run, page.shard, number, ids, session)
        await shards.update(database, held, apply_page(held.row, page, counts, now), session)
        return counts

    async def find_all(self, run: str) -> list[ShardRow]:
        return await self._tables.read(lambda database: shards.find_all(database, self._tables.target, run))

    async def count_open(self, run: str) -> int:
        return await self._tables.count(SHARDS, {"run": run, "target": self._tables.target, "state": {"$in": OPEN}})


class MongoQuarantine:
    def __init__(self, tables: MongoTables) -> None:
        self._tables = tables

    async def find_all(self, run: str | None = None, limit: int = 100) -> list[tuple[int, str, BadRow]]:
        return await self._tables.read(lambda database: shards.find_bad_rows(database, self._tables.target, run, limit))

    async def release(self, number: int, row: Row | None) -> bool:
        lines = [] if row is None else [self._tables.encoder.single(row)]

        async def work(session: Session | None) -> bool:
            database = await self._tables.clients.database()
            key = {"_id": number, "target": self._tables.target}
            found = await database[QUARANTINE].find_one(key, session=session)
            if found is None:
                return False
            now = await self._tables.now()
            await self._tables.merge(database, found["source"], found["run"], now, None, session).merge(lines)
            return bool((await database[QUARANTINE].delete_one(key, session=session)).deleted_count)

        return await self._tables.transact(work)


class MongoSweeps:
    def __init__(self, tables: MongoTables) -> None:
        self._tables = tables

    async def sweep(self, run: str) -> Sweep:
        async def work(session: Session | None) -> Sweep:
            database = await self._tables.clients.database()
            found = await runs.require(database, self._tables.target, run)
            return await sweep.sweep(database, database[self._tables.target], found)

        return await self._tables.transact(work, in_transaction=False)

    async def find_absent(self, source: str, sweeps: int, limit: int, after: str = "") -> list[str]:
        target = self._tables.target
        return await self._tables.read(
            lambda database: sweep.find_absent(database, target, source, sweeps, limit, after)
        )

    async def mark_present(self, source: str, ids: Sequence[str]) -> None:
        async with self._tables.calling() as database:
            await sweep.mark_present(database, self._tables.target, source, run_tables.storable_ids(ids))

    async def delete(self, run: str, ids: Sequence[str], reason: str) -> int:
        known, text = run_tables.storable_ids(ids), replace_nul(reason)
        async with self._tables.calling() as database:
            found = await runs.require(database, self._tables.target, run)
            rows = database[self._tables.target]
            count = await sweep.delete_rows(rows, found, known, text, await self._tables.now())
            await sweep.mark_present(database, self._tables.target, found.source, known)
            return count


class MongoRows:
    def __init__(self, tables: MongoTables) -> None:
        self._tables = tables

    async def count(self) -> int:
        return await self._tables.count(self._tables.target, {"deleted_at": None})

    async def changes(self, source: str, after: Instant, until: Instant, samples: int = 10) -> Changes:
        target = self._tables.target
        return await self._tables.read(
            lambda database: sweep.find_changes(database[target], source, after, until, samples)
        )


class MongoSink:
    """One collection of one database. Can be used from any event loop. `now_us` lets tests control time."""

    def __init__(
        self,
        url: str,
        table: str,
        columns: Mapping[str, ColumnType] | None = None,
        now_us: Callable[[], Instant] | None = None,
    ) -> None:
        self.address = parse_address(url)
        self.clients = SinkClients(self.address)
        self.target = check_collection(table)
        self.tables = MongoTables(self.clients, self.target, check_fields(columns or {}), now_us)
        self.runs = MongoRuns(self.tables)
        self.shards = MongoShards(self.tables)
        self.quarantine = MongoQuarantine(self.tables)
        self.sweeps = MongoSweeps(self.tables)
        self.rows = MongoRows(self.tables)
        self.row_map = None

    async def open(self) -> None:
        async with close_on_error(self.close), self.clients.calling() as database:
            self.tables.has_transactions = await prepare(database, self.target, self.address.shown)

    async def close(self) -> None:
        await self.clients.close()
