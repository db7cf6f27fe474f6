"""Schedules, tenants, workers, health and metrics."""

from msgspec import UNSET, UnsetType

from leaseway.api.schemas.budgets import BudgetWindowDocument
from leaseway.api.schemas.limits import LimitNowDocument
from leaseway.api.schemas.values import Document, Timestamp, timestamp
from leaseway.domain.ids import Instant
from leaseway.domain.inspection import LeaseOwner
from leaseway.domain.schedule import Missed, StoredSchedule
from leaseway.domain.tenant import Tenant


class ScheduleDocument(Document, kw_only=True):
    name: str
    kind: str
    cron: str
    tz: str
    missed: Missed
    last_fire: Timestamp | None
    next_fire: Timestamp | None
    paused: bool


class TenantDocument(Document, kw_only=True):
    name: str
    weight: int
    starts: list[str]
    concurrency: int | None


class WorkerDocument(Document, kw_only=True):
    """A worker that holds leases."""

    name: str
    leased: int
    expired: int
    """Leases that have expired and have not been reclaimed yet."""
    seen_at: Timestamp | None
    until: Timestamp | None
    """When the first of its leases expires, unless it is renewed."""


class AliveDocument(Document, kw_only=True):
    status: str


class ReadyCheckDocument(Document, kw_only=True):
    name: str
    ok: bool
    detail: str


class ReadyDocument(Document, kw_only=True):
    status: str
    checks: list[ReadyCheckDocument]


class ThroughputDocument(Document, kw_only=True):
    """Jobs that finished in the last window."""

    window_seconds: float
    """A minute, or less if very many jobs finished."""
    done: int
    failed: int
    cancelled: int
    per_second: float


class WorkersCountDocument(Document, kw_only=True):
    count: int
    leased: int
    expired: int


class MetricsDocument(Document, kw_only=True):
    """The present state of the system. Workers, limits and budgets are for operators only."""

    at: Timestamp | None
    tenant: str | None
    """The tenant whose jobs are counted; null: all tenants."""
    pending: int
    running: int
    ready: int
    scheduled: int
    leased: int
    done: int
    failed: int
    cancelled: int
    blocked: int
    """Ready jobs that cannot start now."""
    oldest_ready_seconds: float | None
    throughput: ThroughputDocument
    workers: WorkersCountDocument | UnsetType = UNSET
    limits: list[LimitNowDocument] | UnsetType = UNSET
    budgets: list[BudgetWindowDocument] | UnsetType = UNSET


def schedule_document(row: StoredSchedule, next_fire: Instant | None) -> ScheduleDocument:
    schedule = row.schedule
    return ScheduleDocument(
        name=schedule.name,
        kind=schedule.kind,
        cron=schedule.cron,
        tz=schedule.tz,
        missed=schedule.missed,
        last_fire=timestamp(row.last_fire),
        next_fire=timestamp(next_fire),
        paused=row.paused,
    )


def tenant_document(tenant: Tenant) -> TenantDocument:
    starts = [str(rate) for rate in tenant.starts]
    return TenantDocument(name=tenant.name, weight=tenant.weight, starts=starts, concurrency=tenant.concurrency)


def worker_document(owner: LeaseOwner) -> WorkerDocument:
    return WorkerDocument(
        name=owner.name,
        leased=owner.leased,
        expired=owner.expired,
        seen_at=timestamp(owner.seen_at),
        until=timestamp(owner.until),
    )
