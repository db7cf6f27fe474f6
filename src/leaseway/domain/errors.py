"""Every error that leaseway raises on purpose.

LeasewayError
├── UsageError            the caller can fix it                exit 2, HTTP 4xx
│   ├── BadValue          a field has an invalid value; the message names the field
│   ├── UnknownKind       no handler is registered under this name
│   ├── KeyConflict       the idempotency key was used with other arguments
│   ├── IdConflict        the id belongs to a job of another tenant
│   ├── QuotaExceeded     the tenant's quota has no room for it
│   ├── Stale             the record was changed since it was read
│   ├── NoSuchJob         no job, schedule or lane has this id
│   ├── AttemptEnded      a context was used after its handler had returned
│   ├── UnknownLimit      no limit of this name is defined
│   ├── UnknownBudget     no budget of this name is defined
│   ├── UnknownEncryptionKey  a value is encrypted with a key that this process does not have
│   └── StoreRefused      the store's URL, file, permissions or schema do not fit
├── TransientError        the same call may succeed later      exit 3, HTTP 503, retried
│   ├── StoreBusy         another process held the store for too long
│   ├── StoreFull         the store has no room left; nothing was written
│   ├── Throttled         the provider asks for a long wait; the job waits in its lane (limits/rate_limit_headers.py)
│   ├── TooLarge          a reply is larger than a process should hold (limits/rate_limit_headers.py)
│   └── UnknownOutcome    the reply was lost: repeat the call, which has no second effect
├── TerminalError         the same call will fail again        exit 1, HTTP 500
│   ├── BadCiphertext     an encrypted value was changed, or belongs to another job
│   └── JobFailed         the job has no result, because it failed or was cancelled
├── HttpError             a request of `ctx.http` failed; its subclasses are in http.py
└── LeaseLost             raised inside a handler: another worker may run the job now
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class LeasewayError(Exception):
    """The base class of every error that leaseway raises on purpose."""


class UsageError(LeasewayError):
    """The call is wrong. Change it, and it can succeed."""


class BadValue(UsageError):
    """A field has an invalid value. The message names the field."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class UnknownKind(UsageError):
    """No handler is registered under this name."""


class KeyConflict(UsageError):
    """The idempotency key was used before with another kind or other arguments."""


class IdConflict(UsageError):
    """The id belongs to a job of another tenant. Nothing was stored; submit the job under a new id."""


class QuotaExceeded(UsageError):
    """The tenant's quota has no room for it. Nothing was stored; the message names the quota and the ways to make
    room."""

    def __init__(self, message: str, *, quota: str = "", limit: int = 0, used: int = 0, needed: int = 0) -> None:
        super().__init__(message)
        self.quota = quota
        self.limit = limit
        self.used = used
        self.needed = needed

    @property
    def is_permanent(self) -> bool:
        """It needs more than the whole quota, so waiting does not help."""
        return self.needed > self.limit


class Stale(UsageError):
    """The record was changed since it was read. Nothing was written; read it again."""


class NoSuchJob(UsageError):
    """No job, schedule or lane has this id."""


class AttemptEnded(UsageError):
    """A context was used after its handler had returned or was stopped. Nothing was sent or stored."""


class UnknownLimit(UsageError):
    """No limit of this name is defined."""


class UnknownBudget(UsageError):
    """No budget of this name is defined."""


class UnknownEncryptionKey(UsageError):
    """A value is encrypted with a key that this process does not have. The message names the key's id."""


class UnknownBlobStore(UsageError):
    """A text is in a blob store, and this process has none."""


class StoreRefused(UsageError):
    """The store cannot be used: its URL, file, permissions or schema do not fit."""


class TransientError(LeasewayError):
    """The same call may succeed later."""


class StoreBusy(TransientError):
    """Another process held the store for too long. Nothing was written."""


class StoreFull(TransientError):
    """The store has no room left. Nothing was written."""


class UnknownOutcome(TransientError):
    """The reply was lost, so the call may have been executed. Repeating it has no second effect."""


class TerminalError(LeasewayError):
    """The same call will fail again."""


class BlobMissing(TerminalError):
    """A job refers to a blob that does not exist. It is named."""


class BlobDamaged(TerminalError):
    """A blob, or the reference to it, is not what was written."""


class BadCiphertext(TerminalError):
    """An encrypted value was changed, or belongs to another job, field or tenant."""


class JobFailed(TerminalError):
    """The job has no result, because it failed or was cancelled."""


class LeaseLost(LeasewayError):
    """The job's lease has ended, so another worker may run it now. The store accepts nothing more from this attempt."""


class SchemaVersions(NamedTuple):
    """The version of a store's schema."""

    present: int
    """0: there is no schema yet."""
    newest: int
    """The version that this release of leaseway installs."""

    @property
    def is_due(self) -> bool:
        return self.present < self.newest


def refuse_stale(what: str, present: int, expected: int | None) -> None:
    """Raise `Stale` if the version is not the expected one. Called inside the transaction of the change. `expected`: 0
    if there must be none yet; None: any."""
    if expected is not None and present != expected:
        raise Stale(stale_text(what, present, expected))


def stale_text(what: str, present: int, expected: int) -> str:
    if not present:
        return f"{what} no longer exists"
    if not expected:
        return f"{what} already exists, at version {present}; read it first"
    return f"{what} is at version {present}, not at {expected}; read it again"


def foreign_id_text(id_: str) -> str:
    """The text of `IdConflict`. The owner of the id is confidential."""
    return f"id: {id_} belongs to a job of another tenant; nothing was stored; submit the job with a new id"


def answer_or_none(decide: Callable[[Request], Answer], request: Request) -> Answer | None:
    """None: the request is refused. A function that decides raises before it writes."""
    try:
        return decide(request)
    except LeasewayError:
        return None
