"""What a submitted job may contain. Every way into the service applies these rules: single jobs, many jobs, the worker
protocol, and the children of settled jobs.

`check_new_job` has the bounds that hold for every client. `check_tenant_job` has further rules for clients whose
credential is limited to one tenant: they must not reach what belongs to others.
"""

import re

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Instant, id_instant
from leaseway.domain.job import LEASE_US_MAX, LEASE_US_MIN, NewJob
from leaseway.domain.kind import check_attempts, check_priority
from leaseway.domain.limits.validation import check_requests
from leaseway.domain.requirements import NEEDS_BYTES_MAX, Needs, parse_needs
from leaseway.domain.tenant import is_usable_by
from leaseway.domain.validators import INSTANT_MAX, NAME_LENGTH_MAX, SECONDS_MAX, check_int, check_json, check_name

SUBMIT_MAX = 5_000
"""The most jobs in one transaction. A client turns a larger submission into several transactions."""
IMPORT_KINDS = "import:"
"""Prefix of the kinds of shard jobs, which write to tables that belong to no tenant."""
IMPORT_QUEUES = "imports:"
"""Prefix of the queues of shard jobs."""
SPAN_US_MAX = 200 * 366 * 86_400 * SECOND_US
TENANT_SPAN_US_MAX = SECONDS_MAX * SECOND_US
TIMEOUT_US_MIN = 1_000
ID_AHEAD_US_MAX = 3_600 * SECOND_US
"""Jobs are listed by the time in their ids. A client cannot put its jobs before those of others for longer."""
ID_AGE_US_MAX = 30 * 86_400 * SECOND_US
"""A handler may submit a child early and run for weeks."""

TRACE = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def check_new_job(new: NewJob) -> None:
    for field, value in (("id", new.id), ("kind", new.kind), ("queue", new.queue), ("tenant", new.tenant)):
        check_name(field, value)
    for field, given in (("key", new.key), ("shard_key", new.shard_key)):
        if given is not None:
            check_name(field, given)
    check_priority("priority", new.priority)
    check_attempts("attempts_max", new.attempts_max)
    check_int("lease_us", new.lease_us, LEASE_US_MIN, LEASE_US_MAX)
    if new.timeout_us is not None:
        check_int("timeout_us", new.timeout_us, 1, SPAN_US_MAX)
    check_int("delay_us", new.delay_us, 0, SPAN_US_MAX)
    check_int("key_keep_us", new.key_keep_us, 0, SPAN_US_MAX)
    if new.run_at is not None:
        check_int("run_at", new.run_at, 0, INSTANT_MAX)
    if len(new.fingerprint) > NAME_LENGTH_MAX:
        raise BadValue("fingerprint", f"must have at most {NAME_LENGTH_MAX} characters")
    if len(new.needs.encode()) > NEEDS_BYTES_MAX:
        raise BadValue("needs", f"must have at most {NEEDS_BYTES_MAX:,} bytes")
    if new.trace is not None and TRACE.fullmatch(new.trace) is None:
        raise BadValue("trace", "must be a traceparent as W3C Trace Context has it: 00-…-…-01")
    if not isinstance(check_json(new.payload, "payload"), dict):
        raise BadValue("payload", "must be a JSON object: the arguments by name")
    if new.cursor is not None:
        check_json(new.cursor, "cursor")


def check_tenant_job(new: NewJob, tenant: str, now: Instant) -> None:
    """For a client that may submit jobs of this tenant only."""
    refuse_reserved(new.kind, new.queue)
    check_id(new.id, now)
    if new.timeout_us is not None:
        check_int("timeout_us", new.timeout_us, TIMEOUT_US_MIN, TENANT_SPAN_US_MAX)
    check_int("delay_us", new.delay_us, 0, TENANT_SPAN_US_MAX)
    check_int("key_keep_us", new.key_keep_us, 0, TENANT_SPAN_US_MAX)
    check_needs(new.needs, tenant)


def refuse_reserved(kind: str, queue: str | None) -> None:
    """Jobs of an import write to tables of the operator."""
    if kind.startswith(IMPORT_KINDS):
        raise BadValue("kind", "jobs of an import are submitted by the import; see /v1/imports")
    if queue is not None and queue.startswith(IMPORT_QUEUES):
        raise BadValue("queue", "queues that start with imports: are reserved for imports; use another queue")


def check_id(id_: str, now: Instant) -> None:
    """Ids of other tenants are refused by the store. Here an id is refused that sorts where it does not belong."""
    made_at = id_instant(id_)
    if made_at is None:
        raise BadValue("id", "must be a job id: 10 characters for the millisecond, then 16 random ones, in base 32")
    if made_at > now + ID_AHEAD_US_MAX:
        seconds = (made_at - now) // SECOND_US
        raise BadValue("id", f"was made {seconds:,} s in the future; set the clock of the machine that submits")
    if made_at < now - ID_AGE_US_MAX:
        raise BadValue("id", "was made more than 30 days ago; make a new id, or set the clock of this machine")


def check_needs(text: str, tenant: str) -> Needs:
    """All workers parse them, and take permits of the limits that they name."""
    needs = parse_needs(text)
    if needs.limits:
        check_requests(needs.limits)
    for name, template in [
        *((request.name, request.limit) for request in needs.limits),
        *((charge.name, charge.budget) for charge in needs.budgets),
    ]:
        check_name("needs", name)
        if not is_usable_by(tenant, name, template):
            raise BadValue("needs", f"name {name!r}, which jobs of tenant {tenant} cannot use")
    return needs
