"""One verb, one path, one body, one answer: what the client here and the routes of `api.worker_protocol` agree on.

Bodies and answers are the domain's own values as JSON, under their own names.
"""

from collections.abc import Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from leaseway.domain.budgets.balances import BudgetWindow, JournalEntry
from leaseway.domain.budgets.budget import BudgetDefinition, Crossed
from leaseway.domain.exchange import Exchange, ExchangeReply, Renewed
from leaseway.domain.identity import Scope
from leaseway.domain.ids import Instant, JobId
from leaseway.domain.inspection import CancelResult
from leaseway.domain.job import ErrorRecord, Job, Submitted
from leaseway.domain.lane import LaneCount
from leaseway.domain.limits.limit import LimitDefinition
from leaseway.domain.schedule import StoredSchedule
from leaseway.domain.tenant import Tenant
from leaseway.ports.ledger import Expired
from leaseway.stores.http.requests import (
    AcquireRequest,
    BalancesRequest,
    BudgetWaitRequest,
    BulkRequest,
    ChangeBudgetRequest,
    ChangeLimitRequest,
    CheckpointRequest,
    DeclareBudgetsRequest,
    DeclareLimitsRequest,
    DeclareSchedulesRequest,
    EmptyRequest,
    EndCallsRequest,
    ExpireHoldsRequest,
    FireRequest,
    HoldIdRequest,
    HoldRequest,
    JobRequest,
    JobsRequest,
    JournalRequest,
    LevelsRequest,
    NameRequest,
    ObserveRequest,
    PauseScheduleRequest,
    PruneRequest,
    RenewCallsRequest,
    RenewRequest,
    ReportRequest,
    ReturnUnusedRequest,
    SetTenantRequest,
    SettleHoldRequest,
    SubmitRequest,
    TracesRequest,
    WaitRequest,
)
from leaseway.stores.http.responses import AcquireReply, Answer, AuditReply, HoldReply, LevelsReply

A = TypeVar("A")
B = TypeVar("B")

PREFIX = "/v1/work"
WAIT_PATH = f"{PREFIX}/wait"
WAIT_SECONDS_MAX = 25.0
"""So long a service keeps one waiting for a hint: shorter than what proxies bear."""


Port = Literal[
    "store.jobs", "store.operations", "store.reads", "store.schedules", "store.tenants",
    "limiter", "limiter.definitions", "ledger", "ledger.definitions", "ledger.reads",
]  # fmt: skip


class Verb(NamedTuple, Generic[B, A]):
    port: Port
    """Of a worker's environment: `store.jobs` is its store's port of that name."""
    method: str
    path: str
    """Below `PREFIX`."""
    body: type[B]
    answer: type[A]
    scope: Scope = Scope.WORK

    @property
    def url(self) -> str:
        return PREFIX + self.path


READ, WRITE, OPERATE = Scope.JOBS_READ, Scope.JOBS_WRITE, Scope.OPERATE

EXCHANGE = Verb("store.jobs", "exchange", "/exchange", Exchange, ExchangeReply)
RENEW = Verb("store.jobs", "renew", "/renew", RenewRequest, Renewed)
CHECKPOINT = Verb("store.jobs", "checkpoint", "/checkpoint", CheckpointRequest, Answer[bool])
REPORT = Verb("store.jobs", "report", "/report", ReportRequest, EmptyRequest)
TRACES = Verb("store.jobs", "traces", "/traces", TracesRequest, Answer[dict[JobId, str]])
WAIT_US = Verb("store.jobs", "wait_us", "/look", WaitRequest, Answer[int | None])
LANES = Verb("store.reads", "lanes", "/lanes", EmptyRequest, Answer[tuple[LaneCount, ...]])
PRUNE = Verb("store.operations", "prune", "/prune", PruneRequest, Answer[int])
DECLARE = Verb("store.schedules", "declare", "/schedules/declare", DeclareSchedulesRequest, EmptyRequest)
SCHEDULES = Verb("store.schedules", "all", "/schedules/list", EmptyRequest, Answer[list[StoredSchedule]])
FIRE = Verb("store.schedules", "fire", "/schedules/fire", FireRequest, Answer[bool])
PAUSE = Verb("store.schedules", "pause", "/schedules/pause", PauseScheduleRequest, Answer[bool], OPERATE)
TENANTS = Verb("store.tenants", "all", "/tenants/list", EmptyRequest, Answer[list[Tenant]])
SET_TENANT = Verb("store.tenants", "set", "/tenants/set", SetTenantRequest, EmptyRequest, OPERATE)
FORGET_TENANT = Verb("store.tenants", "forget", "/tenants/forget", NameRequest, Answer[bool], OPERATE)

