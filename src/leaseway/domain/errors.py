"""Everything that leaseway raises.

LeasewayError
├── UsageError            the caller can fix it               exit 2
│   ├── BadValue          a field has an impossible value; the message names it
│   ├── UnknownKind       no handler is registered under this name
│   ├── KeyConflict       the idempotency key was used with other arguments
│   ├── Stale             somebody has changed it since it was looked at
│   ├── NoSuchJob         no job, schedule or lane has this id
│   ├── UnknownLimit      nobody has defined a limit of this name
│   ├── UnknownBudget     nobody has defined a budget of this name
│   └── StoreRefused      the address, file, rights or schema do not fit
├── TransientError        the same call may succeed           exit 3, retried
│   ├── StoreBusy         another process holds the store for too long
│   ├── StoreFull         no room left; nothing was written
│   ├── Throttled         the provider asks us to wait; the job waits in its lane (in replies.py)
│   ├── TooLarge          a reply with more bytes than a process should hold (in replies.py)
│   └── UnknownOutcome    the reply was lost: repeat the call, every mutation allows it
├── TerminalError         it will not                         exit 1, stops
└── LeaseLost             raised inside a handler: the job is no longer ours
"""

import re
from typing import NamedTuple


class LeasewayError(Exception):
    """Base of every error that leaseway raises on purpose."""


class UsageError(LeasewayError):
    """The caller can fix it."""


class BadValue(UsageError):
    """A field has an impossible value."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class UnknownKind(UsageError):
    """No handler is registered under this name."""


class KeyConflict(UsageError):
    """The idempotency key was used before, with other arguments."""


class Stale(UsageError):
    """Somebody has changed it since it was looked at. Nothing was changed."""


class NoSuchJob(UsageError):
    """Nothing is stored under this id."""


class UnknownLimit(UsageError):
    """Nobody has defined a limit of this name."""


class UnknownBudget(UsageError):
    """Nobody has defined a budget of this name."""


class StoreRefused(UsageError):
    """The store's address, file, rights or schema do not fit."""


class TransientError(LeasewayError):
    """The same call may succeed later."""


class StoreBusy(TransientError):
    """Another process held the store for longer than we were ready to wait. Nothing was written."""


class StoreFull(TransientError):
    """The store has no room left. Nothing was written."""


class UnknownOutcome(TransientError):
    """The call may or may not have been executed. Repeating it gives the first answer."""


class TerminalError(LeasewayError):
    """The same call will fail again."""


class LeaseLost(LeasewayError):
    """The job is no longer ours: its lease expired, and nothing that we write will be accepted."""


def redact_url(url: str) -> str:
    """Without its password: even one that holds characters which should have been written otherwise."""
    return re.sub(r"(//[^/?#@:]*):.*@", r"\1:***@", re.sub(r"(password=)[^&]*", r"\1***", url))


class SchemaVersions(NamedTuple):
    present: int
    """0: there is none yet."""
    newest: int
    """The one that this leaseway brings along."""

    @property
    def is_due(self) -> bool:
        return self.present < self.newest


def refuse_stale(what: str, present: int, expected: int | None) -> None:
    """Asked where nobody can come between the look and the change. `expected`: 0 if there must be none; None: any."""
    if expected is not None and present != expected:
        raise Stale(stale_text(what, present, expected))


def stale_text(what: str, present: int, expected: int) -> str:
    if not present:
        return f"{what} is not there any more"
    if not expected:
        return f"{what} is there already, at version {present}; look at it first"
    return f"{what} is at version {present}, not at {expected}; look at it again"
