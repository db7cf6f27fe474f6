"""strict body ─► [bounds] ─► store: what a worker says is checked like what a client says.

Inside the house nobody makes a job with a lease of a thousand years. Out there somebody writes his own client.
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
"""Of anything in one call."""
COUNT_MAX = 1_000_000
VERSION_MAX = 2**31 - 1
SPAN_US_MAX = 200 * 366 * 86_400 * SECOND_US
INSTANT_MAX = 253_402_300_800 * SECOND_US
"""The year 10,000."""
LEASE_US_MAX = LEASE_SECONDS_MAX * SECOND_US

TRACE = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

_json = msgspec.json.Decoder(msgspec.Raw)


def check(asked: object) -> None:
    CHECKS.get(type(asked), lambda _: None)(asked)


def some(field: str, items: Sequence[object]) -> None:
    if len(items) > ITEMS_MAX:
        raise BadValue(field, f"must be at most {ITEMS_MAX:,} (are {len(items):,})")


def text(field: str, value: str | None, bytes_max: int = BYTES_MAX) -> None:
    if value is not None and (len(value) > bytes_max or len(value.encode()) > bytes_max):
        raise BadValue(field, f"must have at most {bytes_max:,} bytes")


def span(field: str, value: int | None, least: int = 0, most: int = SPAN_US_MAX) -> None:
    if value is not None:
        check_int(field, value, least, most)


def every(check_one: Callable[[Any], object], items: Iterable[object]) -> None:
    for item in items:
        check_one(item)


def names(field: str, values: Iterable[str]) -> None:
    for value in values:
        check_name(field, value)


def queues(values: Sequence[str]) -> None:
    some("queues", values)
    names("queues", values)


def gates(field: str, values: Sequence[Gate]) -> None:
    some(field, values)
    for gate in values:
        text(f"{field}.needs", gate.needs, NEEDS_BYTES_MAX)
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
    span("lease_us", new.lease_us, 1, LEASE_US_MAX)
    span("timeout_us", new.timeout_us, 1)
    span("delay_us", new.delay_us)
    span("key_keep_us", new.key_keep_us)
    span("run_at", new.run_at, 0, INSTANT_MAX)
    text("fingerprint", new.fingerprint, NAME_LENGTH_MAX)
    text("cursor", new.cursor)
    text("needs", new.needs, NEEDS_BYTES_MAX)
    if new.trace is not None and TRACE.fullmatch(new.trace) is None:
        raise BadValue("trace", "must be a traceparent as W3C Trace Context has it: 00-…-…-01")
    arguments(new.payload)


def needs(new: NewJob) -> None:
    """Every worker reads them: what one tenant says must not stop the workers of all."""
    try:
        parse_needs(new.needs)
    except msgspec.DecodeError as error:
        raise BadValue("needs", f"must be what a job of this kind needs, as JSON ({error})") from error


def arguments(payload: str) -> None:
    text("payload", payload)
    try:
        _json.decode(payload)
    except msgspec.DecodeError as error:
        raise BadValue("payload", f"must be JSON as text ({error})") from error


def jobs(new: Sequence[NewJob]) -> None:
    some("jobs", new)
    for each in new:
        job(each)


def exchange(call: Exchange) -> None:
    check_name("worker", call.worker)
    some("settlements", call.settlements)
    for each in call.settlements:
        settlement(each)
    if call.wants is not None:
        wants(call.wants)


def wants(value: Wants) -> None:
    queues(value.queues)
    check_int("wants.count", value.count, -ITEMS_MAX, ITEMS_MAX)
    check_name("wants.token", value.token)
    gates("wants.closed", value.closed)
    gates("wants.admits", [admit.gate for admit in value.admits])
    for admit in value.admits:
        check_int("wants.admits.count", admit.count, -COUNT_MAX, COUNT_MAX)


def settlement(said: Settlement) -> None:
    names("settlements", (said.id, said.token))
    span("settlements.delay_us", said.delay_us)
    span("settlements.run_at", said.run_at, 0, INSTANT_MAX)
    text("settlements.result", said.result)
    text("settlements.progress", said.progress)
    if said.failure is not None:
        text("settlements.failure.code", said.failure.code, NAME_LENGTH_MAX)
        text("settlements.failure.message", said.failure.message)
        text("settlements.failure.traceback", said.failure.traceback)
    jobs(said.children)


def renew(asked: requests.Renew | requests.Origins) -> None:
    some("leases", asked.leases)
    for held in asked.leases:
        names("leases", (held.id, held.token))
        span("leases.lease_us", held.lease_us, 1, LEASE_US_MAX)


def checkpoint(asked: requests.Checkpoint) -> None:
    names("checkpoint", (asked.job, asked.token))
    text("cursor", asked.cursor)


def reports(asked: requests.Reports) -> None:
    some("reports", asked.reports)
    for each in asked.reports:
        names("reports", (each.id, each.token))
        text("reports.progress", each.progress)


def look(asked: requests.Look) -> None:
    queues(asked.queues)
    gates("closed", asked.closed)


def old(asked: requests.Old) -> None:
    span("keep_us", asked.keep_us)
    check_int("limit", asked.limit, -COUNT_MAX, COUNT_MAX)


def fire(asked: requests.Fire) -> None:
    check_name("name", asked.name)
    jobs(asked.jobs)


# -- limits and budgets ---------------------------------------------------------------------------------------------


def give_back(asked: requests.GiveBack) -> None:
    check_requests(asked.granted.asks)
    if len(asked.granted.generations) != len(asked.granted.asks):
        raise BadValue("granted", "must be given back as it was granted")


def limit(asked: Any) -> None:
    check_int("limit", asked.limit, -COUNT_MAX, COUNT_MAX)


def one_limit(asked: requests.OneLimit) -> None:
    limits.check_limit(asked.definition)
    version(asked.expected)


def one_budget(asked: requests.OneBudget) -> None:
    budget.check_budget(asked.definition)
    version(asked.expected)


def version(expected: int | None) -> None:
    if expected is not None:
        check_int("expected", expected, 0, VERSION_MAX)


CHECKS: dict[type, Callable[[Any], object]] = {
    Exchange: exchange,
    requests.Submit: lambda asked: jobs(asked.jobs),
    requests.Renew: renew,
    requests.Origins: renew,
    requests.Checkpoint: checkpoint,
    requests.Reports: reports,
    requests.Look: look,
    requests.Old: old,
    requests.Fire: fire,
    requests.SomeJobs: limit,
    requests.Page: limit,
    requests.Most: limit,
    requests.Journal: limit,
    requests.OneJob: lambda asked: check_name("job", asked.job),
    requests.OneHold: lambda asked: check_name("id", asked.id),
    requests.Named: lambda asked: check_name("name", asked.name),
    requests.Pause: lambda asked: check_name("name", asked.name),
    requests.Agreed: lambda asked: tenant.check_tenant(asked.tenant),
    requests.Schedules: lambda asked: every(schedule.check_schedule, asked.schedules),
    requests.Limits: lambda asked: every(limits.check_limit, asked.definitions),
    requests.OneLimit: one_limit,
    requests.GiveBack: give_back,
    requests.Budgets: lambda asked: every(budget.check_budget, asked.definitions),
    requests.OneBudget: one_budget,
}
"""What the stores check by themselves, before they look at anything, is not in here."""
