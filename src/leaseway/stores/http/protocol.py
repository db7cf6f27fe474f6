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
    Agreed,
    Asks,
    Books,
    Budgets,
    Charges,
    Checkpoint,
    Fire,
    GiveBack,
    Hold,
    Journal,
    Keep,
    Limits,
    Look,
    Most,
    Named,
    Nothing,
    Old,
    OneBudget,
    OneHold,
    OneJob,
    OneLimit,
    Origins,
    Page,
    Pause,
    Renew,
    Reports,
    Schedules,
    Settle,
    SomeJobs,
    Submit,
    Take,
    Tell,
    Vacate,
)
from leaseway.stores.http.responses import Audited, Decided, Levels, Reserved, Said

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
RENEW = Verb("store.jobs", "renew", "/renew", Renew, Renewed)
CHECKPOINT = Verb("store.jobs", "checkpoint", "/checkpoint", Checkpoint, Said[bool])
REPORT = Verb("store.jobs", "report", "/report", Reports, Nothing)
TRACES = Verb("store.jobs", "traces", "/traces", Origins, Said[dict[JobId, str]])
WAIT_US = Verb("store.jobs", "wait_us", "/look", Look, Said[int | None])
LANES = Verb("store.reads", "lanes", "/lanes", Nothing, Said[tuple[LaneCount, ...]])
PRUNE = Verb("store.operations", "prune", "/prune", Old, Said[int])
DECLARE = Verb("store.schedules", "declare", "/schedules/declare", Schedules, Nothing)
SCHEDULES = Verb("store.schedules", "all", "/schedules/list", Nothing, Said[list[StoredSchedule]])
FIRE = Verb("store.schedules", "fire", "/schedules/fire", Fire, Said[bool])
PAUSE = Verb("store.schedules", "pause", "/schedules/pause", Pause, Said[bool], OPERATE)
TENANTS = Verb("store.tenants", "all", "/tenants/list", Nothing, Said[list[Tenant]])
SET_TENANT = Verb("store.tenants", "set", "/tenants/set", Agreed, Nothing, OPERATE)
FORGET_TENANT = Verb("store.tenants", "forget", "/tenants/forget", Named, Said[bool], OPERATE)

SUBMIT = Verb("store.jobs", "submit", "/submit", Submit, Said[list[Submitted]], WRITE)
CANCEL = Verb("store.operations", "cancel", "/jobs/cancel", OneJob, Said[CancelResult], WRITE)
REPLAY = Verb("store.operations", "retry", "/jobs/replay", SomeJobs, Said[list[JobId]], WRITE)
DISCARD = Verb("store.operations", "discard", "/jobs/discard", SomeJobs, Said[list[JobId]], WRITE)
JOB = Verb("store.reads", "job", "/jobs/show", OneJob, Said[Job | None], READ)
JOBS = Verb("store.reads", "jobs", "/jobs/list", Page, Said[list[Job]], READ)
ERRORS = Verb("store.reads", "errors", "/jobs/errors", OneJob, Said[list[ErrorRecord]], READ)
NOW = Verb("store.reads", "now", "/now", Nothing, Said[Instant], READ)

DECLARE_LIMITS = Verb("limiter.definitions", "declare", "/limits/declare", Limits, Nothing)
LIMITS = Verb("limiter.definitions", "all", "/limits/list", Nothing, Said[list[tuple[LimitDefinition, int]]])
TAKE = Verb("limiter", "acquire", "/limits/take", Take, Decided)
GIVE_BACK = Verb("limiter", "return_unused", "/limits/give-back", GiveBack, Nothing)
VACATE = Verb("limiter", "end_calls", "/limits/vacate", Vacate, Nothing)
KEEP = Verb("limiter", "renew_calls", "/limits/keep", Keep, Nothing)
TELL = Verb("limiter", "observe", "/limits/tell", Tell, Nothing)
LEVELS = Verb("limiter", "levels", "/limits/look", Asks, Levels)
CHANGE_LIMIT = Verb("limiter.definitions", "change", "/limits/change", OneLimit, Said[int], OPERATE)
FORGET_LIMIT = Verb("limiter.definitions", "forget", "/limits/forget", Named, Said[bool], OPERATE)

DECLARE_BUDGETS = Verb("ledger.definitions", "declare", "/budgets/declare", Budgets, Nothing)
BUDGETS = Verb("ledger.definitions", "all", "/budgets/list", Nothing, Said[list[tuple[BudgetDefinition, int]]])
HOLD = Verb("ledger", "hold", "/budgets/hold", Hold, Reserved)
DISPATCH = Verb("ledger", "dispatch", "/budgets/dispatch", OneHold, Said[bool])
SETTLE = Verb("ledger", "settle", "/budgets/settle", Settle, Said[Crossed])
VOID = Verb("ledger", "void", "/budgets/void", OneHold, Said[bool])
EXPIRE = Verb("ledger", "expire", "/budgets/expire", Most, Expired)
BUDGETS_WAIT_US = Verb("ledger", "wait_us", "/budgets/look", Charges, Said[int])
PRUNE_BUDGETS = Verb("ledger", "prune", "/budgets/prune", Old, Said[int])
CHANGE_BUDGET = Verb("ledger.definitions", "change", "/budgets/change", OneBudget, Said[int], OPERATE)
FORGET_BUDGET = Verb("ledger.definitions", "forget", "/budgets/forget", Named, Said[bool], OPERATE)
BOOKS = Verb("ledger.reads", "balances", "/budgets/books", Books, Said[list[BudgetWindow]], OPERATE)
JOURNAL = Verb("ledger.reads", "journal", "/budgets/journal", Journal, Said[list[JournalEntry]], OPERATE)
AUDIT = Verb("ledger.reads", "audit", "/budgets/audit", Nothing, Audited, OPERATE)

VERBS: Sequence[Verb[Any, Any]] = [verb for verb in list(globals().values()) if isinstance(verb, Verb)]
