"""The worker protocol: one verb has one path, one request and one reply.

The client in this package and the routes of `api.worker_protocol` share this table. Requests and replies are domain
values as JSON.
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
from leaseway.stores.http.responses import AcquireReply, AuditReply, HoldReply, LevelsReply, Value

A = TypeVar("A")
B = TypeVar("B")

PREFIX = "/v1/work"
WAIT_PATH = f"{PREFIX}/wait"
WAIT_SECONDS_MAX = 25.0
"""The longest wait for a notification. It is shorter than the timeout of common proxies."""


Port = Literal[
    "store.jobs", "store.operations", "store.reads", "store.schedules", "store.tenants",
    "limiter", "limiter.definitions", "ledger", "ledger.definitions", "ledger.reads",
]  # fmt: skip


class Verb(NamedTuple, Generic[B, A]):
    port: Port
    """The attribute of the worker's environment, for example `store.jobs`."""
    method: str
    path: str
    """Relative to `PREFIX`."""
    body: type[B]
    reply: type[A]
    scope: Scope = Scope.WORK

    @property
    def url(self) -> str:
        return PREFIX + self.path


READ, WRITE, OPERATE = Scope.JOBS_READ, Scope.JOBS_WRITE, Scope.OPERATE

EXCHANGE = Verb("store.jobs", "exchange", "/exchange", Exchange, ExchangeReply)
RENEW = Verb("store.jobs", "renew", "/renew", RenewRequest, Renewed)
CHECKPOINT = Verb("store.jobs", "checkpoint", "/checkpoint", CheckpointRequest, Value[bool])
REPORT = Verb("store.jobs", "report", "/report", ReportRequest, EmptyRequest)
TRACES = Verb("store.jobs", "traces", "/traces", TracesRequest, Value[dict[JobId, str]])
WAIT_US = Verb("store.jobs", "wait_us", "/wait-time", WaitRequest, Value[int | None])
LANES = Verb("store.reads", "lanes", "/lanes", EmptyRequest, Value[tuple[LaneCount, ...]])
PRUNE = Verb("store.operations", "prune", "/prune", PruneRequest, Value[int])
DECLARE = Verb("store.schedules", "declare", "/schedules/declare", DeclareSchedulesRequest, EmptyRequest)
SCHEDULES = Verb("store.schedules", "all", "/schedules/list", EmptyRequest, Value[list[StoredSchedule]])
FIRE = Verb("store.schedules", "fire", "/schedules/fire", FireRequest, Value[bool])
PAUSE = Verb("store.schedules", "pause", "/schedules/pause", PauseScheduleRequest, Value[bool], OPERATE)
TENANTS = Verb("store.tenants", "all", "/tenants/list", EmptyRequest, Value[list[Tenant]])
SET_TENANT = Verb("store.tenants", "set", "/tenants/set", SetTenantRequest, EmptyRequest, OPERATE)
FORGET_TENANT = Verb("store.tenants", "forget", "/tenants/forget", NameRequest, Value[bool], OPERATE)

SUBMIT = Verb("store.jobs", "submit", "/submit", SubmitRequest, Value[list[Submitted]], WRITE)
CANCEL = Verb("store.operations", "cancel", "/jobs/cancel", JobRequest, Value[CancelResult], WRITE)
RETRY = Verb("store.operations", "retry", "/jobs/retry", BulkRequest, Value[list[JobId]], WRITE)
DISCARD = Verb("store.operations", "discard", "/jobs/discard", BulkRequest, Value[list[JobId]], WRITE)
JOB = Verb("store.reads", "job", "/jobs/show", JobRequest, Value[Job | None], READ)
JOBS = Verb("store.reads", "jobs", "/jobs/list", JobsRequest, Value[list[Job]], READ)
ERRORS = Verb("store.reads", "errors", "/jobs/errors", JobRequest, Value[list[ErrorRecord]], READ)
NOW = Verb("store.reads", "now", "/now", EmptyRequest, Value[Instant], READ)

DECLARE_LIMITS = Verb("limiter.definitions", "declare", "/limits/declare", DeclareLimitsRequest, EmptyRequest)
LIMITS = Verb("limiter.definitions", "all", "/limits/list", EmptyRequest, Value[list[tuple[LimitDefinition, int]]])
ACQUIRE = Verb("limiter", "acquire", "/limits/acquire", AcquireRequest, AcquireReply)
RETURN_UNUSED = Verb("limiter", "return_unused", "/limits/return", ReturnUnusedRequest, EmptyRequest)
END_CALLS = Verb("limiter", "end_calls", "/limits/end-calls", EndCallsRequest, EmptyRequest)
RENEW_CALLS = Verb("limiter", "renew_calls", "/limits/renew-calls", RenewCallsRequest, EmptyRequest)
OBSERVE = Verb("limiter", "observe", "/limits/observe", ObserveRequest, EmptyRequest)
LEVELS = Verb("limiter", "levels", "/limits/levels", LevelsRequest, LevelsReply)
CHANGE_LIMIT = Verb("limiter.definitions", "change", "/limits/change", ChangeLimitRequest, Value[int], OPERATE)
FORGET_LIMIT = Verb("limiter.definitions", "forget", "/limits/forget", NameRequest, Value[bool], OPERATE)

DECLARE_BUDGETS = Verb("ledger.definitions", "declare", "/budgets/declare", DeclareBudgetsRequest, EmptyRequest)
BUDGETS = Verb("ledger.definitions", "all", "/budgets/list", EmptyRequest, Value[list[tuple[BudgetDefinition, int]]])
HOLD = Verb("ledger", "hold", "/budgets/hold", HoldRequest, HoldReply)
DISPATCH = Verb("ledger", "dispatch", "/budgets/dispatch", HoldIdRequest, Value[bool])
SETTLE = Verb("ledger", "settle", "/budgets/settle", SettleHoldRequest, Value[Crossed])
VOID = Verb("ledger", "void", "/budgets/void", HoldIdRequest, Value[bool])
EXPIRE = Verb("ledger", "expire", "/budgets/expire", ExpireHoldsRequest, Expired)
BUDGETS_WAIT_US = Verb("ledger", "wait_us", "/budgets/wait-time", BudgetWaitRequest, Value[int])
PRUNE_BUDGETS = Verb("ledger", "prune", "/budgets/prune", PruneRequest, Value[int])
CHANGE_BUDGET = Verb("ledger.definitions", "change", "/budgets/change", ChangeBudgetRequest, Value[int], OPERATE)
FORGET_BUDGET = Verb("ledger.definitions", "forget", "/budgets/forget", NameRequest, Value[bool], OPERATE)
BALANCES = Verb("ledger.reads", "balances", "/budgets/balances", BalancesRequest, Value[list[BudgetWindow]], OPERATE)
JOURNAL = Verb("ledger.reads", "journal", "/budgets/journal", JournalRequest, Value[list[JournalEntry]], OPERATE)
AUDIT = Verb("ledger.reads", "audit", "/budgets/audit", EmptyRequest, AuditReply, OPERATE)

VERBS: Sequence[Verb[Any, Any]] = [verb for verb in list(globals().values()) if isinstance(verb, Verb)]
