"""The run tables of the SQL sinks: every verb once, for all databases.

A verb is a generator. It yields steps (a statement, a merge of rows, a delete) and receives their results. The adapter
of a database executes the steps in one transaction: SQLite in a thread, PostgreSQL asynchronously. Statements are in
`sql/`.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import BadRow, Row, WriteCounts
from leaseway.imports.domain.partition import Shard
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardRow, ShardState
from leaseway.imports.sinks import run_tables, shard_transitions
from leaseway.imports.sinks.port import Changes, PageWrite, Sweep
from leaseway.imports.sinks.row_encoding import Line, PageEncoder, replace_nul
from leaseway.imports.sinks.run_tables import Values
from leaseway.imports.sinks.shard_transitions import apply_page, new_shard_row

T = TypeVar("T")

CHANGE_KINDS = ("added", "changed", "removed")
Lines = Sequence[Sequence[Any]]


class Execute(NamedTuple):
    """One statement; the result is its rows."""

    verb: str
    values: Values


class ExecuteMany(NamedTuple):
    """One statement for each set of values; without a result."""

    verb: str
    values: Sequence[Values]


class MergeRows(NamedTuple):
    """Insert new rows and replace changed ones; the result is `WriteCounts`."""

    run: str
    source: str
    lines: Sequence[Line]
    now: Instant
    quarantined: int
    overwrites: bool = False


class DeleteRows(NamedTuple):
    """Mark rows as deleted; the result is how many were marked."""

    run: str
    source: str
    ids: Sequence[str]
    now: Instant
    reason: str


AWAIT_REPLICATION = Execute("await_replication", {})
"""The last step of a call that finds its work done. All other calls write or lock a row, and their commits wait."""
Step = Execute | ExecuteMany | MergeRows | DeleteRows
Steps = Generator[Step, Any, T]
Verb = Callable[[], Steps[T]]
"""Starts the steps from the beginning: a transaction can be repeated."""


class SqlDatabase(Protocol):
    """What a database adapter provides."""

    target: str
    encoder: PageEncoder

    async def read(self, verb: str, values: Values) -> Lines:
        """One statement that changes nothing."""
        ...

    async def call(self, verb: str, values: Values) -> Lines:
        """One statement that is a durable transaction of its own."""
        ...

    async def snapshot(self, verb: Verb[T]) -> T:
        """Steps that change nothing and may read the whole table."""
        ...

    async def transact(self, verb: Verb[T], *, is_durable: bool = True, is_long: bool = False) -> T:
        """All steps in one transaction. `is_durable` False: losing the transaction in a power failure does no harm."""
        ...

    def now(self, line: Sequence[Any]) -> Instant:
        """The time of a transaction, given a line of a statement that locks something."""
        ...

    def id_list(self, ids: Sequence[str]) -> Any:
        """Ids as the statements take them."""
        ...


class SqlTable:
    """What the parts of a SQL sink share."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    def _lock_run(self, run: str) -> Steps[tuple[RunRow, Instant]]:
        for line in (yield Execute("run_lock", {"id": run})):
            return run_tables.decode_run(line), self._database.now(line)
        raise run_tables.no_such_run(run)


