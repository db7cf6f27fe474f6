"""A page is one transaction where the server has them: on a replica set or a sharded cluster. Its rows, its bad rows,
its children and the shard's cursor are there together, or nothing of them is.

A standalone server has no transactions. There the order of the steps keeps the promises, and each step can be repeated:

    claim the shard ─► rows ─► bad rows ─► children ─► ids that were seen ─► cursor and counters, if it is still ours

Only the last step makes the page count. What fails before it is done again by whoever has the shard then: the rows are
the same rows, those that the first try wrote carry its mark and are counted as it would have counted them, and its bad
rows are replaced. Two things are weaker than with transactions. A worker that is frozen in the middle of a page and
wakes after another one has taken over can still write rows: true ones of the source, never older than what is there,
which nobody counts as inserted. And a record that the source moved to another page between the two tries is in the
collection and was not counted as inserted.

Instants of columns are texts, as in SQLite: MongoDB's own dates know no microseconds. `$toDate` makes dates of them.
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
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardRow, ShardState
from leaseway.imports.domain.shard import Shard
from leaseway.imports.sinks import run_tables, shard_transitions
from leaseway.imports.sinks.mongodb import quarantine, sweep
from leaseway.imports.sinks.mongodb import runs as run_books
from leaseway.imports.sinks.mongodb import shards as shard_books
from leaseway.imports.sinks.mongodb.address import parse_address
from leaseway.imports.sinks.mongodb.collections import QUARANTINE, RUNS, SHARDS, check_collection, prepare
from leaseway.imports.sinks.mongodb.connection import Database, Document, MongoClients, Session, Work
from leaseway.imports.sinks.mongodb.row_encoding import MongoEncoder, check_fields
from leaseway.imports.sinks.mongodb.rows import PageMark, RowMerge
from leaseway.imports.sinks.port import Changes, PageWrite, Sweep, closed_if_it_fails
from leaseway.imports.sinks.row_encoding import Line, replace_nul
from leaseway.imports.sinks.shard_transitions import apply_page, new_shard_row

T = TypeVar("T")

OPEN = [state.value for state in shard_transitions.OPEN]


class MongoSink:
    """One collection of one database. Any loop may call it; `now_us` is for tests that move time."""

    def __init__(
        self,
        url: str,
        table: str,
        columns: Mapping[str, ColumnType] | None = None,
        now_us: Callable[[], Instant] | None = None,
    ) -> None:
        self.address = parse_address(url)
        self.clients = MongoClients(self.address)
        self.target = check_collection(table)
        self._columns = check_fields(columns or {})
        self._fitting = MongoEncoder(self._columns)
        self._now_us = now_us
        self._id = ObjectId()
        self._has_transactions: bool | None = None

    async def open(self) -> None:
        async with closed_if_it_fails(self.close), self.clients.calling() as database:
            self._has_transactions = await prepare(database, self.target, self.address.shown)

    async def close(self) -> None:
        await self.clients.close()

    # -- runs -------------------------------------------------------------------------------------------------------

    async def start_run(self, run: RunRow, shards: Sequence[Shard]) -> RunRow:
        shard_transitions.check_shards(shards)
        rows = [new_shard_row(run.id, shard) for shard in shards]

        async def work(session: Session | None) -> RunRow:
            return await run_books.start(await self.clients.database(), self.target, run, rows, session)

        found = await self._together(work)
        await self._until_it_lasts(run.id)
        return found

    async def finish_run(
        self, run: str, state: RunState, why: str | None = None, notes: Mapping[str, Any] | None = None
    ) -> None:
        async def work(session: Session | None) -> None:
            database = await self.clients.database()
            found = await run_books.named(database, self.target, run)
            await run_books.finish(database, found, await self._now(), state, why, notes)

        await self._together(work, in_transaction=False)
        await self._until_it_lasts(run)

    async def run(self, id: str) -> RunRow | None:
        return await self._look(lambda database: run_books.find(database, self.target, id))

    async def runs(
        self,
        source: str | None = None,
        limit: int = 20,
        *,
        state: RunState | None = None,
        mode: RunMode | None = None,
    ) -> list[RunRow]:
        return await self._look(lambda database: run_books.listed(database, self.target, source, limit, state, mode))

    async def spend(self, run: str, requests: int) -> bool:
        run_tables.check_requests("requests", requests)
        async with self._calling() as database:
            return await run_books.spend(database, self.target, run, requests)

    async def set_budget(self, run: str, requests_max: int | None) -> None:
        run_tables.check_requests("requests_max", requests_max)
        async with self._calling() as database:
            await run_books.set_budget(database, self.target, run, requests_max)

    # -- shards -----------------------------------------------------------------------------------------------------

    async def begin(self, run: str, shard: str, fence: int) -> ShardRow | None:
        return await self._changed(run, shard, lambda row, now: shard_transitions.begin_shard(row, fence, now))

    async def note(self, run: str, shard: str, fence: int, guards: Mapping[str, int], why: str | None = None) -> bool:
        return (
            await self._changed(run, shard, lambda row, now: shard_transitions.note_shard(row, fence, guards, why))
            is not None
        )

    async def _changed(
        self, run: str, shard: str, change: Callable[[ShardRow, Instant], ShardRow | None]
    ) -> ShardRow | None:
        """One document, so no transaction is needed."""

        async def work(session: Session | None) -> ShardRow | None:
            database = await self.clients.database()
            held = await shard_books.held(database, self.target, run, shard, session)
            row = None if held is None else change(held.row, self._at(held.server_time))
            if held is not None and row is not None and row != held.row:
                # Who writes a page keeps his claim to it, as long as his fence is the last one.
                await shard_books.keep(database, held, row, writer=held.writer if row.fence == held.row.fence else None)
            return row

        return await self._together(work, in_transaction=False)

    async def write(self, page: PageWrite) -> WriteCounts | None:
        shard_transitions.check_page_write(page)
        lines, unfit = self._fitting.lines(page.rows)
        found = await self._together(partial(self._write, page, lines, [*page.bad, *unfit]))
        if found is not None and page.state is not ShardState.RUNNING:
            await self._until_it_lasts(page.run)
        return found

    async def _write(
        self, page: PageWrite, lines: Sequence[Line], bad: Sequence[BadRow], session: Session | None
    ) -> WriteCounts | None:
        database = await self.clients.database()
        held = await shard_books.held(database, self.target, page.run, page.shard, session)
        if held is None or not shard_transitions.accepts_page(held.row, page):
            return None
        if session is None:
            if not await shard_books.claim(database, held, page.fence, self._id):
                return None
            held = held._replace(version=held.version + 1)
        number, now = held.row.pages, self._at(held.server_time)
        mark = PageMark(page.run, page.shard, number) if session is None else None
        merge = RowMerge(database[self.target], [*self._columns], held.source, page.run, now, mark, session)
        written = await merge.merged(lines, len(bad))
        await quarantine.add(database, self.target, page, held, bad, now, session)
        children = [new_shard_row(page.run, child, page.shard) for child in page.children]
        await shard_books.add(database, self.target, held.source, children, session)
        if page.remembers:
            ids = shard_transitions.ids_seen(lines, bad)
            await sweep.remember(database, page.run, page.shard, number, ids, session)
        await shard_books.keep(database, held, apply_page(held.row, page, written, now), session)
        return written

    async def open_shards(self, run: str) -> int:
        return await self._count(SHARDS, {"run": run, "target": self.target, "state": {"$in": OPEN}})

    async def shards(self, run: str) -> list[ShardRow]:
        return await self._look(lambda database: shard_books.listed(database, self.target, run))

    # -- rows -------------------------------------------------------------------------------------------------------

    async def count(self) -> int:
        return await self._count(self.target, {"deleted_at": None})

    async def bad_rows(self, run: str | None = None, limit: int = 100) -> list[tuple[int, str, BadRow]]:
        return await self._look(lambda database: quarantine.listed(database, self.target, run, limit))

    async def release(self, number: int, row: Row | None) -> bool:
        lines = [] if row is None else [self._fitting.single(row)]

        async def work(session: Session | None) -> bool:
            database = await self.clients.database()
            asked = {"_id": number, "target": self.target}
            found = await database[QUARANTINE].find_one(asked, session=session)
            if found is None:
                return False
            now = await self._now()
            merge = RowMerge(database[self.target], [*self._columns], found["source"], found["run"], now, None, session)
            await merge.merged(lines)
            return bool((await database[QUARANTINE].delete_one(asked, session=session)).deleted_count)

        return await self._together(work)

    # -- what is absent, and what became different ------------------------------------------------------------------

    async def sweep(self, run: str) -> Sweep:
        async def work(session: Session | None) -> Sweep:
            database = await self.clients.database()
            found = await run_books.named(database, self.target, run)
            return await sweep.swept(database, database[self.target], found)

        return await self._together(work, in_transaction=False)

    async def absentees(self, source: str, sweeps: int, limit: int, after: str = "") -> list[str]:
        return await self._look(lambda database: sweep.absentees(database, self.target, source, sweeps, limit, after))

    async def forgive(self, source: str, ids: Sequence[str]) -> None:
        async with self._calling() as database:
            await sweep.forgiven(database, self.target, source, run_tables.storable_ids(ids))

    async def bury(self, run: str, ids: Sequence[str], reason: str) -> int:
        own, marks = run_tables.storable_ids(ids), replace_nul(reason)
        async with self._calling() as database:
            found = await run_books.named(database, self.target, run)
            count = await sweep.buried(database[self.target], found, own, marks, await self._now())
            await sweep.forgiven(database, self.target, found.source, own)
            return count

    async def changes(self, source: str, after: Instant, until: Instant, samples: int = 10) -> Changes:
        return await self._look(lambda database: sweep.changed(database[self.target], source, after, until, samples))

    # -- the server -------------------------------------------------------------------------------------------------

    async def _together(self, work: Work[T], *, in_transaction: bool = True) -> T:
        self._refuse_closed()
        return await self.clients.together(work, in_transaction=in_transaction and bool(self._has_transactions))

    async def _until_it_lasts(self, run: str) -> None:
        """A server that is killed may forget the last moment. Pages are fetched again then, but nobody may be told that
        something has begun or is finished that is forgotten."""

        async def work(session: Session | None) -> None:
            runs = (await self.clients.database())[RUNS]
            lasting = runs.with_options(write_concern=WriteConcern("majority", j=True))
            await lasting.update_one({"_id": run}, {"$set": {"is_planned": True}})

        await self._together(work, in_transaction=False)

    def _calling(self) -> AbstractAsyncContextManager[Database]:
        self._refuse_closed()
        return self.clients.calling()

    def _refuse_closed(self) -> None:
        if self._has_transactions is None:
            raise StoreRefused(f"{self.address.shown}: the sink is not open")

    async def _look(self, ask: Callable[[Database], Awaitable[T]]) -> T:
        self._refuse_closed()
        return await self.clients.look(ask)

    async def _count(self, collection: str, asked: Document) -> int:
        return await self._look(lambda database: database[collection].count_documents(asked))

    async def _now(self) -> Instant:
        if self._now_us is not None:
            return self._now_us()
        database = await self.clients.database()
        hello = await database.command("hello", codec_options=database.codec_options)
        return shard_books.instant(hello["localTime"])

    def _at(self, server_time: Instant) -> Instant:
        return server_time if self._now_us is None else self._now_us()
