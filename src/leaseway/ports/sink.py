"""Where rows go, and where an import keeps its place. One contract, `leaseway.testing.sink_contract`, proves each sink.

A page is written in one transaction: its rows, its bad rows, its counters and the cursor of the next page, all of it or
nothing. It counts only if nobody with a larger fence has written to the shard and its cursor is the one that the page
was fetched with: a late worker's page leaves no trace.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from leaseway.domain.imports.page import BadRow, Row, Written
from leaseway.domain.imports.progress import RunRow, RunState, ShardRow, ShardState
from leaseway.domain.imports.shard import Cursor, Shard


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


class Sink(Protocol):
    async def open(self) -> None:
        """Connect, make what is missing, and refuse a table of another shape."""
        ...

    async def close(self) -> None: ...

    async def start_run(self, run: RunRow, shards: Sequence[Shard]) -> RunRow:
        """Store a run with its shards, or find the one that is there under this id. Another spec hash is refused."""
        ...

    async def begin(self, run: str, shard: str, fence: int) -> ShardRow | None:
        """A worker takes the shard over: its fence is stored if it is not smaller than the last one. None: a later one
        has it, or there is no such shard."""
        ...

    async def write(self, page: PageWrite) -> Written | None:
        """None: fenced, nothing was written. A page that was written before, sent again after a lost reply, is None as
        well: the shard's cursor has moved on."""
        ...

    async def finish_run(self, run: str, state: RunState, why: str | None = None) -> None: ...

    async def runs(self, source: str | None = None, limit: int = 20) -> list[RunRow]:
        """Newest first."""
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
