"""The bodies of calls. Where a call takes one value of the domain, that is its body."""

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


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """A body, or an answer, that says nothing."""


# -- jobs -----------------------------------------------------------------------------------------------------------


class Submit(Struct, frozen=True, forbid_unknown_fields=True):
    jobs: tuple[NewJob, ...]


class Renew(Struct, frozen=True, forbid_unknown_fields=True):
    leases: tuple[HeldLease, ...]


class Origins(Struct, frozen=True, forbid_unknown_fields=True):
    leases: tuple[HeldLease, ...]


class Checkpoint(Struct, frozen=True, forbid_unknown_fields=True):
    job: JobId
    token: Token
    cursor: str


class Reports(Struct, frozen=True, forbid_unknown_fields=True):
    reports: tuple[ProgressReport, ...]


class Look(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether an exchange for these queues may find something."""

    queues: tuple[str, ...]
    closed: tuple[Gate, ...] = ()


class OneJob(Struct, frozen=True, forbid_unknown_fields=True):
    job: JobId


class SomeJobs(Struct, frozen=True, forbid_unknown_fields=True):
    limit: int
    which: JobFilter = JobFilter()


class Page(Struct, frozen=True, forbid_unknown_fields=True):
    which: JobFilter = JobFilter()
    before: JobId | None = None
    limit: int = 50


class Old(Struct, frozen=True, forbid_unknown_fields=True):
    keep_us: int
    limit: int


# -- schedules and tenants ------------------------------------------------------------------------------------------


class Schedules(Struct, frozen=True, forbid_unknown_fields=True):
    schedules: tuple[Schedule, ...]


class Fire(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    seen: Instant
    upto: Instant
    jobs: tuple[NewJob, ...]


class Pause(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    paused: bool


class Agreed(Struct, frozen=True, forbid_unknown_fields=True):
    tenant: Tenant


class Named(Struct, frozen=True, forbid_unknown_fields=True):
    name: str


# -- limits ---------------------------------------------------------------------------------------------------------


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    definitions: tuple[LimitDefinition, ...]


class OneLimit(Struct, frozen=True, forbid_unknown_fields=True):
    definition: LimitDefinition
    expected: int | None = None


class Take(Struct, frozen=True, forbid_unknown_fields=True):
    asks: tuple[PermitRequest, ...]
    least: int = 1
    most: int = 1
    holder: str = ""
    in_flight_us: int = 0


class GiveBack(Struct, frozen=True, forbid_unknown_fields=True):
    granted: Granted
    unused: int


class Vacate(Struct, frozen=True, forbid_unknown_fields=True):
    asks: tuple[PermitRequest, ...]
    holder: str
    count: int


class Keep(Struct, frozen=True, forbid_unknown_fields=True):
    asks: tuple[PermitRequest, ...]
    holder: str
    count: int
    in_flight_us: int


class Tell(Struct, frozen=True, forbid_unknown_fields=True):
    notice: Notice


class Asks(Struct, frozen=True, forbid_unknown_fields=True):
    asks: tuple[PermitRequest, ...]


# -- budgets --------------------------------------------------------------------------------------------------------


class Budgets(Struct, frozen=True, forbid_unknown_fields=True):
    definitions: tuple[BudgetDefinition, ...]


class OneBudget(Struct, frozen=True, forbid_unknown_fields=True):
    definition: BudgetDefinition
    expected: int | None = None


class Hold(Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    lines: tuple[tuple[Charge, int], ...]
    ttl_us: int
    owner: str = ""
    dispatch: bool = False


class OneHold(Struct, frozen=True, forbid_unknown_fields=True):
    id: str


class Settle(Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    actuals: dict[str, int]


class Most(Struct, frozen=True, forbid_unknown_fields=True):
    limit: int


class Charges(Struct, frozen=True, forbid_unknown_fields=True):
    charges: tuple[Charge, ...]


class Books(Struct, frozen=True, forbid_unknown_fields=True):
    names: tuple[str, ...] | None = None
    since: Instant | None = None


class Journal(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    limit: int = 100
