"""What the routes of imports answer, for the description of the API; see `shapes`."""

from typing import Any

from msgspec import Struct

from leaseway.api.schemas.jobs import Moment
from leaseway.imports.domain.run_state import RunMode, RunState, ShardState


class ImportRun(Struct, kw_only=True, forbid_unknown_fields=True):
    run: str
    source: str
    spec_hash: str
    state: RunState
    why: str | None
    exit_code: int | None
    mode: RunMode
    since: Moment | None
    watermark: Moment | None
    started_at: Moment | None
    finished_at: Moment | None
    seats: int


class Import(Struct, kw_only=True, forbid_unknown_fields=True):
    """An import that the service was started with."""

    source: str
    spec: str
    """The name of the file that describes it."""
    table: str
    has_positions: bool
    """Whether its rows can be shown on a map."""
    is_reachable: bool
    """False: what keeps its table does not answer now."""
    last_run: ImportRun | None


class ImportSummary(ImportRun, kw_only=True, forbid_unknown_fields=True):
    shards: dict[str, int]
    """How many are in each state."""
    guards: dict[str, int]
    pages: int
    rows: int
    inserted: int
    updated: int
    unchanged: int
    stale: int
    quarantined: int
    requests: int
    bytes: int
    budget: Any
    parked: list[dict[str, Any]]
    notes: dict[str, Any]


class ImportLimit(Struct, kw_only=True, forbid_unknown_fields=True):
    count: int
    window_seconds: float


class ImportProgress(ImportSummary, kw_only=True, forbid_unknown_fields=True):
    share: float
    """Of the whole, 0 to 1."""
    shards_total: int
    shards_ended: int
    rows_per_second: float | None
    """Of the last seconds. None: nobody has looked before, or it is over."""
    requests_per_second: float | None
    seconds_left: float | None
    """None: nobody can tell."""
    limit: ImportLimit | None
    """Of requests: the one that is felt first."""


class ImportReport(ImportSummary, kw_only=True, forbid_unknown_fields=True):
    seconds: float
    changes: dict[str, Any]
    deletes: Any
    compared_with: str | None
    drift: Any
    slowest: list[str]


class ImportShard(Struct, kw_only=True, forbid_unknown_fields=True):
    key: str
    label: str
    predicate: dict[str, Any]
    state: ShardState
    why: str | None
    parent: str | None
    estimated_rows: int | None
    pages: int
    rows: int
    inserted: int
    updated: int
    unchanged: int
    stale: int
    quarantined: int
    requests: int
    bytes: int
    guards: dict[str, int]
    attempts: int
    cursor: Any
    resumed_at: Any
    page_limit: int | None
    started_at: Moment | None
    finished_at: Moment | None
    seconds: float | None


class PlannedShard(Struct, kw_only=True, forbid_unknown_fields=True):
    key: str
    label: str
    predicate: dict[str, Any]
    rows: int | None


class ImportPlan(Struct, kw_only=True, forbid_unknown_fields=True):
    source: str
    table: str
    mode: RunMode
    why_mode: str
    since: Moment | None
    watermark: Moment | None
    shards: list[PlannedShard]
    """The first 1,000 of them."""
    shards_total: int
    rows: int | None
    requests: int | None
    seconds: float | None
    is_most: bool
    cost: float | None
    requests_max: int | None
    is_over_budget: bool


class Quarantined(Struct, kw_only=True, forbid_unknown_fields=True):
    """A record that could not become a row."""

    number: int
    run: str
    shard: str
    position: int
    external_id: str | None
    code: str
    problem: str
    document: Any


class ImportPoints(Struct, kw_only=True, forbid_unknown_fields=True):
    """Where rows lie. Counts of one place are to be added."""

    items: list[tuple[float, float, int]]
    """Of this run: longitude, latitude, count."""
    others: list[tuple[float, float, int]]
    """Written by other runs."""
    degrees: float
    """Between two places."""
    has_positions: bool
    more: bool
    """There are rows that were not looked at yet."""
    next: str | None
    """For `after`. None: the run is over, and this was all."""


class Replayed(Struct, kw_only=True, forbid_unknown_fields=True):
    """What became of records in quarantine."""

    written: int
    discarded: int
    stayed: int
    by_code: dict[str, list[dict[str, Any]]]
    gone: list[int]


class ImportResumed(Struct, kw_only=True, forbid_unknown_fields=True):
    run: str
    shards_open: int