class SqlRuns(SqlTable):
    async def start(self, run: RunRow, shards: Sequence[Shard]) -> RunRow:
        shard_transitions.check_shards(shards)
        return await self._database.transact(partial(self._start, run, shards))

    def _start(self, run: RunRow, shards: Sequence[Shard]) -> Steps[RunRow]:
        if (yield Execute("run_add", run_tables.run_values(run, self._database.target))):
            yield add_shards([new_shard_row(run.id, shard) for shard in shards])
        (found,) = yield Execute("run_find", {"id": run.id})
        return run_tables.refuse_other_run(run, found, self._database.target)

    async def find(self, id: str) -> RunRow | None:
        return run_tables.find_own_run(await self._database.read("run_find", {"id": id}), self._database.target)

    async def find_all(
        self,
        source: str | None = None,
        limit: int = 20,
        *,
        state: RunState | None = None,
        mode: RunMode | None = None,
    ) -> list[RunRow]:
        lines = await self._database.read("run_list", run_tables.list_values(source, limit, state, mode))
        return [run_tables.decode_run(line) for line in lines]

    async def finish(
        self, run: str, state: RunState, why: str | None = None, notes: Mapping[str, Any] | None = None
    ) -> None:
        await self._database.transact(partial(self._finish, run, state, why, notes))

    def _finish(self, run: str, state: RunState, why: str | None, notes: Mapping[str, Any] | None) -> Steps[None]:
        found, now = yield from self._lock_run(run)
        yield Execute("run_finish", run_tables.finish_values(found, state, why, notes, now))

    async def spend(self, run: str, requests: int) -> bool:
        run_tables.check_requests("requests", requests)
        found = await self._database.read("budget_find", {"id": run})
        if not found:
            raise run_tables.no_such_run(run)
        if found[0][0] is None:
            return True
        return bool(await self._database.call("budget_spend", {"id": run, "requests": requests}))

    async def set_budget(self, run: str, requests_max: int | None) -> None:
        run_tables.check_requests("requests_max", requests_max)
        if not await self._database.call("budget_set", {"id": run, "requests_max": requests_max}):
            raise run_tables.no_such_run(run)


class SqlShards(SqlTable):
    async def begin(self, run: str, shard: str, fence: int) -> ShardRow | None:
        def change(row: ShardRow, now: Instant) -> ShardRow | None:
            return shard_transitions.begin_shard(row, fence, now)

        return await self._database.transact(partial(self._change, run, shard, change), is_durable=False)

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

        found = await self._database.transact(partial(self._change, run, shard, change), is_durable=False)
        return found is not None

    def _change(
        self, run: str, shard: str, change: Callable[[ShardRow, Instant], ShardRow | None]
    ) -> Steps[ShardRow | None]:
        for line in (yield Execute("shard_find", {"run": run, "key": shard})):
            after = change(run_tables.decode_shard(line), self._database.now(line))
            if after is not None:
                yield Execute("shard_keep", run_tables.shard_values(after))
            return after
        return None

    async def write(self, page: PageWrite) -> WriteCounts | None:
        shard_transitions.check_page_write(page)
        lines, unstorable = self._database.encoder.lines(page.rows)
        verb = partial(self._write, page, lines, [*page.bad, *unstorable])
        # Pages need not survive a power failure: rows and cursor are lost together and are fetched again. The end of a
        # shard must survive, because the caller reports it.
        return await self._database.transact(verb, is_durable=page.state is not ShardState.RUNNING)

    def _write(self, page: PageWrite, lines: Sequence[Line], bad: Sequence[BadRow]) -> Steps[WriteCounts | None]:
        for line in (yield Execute("shard_find", {"run": page.run, "key": page.shard})):
            shard, source, now = run_tables.decode_shard(line), run_tables.shard_source(line), self._database.now(line)
            if not shard_transitions.accepts_page(shard, page):
                return None
            counts: WriteCounts = yield MergeRows(page.run, source, lines, now, len(bad), page.overwrites)
            quarantined = [run_tables.bad_row_values(page.run, page.shard, shard.pages, row, now) for row in bad]
            yield ExecuteMany("bad_add", quarantined)
            if page.remembers:
                ids = self._database.id_list(shard_transitions.ids_seen(lines, bad))
                yield Execute("seen_add", {"run": page.run, "ids": ids})
            yield add_shards([new_shard_row(page.run, child, page.shard) for child in page.children])
            yield Execute("shard_keep", run_tables.shard_values(apply_page(shard, page, counts, now)))
            return counts
        return None

    async def find_all(self, run: str) -> list[ShardRow]:
        found = [run_tables.decode_shard(line) for line in await self._database.read("shard_list", {"run": run})]
        return sorted(found, key=lambda row: row.shard.key)  # the database's order depends on its collation

    async def count_open(self, run: str) -> int:
        ((count,),) = await self._database.read("shard_open", {"run": run})
        return int(count)


