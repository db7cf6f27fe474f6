"""The requests and replies of the worker protocol.

A call that takes one domain value has that value as its request. A reply that is not an object is wrapped in one, as
`value`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from leaseway.domain.budgets import budget
from leaseway.domain.budgets.balances import Audit, Evidence, Sums
from leaseway.domain.budgets.budget import BudgetDefinition, Charge, Crossed, HoldAnswer
from leaseway.domain.budgets.calendar_windows import CalendarWindow
from leaseway.domain.budgets.rebooking import FIRST_BOOKED, BookedPlace
from leaseway.domain.errors import StoreRefused
from leaseway.domain.exchange import Gate, HeldLease, ProgressReport
from leaseway.domain.history.rows import HISTORY_PAGE, HistoryLevel, HistoryRow
from leaseway.domain.ids import Instant, JobId, Token, WorkerId
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import NewJob
from leaseway.domain.limits import buckets
from leaseway.domain.limits.buckets import Granted, Never, Notice, Verdict, Wait
from leaseway.domain.limits.level import Level
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest
from leaseway.domain.schedule import Schedule
from leaseway.domain.tenant import Tenant
from leaseway.ports.ledger import HoldRequest, Posted, SettleHoldRequest


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


class LanesRequest(Struct, frozen=True, forbid_unknown_fields=True):
    tenant: str | None = None
    """None: those of all tenants that the credential may see."""


class OpenLanesRequest(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    """Of a limit or a budget."""
    limit: int
    tenant: str | None = None
    """None: the lanes of all tenants that the credential may see."""


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


class WorkersRequest(Struct, frozen=True, forbid_unknown_fields=True):
    tenant: str | None = None


class WorkerRequest(Struct, frozen=True, forbid_unknown_fields=True):
    worker: WorkerId


class RecordRequest(Struct, frozen=True, forbid_unknown_fields=True):
    rows: tuple[HistoryRow, ...]


class HistoryRequest(Struct, frozen=True, forbid_unknown_fields=True):
    level: HistoryLevel
    since: Instant
    until: Instant
    tenant: str | None = None
    limit: int = HISTORY_PAGE
    after: str = ""


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
    used: tuple[int, ...] = ()


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


class HoldIdRequest(Struct, frozen=True, forbid_unknown_fields=True):
    id: str


class PostRequest(Struct, frozen=True, forbid_unknown_fields=True):
    holds: tuple[HoldRequest, ...] = ()
    settlements: tuple[SettleHoldRequest, ...] = ()


class CorrectHoldRequest(Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    actuals: dict[str, int]
    evidence: Evidence


class ReservedRequest(Struct, frozen=True, forbid_unknown_fields=True):
    prefix: str


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


class BookedRequest(Struct, frozen=True, forbid_unknown_fields=True):
    budget: str
    after: BookedPlace = FIRST_BOOKED
    limit: int = 100


class BookedForRequest(Struct, frozen=True, forbid_unknown_fields=True):
    prefix: str
    limit: int = 100


# -- replies -----------------------------------------------------------------------------------------------------------


T = TypeVar("T")


class Value(Struct, Generic[T], frozen=True):
    """A reply that is not an object, wrapped in one."""

    value: T


class AcquireReply(Struct, frozen=True, omit_defaults=True):
    """Exactly one field is set."""

    granted: Granted | None = None
    wait: Wait | None = None
    never: Never | None = None

    @classmethod
    def of(cls, verdict: Verdict) -> "AcquireReply":
        match verdict:
            case buckets.Granted():
                return cls(granted=verdict)
            case buckets.Wait():
                return cls(wait=verdict)
            case buckets.Never():
                return cls(never=verdict)

    @property
    def verdict(self) -> Verdict:
        verdict: Verdict = first_present(self.granted, self.wait, self.never)
        return verdict


class LevelsReply(Struct, frozen=True):
    now: Instant
    levels: tuple[Level, ...]

    @classmethod
    def of(cls, seen: tuple[Instant, Sequence[Level]]) -> "LevelsReply":
        return cls(seen[0], tuple(seen[1]))


class HoldReply(Struct, frozen=True, omit_defaults=True):
    """Exactly one field is set; none in the reply to a batch: make the request by itself."""

    held: budget.HoldGranted | None = None
    booked: budget.HoldBooked | None = None
    denied: budget.HoldDenied | None = None
    used: budget.HoldUsed | None = None

    @classmethod
    def of(cls, answer: HoldAnswer) -> "HoldReply":
        match answer:
            case budget.HoldGranted():
                return cls(held=answer)
            case budget.HoldBooked():
                return cls(booked=answer)
            case budget.HoldDenied():
                return cls(denied=answer)
            case budget.HoldUsed():
                return cls(used=answer)

    @property
    def value(self) -> HoldAnswer:
        value: HoldAnswer = first_present(self.held, self.booked, self.denied, self.used)
        return value


class PostReply(Struct, frozen=True):
    holds: tuple[HoldReply, ...]
    settlements: tuple[Crossed | None, ...]

    @classmethod
    def of(cls, posted: Posted) -> "PostReply":
        return cls(
            tuple(NO_ANSWER if each is None else HoldReply.of(each) for each in posted.holds), posted.settlements
        )

    @property
    def posted(self) -> Posted:
        return Posted(tuple(None if each == NO_ANSWER else each.value for each in self.holds), self.settlements)


NO_ANSWER = HoldReply()


SumRows = tuple[tuple[str, CalendarWindow, Sums], ...]


class AuditReply(Struct, frozen=True):
    """The sums of an audit as lists, because keys of JSON objects are strings."""

    balances: SumRows
    journal: SumRows
    holds: SumRows
    unbalanced: tuple[tuple[str, CalendarWindow], ...] = ()

    @classmethod
    def of(cls, audit: Audit) -> "AuditReply":
        return cls(sum_rows(audit.balances), sum_rows(audit.journal), sum_rows(audit.holds), audit.unbalanced)

    @property
    def audit(self) -> Audit:
        balances, journal, holds = (
            {(name, window): each for name, window, each in side} for side in (self.balances, self.journal, self.holds)
        )
        return Audit(balances, journal, holds, self.unbalanced)


def sum_rows(sums: Mapping[tuple[str, CalendarWindow], Sums]) -> SumRows:
    return tuple((name, window, each) for (name, window), each in sums.items())


def first_present(*said: Any) -> Any:
    """Return the one value that is set. `StoreRefused`: the service runs another version."""
    found = [each for each in said if each is not None]
    if len(found) != 1:
        raise StoreRefused(
            "the service sent a reply that this version of leaseway does not know; install the same version"
        )
    return found[0]
