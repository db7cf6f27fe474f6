"""leaseway runs jobs that call rate-limited, paid APIs.

No request exceeds a limit, no cost exceeds a budget, no job is lost or finished twice.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leaseway.aes_gcm import AesGcm
    from leaseway.app import App
    from leaseway.domain.budgets.budget import Budget
    from leaseway.domain.errors import (
        AttemptEnded,
        BadCiphertext,
        BadValue,
        JobFailed,
        KeyConflict,
        LeaseLost,
        LeasewayError,
        NoSuchJob,
        QuotaExceeded,
        StoreBusy,
        StoreFull,
        StoreRefused,
        TerminalError,
        TransientError,
        UnknownBudget,
        UnknownEncryptionKey,
        UnknownKind,
        UnknownLimit,
        UnknownOutcome,
        UsageError,
    )
    from leaseway.domain.http import (
        ConnectFailed,
        HttpError,
        HttpReply,
        HttpRequest,
        HttpStatusError,
        ProxyRefused,
        ReplyLost,
        ReplyTimeout,
        ReplyUnreadable,
    )
    from leaseway.domain.job import JobRecord, State, Submitted
    from leaseway.domain.limits.limit import Limit
    from leaseway.domain.limits.rate_limit_headers import Throttled
    from leaseway.domain.limits.token_usage import Usage
    from leaseway.domain.outcome import Backoff, Fail, Snooze
    from leaseway.imports.domain.page import Page
    from leaseway.imports.domain.partition import Shard
    from leaseway.imports.run.importer import Importer
    from leaseway.imports.spec.model import Boxes, Country, Filter, IdRange, Incremental, Stamp, Windows
    from leaseway.sdk_client import leaseway_client
    from leaseway.worker.calls.key_pool import KeyPool
    from leaseway.worker.context import Context, SyncContext
    from leaseway.worker.submit import Bound, JobHandle

__version__ = "0.1.0"

__all__ = [
    "AesGcm",
    "App",
    "AttemptEnded",
    "Backoff",
    "BadCiphertext",
    "BadValue",
    "Bound",
    "Boxes",
    "Budget",
    "ConnectFailed",
    "Context",
    "Country",
    "Fail",
    "Filter",
    "HttpError",
    "HttpReply",
    "HttpRequest",
    "HttpStatusError",
    "IdRange",
    "Importer",
    "Incremental",
    "JobFailed",
    "JobHandle",
    "JobRecord",
    "KeyConflict",
    "KeyPool",
    "LeaseLost",
    "LeasewayError",
    "Limit",
    "NoSuchJob",
    "Page",
    "ProxyRefused",
    "QuotaExceeded",
    "ReplyLost",
    "ReplyTimeout",
    "ReplyUnreadable",
    "Shard",
    "Snooze",
    "Stamp",
    "State",
    "StoreBusy",
    "StoreFull",
    "StoreRefused",
    "Submitted",
    "SyncContext",
    "TerminalError",
    "Throttled",
    "TransientError",
    "UnknownBudget",
    "UnknownEncryptionKey",
    "UnknownKind",
    "UnknownLimit",
    "UnknownOutcome",
    "Usage",
    "UsageError",
    "Windows",
    "leaseway_client",
]

_HOMES = {
    "aes_gcm": ["AesGcm"],
    "app": ["App"],
    "domain.budgets.budget": ["Budget"],
    "imports.domain.page": ["Page"],
    "imports.domain.partition": ["Shard"],
    "imports.spec.model": [
        "Boxes",
        "Country",
        "Filter",
        "IdRange",
        "Incremental",
        "Stamp",
        "Windows",
    ],
    "domain.http": [
        "ConnectFailed",
        "HttpError",
        "HttpReply",
        "HttpRequest",
        "HttpStatusError",
        "ProxyRefused",
        "ReplyLost",
        "ReplyTimeout",
        "ReplyUnreadable",
    ],
    "domain.job": ["JobRecord", "State", "Submitted"],
    "domain.limits.limit": ["Limit"],
    "domain.outcome": ["Backoff", "Fail", "Snooze"],
    "domain.limits.rate_limit_headers": ["Throttled"],
    "domain.limits.token_usage": ["Usage"],
    "sdk_client": ["leaseway_client"],
    "worker.calls.key_pool": ["KeyPool"],
    "worker.context": ["Context", "SyncContext"],
    "worker.submit": ["Bound", "JobHandle"],
    "imports.run.importer": ["Importer"],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name at its first use, so that the command line starts fast."""
        if name not in __all__:
            raise AttributeError(f"module 'leaseway' has no attribute {name!r}")
        home = import_module(f"leaseway.{_HOME.get(name, 'domain.errors')}")
        value = globals()[name] = getattr(home, name)
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
