"""Where rows go, and where an import keeps its place. One contract, `leaseway.testing.sink_contract`, proves each sink.

A page is written in one transaction: its rows, its bad rows, its counters and the cursor of the next page, all of it or
nothing. It counts only if nobody with a larger fence has written to the shard and its cursor is the one that the page
was fetched with: a late worker's page leaves no trace.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import BadRow, Row, WriteCounts
from leaseway.imports.domain.run_state import Profile, RunMode, RunRow, RunState, ShardRow, ShardState
from leaseway.imports.domain.shard import Cursor, Shard
from leaseway.imports.sinks.row_map import RowMapPage, RowPosition


class PageWrite(Struct, frozen=True, kw_only=True):
    """All that one page changes."""

    run: str
    shard: str
    fence: int
    before: Cursor | None
    """The cursor with which it was fetched."""
    after: Cursor | None
    rows: Sequence[Row] = ()
    bad: Sequence[BadRow] = ()
    state: ShardState = ShardState.RUNNING
    why: str | None = None
    page_hash: str = ""
    page_limit: int | None = None
    requests: int = 1
    size_bytes: int = 0
    guards: dict[str, int] = {}
    """Reactions to add."""
    children: Sequence[Shard] = ()
    """With `state` SPLIT: they begin where this one stopped."""
    profile: Profile = {}
    """Of a sample of its documents, to add."""
    remembers: bool = False
    """Whether the ids of its rows are kept as seen, for a sweep."""


class Sweep(Struct, frozen=True):
    """What a complete run did not see."""

    stored: int
    """Rows of the source that are there and not deleted."""
    absent: int
    """Of those, the ones that this run did not see."""


class Changes(Struct, frozen=True):
    """What became different between two instants, as the table shows it now."""

    added: int
    changed: int
    removed: int
    samples: Mapping[str, Sequence[str]] = {}
    """Some external ids of each kind: "added", "changed", "removed"."""


class Sink(Protocol):
    async def open(self) -> None:
        """Connect, make what is missing, and refuse a table of another shape. If it fails, nothing is left open."""
        ...

    async def close(self) -> None: ...

    async def start_run(self, run: RunRow, shards: Sequence[Shard]) -> RunRow:
        """Store a run with its shards, or find the one that is there under this id. Another spec hash is refused."""
        ...

    async def begin(self, run: str, shard: str, fence: int) -> ShardRow | None:
        """A worker takes the shard over: its fence is stored if it is not smaller than the last one. None: a later one
        has it, or there is no such shard."""
        ...

    async def write(self, page: PageWrite) -> WriteCounts | None:
        """None: fenced, nothing was written. A page that was written before, sent again after a lost reply, is None as
        well: the shard's cursor has moved on."""
        ...

    async def note(self, run: str, shard: str, fence: int, guards: Mapping[str, int], why: str | None = None) -> bool:
        """Reactions that no page carries, to add, and why an attempt has failed. False: somebody with a larger fence
        has it, or it has ended; nothing was written."""
        ...

    async def spend(self, run: str, requests: int) -> bool:
        """Take from the run's budget, before asking. False: not so many are left, and nothing was taken. A run without
        a budget always has enough, and nothing is written."""
        ...

    async def set_budget(self, run: str, requests_max: int | None) -> None: ...

    async def finish_run(
        self, run: str, state: RunState, why: str | None = None, notes: Mapping[str, Any] | None = None
    ) -> None:
        """`notes` None: those that are there stay."""
        ...

    async def run(self, id: str) -> RunRow | None: ...

    async def runs(
        self,
        source: str | None = None,
        limit: int = 20,
        *,
        state: RunState | None = None,
        mode: RunMode | None = None,
    ) -> list[RunRow]:
        """Newest first."""
        ...

    async def open_shards(self, run: str) -> int:
        """How many wait or run: cheap, as it is asked between pages."""
        ...

    async def shards(self, run: str) -> list[ShardRow]:
        """By key."""
        ...

    async def bad_rows(self, run: str | None = None, limit: int = 100) -> list[tuple[int, str, BadRow]]:
        """Number, shard and record of what is in quarantine, oldest first."""
        ...

    async def release(self, number: int, row: Row | None) -> bool:
        """Take a bad row out of quarantine, and write it if it has become a good one."""
        ...

    async def count(self) -> int:
        """Rows that are there and not deleted."""
        ...

    async def sweep(self, run: str) -> Sweep:
        """Compare what the run has seen with what is stored. Rows that it did not see are absent once more, those that
        it saw are not absent any more. The same run again changes nothing."""
        ...

    async def absentees(self, source: str, sweeps: int, limit: int, after: str = "") -> list[str]:
        """External ids that so many sweeps in a row, or more, did not see: those after `after`, in order."""
        ...

    async def forgive(self, source: str, ids: Sequence[str]) -> None:
        """They are there after all."""
        ...

    async def bury(self, run: str, ids: Sequence[str], reason: str) -> int:
        """Mark rows as deleted, and say how many were. A row stays, and a later page that has it brings it back."""
        ...

    async def changes(self, source: str, after: Instant, until: Instant, samples: int = 10) -> Changes:
        """Rows first seen, rewritten or deleted in (after, until]."""
        ...


@runtime_checkable
class RowMap(Protocol):
    async def places(self, source: str, run: str, position: RowPosition, after: str, rows_max: int) -> RowMapPage:
        """Rows of the source that are there and not deleted, counted on a grid: those that this run wrote last, and
        those that others did. `after` is "" for the beginning, or what the last look answered.

        New rows come after all others, as a rule. Rows that are rewritten may stay where they are, and new ones may
        take the place of old ones: a look from the beginning sees all of them."""
        ...


@asynccontextmanager
async def closed_if_it_fails(close: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        await close()
        raise
