"""How far a shard and its run have come, as the sink keeps it: in the same transaction as the rows."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from leaseway.domain.ids import Instant
from leaseway.domain.imports.shard import Cursor, Shard


class ShardState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    """With positive proof of the end."""
    SPLIT = "split"
    """Its children have the rest; its rows stay."""
    PARKED = "parked"
    """A guard stopped it; a person must look."""


class ShardRow(Struct, frozen=True, kw_only=True):
    run: str
    shard: Shard
    state: ShardState
    fence: int
    """Of the last worker that wrote here. A smaller one is refused."""
    cursor: Cursor | None
    pages: int = 0
    rows: int = 0
    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    stale: int = 0
    quarantined: int = 0
    requests: int = 0
    size_bytes: int = 0
    attempts: int = 0
    """How often a worker has begun or resumed it."""
    resumed_at: Cursor | None = None
    page_limit: int | None = None
    """What the page size was halved to."""
    recent: tuple[str, ...] = ()
    """Hashes of the last pages' ids, against loops."""
    guards: Mapping[str, int] = {}
    """How often each guard has reacted."""
    why: str | None = None
    parent: str | None = None
    finished_at: Instant | None = None


class RunState(StrEnum):
    RUNNING = "running"
    COMPLETE = "complete"
    PARTIAL = "partial"
    FAILED = "failed"
    SUSPECT = "suspect"


EXIT_CODES = {RunState.COMPLETE: 0, RunState.PARTIAL: 1, RunState.FAILED: 2, RunState.SUSPECT: 3}


class RunRow(Struct, frozen=True, kw_only=True):
    id: str
    source: str
    spec_hash: str
    started_at: Instant
    finished_at: Instant | None = None
    state: RunState = RunState.RUNNING
    watermark: Instant | None = None
    """The server's time when it began."""
    why: str | None = None
