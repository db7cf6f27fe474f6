"""What the routes about jobs, keys and sessions answer, for the description of the API. The documents themselves are
made in `documents`; tests hold the two against each other."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from leaseway.domain.identity import Role, Scope
from leaseway.domain.job import State

Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""ISO 8601, in UTC."""
Amount = Annotated[str, Meta(description="A decimal number as text: exact, which floats are not.")]


class Problem(Struct, kw_only=True):
    """What went wrong, as RFC 9457 has it. Programs compare `code`, people read `detail`."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str
    errors: list[dict[str, Any]] | UnsetType = UNSET
    """Each with `pointer`, a JSON pointer into the body or the place of a parameter, and `detail`."""


class Job(Struct, kw_only=True, forbid_unknown_fields=True):
    id: str
    kind: str
    queue: str
    tenant: str
    state: State
    priority: int
    attempts: int
    attempts_max: int
    fence: int
    payload: Any
    shard_key: str | None
    cursor: Any
    progress: Any
    result: Any
    lease_owner: str | None
    lease_until: Moment | None
    lease_seconds: float
    timeout_seconds: float | None
    cancel_requested: bool
    created_at: Moment | None
    run_at: Moment | None
    finished_at: Moment | None
    last_error_code: str | None
    last_error_at: Moment | None
    needs: Any


class JobListed(Job, kw_only=True, forbid_unknown_fields=True):
    """A job as one of many."""

    shortened: list[str]
    """The fields that are left out because they are long: ask for the job itself."""


class FailedAttempt(Struct, kw_only=True, forbid_unknown_fields=True):
    attempt: int
    at: Moment | None
    code: str
    message: str
    traceback: str


class Event(Struct, kw_only=True, forbid_unknown_fields=True):
    """One thing that happened in a job's life."""

    at: Moment | None
    what: str
    attempt: int | UnsetType = UNSET
    code: str | UnsetType = UNSET
    until: Moment | UnsetType | None = UNSET


class JobShown(Job, kw_only=True, forbid_unknown_fields=True):
    """A job with its failed attempts and its timeline."""

    errors: list[FailedAttempt]
    timeline: list[Event]


class Submitted(Struct, kw_only=True, forbid_unknown_fields=True):
    id: str
    kind: str


class ItemSubmitted(Struct, kw_only=True, forbid_unknown_fields=True):
    """What became of one of many: an id, or a problem."""

    status: int
    id: str | UnsetType = UNSET
    replayed: bool | UnsetType = UNSET
    problem: dict[str, Any] | UnsetType = UNSET


class ManySubmitted(Struct, kw_only=True, forbid_unknown_fields=True):
    items: list[ItemSubmitted]
    """In the order in which they were sent."""


class WaitsFor(Struct, kw_only=True, forbid_unknown_fields=True):
    """Something that keeps jobs from starting."""

    what: str
    """lane, limit, tenant or budget"""
    name: str
    why: str
    wait_seconds: float | None
    advice: str | None


class Why(Struct, kw_only=True, forbid_unknown_fields=True):
    id: str
    state: State
    code: str
    text: str
    until: Moment | None
    advice: str | None
    waits_for: list[WaitsFor]


class Result(Struct, kw_only=True, forbid_unknown_fields=True):
    id: str
    state: State
    result: Any


class Answered(Struct, kw_only=True, forbid_unknown_fields=True):
    id: str
    answer: str
    """cancelled, requested, finished or retried"""


class Refused(Struct, kw_only=True, forbid_unknown_fields=True):
    id: str
    reason: str


class Changed(Struct, kw_only=True, forbid_unknown_fields=True):
    """How many were changed. By ids, who was not; by a filter, how many match, and whether there are more."""

    cancelled: int | UnsetType = UNSET
    retried: int | UnsetType = UNSET
    discarded: int | UnsetType = UNSET
    refused: list[Refused] | UnsetType = UNSET
    matching: int | UnsetType = UNSET
    more: bool | UnsetType = UNSET


class Key(Struct, kw_only=True, forbid_unknown_fields=True):
    id: str
    name: str
    tenant: str
    role: Role
    scopes: list[Scope]
    state: str
    """live, expired or revoked"""
    created_at: Moment | None
    expires_at: Moment | None
    revoked_at: Moment | None
    used_at: Moment | None


class KeyMade(Key, kw_only=True, forbid_unknown_fields=True):
    key: str
    """The key itself. It is shown this once."""


class Ticket(Struct, kw_only=True, forbid_unknown_fields=True):
    """For one WebSocket, used once."""

    ticket: str
    expires_at: Moment | None


class Identity(Struct, kw_only=True, forbid_unknown_fields=True):
    """Who asks, and what he may."""

    name: str
    tenant: str
    role: Role
    scopes: list[Scope]
    until: Moment | None
    csrf_token: str | None
    """To be sent in the header x-csrf-token with everything that changes something, if the caller came by cookie."""
