"""strict body ─► [submission] ─► new job: what a client may say about a job, and how it becomes one.

State, attempts made, lease, tenant and cost are nobody's to say: they are not in the body, and what is not known there
is refused.
"""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from leaseway.api.routes.idempotency import fingerprint_of
from leaseway.app import App
from leaseway.domain import payload
from leaseway.domain.errors import BadValue, UnknownKind
from leaseway.domain.job import NewJob
from leaseway.domain.kind import Kind, KindDefaults
from leaseway.domain.submission import NO_OPTIONS, JobOptions, parse_options
from leaseway.domain.validators import check_name

DEFAULTS = KindDefaults()
"""Of a job whose kind this process does not know."""
IMPORTS = "import:"
"""So begin the kinds of jobs that write into tables which belong to no tenant."""
IN_BODY = {"delay": "delay_seconds", "timeout": "timeout_seconds"}


class Submission(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One job to be done."""

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
    """Many jobs. Each is looked at by itself, so that one that is wrong does not take the others along."""

    items: list[msgspec.Raw]


class Options(Struct, omit_defaults=True):
    """Whatever was said besides kind, arguments and key: a part of what makes a request the same one."""

    queue: str | None = None
    priority: int | None = None
    delay_seconds: float | None = None
    run_at: datetime | None = None
    attempts: int | None = None
    timeout_seconds: float | None = None


NONE_GIVEN = Options()
_options = msgspec.json.Encoder(order="deterministic")


def new_job(app: App, given: Submission, tenant: str, key: str | None) -> NewJob:
    kind = kind_of(app, given.kind)
    text = payload_of(kind, given)
    said = Options(
        given.queue, given.priority, given.delay_seconds, given.run_at, given.attempts, given.timeout_seconds
    )
    options = NO_OPTIONS if said == NONE_GIVEN and key is None else options_for(said, key)
    defaults = DEFAULTS if kind is None else kind.defaults
    return NewJob(
        id=app.world.ids.job(),
        kind=given.kind,
        payload=text,
        queue=options.queue or defaults.queue,
        tenant=tenant,
        priority=defaults.priority if options.priority is None else options.priority,
        attempts_max=options.attempts or defaults.attempts,
        lease_us=defaults.lease_us,
        timeout_us=options.timeout_us or defaults.timeout_us,
        delay_us=options.delay_us,
        run_at=options.run_at,
        key=key,
        fingerprint="" if key is None else fingerprint_of(given.kind, text, text_of(said)),
        key_keep_us=app.key_keep_us,
        needs=kind.requirements.text(lambda: kind.decode(text), tenant)
        if kind is not None and kind.requirements
        else "",
        trace=None if app.world.tracing is None else app.world.tracing.origin(),
    )


def kind_of(app: App, name: str) -> Kind | None:
    """None: the service was started without an app, and takes any kind; workers know theirs."""
    if check_name("kind", name).startswith(IMPORTS):
        raise BadValue("kind", "jobs of an import are submitted by the import; see /v1/imports")
    if not app.kinds:
        return None
    kind = app.kinds.get(name)
    if kind is None:
        raise UnknownKind(f"kind: there is no job named {name!r} here")
    return kind


def payload_of(kind: Kind | None, given: Submission) -> str:
    """The arguments as they are stored. An error names their place in the body."""
    try:
        return payload.encode(given.arguments, given.kind) if kind is None else kind.encode(given.arguments)
    except BadValue as error:
        inside = error.field.removeprefix(given.kind).lstrip(":. ")
        raise BadValue(f"arguments.{inside}" if inside else "arguments", error.problem) from error


def options_for(said: Options, key: str | None) -> JobOptions:
    given = {
        "queue": said.queue, "priority": said.priority, "delay": said.delay_seconds, "run_at": said.run_at,
        "attempts": said.attempts, "timeout": said.timeout_seconds, "key": key,
    }  # fmt: skip
    try:
        return parse_options({name: value for name, value in given.items() if value is not None})
    except BadValue as error:
        raise BadValue(IN_BODY.get(error.field, error.field), error.problem) from error


def text_of(said: Options) -> str:
    return "" if said == NONE_GIVEN else _options.encode(said).decode()
