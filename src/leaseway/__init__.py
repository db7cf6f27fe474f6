"""leaseway runs jobs that call rate-limited, paid APIs.

No request exceeds a limit, no cost exceeds a budget, no job is lost or finished twice.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leaseway.app import App
    from leaseway.domain.budgets.budget import Budget
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
        UnknownBudget,
        UnknownKind,
        UnknownLimit,
        UnknownOutcome,
        UsageError,
    )
    from leaseway.domain.job import Job, State, Submitted
    from leaseway.domain.limits.limit import Limit
    from leaseway.domain.limits.rate_limit_headers import Throttled
    from leaseway.domain.outcome import Backoff, Fail, Snooze
    from leaseway.imports.domain.page import Page
    from leaseway.imports.domain.shard import Shard
    from leaseway.imports.run.importer import Importer
    from leaseway.imports.spec.model import Boxes, Country, Filter, IdRange, Incremental, Stamp, Windows
    from leaseway.job_handle import JobHandle
    from leaseway.worker.context import Context
    from leaseway.worker.submit import Bound

__version__ = "0.1.0"

__all__ = [
    "App",
    "Backoff",
    "BadValue",
    "Bound",
    "Boxes",
    "Budget",
    "Context",
    "Country",
    "Fail",
    "Filter",
    "IdRange",
    "Importer",
    "Incremental",
    "Job",
    "JobHandle",
    "KeyConflict",
    "LeaseLost",
    "LeasewayError",
    "Limit",
    "NoSuchJob",
    "Page",
    "Shard",
    "Snooze",
    "Stamp",
    "State",
    "StoreBusy",
    "StoreFull",
    "StoreRefused",
    "Submitted",
    "TerminalError",
    "Throttled",
    "TransientError",
    "UnknownBudget",
    "UnknownKind",
    "UnknownLimit",
    "UnknownOutcome",
    "UsageError",
    "Windows",
]

_HOMES = {
    "app": ["App"],
    "job_handle": ["JobHandle"],
    "domain.budgets.budget": ["Budget"],
    "imports.domain.page": ["Page"],
    "imports.domain.shard": ["Shard"],
    "imports.spec.model": [
        "Boxes",
        "Country",
        "Filter",
        "IdRange",
        "Incremental",
        "Stamp",
        "Windows",
    ],
    "domain.job": ["Job", "State", "Submitted"],
    "domain.limits.limit": ["Limit"],
    "domain.outcome": ["Backoff", "Fail", "Snooze"],
    "domain.limits.rate_limit_headers": ["Throttled"],
    "worker.context": ["Context"],
    "worker.submit": ["Bound"],
    "imports.run.importer": ["Importer"],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that the command line starts fast."""
    if name not in __all__:
        raise AttributeError(f"module 'leaseway' has no attribute {name!r}")
    home = import_module(f"leaseway.{_HOME.get(name, 'domain.errors')}")
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
