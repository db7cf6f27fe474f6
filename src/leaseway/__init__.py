"""leaseway runs work that calls somebody else's metered API.

No request over the limit, no cent over the budget, no job lost, no job done twice.
"""

from leaseway.app import App, JobHandle
from leaseway.domain.errors import (
    BadValue,
    KeyConflict,
    LeaseLost,
    LeasewayError,
    NoSuchJob,
    StoreBusy,
    StoreFull,
    StoreRefused,
    TerminalError,
    TransientError,
    UnknownKind,
    UnknownOutcome,
    UsageError,
)
from leaseway.domain.job import Job, State, Submitted
from leaseway.domain.outcome import Fail, Snooze
from leaseway.domain.retry import Backoff
from leaseway.flows.context import Context
from leaseway.flows.submit import Bound

__version__ = "0.1.0"

__all__ = [
    "App",
    "Backoff",
    "BadValue",
    "Bound",
    "Context",
    "Fail",
    "Job",
    "JobHandle",
    "KeyConflict",
    "LeaseLost",
    "LeasewayError",
    "NoSuchJob",
    "Snooze",
    "State",
    "StoreBusy",
    "StoreFull",
    "StoreRefused",
    "Submitted",
    "TerminalError",
    "TransientError",
    "UnknownKind",
    "UnknownOutcome",
    "UsageError",
]
