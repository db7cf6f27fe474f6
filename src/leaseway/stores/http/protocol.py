"""The worker protocol: one verb has one path, one request and one reply.

The client in this package and the routes of `api.worker_protocol` share this table. Requests and replies are domain
values as JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from leaseway.domain.budgets.balances import BudgetWindow, JournalEntry
from leaseway.domain.budgets.budget import BudgetDefinition, Crossed
from leaseway.domain.budgets.holds import LINES_MAX, Correction, Hold
from leaseway.domain.exchange import (
    CHILDREN_MAX,
    CLAIM_MAX,
    GATES_MAX,
    QUEUES_MAX,
    SETTLEMENTS_MAX,
    Exchange,
    ExchangeReply,
    Renewed,
    Wants,
)
from leaseway.domain.history.rows import NAMES_MAX, ROWS_MAX, HistoryCell, HistoryRow
from leaseway.domain.identity import Scope
from leaseway.domain.ids import Instant, JobId
from leaseway.domain.inspection import PAGE_MAX, CancelResult, JobFilter
from leaseway.domain.job import ErrorRecord, Job, Settlement, State, Submitted
from leaseway.domain.lane import LaneCount
from leaseway.domain.limits.buckets import Granted
from leaseway.domain.limits.learnt_use import ESTIMATES_MAX
from leaseway.domain.limits.limit import WINDOWS_MAX, LimitDefinition
from leaseway.domain.limits.validation import PERMIT_REQUESTS_MAX
from leaseway.domain.schedule import StoredSchedule
from leaseway.domain.submission import SUBMIT_MAX
from leaseway.domain.tenant import Tenant
from leaseway.domain.workers import KINDS_MAX, Heartbeat, HeartbeatReply, StoredWorker
from leaseway.ports.ledger import POST_MAX, Expired, HoldRequest, SettleHoldRequest
from leaseway.stores.http.messages import (
    AcquireReply,
    AcquireRequest,
    AuditReply,
    BalancesRequest,
    BookedForRequest,
    BookedRequest,
    BudgetWaitRequest,
    BulkRequest,
    ChangeBudgetRequest,
    ChangeLimitRequest,
    CheckpointRequest,
    CorrectHoldRequest,
    DeclareBudgetsRequest,
    DeclareLimitsRequest,
    DeclareSchedulesRequest,
    EmptyRequest,
    EndCallsRequest,
    ExpireHoldsRequest,
    FireRequest,
    HistoryRequest,
    HoldIdRequest,
    HoldReply,
    JobRequest,
    JobsRequest,
    JournalRequest,
    LanesRequest,
    LevelsReply,
    LevelsRequest,
    NameRequest,
    ObserveRequest,
    OpenLanesRequest,
    PauseScheduleRequest,
    PostReply,
    PostRequest,
    PruneRequest,
    RecordRequest,
    RenewCallsRequest,
    RenewRequest,
    ReportRequest,
    ReservedRequest,
    ReturnUnusedRequest,
    SetTenantRequest,
    SubmitRequest,
    TracesRequest,
    Value,
    WaitRequest,
    WorkerRequest,
    WorkersRequest,
)

A = TypeVar("A")
B = TypeVar("B")

PREFIX = "/v1/work"
WAIT_PATH = f"{PREFIX}/wait"
WAIT_SECONDS_MAX = 25.0
"""The longest wait for a notification. It is shorter than the timeout of common proxies."""


Port = Literal[
    "store.jobs", "store.operations", "store.reads", "store.schedules", "store.tenants", "store.workers",
    "store.history", "limiter", "limiter.definitions", "ledger", "ledger.definitions", "ledger.reads",
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
    bytes_max: int = 1024 * 1024
    """Of the body. One text of a job may have 256 KiB, and twice as much with escaped quotes."""

    @property
    def url(self) -> str:
        return PREFIX + self.path


REPORTS_MAX = 1_000
DECLARED_MAX = 1_000
CHARGES_MAX = 100
BATCH_BYTES_MAX = 16 * 1024 * 1024
"""Of bodies that carry many jobs or outcomes, which are one transaction."""

READ, WRITE, OPERATE = Scope.JOBS_READ, Scope.JOBS_WRITE, Scope.OPERATE

EXCHANGE = Verb("store.jobs", "exchange", "/exchange", Exchange, ExchangeReply, bytes_max=BATCH_BYTES_MAX)
RENEW = Verb("store.jobs", "renew", "/renew", RenewRequest, Renewed)
CHECKPOINT = Verb("store.jobs", "checkpoint", "/checkpoint", CheckpointRequest, Value[bool])
REPORT = Verb("store.jobs", "report", "/report", ReportRequest, EmptyRequest)
TRACES = Verb("store.jobs", "traces", "/traces", TracesRequest, Value[dict[JobId, str]])
WAIT_US = Verb("store.jobs", "wait_us", "/wait-time", WaitRequest, Value[int | None])
LANES = Verb("store.reads", "lanes", "/lanes", LanesRequest, Value[tuple[LaneCount, ...]])
OPEN_LANES = Verb("store.operations", "open_lanes", "/lanes/open", OpenLanesRequest, Value[int])
PRUNE = Verb("store.operations", "prune", "/prune", PruneRequest, Value[int])
DECLARE = Verb("store.schedules", "declare", "/schedules/declare", DeclareSchedulesRequest, EmptyRequest)
SCHEDULES = Verb("store.schedules", "all", "/schedules/list", EmptyRequest, Value[list[StoredSchedule]])
FIRE = Verb("store.schedules", "fire", "/schedules/fire", FireRequest, Value[bool], bytes_max=BATCH_BYTES_MAX)
PAUSE = Verb("store.schedules", "pause", "/schedules/pause", PauseScheduleRequest, Value[bool], OPERATE)
TENANTS = Verb("store.tenants", "all", "/tenants/list", EmptyRequest, Value[list[Tenant]])
SET_TENANT = Verb("store.tenants", "set", "/tenants/set", SetTenantRequest, EmptyRequest, OPERATE)
FORGET_TENANT = Verb("store.tenants", "forget", "/tenants/forget", NameRequest, Value[bool], OPERATE)
BEAT = Verb("store.workers", "beat", "/workers/beat", Heartbeat, HeartbeatReply)
LEAVE = Verb("store.workers", "leave", "/workers/leave", WorkerRequest, EmptyRequest)
WORKERS = Verb("store.workers", "all", "/workers/list", WorkersRequest, Value[list[StoredWorker]])
DRAIN = Verb("store.workers", "drain", "/workers/drain", WorkerRequest, Value[bool], OPERATE)
RECORD = Verb("store.history", "record", "/history/record", RecordRequest, EmptyRequest, bytes_max=4 * 1024 * 1024)
HISTORY = Verb("store.history", "rows", "/history/list", HistoryRequest, Value[list[HistoryRow]], READ)

SUBMIT = Verb("store.jobs", "submit", "/submit", SubmitRequest, Value[list[Submitted]], WRITE, BATCH_BYTES_MAX)
CANCEL = Verb("store.operations", "cancel", "/jobs/cancel", JobRequest, Value[CancelResult], WRITE)
RETRY = Verb("store.operations", "retry", "/jobs/retry", BulkRequest, Value[list[JobId]], WRITE)
RUN_NOW = Verb("store.operations", "run_now", "/jobs/run-now", BulkRequest, Value[list[JobId]], WRITE)
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
POST = Verb("ledger", "post", "/budgets/post", PostRequest, PostReply, bytes_max=BATCH_BYTES_MAX)
CORRECT = Verb("ledger", "correct", "/budgets/correct", CorrectHoldRequest, Value[tuple[Correction, ...]], OPERATE)
VOID = Verb("ledger", "void", "/budgets/void", HoldIdRequest, Value[bool])
EXPIRE = Verb("ledger", "expire", "/budgets/expire", ExpireHoldsRequest, Expired)
BUDGETS_WAIT_US = Verb("ledger.reads", "wait_us", "/budgets/wait-time", BudgetWaitRequest, Value[int])
PRUNE_BUDGETS = Verb("ledger", "prune", "/budgets/prune", PruneRequest, Value[int])
CHANGE_BUDGET = Verb("ledger.definitions", "change", "/budgets/change", ChangeBudgetRequest, Value[int], OPERATE)
FORGET_BUDGET = Verb("ledger.definitions", "forget", "/budgets/forget", NameRequest, Value[bool], OPERATE)
BALANCES = Verb("ledger.reads", "balances", "/budgets/balances", BalancesRequest, Value[list[BudgetWindow]], OPERATE)
JOURNAL = Verb("ledger.reads", "journal", "/budgets/journal", JournalRequest, Value[list[JournalEntry]], OPERATE)
RESERVED = Verb("ledger.reads", "reserved", "/budgets/reserved", ReservedRequest, Value[list[str]])
HOLDS = Verb("ledger.reads", "holds", "/budgets/holds", JournalRequest, Value[list[Hold]], OPERATE)
BOOKED = Verb("ledger.reads", "booked", "/budgets/booked", BookedRequest, Value[list[Hold]], OPERATE)
BOOKED_FOR = Verb("ledger.reads", "booked_for", "/budgets/booked-for", BookedForRequest, Value[list[Hold]], OPERATE)
AUDIT = Verb("ledger.reads", "audit", "/budgets/audit", EmptyRequest, AuditReply, OPERATE)

VERBS: Sequence[Verb[Any, Any]] = [verb for verb in list(globals().values()) if isinstance(verb, Verb)]

LIST_BOUNDS: Mapping[type, Mapping[str, int]] = {
    Exchange: {"settlements": SETTLEMENTS_MAX},
    Settlement: {"children": CHILDREN_MAX},
    Wants: {"queues": QUEUES_MAX, "admits": GATES_MAX, "closed": GATES_MAX},
    Heartbeat: {"queues": QUEUES_MAX, "kinds": KINDS_MAX, "estimates": ESTIMATES_MAX},
    RecordRequest: {"rows": ROWS_MAX},
    HistoryCell: {"counts": NAMES_MAX, "times": NAMES_MAX},
    WaitRequest: {"queues": QUEUES_MAX, "closed": GATES_MAX},
    RenewRequest: {"leases": SETTLEMENTS_MAX},
    TracesRequest: {"leases": CLAIM_MAX},
    ReportRequest: {"reports": REPORTS_MAX},
    SubmitRequest: {"jobs": SUBMIT_MAX},
    FireRequest: {"jobs": SUBMIT_MAX},
    JobFilter: {"ids": PAGE_MAX, "states": len(State)},
    Tenant: {"starts": WINDOWS_MAX},
    LimitDefinition: {"rates": WINDOWS_MAX},
    DeclareSchedulesRequest: {"schedules": DECLARED_MAX},
    DeclareLimitsRequest: {"definitions": DECLARED_MAX},
    DeclareBudgetsRequest: {"definitions": DECLARED_MAX},
    AcquireRequest: {"asks": PERMIT_REQUESTS_MAX},
    EndCallsRequest: {"asks": PERMIT_REQUESTS_MAX, "used": PERMIT_REQUESTS_MAX},
    RenewCallsRequest: {"asks": PERMIT_REQUESTS_MAX},
    LevelsRequest: {"asks": PERMIT_REQUESTS_MAX},
    Granted: dict.fromkeys(("asks", "generations", "circuits", "watched"), PERMIT_REQUESTS_MAX),
    HoldRequest: {"lines": LINES_MAX},
    SettleHoldRequest: {"actuals": LINES_MAX},
    PostRequest: {"holds": POST_MAX, "settlements": POST_MAX},
    CorrectHoldRequest: {"actuals": LINES_MAX},
    BudgetWaitRequest: {"charges": CHARGES_MAX},
    BalancesRequest: {"names": DECLARED_MAX},
}
"""The most items of every list in a request. Each of them bounds the time of one call."""
