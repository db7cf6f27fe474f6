"""The requests of the worker protocol. A call that takes one domain value has that value as its request."""

from msgspec import Struct

from leaseway.domain.budgets.budget import BudgetDefinition, Charge
from leaseway.domain.exchange import Gate, HeldLease, ProgressReport
from leaseway.domain.ids import Instant, JobId, Token
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import NewJob
from leaseway.domain.limits.buckets import Granted, Notice
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest
from leaseway.domain.schedule import Schedule
from leaseway.domain.tenant import Tenant


class EmptyRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A request or a reply without fields."""


# -- jobs -----------------------------------------------------------------------------------------------------------


class SubmitRequest(Struct, frozen=True, forbid_unknown_fields=True):
    jobs: tuple[NewJob, ...]


class RenewRequest(Struct, frozen=True, forbid_unknown_fields=True):
    leases: tuple[HeldLease, ...]


class TracesRequest(Struct, frozen=True, forbid_unknown_fields=True):
    leases: tuple[HeldLease, ...]


class CheckpointRequest(Struct, frozen=True, forbid_unknown_fields=True):
    job: JobId
    token: Token
    cursor: str


class ReportRequest(Struct, frozen=True, forbid_unknown_fields=True):
    reports: tuple[ProgressReport, ...]


class WaitRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """How long an exchange for these queues would have to wait for a job."""

    queues: tuple[str, ...]
    closed: tuple[Gate, ...] = ()


class JobRequest(Struct, frozen=True, forbid_unknown_fields=True):
    job: JobId


class BulkRequest(Struct, frozen=True, forbid_unknown_fields=True):
    limit: int
    which: JobFilter = JobFilter()


class JobsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    which: JobFilter = JobFilter()
    before: JobId | None = None
    limit: int = 50


class PruneRequest(Struct, frozen=True, forbid_unknown_fields=True):
    keep_us: int
    limit: int


# -- schedules and tenants ------------------------------------------------------------------------------------------


class DeclareSchedulesRequest(Struct, frozen=True, forbid_unknown_fields=True):
    schedules: tuple[Schedule, ...]


class FireRequest(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    seen: Instant
    upto: Instant
    jobs: tuple[NewJob, ...]


class PauseScheduleRequest(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    paused: bool


class SetTenantRequest(Struct, frozen=True, forbid_unknown_fields=True):
    tenant: Tenant


class NameRequest(Struct, frozen=True, forbid_unknown_fields=True):
    name: str


# -- limits ---------------------------------------------------------------------------------------------------------


class DeclareLimitsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    definitions: tuple[LimitDefinition, ...]


class ChangeLimitRequest(Struct, frozen=True, forbid_unknown_fields=True):
    definition: LimitDefinition
    expected: int | None = None


class AcquireRequest(Struct, frozen=True, forbid_unknown_fields=True):
    asks: tuple[PermitRequest, ...]
    least: int = 1
    most: int = 1
    holder: str = ""
    in_flight_us: int = 0


class ReturnUnusedRequest(Struct, frozen=True, forbid_unknown_fields=True):
    granted: Granted
    unused: int


class EndCallsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    asks: tuple[PermitRequest, ...]
    holder: str
    count: int


class RenewCallsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    asks: tuple[PermitRequest, ...]
    holder: str
    count: int
    in_flight_us: int


class ObserveRequest(Struct, frozen=True, forbid_unknown_fields=True):
    notice: Notice


class LevelsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    asks: tuple[PermitRequest, ...]


# -- budgets --------------------------------------------------------------------------------------------------------


class DeclareBudgetsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    definitions: tuple[BudgetDefinition, ...]


class ChangeBudgetRequest(Struct, frozen=True, forbid_unknown_fields=True):
    definition: BudgetDefinition
    expected: int | None = None


class HoldRequest(Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    lines: tuple[tuple[Charge, int], ...]
    ttl_us: int
    owner: str = ""
    dispatch: bool = False


class HoldIdRequest(Struct, frozen=True, forbid_unknown_fields=True):
    id: str


class SettleHoldRequest(Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    actuals: dict[str, int]


class ExpireHoldsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    limit: int


class BudgetWaitRequest(Struct, frozen=True, forbid_unknown_fields=True):
    charges: tuple[Charge, ...]


class BalancesRequest(Struct, frozen=True, forbid_unknown_fields=True):
    names: tuple[str, ...] | None = None
    since: Instant | None = None


class JournalRequest(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    limit: int = 100
