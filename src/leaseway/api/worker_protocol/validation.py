"""strict body ─► [validation] ─► store: bounds on everything that a worker sends.

The Python client never sends a lease of a thousand years, but other clients might.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from leaseway.domain import schedule, tenant
from leaseway.domain.budgets import budget
from leaseway.domain.errors import BadValue
from leaseway.domain.exchange import Exchange, Gate, Wants
from leaseway.domain.ids import SECOND_US
from leaseway.domain.job import NewJob, Settlement
from leaseway.domain.kind import LEASE_SECONDS_MAX, check_attempts, check_priority
from leaseway.domain.limits import limit as limits
from leaseway.domain.limits.validation import check_requests
from leaseway.domain.payload import BYTES_MAX
from leaseway.domain.requirements import NEEDS_BYTES_MAX, parse_needs
from leaseway.domain.validators import NAME_LENGTH_MAX, check_int, check_name
from leaseway.stores.http import requests

ITEMS_MAX = 10_000
"""The maximal number of items of any kind in one call."""
COUNT_MAX = 1_000_000
VERSION_MAX = 2**31 - 1
SPAN_US_MAX = 200 * 366 * 86_400 * SECOND_US
INSTANT_MAX = 253_402_300_800 * SECOND_US
"""The year 10,000."""
LEASE_US_MAX = LEASE_SECONDS_MAX * SECOND_US

TRACE = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

_json = msgspec.json.Decoder(msgspec.Raw)


def check_body(body: object) -> None:
    CHECKS.get(type(body), lambda _: None)(body)


def check_count(field: str, items: Sequence[object]) -> None:
    if len(items) > ITEMS_MAX:
        raise BadValue(field, f"must be at most {ITEMS_MAX:,} (are {len(items):,})")


def check_text(field: str, value: str | None, bytes_max: int = BYTES_MAX) -> None:
    if value is not None and (len(value) > bytes_max or len(value.encode()) > bytes_max):
        raise BadValue(field, f"must have at most {bytes_max:,} bytes")


def check_span(field: str, value: int | None, least: int = 0, most: int = SPAN_US_MAX) -> None:
    if value is not None:
        check_int(field, value, least, most)


def check_each(check_one: Callable[[Any], object], items: Iterable[object]) -> None:
    for item in items:
        check_one(item)


def check_names(field: str, values: Iterable[str]) -> None:
    for value in values:
        check_name(field, value)


def check_queues(values: Sequence[str]) -> None:
    check_count("queues", values)
    check_names("queues", values)


def check_gates(field: str, values: Sequence[Gate]) -> None:
    check_count(field, values)
    for gate in values:
        check_text(f"{field}.needs", gate.needs, NEEDS_BYTES_MAX)
        check_name(f"{field}.tenant", gate.tenant)


# -- jobs -----------------------------------------------------------------------------------------------------------


def job(new: NewJob) -> None:
    for field, value in (("id", new.id), ("kind", new.kind), ("queue", new.queue), ("tenant", new.tenant)):
        check_name(field, value)
    for field, given in (("key", new.key), ("shard_key", new.shard_key)):
        if given is not None:
            check_name(field, given)
    check_priority("priority", new.priority)
    check_attempts("attempts_max", new.attempts_max)
    check_span("lease_us", new.lease_us, 1, LEASE_US_MAX)
    check_span("timeout_us", new.timeout_us, 1)
    check_span("delay_us", new.delay_us)
    check_span("key_keep_us", new.key_keep_us)
    check_span("run_at", new.run_at, 0, INSTANT_MAX)
    check_text("fingerprint", new.fingerprint, NAME_LENGTH_MAX)
    check_text("cursor", new.cursor)
    check_text("needs", new.needs, NEEDS_BYTES_MAX)
    if new.trace is not None and TRACE.fullmatch(new.trace) is None:
        raise BadValue("trace", "must be a traceparent as W3C Trace Context has it: 00-…-…-01")
    check_payload(new.payload)


def check_needs(new: NewJob) -> None:
    """All workers parse them: an invalid value from one tenant must not stop the workers of the others."""
    try:
        parse_needs(new.needs)
    except msgspec.DecodeError as error:
        raise BadValue("needs", f"must be what a job of this kind needs, as JSON ({error})") from error


def check_payload(payload: str) -> None:
    check_text("payload", payload)
    try:
        _json.decode(payload)
    except msgspec.DecodeError as error:
        raise BadValue("payload", f"must be JSON as text ({error})") from error


def jobs(new: Sequence[NewJob]) -> None:
    check_count("jobs", new)
    for each in new:
        job(each)


def exchange(call: Exchange) -> None:
    check_name("worker", call.worker)
    check_count("settlements", call.settlements)
    for each in call.settlements:
        settlement(each)
    if call.wants is not None:
        wants(call.wants)


def wants(value: Wants) -> None:
    check_queues(value.queues)
    check_int("wants.count", value.count, -ITEMS_MAX, ITEMS_MAX)
    check_name("wants.token", value.token)
    check_gates("wants.closed", value.closed)
    check_gates("wants.admits", [admit.gate for admit in value.admits])
    for admit in value.admits:
        check_int("wants.admits.count", admit.count, -COUNT_MAX, COUNT_MAX)


def settlement(settled: Settlement) -> None:
    check_names("settlements", (settled.id, settled.token))
    check_span("settlements.delay_us", settled.delay_us)
    check_span("settlements.run_at", settled.run_at, 0, INSTANT_MAX)
    check_text("settlements.result", settled.result)
    check_text("settlements.progress", settled.progress)
    if settled.failure is not None:
        check_text("settlements.failure.code", settled.failure.code, NAME_LENGTH_MAX)
        check_text("settlements.failure.message", settled.failure.message)
        check_text("settlements.failure.traceback", settled.failure.traceback)
    jobs(settled.children)


def renew(body: requests.RenewRequest | requests.TracesRequest) -> None:
    check_count("leases", body.leases)
    for held in body.leases:
        check_names("leases", (held.id, held.token))
        check_span("leases.lease_us", held.lease_us, 1, LEASE_US_MAX)


def checkpoint(body: requests.CheckpointRequest) -> None:
    check_names("checkpoint", (body.job, body.token))
    check_text("cursor", body.cursor)


def reports(body: requests.ReportRequest) -> None:
    check_count("reports", body.reports)
    for each in body.reports:
        check_names("reports", (each.id, each.token))
        check_text("reports.progress", each.progress)


def look(body: requests.WaitRequest) -> None:
    check_queues(body.queues)
    check_gates("closed", body.closed)


def old(body: requests.PruneRequest) -> None:
    check_span("keep_us", body.keep_us)
    check_int("limit", body.limit, -COUNT_MAX, COUNT_MAX)


def fire(body: requests.FireRequest) -> None:
    check_name("name", body.name)
    jobs(body.jobs)


# -- limits and budgets ---------------------------------------------------------------------------------------------


def give_back(body: requests.ReturnUnusedRequest) -> None:
    check_requests(body.granted.asks)
    if len(body.granted.generations) != len(body.granted.asks):
        raise BadValue("granted", "must be given back as it was granted")


def limit(body: Any) -> None:
    check_int("limit", body.limit, -COUNT_MAX, COUNT_MAX)


def one_limit(body: requests.ChangeLimitRequest) -> None:
    limits.check_limit(body.definition)
    version(body.expected)


def one_budget(body: requests.ChangeBudgetRequest) -> None:
    budget.check_budget(body.definition)
    version(body.expected)


def version(expected: int | None) -> None:
    if expected is not None:
        check_int("expected", expected, 0, VERSION_MAX)


CHECKS: dict[type, Callable[[Any], object]] = {
    Exchange: exchange,
    requests.SubmitRequest: lambda body: jobs(body.jobs),
    requests.RenewRequest: renew,
    requests.TracesRequest: renew,
    requests.CheckpointRequest: checkpoint,
    requests.ReportRequest: reports,
    requests.WaitRequest: look,
    requests.PruneRequest: old,
    requests.FireRequest: fire,
    requests.BulkRequest: limit,
    requests.JobsRequest: limit,
    requests.ExpireHoldsRequest: limit,
    requests.JournalRequest: limit,
    requests.JobRequest: lambda body: check_name("job", body.job),
    requests.HoldIdRequest: lambda body: check_name("id", body.id),
    requests.NameRequest: lambda body: check_name("name", body.name),
    requests.PauseScheduleRequest: lambda body: check_name("name", body.name),
    requests.SetTenantRequest: lambda body: tenant.check_tenant(body.tenant),
    requests.DeclareSchedulesRequest: lambda body: check_each(schedule.check_schedule, body.schedules),
    requests.DeclareLimitsRequest: lambda body: check_each(limits.check_limit, body.definitions),
    requests.ChangeLimitRequest: one_limit,
    requests.ReturnUnusedRequest: give_back,
    requests.DeclareBudgetsRequest: lambda body: check_each(budget.check_budget, body.definitions),
    requests.ChangeBudgetRequest: one_budget,
}
"""What the stores check themselves is missing here."""
