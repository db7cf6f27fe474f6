"""The port of a sink: where rows are stored, together with the state of the import.

A sink is a composition of small ports: runs, shards, quarantine, sweeps and rows. `leaseway.testing.sink_contract` is
the test suite that every sink must pass.

A page is written in one transaction: rows, bad rows, counters and the cursor of the next page, all or nothing. The
write is accepted only if no worker with a larger fence has written to the shard and the shard's cursor is the one that
the page was fetched with, so a page from a worker that lost its lease has no effect.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from msgspec import Struct

from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import BadRow, Row, WriteCounts
from leaseway.imports.domain.partition import Cursor, Shard
from leaseway.imports.domain.run_state import Profile, RunMode, RunRow, RunState, ShardRow, ShardState
from leaseway.imports.sinks.row_map import RowMapPage, RowPosition


class PageWrite(Struct, frozen=True, kw_only=True):
    """Everything that one page changes."""

    run: str
    shard: str
    fence: int
    before: Cursor | None
    """The cursor that the page was fetched with."""
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
    """Guard reactions to add to the shard's counters."""
    children: Sequence[Shard] = ()
    """With `state` SPLIT: the shards that cover the rest of this one."""
    profile: Profile = {}
    """The profile of a sample of the page's documents, added to the shard's profile."""
    remembers: bool = False
    """Whether to store the ids of the rows as seen, for a sweep."""
    overwrites: bool = False
    """Whether a row replaces a newer one, because the source was set back."""


class Sweep(Struct, frozen=True):
    """The result of comparing a complete run with the stored rows."""

    stored: int
    """Rows of the source that are stored and not deleted."""
    absent: int
    """Stored rows that the run did not see."""


class Changes(Struct, frozen=True):
    """Differences between two instants, as the table shows them now."""

    added: int
    changed: int
    removed: int
    samples: Mapping[str, Sequence[str]] = {}
    """Some external ids of each kind: "added", "changed", "removed"."""


class RunStore(Protocol):
    async def start(self, run: RunRow, shards: Sequence[Shard]) -> RunRow:
        """Store a run with its shards, or return the existing run with this id. Refuses another spec hash."""
        ...

    async def find(self, id: str) -> RunRow | None: ...

    async def find_all(
        self,
        source: str | None = None,
        limit: int = 20,
        *,
        state: RunState | None = None,
        mode: RunMode | None = None,
    ) -> list[RunRow]:
        """Newest first."""
        ...

    async def finish(
        self, run: str, state: RunState, why: str | None = None, notes: Mapping[str, Any] | None = None
    ) -> None:
        """Set the state. `notes` None keeps the stored notes."""
        ...

    async def spend(self, run: str, requests: int) -> bool:
        """Take requests from the run's budget before sending them.

        Returns False, and takes nothing, if fewer are left. A run without a budget always has enough and is not
        written to.
        """
        ...

    async def set_budget(self, run: str, requests_max: int | None) -> None: ...


class ShardStore(Protocol):
    async def begin(self, run: str, shard: str, fence: int) -> ShardRow | None:
        """Take over a shard: store the fence unless a larger one is stored.

        Returns None if a later worker has the shard, or if there is no such shard.
        """
        ...

    async def write(self, page: PageWrite) -> WriteCounts | None:
        """Write a page. Returns None, and writes nothing, if the page is fenced off.

        A page that was written before and is sent again after a lost reply also returns None: the shard's cursor has
        moved on.
        """
        ...

    async def note(
        self,
        run: str,
        shard: str,
        fence: int,
        guards: Mapping[str, int],
        why: str | None = None,
        requests: int = 0,
    ) -> bool:
        """Add guard reactions and requests that belong to no page, and store why an attempt failed.

        Returns False, and writes nothing, if a worker with a larger fence has the shard or the shard has ended.
        """
        ...

    async def find_all(self, run: str) -> list[ShardRow]:
        """Ordered by key."""
        ...

    async def count_open(self, run: str) -> int:
        """The number of waiting and running shards. Must be cheap: it is read between pages."""
        ...


class Quarantine(Protocol):
    async def find_all(self, run: str | None = None, limit: int = 100) -> list[tuple[int, str, BadRow]]:
        """Number, shard and record of each bad row, oldest first."""
        ...

    async def release(self, number: int, row: Row | None) -> bool:
        """Remove a bad row from quarantine, and write `row` if it could be repaired."""
        ...


class SweepStore(Protocol):
    async def sweep(self, run: str) -> Sweep:
        """Compare the rows that the run saw with the stored rows.

        A row that the run did not see is absent once more; a row that it saw is no longer absent. Sweeping a run again
        changes nothing.
        """
        ...

    async def find_absent(self, source: str, sweeps: int, limit: int, after: str = "") -> list[str]:
        """External ids that at least `sweeps` consecutive sweeps did not see: those after `after`, in order."""
        ...

    async def mark_present(self, source: str, ids: Sequence[str]) -> None:
        """Forget the absence of these rows, because the source still has them."""
        ...

    async def delete(self, run: str, ids: Sequence[str], reason: str) -> int:
        """Mark rows as deleted and return how many were marked. A later page that contains a row restores it."""
        ...


class RowReads(Protocol):
    async def count(self) -> int:
        """Rows that are stored and not deleted."""
        ...

    async def changes(self, source: str, after: Instant, until: Instant, samples: int = 10) -> Changes:
        """Rows first seen, rewritten or deleted in (after, until]."""
        ...


class RowMap(Protocol):
    async def read(self, source: str, run: str, position: RowPosition, after: str, rows_max: int) -> RowMapPage:
        """Count rows of the source on a grid: the rows that this run wrote last, and all others.

        `after` is "" for the beginning of the table, or the value from the previous page. One call reads a bounded part
        of the table and blocks no writer. New rows usually come after all others; reading from the beginning sees
        every row.
        """
        ...


class Sink(Protocol):
    async def open(self) -> None:
        """Connect, create missing tables, and refuse a table of another shape. Leaves nothing open if it fails."""
        ...

    async def close(self) -> None: ...

    @property
    def runs(self) -> RunStore: ...
    @property
    def shards(self) -> ShardStore: ...
    @property
    def quarantine(self) -> Quarantine: ...
    @property
    def sweeps(self) -> SweepStore: ...
    @property
    def rows(self) -> RowReads: ...
    @property
    def row_map(self) -> RowMap | None:
        """None if the sink cannot locate rows."""
        ...


@asynccontextmanager
async def close_on_error(close: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        await close()
        raise