SUBMIT = Verb("store.jobs", "submit", "/submit", SubmitRequest, Answer[list[Submitted]], WRITE)
CANCEL = Verb("store.operations", "cancel", "/jobs/cancel", JobRequest, Answer[CancelResult], WRITE)
REPLAY = Verb("store.operations", "retry", "/jobs/replay", BulkRequest, Answer[list[JobId]], WRITE)
DISCARD = Verb("store.operations", "discard", "/jobs/discard", BulkRequest, Answer[list[JobId]], WRITE)
JOB = Verb("store.reads", "job", "/jobs/show", JobRequest, Answer[Job | None], READ)
JOBS = Verb("store.reads", "jobs", "/jobs/list", JobsRequest, Answer[list[Job]], READ)
ERRORS = Verb("store.reads", "errors", "/jobs/errors", JobRequest, Answer[list[ErrorRecord]], READ)
NOW = Verb("store.reads", "now", "/now", EmptyRequest, Answer[Instant], READ)

DECLARE_LIMITS = Verb("limiter.definitions", "declare", "/limits/declare", DeclareLimitsRequest, EmptyRequest)
LIMITS = Verb("limiter.definitions", "all", "/limits/list", EmptyRequest, Answer[list[tuple[LimitDefinition, int]]])
TAKE = Verb("limiter", "acquire", "/limits/take", AcquireRequest, AcquireReply)
GIVE_BACK = Verb("limiter", "return_unused", "/limits/give-back", ReturnUnusedRequest, EmptyRequest)
VACATE = Verb("limiter", "end_calls", "/limits/vacate", EndCallsRequest, EmptyRequest)
KEEP = Verb("limiter", "renew_calls", "/limits/keep", RenewCallsRequest, EmptyRequest)
TELL = Verb("limiter", "observe", "/limits/tell", ObserveRequest, EmptyRequest)
LEVELS = Verb("limiter", "levels", "/limits/look", LevelsRequest, LevelsReply)
CHANGE_LIMIT = Verb("limiter.definitions", "change", "/limits/change", ChangeLimitRequest, Answer[int], OPERATE)
FORGET_LIMIT = Verb("limiter.definitions", "forget", "/limits/forget", NameRequest, Answer[bool], OPERATE)

DECLARE_BUDGETS = Verb("ledger.definitions", "declare", "/budgets/declare", DeclareBudgetsRequest, EmptyRequest)
BUDGETS = Verb("ledger.definitions", "all", "/budgets/list", EmptyRequest, Answer[list[tuple[BudgetDefinition, int]]])
HOLD = Verb("ledger", "hold", "/budgets/hold", HoldRequest, HoldReply)
DISPATCH = Verb("ledger", "dispatch", "/budgets/dispatch", HoldIdRequest, Answer[bool])
SETTLE = Verb("ledger", "settle", "/budgets/settle", SettleHoldRequest, Answer[Crossed])
VOID = Verb("ledger", "void", "/budgets/void", HoldIdRequest, Answer[bool])
EXPIRE = Verb("ledger", "expire", "/budgets/expire", ExpireHoldsRequest, Expired)
BUDGETS_WAIT_US = Verb("ledger", "wait_us", "/budgets/look", BudgetWaitRequest, Answer[int])
PRUNE_BUDGETS = Verb("ledger", "prune", "/budgets/prune", PruneRequest, Answer[int])
CHANGE_BUDGET = Verb("ledger.definitions", "change", "/budgets/change", ChangeBudgetRequest, Answer[int], OPERATE)
FORGET_BUDGET = Verb("ledger.definitions", "forget", "/budgets/forget", NameRequest, Answer[bool], OPERATE)
BOOKS = Verb("ledger.reads", "balances", "/budgets/books", BalancesRequest, Answer[list[BudgetWindow]], OPERATE)
JOURNAL = Verb("ledger.reads", "journal", "/budgets/journal", JournalRequest, Answer[list[JournalEntry]], OPERATE)
AUDIT = Verb("ledger.reads", "audit", "/budgets/audit", EmptyRequest, AuditReply, OPERATE)

VERBS: Sequence[Verb[Any, Any]] = [verb for verb in list(globals().values()) if isinstance(verb, Verb)]
