"""strict body ─► [submission] ─► new job

Clients cannot set state, attempts made, lease, tenant or cost: the body has no such fields, and unknown fields are
rejected.

The Idempotency-Key header is a structured-field string ("…"); it is accepted without quotes as well, because many
clients send it so. It becomes the job's key. The store keeps key and job in one transaction, separately for each
tenant. A request that repeats a key while the first request is being stored waits for it, and receives 409 only if that
takes seconds. If storing fails, neither the key nor the job is kept, so the client can repeat the request.
"""

import hashlib
import re
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from starlette.datastructures import Headers

from leaseway.api.errors import Problem
from leaseway.app import App
from leaseway.domain import payload
from leaseway.domain.errors import BadValue, UnknownKind
from leaseway.domain.job import NewJob
from leaseway.domain.kind import NO_OPTIONS, JobOptions, Kind, parse_options
from leaseway.domain.kind import new_job as build_job
from leaseway.domain.validators import NAME_LENGTH_MAX, check_name

IMPORT_KINDS = "import:"
"""Prefix of the kinds of shard jobs, which write to tables that belong to no tenant."""
FIELD_NAMES = {"delay": "delay_seconds", "timeout": "timeout_seconds"}

IDEMPOTENCY_KEY = "idempotency-key"
REPLAYED = {"Idempotent-Replayed": "true"}
QUOTED = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
UNQUOTED = re.compile(r"[A-Za-z0-9._:/+=@*-]+")
ESCAPED = re.compile(r'\\(["\\])')


class Submission(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One job to submit."""

    kind: str
    arguments: dict[str, Any] = {}
    queue: str | None = None
    priority: int | None = None
    delay_seconds: float | None = None
    run_at: datetime | None = None
    attempts: int | None = None
    timeout_seconds: float | None = None
    key: str | None = None


class Submissions(Struct, kw_only=True, forbid_unknown_fields=True):
    """Many jobs to submit. Items are checked one by one: an invalid item does not affect the others."""

    items: list[msgspec.Raw]


class SubmissionOptions(Struct, omit_defaults=True):
    """The fields of a submission besides kind, arguments and key. They are part of a request's fingerprint."""

    queue: str | None = None
    priority: int | None = None
    delay_seconds: float | None = None
    run_at: datetime | None = None
    attempts: int | None = None
    timeout_seconds: float | None = None


NONE_GIVEN = SubmissionOptions()
_options = msgspec.json.Encoder(order="deterministic")


def new_job(app: App, given: Submission, tenant: str, key: str | None) -> NewJob:
    kind = find_kind(app, given.kind)
    text = encode_arguments(kind, given)
    written = SubmissionOptions(
        given.queue, given.priority, given.delay_seconds, given.run_at, given.attempts, given.timeout_seconds
    )
    options = NO_OPTIONS if written == NONE_GIVEN and key is None else check_options(written, key)
    return build_job(
        app.world.ids.job(),
        given.kind,
        text,
        options,
        kind=kind,
        tenant=tenant,
        fingerprint="" if key is None else fingerprint(given.kind, text, written),
        key_keep_us=app.key_keep_us,
        trace=None if app.world.tracing is None else app.world.tracing.origin(),
    )


def find_kind(app: App, name: str) -> Kind | None:
    """None: the service was started without an app and accepts every kind; only workers know them."""
    if check_name("kind", name).startswith(IMPORT_KINDS):
        raise BadValue("kind", "jobs of an import are submitted by the import; see /v1/imports")
    if not app.kinds:
        return None
    kind = app.kinds.get(name)
    if kind is None:
        raise UnknownKind(f"kind: this service has no job named {name!r}")
    return kind


def encode_arguments(kind: Kind | None, given: Submission) -> str:
    """The arguments as they are stored. Errors name the field of the body."""
    try:
        return payload.encode(given.arguments, given.kind) if kind is None else kind.encode(given.arguments)
    except BadValue as error:
        inside = error.field.removeprefix(given.kind).lstrip(":. ")
        raise BadValue(f"arguments.{inside}" if inside else "arguments", error.problem) from error


def check_options(written: SubmissionOptions, key: str | None) -> JobOptions:
    given = {
        "queue": written.queue, "priority": written.priority, "delay": written.delay_seconds,
        "run_at": written.run_at, "attempts": written.attempts, "timeout": written.timeout_seconds, "key": key,
    }  # fmt: skip
    try:
        return parse_options({name: value for name, value in given.items() if value is not None})
    except BadValue as error:
        raise BadValue(FIELD_NAMES.get(error.field, error.field), error.problem) from error


# -- idempotency ----------------------------------------------------------------------------------------------------


def idempotency_key(headers: Headers, in_body: str | None) -> str | None:
    """The key from the header or from the body; if both have one, they must be equal."""
    given = headers.getlist(IDEMPOTENCY_KEY)
    if not given:
        return in_body
    key = parse_key(given[0].strip()) if len(given) == 1 else None
    if not key or len(key) > NAME_LENGTH_MAX:
        raise Problem(
            400, "bad_idempotency_key",
            f'Idempotency-Key: must be one string of 1 to {NAME_LENGTH_MAX} printable characters, in quotes: "…"',
        )  # fmt: skip
    if in_body is not None and in_body != key:
        raise Problem(422, "invalid", "key: differs from the Idempotency-Key header; send only one of them")
    return key


def refuse_idempotency_key(headers: Headers) -> None:
    """For requests with many jobs, where a client must not rely on one key."""
    if IDEMPOTENCY_KEY in headers:
        raise Problem(
            400, "bad_idempotency_key", "Idempotency-Key: applies to one job; give each item its own key: items[].key"
        )


def parse_key(field: str) -> str | None:
    quoted = QUOTED.fullmatch(field)
    if quoted is not None:
        return ESCAPED.sub(r"\1", quoted[1])
    return field if UNQUOTED.fullmatch(field) else None


def fingerprint(kind: str, text: str, written: SubmissionOptions) -> str:
    """Identifies a request under its key. Without options it equals the fingerprint of `submit()` in Python, so that
    a client may repeat a submission through either."""
    options = "" if written == NONE_GIVEN else "\n" + _options.encode(written).decode()
    return hashlib.sha256(f"{kind}\n{text}{options}".encode()).hexdigest()
