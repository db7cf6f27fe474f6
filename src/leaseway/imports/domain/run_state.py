"""How far a shard and its run have come, as the sink keeps it: in the same transaction as the rows."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from leaseway.domain.ids import Instant
from leaseway.imports.domain.shard import Cursor, Shard


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
    started_at: Instant | None = None
    """When a worker first began it."""
    finished_at: Instant | None = None
    profile: "Profile" = {}


Profile = Mapping[str, Mapping[str, int]]
"""Which paths a sample of the documents has, and of which types, with their counts: drift is seen in these."""


class RunMode(StrEnum):
    FULL = "full"
    """All there is."""
    INCREMENTAL = "incremental"
    """What has changed since the last run that became complete."""


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
    mode: RunMode = RunMode.FULL
    since: Instant | None = None
    """Changes from here on; None: all there is."""
    watermark: Instant | None = None
    """The source's time when the run began, on the source's own grain. The next run begins here, less the overlap, and
    only if this one has become complete."""
    seats: int = 0
    """How many shards can be worked on at once. While fewer are open, the large ones are split. 0: nobody knows."""
    id_max: int | None = None
    """The largest id when the run was planned."""
    requests_max: int | None = None
    """The run's budget. None: no bound."""
    requests: int = 0
    """What was spent of the budget. Counted only if there is one."""
    notes: Mapping[str, Any] = {}
    """Findings at the end of the run: deletes, drift, guards that made it suspect."""
    why: str | None = None

    @property
    def is_budget_used_up(self) -> bool:
        return self.requests_max is not None and self.requests >= self.requests_max
