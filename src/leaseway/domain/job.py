"""A job, from the moment it is submitted to the record that people read.

pending ─► leased ─► done | failed | cancelled
   ▲          │
   └──────────┘   retry, snooze, give back, lease expired
"""

from enum import StrEnum

from msgspec import Struct

from leaseway.domain.ids import Instant, JobId, Token


class State(StrEnum):
    PENDING = "pending"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in FINAL_STATES


FINAL_STATES = (State.DONE, State.FAILED, State.CANCELLED)

PRIORITY_MAX = 1_000
"""Priorities reach from -1,000 to 1,000; higher runs first."""


class NewJob(Struct, frozen=True, kw_only=True):
    """A job on its way into a store. The id is the submitter's, so the same submission may be repeated."""

    id: JobId
    kind: str
    payload: str
    queue: str = "default"
    tenant: str = "default"
    priority: int = 0
    attempts_max: int = 5
    lease_us: int = 15_000_000
    timeout_us: int | None = None
    delay_us: int = 0
    run_at: Instant | None = None
    """An instant that a person named; wins over `delay_us`."""
    key: str | None = None
    fingerprint: str = ""
    """Tells whether a repeated key came with the same kind and arguments."""
    key_keep_us: int = 0
    shard_key: str | None = None
    cursor: str | None = None
    needs: str = ""
    """What must be admitted before it starts, as `domain.needs.text_of` writes it: a part of its lane's name."""
    trace: str | None = None
    """Who submitted it, as the `traceparent` of W3C Trace Context; None where nobody traces."""


class Submitted(Struct, frozen=True):
    """The answer to one submission: `replayed` says that the key was known and the first job stands."""

    id: JobId
    replayed: bool = False


class Failure(Struct, frozen=True):
    """Why an attempt did not succeed, as text: nothing stored is ever turned back into code."""

    code: str
    message: str
    traceback: str = ""


class Lease(Struct, frozen=True, kw_only=True):
    """A worker's exclusive, expiring claim on a job, with all that a handler needs to run it."""

    id: JobId
    token: Token
    fence: int
    kind: str
    queue: str
    tenant: str
    payload: str
    attempts: int
    attempts_max: int
    lease_us: int
    timeout_us: int | None
    shard_key: str | None
    cursor: str | None
    priority: int = 0
    needs: str = ""


class Settlement(Struct, frozen=True, kw_only=True):
    """What the store must write when a lease is handed back. Decided in the domain, recorded by stores."""

    id: JobId
    token: Token
    state: State
    """A final state, or PENDING for a job that shall run again."""
    delay_us: int = 0
    run_at: Instant | None = None
    gives_back: bool = False
    """The attempt was not the job's: it is subtracted again."""
    result: str | None = None
    failure: Failure | None = None
    progress: str | None = None
    children: tuple[NewJob, ...] = ()
    """Submitted in the same transaction, if and only if the settlement is accepted."""


class Job(Struct, frozen=True, kw_only=True):
    """The record of a job, as people read it."""

    id: JobId
    kind: str
    queue: str
    tenant: str
    state: State
    priority: int
    attempts: int
    attempts_max: int
    fence: int
    payload: str
    shard_key: str | None
    cursor: str | None
    progress: str | None
    result: str | None
    lease_owner: str | None
    lease_until: Instant | None
    lease_us: int
    timeout_us: int | None
    cancel_requested: bool
    created_at: Instant
    run_at: Instant
    finished_at: Instant | None
    last_error_code: str | None
    last_error_at: Instant | None
    needs: str = ""


class ErrorRecord(Struct, frozen=True, kw_only=True):
    """One failed attempt of one job."""

    job: JobId
    attempt: int
    at: Instant
    code: str
    message: str
    traceback: str
