"""Schedules, tenants, workers, health and metrics."""

from msgspec import UNSET, UnsetType

from leaseway.api.schemas.budgets import BudgetWindowDocument
from leaseway.api.schemas.limits import LimitNowDocument
from leaseway.api.schemas.values import Document, Timestamp, timestamp
from leaseway.domain.history.rows import (
    CANCELLED,
    DEAD,
    DONE,
    FAILED,
    READY,
    RELEASED,
    RUN,
    SCHEDULED,
    STARTED,
    HistoryCell,
    percentile_us,
)
from leaseway.domain.history.timeline import HistoryPoint, KindHistory, Timeline
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.quota import Quota, Quotas, TenantUse
from leaseway.domain.schedule import Missed, StoredSchedule
from leaseway.domain.tenant import Tenant
from leaseway.domain.workers import WorkerState, WorkerView


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
    quotas: Quotas
    """The quotas that were set. Null: unlimited; the others have the defaults of the service: see /v1/quotas."""


class QuotaUseDocument(Document, kw_only=True):
    quota: Quota
    used: int
    limit: int | None
    """Null: unlimited."""


class TenantQuotasDocument(Document, kw_only=True):
    """What a tenant may keep in the store, and what it keeps now."""

    tenant: str
    quotas: list[QuotaUseDocument]


class WorkerDocument(Document, kw_only=True):
    """A worker, by its last heartbeat, with the leases that it holds."""

    name: str
    state: WorkerState
    """lost: silent for more than 15 seconds"""
    host: str
    pid: int
    version: str
    """Empty if the worker has not reported itself."""
    tenant: str | None
    """The worker runs only the jobs of this tenant; null: those of all tenants."""
    queues: list[str]
    kinds: list[str]
    slots: int
    used: int
    """Slots in use at the last heartbeat."""
    since: Timestamp | None
    leased: int
    expired: int
    """Leases that have expired and have not been reclaimed yet."""
    seen_at: Timestamp | None
    """The last heartbeat."""
    until: Timestamp | None
    """When the first of its leases expires, unless it is renewed; null: it holds none."""


class TimesDocument(Document, kw_only=True):
    """Percentiles in seconds, right within a tenth. Null: no attempt ran."""

    p50: float | None
    p95: float | None
    p99: float | None


class HistoryPointDocument(Document, kw_only=True):
    at: Timestamp | None
    """The beginning of the step."""
    started: int
    done: int
    failed: int
    """Attempts that failed."""
    dead: int
    """Jobs that ended as failed."""
    cancelled: int
    released: int
    """Attempts whose job runs again, after a failure or for another reason."""


class BacklogPointDocument(Document, kw_only=True):
    at: Timestamp | None
    ready: float
    """The mean of the samples, one per minute."""
    scheduled: float


class KindHistoryDocument(Document, kw_only=True):
    tenant: str
    queue: str
    kind: str
    started: int
    done: int
    failed: int
    dead: int
    cancelled: int
    released: int
    failed_share: float
    """The share of attempts that failed."""
    run_seconds: TimesDocument
    points: list[HistoryPointDocument]


class HistoryDocument(Document, kw_only=True):
    """What happened in a range of time. Steps without an attempt have no point."""

    since: Timestamp | None
    until: Timestamp | None
    step_seconds: int
    points: list[HistoryPointDocument]
    """Of all kinds together."""
    backlog: list[BacklogPointDocument]
    kinds: list[KindHistoryDocument]
    """Those with the most attempts first, at most 200."""


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
    """Running, idle or draining."""
    lost: int
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
    return TenantDocument(
        name=tenant.name, weight=tenant.weight, starts=starts, concurrency=tenant.concurrency, quotas=tenant.quotas
    )


def quotas_document(tenant: str, quotas: Quotas, use: TenantUse) -> TenantQuotasDocument:
    rows = [QuotaUseDocument(quota=each, used=getattr(use, each.value), limit=quotas.limit(each)) for each in Quota]
    return TenantQuotasDocument(tenant=tenant, quotas=rows)


def worker_document(view: WorkerView) -> WorkerDocument:
    worker, state, owner = view
    beat = worker.beat
    return WorkerDocument(
        name=worker.name, state=state, host=beat.host, pid=beat.pid, version=beat.version, tenant=beat.tenant,
        queues=list(beat.queues), kinds=list(beat.kinds), slots=beat.slots, used=beat.used,
        since=timestamp(worker.since), seen_at=timestamp(worker.seen_at),
        leased=0 if owner is None else owner.leased, expired=0 if owner is None else owner.expired,
        until=None if owner is None else timestamp(owner.until),
    )  # fmt: skip


def history_document(timeline: Timeline) -> HistoryDocument:
    span = timeline.range
    return HistoryDocument(
        since=timestamp(span.since), until=timestamp(span.until), step_seconds=span.step_us // SECOND_US,
        points=[point_document(point) for point in timeline.points],
        backlog=[backlog_document(point) for point in timeline.backlog],
        kinds=[kind_history_document(kind) for kind in timeline.kinds],
    )  # fmt: skip


def work_counts(cell: HistoryCell) -> dict[str, int]:
    return {name: cell.counts.get(name, 0) for name in (STARTED, DONE, FAILED, DEAD, CANCELLED, RELEASED)}


def point_document(point: HistoryPoint) -> HistoryPointDocument:
    return HistoryPointDocument(at=timestamp(point.at), **work_counts(point.cell))


def backlog_document(point: HistoryPoint) -> BacklogPointDocument:
    counts = point.cell.counts
    # Queues are sampled at the same time: all samples of a minute are one.
    return BacklogPointDocument(
        at=timestamp(point.at), ready=counts.get(READY, 0) / point.samples,
        scheduled=counts.get(SCHEDULED, 0) / point.samples,
    )  # fmt: skip


def kind_history_document(kind: KindHistory) -> KindHistoryDocument:
    run = kind.total.times.get(RUN, {})
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    found = {name: percentile_us(run, share) for name, share in shares.items()}
    times = {name: None if us is None else round(us / SECOND_US, 6) for name, us in found.items()}
    return KindHistoryDocument(
        tenant=kind.key.tenant, queue=kind.key.queue, kind=kind.key.kind, **work_counts(kind.total),
        failed_share=round(kind.failed_share, 6), run_seconds=TimesDocument(**times),
        points=[point_document(point) for point in kind.points],
    )  # fmt: skip
