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
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.datastructures import Headers

from leaseway.api.errors import Problem
from leaseway.api.request_body import map_in_turns
from leaseway.app import App
from leaseway.domain.encryption import Encryption, is_encrypted
from leaseway.domain.errors import BadValue, IdConflict, UnknownKind, foreign_id_text
from leaseway.domain.ids import SECOND_US, Instant, id_instant
from leaseway.domain.inspection import SUMMARIES_MAX
from leaseway.domain.job import NewJob
from leaseway.domain.kind import NO_OPTIONS, JobOptions, Kind, parse_options
from leaseway.domain.kind import new_job as build_job
from leaseway.domain.submission import check_tenant_job, refuse_reserved
from leaseway.domain.validators import NAME_LENGTH_MAX, check_name, encode_payload
from leaseway.ports.store import Store, require_inspection
from leaseway.worker.blobs import is_kept

LOOKED_UP_US = 20 * 3_600 * SECOND_US
"""Stores look for known ids among the jobs that finished within a day; clocks of clients may differ by an hour."""
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
    check_name("kind", given.kind)
    refuse_reserved(given.kind, given.queue)
    kind = find_kind(app, given.kind)
    text = encode_arguments(kind, given)
    written = SubmissionOptions(
        given.queue, given.priority, given.delay_seconds, given.run_at, given.attempts, given.timeout_seconds
    )
    options = NO_OPTIONS if written == NONE_GIVEN and key is None else check_options(written, key)
    new = build_job(
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
    new = app.world.encryption.seal_job(new)
    if is_kept(new.payload):  # arguments of 200 KB, once they are encrypted
        raise BadValue("arguments", "are too long once they are encrypted; submit them with App(blobs=…)")
    return new


def find_kind(app: App, name: str) -> Kind | None:
    """None: the service was started without an app and accepts every kind; only workers know them."""
    if not app.kinds:
        return None
    kind = app.kinds.get(name)
    if kind is None:
        raise UnknownKind(f"kind: this service has no job named {name!r}")
    return kind


def encode_arguments(kind: Kind | None, given: Submission) -> str:
    """The arguments as JSON. Errors name the field of the body."""
    if "$encrypted" in given.arguments:
        # The client would have to bind them to the id of the job, which it does not know yet.
        raise BadValue("arguments.$encrypted", 'is reserved; submit encrypted jobs with App("https://…", codec=…)')
    try:
        return encode_payload(given.arguments, given.kind) if kind is None else kind.encode(given.arguments)
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


# -- jobs in the worker protocol --------------------------------------------------------------------------------------


async def accept_jobs(app: App, jobs: Sequence[NewJob], tenant: str) -> tuple[NewJob, ...]:
    """The jobs as they are stored, for a client that may submit jobs of this tenant only. The rules are those of POST
    /v1/jobs: what the service knows about a kind, the client cannot change."""
    now = app.world.clock.wall_us()
    for job in jobs:
        if job.tenant != tenant:
            raise Problem(403, "not_allowed", f"tenant: this credential submits jobs of tenant {tenant} only")
    clock, encryption = app.world.clock, app.world.encryption
    await map_in_turns(clock, lambda job: check_tenant_job(job, tenant, now), jobs)
    await refuse_old_foreign_ids(app.world.store, jobs, tenant, now)
    known = await map_in_turns(clock, lambda job: with_known_needs(find_kind(app, job.kind), job, encryption), jobs)
    return tuple(known)


def with_known_needs(kind: Kind | None, job: NewJob, encryption: Encryption) -> NewJob:
    """The limits and budgets that a job needs come from its kind, if the service knows it."""
    if kind is None:
        return job
    payload = encryption.open_payload(job)

    def arguments() -> dict[str, Any]:
        if is_encrypted(payload):
            problem = f"is encrypted, but the limits or budgets of job {kind.name} depend on its arguments"
            raise BadValue("payload", f"{problem}; give the service the key, or start it without the app")
        return kind.decode(payload)

    if not is_encrypted(payload):
        kind.check(payload)
    needs = kind.requirements.text(arguments, job.tenant) if kind.has_requirements else ""
    return job if job.needs == needs else replace(job, needs=needs)


async def refuse_old_foreign_ids(store: Store, jobs: Sequence[NewJob], tenant: str, now: Instant) -> None:
    """A store looks for the id of a new job among the jobs that finished lately. Ids that are older than that are
    looked up here; hardly any client sends them."""
    old = tuple(job.id for job in jobs if (id_instant(job.id) or 0) < now - LOOKED_UP_US)
    for start in range(0, len(old), SUMMARIES_MAX):
        for known in await require_inspection(store).summaries(old[start : start + SUMMARIES_MAX]):
            if known.tenant != tenant:
                raise IdConflict(foreign_id_text(known.id))


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
