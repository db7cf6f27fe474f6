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
