"""A job, from its submission to its final record.

pending ─► leased ─► done | failed | cancelled
   ▲          │
   └──────────┘   retry, snooze, release, lease expired
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from leaseway.domain.errors import IdConflict, foreign_id_text
from leaseway.domain.ids import SECOND_US, Instant, JobId, Token
from leaseway.domain.validators import parse_stored


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

UNNAMED_TENANT = "default"
"""The tenant of a job whose submission names none."""
PRIORITY_MAX = 1_000
"""Priorities range from -1,000 to 1,000; higher ones run first."""


LEASE_SECONDS_MIN = 1
LEASE_SECONDS_MAX = 86_400
LEASE_US_MIN = LEASE_SECONDS_MIN * SECOND_US
LEASE_US_MAX = LEASE_SECONDS_MAX * SECOND_US


class NewJob(Struct, frozen=True, kw_only=True):
    """A job that is being submitted. The submitter creates the id, so that the submission can be repeated."""

    id: JobId
    kind: str
    payload: str
    queue: str = "default"
    tenant: str = UNNAMED_TENANT
    priority: int = 0
    attempts_max: int = 5
    lease_us: int = 15_000_000
    timeout_us: int | None = None
    delay_us: int = 0
    run_at: Instant | None = None
    """When to run the job; takes precedence over `delay_us`."""
    key: str | None = None
    fingerprint: str = ""
    """A hash of kind and arguments: a repeated key with another fingerprint is a conflict."""
    key_keep_us: int = 0
    shard_key: str | None = None
    cursor: str | None = None
    needs: str = ""
    """The limits and budgets that it needs before it starts, as `requirements.render_needs` writes them. They are a
    part of its lane."""
    trace: str | None = None
    """The trace context of the submission, as a W3C `traceparent`; None if tracing is off."""


def jobs_by_id(jobs: Sequence[NewJob]) -> dict[JobId, NewJob]:
    """Each id once; the last one wins. An id for jobs of two tenants is refused, because only one could be stored."""
    found = {job.id: job for job in jobs}
    if len(found) < len(jobs):
        for job in jobs:
            if job.tenant != found[job.id].tenant:
                raise IdConflict(foreign_id_text(job.id))
    return found


class Submitted(Struct, frozen=True):
    """The result of one submission. `replayed`: the idempotency key was known, and `id` is the job of the first
    submission."""

    id: JobId
    replayed: bool = False


class Failure(Struct, frozen=True):
    """Why an attempt failed, as text. Nothing that is stored is ever executed or unpickled."""

    code: str
    message: str
    traceback: str = ""


class Lease(Struct, frozen=True, kw_only=True):
    """A worker's exclusive, expiring claim on a job, with everything that a handler needs to run it."""

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
    """What the store writes when a worker hands a lease back. `outcome.decide` makes it; stores only record it."""

    id: JobId
    token: Token
    state: State
    """A final state, or PENDING for a job that runs again."""
    delay_us: int = 0
    run_at: Instant | None = None
    returns_attempt: bool = False
    """The job is released: the attempt is not counted."""
    result: str | None = None
    failure: Failure | None = None
    progress: str | None = None
    children: tuple[NewJob, ...] = ()
    """Jobs that are submitted in the same transaction, if the settlement is accepted."""


class JobFacts(Struct, frozen=True, kw_only=True):
    """What is known of a job besides its JSON values."""

    id: JobId
    kind: str
    queue: str
    tenant: str
    state: State
    priority: int
    attempts: int
    attempts_max: int
    fence: int
    shard_key: str | None
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


class Job(JobFacts, frozen=True, kw_only=True):
    """A job as a store keeps it: its values are JSON text."""

    payload: str
    cursor: str | None
    progress: str | None
    result: str | None


class JobRecord(JobFacts, frozen=True, kw_only=True):
    """A job as an app returns it: its values are Python values, the same as over HTTP."""

    payload: Any
    """The arguments by name. A value that cannot be decrypted is the object with its ciphertext."""
    cursor: Any
    progress: Any
    result: Any


VALUES = ("payload", "cursor", "progress", "result")


def job_record(job: Job) -> JobRecord:
    facts = {name: getattr(job, name) for name in JobFacts.__struct_fields__}
    return JobRecord(**facts, **{name: parse_stored(getattr(job, name)) for name in VALUES})


WAITING = "waiting"
"""The field of a job's progress that says for what its handler waits."""


def waiting_reason(progress: str | None) -> str | None:
    """For which limit or budget the handler of a running job waits; None: for nothing, or the progress is encrypted."""
    try:
        fields = msgspec.json.decode(progress or "null")
    except (ValueError, RecursionError):  # a worker that is not ours may have written it
        return None
    why = fields.get(WAITING) if isinstance(fields, dict) else None
    return why if isinstance(why, str) else None


class ErrorRecord(Struct, frozen=True, kw_only=True):
    """One failed attempt of one job."""

    job: JobId
    attempt: int
    at: Instant
    code: str
    message: str
    traceback: str