def add_shards(shards: Sequence[ShardRow]) -> ExecuteMany:
    return ExecuteMany("shard_add", [run_tables.shard_values(shard) for shard in shards])


class SqlQuarantine(SqlTable):
    async def find_all(self, run: str | None = None, limit: int = 100) -> list[tuple[int, str, BadRow]]:
        lines = await self._database.read("bad_list", {"run": run, "limit": limit})
        return [run_tables.decode_bad_row(line) for line in lines]

    async def release(self, number: int, row: Row | None) -> bool:
        lines = [] if row is None else [self._database.encoder.single(row)]
        return await self._database.transact(partial(self._release, number, lines))

    def _release(self, number: int, lines: Sequence[Line]) -> Steps[bool]:
        for line in (yield Execute("bad_remove", {"number": number})):
            yield MergeRows(line[0], line[1], lines, self._database.now(line), 0)
            return True
        yield AWAIT_REPLICATION
        return False


class SqlSweeps(SqlTable):
    async def sweep(self, run: str) -> Sweep:
        return await self._database.transact(partial(self._sweep, run), is_long=True)

    def _sweep(self, run: str) -> Steps[Sweep]:
        row, _ = yield from self._lock_run(run)
        known = run_tables.stored_sweep(row)
        if known is not None:
            return known
        values = {"run": run, "source": row.source, "started_at": row.started_at}
        yield Execute("absent_add", values)
        yield Execute("absent_keep", values)
        ((stored,),) = yield Execute("stored", values)
        ((absent,),) = yield Execute("absent_count", values)
        yield Execute("seen_clear", values)
        sweep = Sweep(stored, absent)
        yield Execute("run_note", {"id": run, "notes": run_tables.notes_with_sweep(row, sweep)})
        return sweep

    async def find_absent(self, source: str, sweeps: int, limit: int, after: str = "") -> list[str]:
        values = {"source": source, "sweeps": sweeps, "limit": limit, "after": after}
        return [key for (key,) in await self._database.read("absent_list", values)]

    async def mark_present(self, source: str, ids: Sequence[str]) -> None:
        known = self._database.id_list(run_tables.storable_ids(ids))
        await self._database.transact(partial(self._mark_present, {"source": source, "ids": known}))

    def _mark_present(self, values: Values) -> Steps[None]:
        if not (yield Execute("absent_remove", values)):
            yield AWAIT_REPLICATION

    async def delete(self, run: str, ids: Sequence[str], reason: str) -> int:
        known, text = run_tables.storable_ids(ids), replace_nul(reason)
        return await self._database.transact(partial(self._delete, run, known, text))

    def _delete(self, run: str, ids: Sequence[str], reason: str) -> Steps[int]:
        row, now = yield from self._lock_run(run)
        yield Execute("absent_remove", {"source": row.source, "ids": self._database.id_list(ids)})
        count: int = yield DeleteRows(run, row.source, ids, now, reason)
        return count


class SqlRows(SqlTable):
    async def count(self) -> int:
        ((count,),) = await self._database.read("count", {})
        return int(count)

    async def changes(self, source: str, after: Instant, until: Instant, samples: int = 10) -> Changes:
        values = {"source": source, "after": after, "until": until, "limit": samples}
        return await self._database.snapshot(partial(self._changes, values))

    def _changes(self, values: Values) -> Steps[Changes]:
        ((added, changed, removed),) = yield Execute("changes", values)
        found: dict[str, Sequence[str]] = {}
        for kind in CHANGE_KINDS:
            found[kind] = tuple(key for (key,) in (yield Execute(kind, values)))
        return Changes(added, changed, removed, found)
