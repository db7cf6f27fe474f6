"""leaseway runs work that calls somebody else's metered API.

No request over the limit, no cent over the budget, no job lost, no job done twice.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leaseway.app import App, JobHandle
    from leaseway.domain.budgets import Budget
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
    from leaseway.domain.imports.page import Page
    from leaseway.domain.imports.shard import Shard
    from leaseway.domain.imports.spec_parts import Boxes, Country, Filter, IdRange, Incremental, Stamp, Windows
    from leaseway.domain.job import Job, State, Submitted
    from leaseway.domain.limits import Limit
    from leaseway.domain.outcome import Fail, Snooze
    from leaseway.domain.replies import Throttled
    from leaseway.domain.retry import Backoff
    from leaseway.flows.context import Context
    from leaseway.flows.submit import Bound
    from leaseway.imports.importer import Importer

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
    "app": ["App", "JobHandle"],
    "domain.budgets": ["Budget"],
    "domain.imports.page": ["Page"],
    "domain.imports.shard": ["Shard"],
    "domain.imports.spec_parts": [
        "Boxes",
        "Country",
        "Filter",
        "IdRange",
        "Incremental",
        "Stamp",
        "Windows",
    ],
    "domain.job": ["Job", "State", "Submitted"],
    "domain.limits": ["Limit"],
    "domain.outcome": ["Fail", "Snooze"],
    "domain.replies": ["Throttled"],
    "domain.retry": ["Backoff"],
    "flows.context": ["Context"],
    "flows.submit": ["Bound"],
    "imports.importer": ["Importer"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used: the command line starts without them."""
    if name not in __all__:
        raise AttributeError(f"module 'leaseway' has no attribute {name!r}")
    home = import_module(f"leaseway.{_HOME_OF.get(name, 'domain.errors')}")
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
