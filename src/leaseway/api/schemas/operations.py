"""What the routes of operators answer, for the description of the API; see `shapes`."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from leaseway.api.schemas.jobs import Amount, Moment, WaitsFor
from leaseway.domain.budgets.budget import OverPolicy
from leaseway.domain.budgets.calendar_windows import Every
from leaseway.domain.schedule import Missed


class Alive(Struct, kw_only=True, forbid_unknown_fields=True):
    status: str


class ReadyCheck(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    ok: bool
    detail: str


class Ready(Struct, kw_only=True, forbid_unknown_fields=True):
    status: str
    checks: list[ReadyCheck]


class Counts(Struct, kw_only=True, forbid_unknown_fields=True):
    ready: int
    scheduled: int
    leased: int
    done: int
    failed: int
    cancelled: int


class Lane(Counts, kw_only=True, forbid_unknown_fields=True):
    queue: str
    tenant: str
    needs: Any
    waits_for: list[WaitsFor]
    oldest_ready_seconds: float | None
    reason: str | None
    """Of what lasts longest."""
    until: Moment | None
    """null: it does not wait, or nobody can know how long."""


class Lanes(Struct, kw_only=True, forbid_unknown_fields=True):
    items: list[Lane]
    next: str | None
    total: Counts


class LanesPause(Struct, kw_only=True, forbid_unknown_fields=True):
    """The lanes of a queue from which nothing is claimed."""

    queue: str
    tenant: str | None
    """null: of all tenants."""
    since: Moment | None


class LanesPaused(LanesPause, kw_only=True, forbid_unknown_fields=True):
    paused: bool


class RateShown(Struct, kw_only=True, forbid_unknown_fields=True):
    count: int
    window_seconds: float


class LimitWindow(Struct, kw_only=True, forbid_unknown_fields=True):
    window_seconds: float
    burst: int
    token_seconds: float
    tokens: int | None


class Gauge(Struct, kw_only=True, forbid_unknown_fields=True):
    """What may be taken at once: `used` and `room` make up `of`."""

    what: str
    """tokens or seats"""
    window_seconds: float | None
    rate: str | None
    of: int
    used: int
    room: int
    full_seconds: float | None


class LimitDefinition(Struct, kw_only=True, forbid_unknown_fields=True):
    """What PUT takes."""

    rates: list[str]
    concurrency: int | None
    burst: float
    cost_max: int
    lease_seconds: float | None
    delay_seconds: float | None
    degraded_share: float


class LimitChanged(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    version: int
    paused: bool
    definition: LimitDefinition


class Limit(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    limit: str | UnsetType = UNSET
    """By which definition it is kept, where one limit was asked for."""
    version: int
    definition: LimitDefinition
    paused: bool
    """It grants nothing until somebody resumes it."""
    rates: list[RateShown]
    concurrency: int | None
    burst: float
    cost_max: int
    lease_seconds: float
    delay_seconds: list[float]
    windows: list[LimitWindow] | None
    seats_taken: int | None
    next_free_seconds: float | None
    percent: int | None
    """Of its pace; below 100 the provider has refused calls."""
    closed_until: Moment | UnsetType | None = UNSET
    gauges: list[Gauge]
    reason: str | None
    until: Moment | None


class Burn(Struct, kw_only=True, forbid_unknown_fields=True):
    """How fast a window is spent."""

    passed_percent: float
    spent_percent: float
    held_percent: float
    lasts_until: Moment | None
    """When it is used up if it goes on like this; null: its window ends first."""


class BudgetWindow(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    window: str
    start: Moment | None
    end: Moment | None
    has_begun: bool
    limit: Amount
    spent: Amount
    held: Amount
    left: Amount
    overdraft: Amount
    threshold_percent: int
    burn: Burn | None
    unit: str | UnsetType = UNSET


class BudgetDefinition(Struct, kw_only=True, forbid_unknown_fields=True):
    """What PUT takes."""

    unit: str
    limit: Amount
    every: Every
    tz: str
    overdraft: Amount
    over: OverPolicy


class BudgetChanged(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    version: int
    paused: bool
    definition: BudgetDefinition


class Budget(BudgetDefinition, kw_only=True, forbid_unknown_fields=True):
    """A budget with its windows under way and to come."""

    name: str
    budget: str | UnsetType = UNSET
    """By which definition it is kept, where one budget was asked for."""
    version: int
    definition: BudgetDefinition
    paused: bool
    """It holds nothing until somebody resumes it."""
    windows: list[BudgetWindow]


class Entry(Struct, kw_only=True, forbid_unknown_fields=True):
    """One line of a budget's journal."""

    seq: int
    at: Moment | None
    kind: str
    hold: str
    name: str
    window: str
    held: Amount
    spent: Amount
    threshold_percent: int | None


class Schedule(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    kind: str
    cron: str
    tz: str
    missed: Missed
    last_fire: Moment | None
    next_fire: Moment | None
    paused: bool


class Tenant(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    weight: int
    starts: list[str]
    concurrency: int | None


class Worker(Struct, kw_only=True, forbid_unknown_fields=True):
    """A worker that holds leases."""

    name: str
    leased: int
    late: int
    """Leases that have expired, and that nobody has taken back yet."""
    heard_at: Moment | None
    until: Moment | None
    """When the first of its leases expires, unless it is renewed."""


class Throughput(Struct, kw_only=True, forbid_unknown_fields=True):
    """What ended in the last window."""

    window_seconds: float
    """A minute, or less where very much ended."""
    done: int
    failed: int
    cancelled: int
    per_second: float


class WorkersCount(Struct, kw_only=True, forbid_unknown_fields=True):
    count: int
    leased: int
    late: int


class LimitNow(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    version: int
    gauges: list[Gauge]
    percent: int | None
    reason: str | None
    until: Moment | None


class Metrics(Counts, kw_only=True, forbid_unknown_fields=True):
    """How everything is doing now. Workers, limits and budgets are for operators."""

    at: Moment | None
    tenant: str | None
    """Whose numbers these are; null: everybody's."""
    pending: int
    running: int
    blocked: int
    """Ready jobs that may not start now."""
    oldest_ready_seconds: float | None
    throughput: Throughput
    workers: WorkersCount | UnsetType = UNSET
    limits: list[LimitNow] | UnsetType = UNSET
    budgets: list[BudgetWindow] | UnsetType = UNSET
