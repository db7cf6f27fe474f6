"""Runs and shards as a sink stores them, in the same transaction as the rows."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from leaseway.domain.ids import Instant
from leaseway.imports.domain.partition import Cursor, Shard


class ShardState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    """The end is proved."""
    SPLIT = "split"
    """The children have the rest; the rows of the shard stay."""
    PARKED = "parked"
    """A guard stopped the shard; an operator must look at it."""


class ShardRow(Struct, frozen=True, kw_only=True):
    run: str
    shard: Shard
    state: ShardState
    fence: int
    """The fence of the last worker that wrote. A smaller one is refused."""
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
    """How often a worker began or resumed the shard."""
    resumed_at: Cursor | None = None
    page_limit: int | None = None
    """The page size after halving."""
    recent: tuple[str, ...] = ()
    """Hashes of the ids of recent pages, to detect loops."""
    guards: Mapping[str, int] = {}
    """How often each guard reacted."""
    why: str | None = None
    parent: str | None = None
    started_at: Instant | None = None
    """When a worker first began the shard."""
    finished_at: Instant | None = None
    profile: "Profile" = {}


Profile = Mapping[str, Mapping[str, int]]
"""Paths of sampled documents, with their types and counts. Drift is found by comparing profiles."""


class RunMode(StrEnum):
    FULL = "full"
    """Everything in the source."""
    INCREMENTAL = "incremental"
    """Changes since the last complete run."""


class RunState(StrEnum):
    RUNNING = "running"
    COMPLETE = "complete"
    PARTIAL = "partial"
    FAILED = "failed"
    SUSPECT = "suspect"
    UNVERIFIED = "unverified"
    """Complete as far as this paging can tell: records may have moved past a page unseen."""


EXIT_CODES = {
    RunState.COMPLETE: 0,
    RunState.PARTIAL: 1,
    RunState.FAILED: 2,
    RunState.SUSPECT: 3,
    RunState.UNVERIFIED: 4,
}


class RunRow(Struct, frozen=True, kw_only=True):
    id: str
    source: str
    spec_hash: str
    started_at: Instant
    finished_at: Instant | None = None
    state: RunState = RunState.RUNNING
    mode: RunMode = RunMode.FULL
    since: Instant | None = None
    """Changes from this instant on. None: everything."""
    watermark: Instant | None = None
    """The source's time when the run started, rounded to its granularity. The next run starts here minus the overlap,
    if this run is complete.
    """
    concurrency: int = 0
    """How many shards all workers process at once; large shards are split while fewer are open. 0: unknown."""
    id_max: int | None = None
    """The largest id when the run was planned."""
    requests_max: int | None = None
    """The run's budget. None: unlimited."""
    requests: int = 0
    """Requests taken from the budget. Counted only if there is a budget."""
    notes: Mapping[str, Any] = {}
    """Findings at the end of the run: deletes, drift, guards that made it suspect."""
    why: str | None = None

    @property
    def is_budget_used_up(self) -> bool:
        return self.requests_max is not None and self.requests >= self.requests_max
