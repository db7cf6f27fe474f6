"""strict body ─► [validation] ─► store: bounds on everything that a worker sends.

The Python client never sends a lease of a thousand years, but other clients might. It also removes secrets from errors;
`redact_errors` does the same for clients that do not.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, get_args, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from leaseway.api.request_body import PARSERS
from leaseway.domain import schedule, tenant
from leaseway.domain.budgets import budget
from leaseway.domain.budgets.budget import Charge
from leaseway.domain.encryption import is_encrypted, read_envelope
from leaseway.domain.errors import BadCiphertext, BadValue
from leaseway.domain.exchange import CHILDREN_MAX, CLAIM_MAX, WHY_LENGTH_MAX, Exchange, Gate, Wants
from leaseway.domain.history.rows import HISTORY_ID_BYTES_MAX, TIMES_US
from leaseway.domain.inspection import PAGE_MAX
from leaseway.domain.job import LEASE_US_MAX, LEASE_US_MIN, Failure, NewJob, Settlement, State
from leaseway.domain.limits import limit as limits
from leaseway.domain.limits.learnt_use import CALLS_MAX, SCALE
from leaseway.domain.limits.validation import check_requests
from leaseway.domain.redact import NO_SECRETS
from leaseway.domain.requirements import NEEDS_BYTES_MAX
from leaseway.domain.submission import SPAN_US_MAX, check_new_job
from leaseway.domain.validators import (
    INSTANT_MAX,
    NAME_LENGTH_MAX,
    PAYLOAD_BYTES_MAX,
    check_int,
    check_json,
    check_name,
    printable,
)
from leaseway.domain.workers import Heartbeat
from leaseway.ports.ledger import HoldRequest, SettleHoldRequest
from leaseway.stores.http import messages
from leaseway.stores.http.protocol import LIST_BOUNDS
from leaseway.worker.run_handler import CODE_MAX, MESSAGE_MAX, TRACEBACK_MAX

COUNT_MAX = 1_000_000
CELL_NAMES_MAX = 20
STEP_MAX = 10_000
"""The most rows that one call of maintenance deletes."""
VERSION_MAX = 2**31 - 1


def check_body(body: object) -> None:
    check_lists(body)
    CHECKS.get(type(body), lambda _: None)(body)


def check_lists(value: object) -> None:
    """Bound every list of a call, also those of the structs in it."""
    for field, items_max in find_lists(type(value)):
        inner = getattr(value, field)
        if items_max is None:
            check_lists(inner)
        elif inner is not None:
            check_count(field, len(inner), items_max)
            # All items have one type, and most types contain no lists.
            if inner and find_lists(type(next(iter(inner)))):
                check_each(check_lists, inner)


def find_lists(kind: Any) -> Sequence[tuple[str, int | None]]:
    """The fields of a struct that are lists, with their bounds, and those that are structs with lists (None)."""
    return read_lists(kind) if issubclass(kind, Struct) else ()


@cache
def read_lists(kind: Any) -> Sequence[tuple[str, int | None]]:
    bounds = LIST_BOUNDS.get(kind, {})
    hints = {field: (hint, *get_args(hint)) for field, hint in get_type_hints(kind).items() if field not in bounds}
    inner = [
        field for field, parts in hints.items() if any(find_lists(part) for part in parts if isinstance(part, type))
    ]
    return (*bounds.items(), *((field, None) for field in inner))


def check_count(field: str, count: int, most: int) -> None:
    if count > most:
        raise BadValue(field, f"must be at most {most:,} (are {count:,})")


def check_text(field: str, value: str | None, bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
    if value is not None and (len(value) > bytes_max or len(value.encode()) > bytes_max):
        raise BadValue(field, f"must have at most {bytes_max:,} bytes")


def check_document(field: str, value: str | None) -> None:
    """JSON that every reader can show."""
    if value is not None:
        check_json(value, field)


def check_span(field: str, value: int | None, least: int = 0, most: int = SPAN_US_MAX) -> None:
    if value is not None:
        check_int(field, value, least, most)


def check_each(check_one: Callable[[Any], object], items: Iterable[object]) -> None:
    for item in items:
        check_one(item)


def check_names(field: str, values: Iterable[str]) -> None:
    for value in values:
        check_name(field, value)


def check_gates(field: str, values: Sequence[Gate]) -> None:
    for gate in values:
        check_text(f"{field}.needs", gate.needs, NEEDS_BYTES_MAX)
        check_name(f"{field}.tenant", gate.tenant)


# -- jobs -----------------------------------------------------------------------------------------------------------


def jobs(new: Sequence[NewJob]) -> None:
    check_each(check_new_job, new)


def exchange(call: Exchange) -> None:
    check_name("worker", call.worker)
    check_count("settlements.children", sum(len(each.children) for each in call.settlements), CHILDREN_MAX)
    check_each(settlement, call.settlements)
    if call.wants is not None:
        wants(call.wants)


def wants(value: Wants) -> None:
    check_names("queues", value.queues)
    check_int("wants.count", value.count, -CLAIM_MAX, CLAIM_MAX)
    check_name("wants.token", value.token)
    check_gates("wants.closed", [closing.gate for closing in value.closed])
    for closing in value.closed:
        check_span("wants.closed.wait_us", closing.wait_us)
        check_text("wants.closed.why", closing.why, 4 * WHY_LENGTH_MAX)
        if not closing.why.isprintable():
            raise BadValue("wants.closed.why", "must be one line of printable characters")
    check_gates("wants.admits", [admit.gate for admit in value.admits])
    for admit in value.admits:
        check_int("wants.admits.count", admit.count, -COUNT_MAX, COUNT_MAX)


def settlement(settled: Settlement) -> None:
    check_names("settlements", (settled.id, settled.token))
    if settled.state is State.LEASED:
        raise BadValue(
            "settlements.state", "must be pending, done, failed or cancelled, because a settlement ends a lease"
        )
    check_span("settlements.delay_us", settled.delay_us)
    check_span("settlements.run_at", settled.run_at, 0, INSTANT_MAX)
    check_document("settlements.result", settled.result)
    check_document("settlements.progress", settled.progress)
    if settled.failure is not None:
        check_text("settlements.failure.code", settled.failure.code, NAME_LENGTH_MAX)
        check_text("settlements.failure.message", settled.failure.message)
        check_text("settlements.failure.traceback", settled.failure.traceback)
    jobs(settled.children)


ERROR_CHARS_ON_LOOP_MAX = 16 * 1024
"""A search for secrets takes up to 2 µs per character. Longer errors are searched in one of the few threads that parse
bodies: with many of them, the event loop would not get its turn."""


async def redact_errors(call: Any) -> Any:
    """The call with errors as Python workers send them: without secrets, bounded in length, with codes of one line.

    Secrets are recognized by their place and form. The secrets of the service are not searched for: a client could send
    guesses and would find the right one masked.
    """
    failures = [each.failure for each in call.settlements if each.failure is not None] if type(call) is Exchange else []
    if not failures:
        return call
    chars = sum(len(each.message) + len(each.traceback) for each in failures)
    if chars <= ERROR_CHARS_ON_LOOP_MAX:
        return with_redacted_errors(call)
    return await asyncio.get_running_loop().run_in_executor(PARSERS, with_redacted_errors, call)


def with_redacted_errors(call: Exchange) -> Exchange:
    settlements = [
        each if each.failure is None else replace(each, failure=redact_failure(each.failure))
        for each in call.settlements
    ]
    return replace(call, settlements=tuple(settlements))


def redact_failure(failure: Failure) -> Failure:
    message, traceback = failure.message, failure.traceback
    return Failure(
        printable(NO_SECRETS.head(failure.code, CODE_MAX))[:CODE_MAX],
        message if is_sealed(message) else NO_SECRETS.head(message, MESSAGE_MAX),
        traceback if is_sealed(traceback) else NO_SECRETS.tail(traceback, TRACEBACK_MAX),
    )


def is_sealed(text: str) -> bool:
    """A worker with a codec has encrypted it, after it removed the secrets."""
    try:
        return is_encrypted(text) and bool(read_envelope(text, "error"))
    except BadCiphertext:
        return False


def renew(body: messages.RenewRequest | messages.TracesRequest) -> None:
    for held in body.leases:
        check_names("leases", (held.id, held.token))
        check_span("leases.lease_us", held.lease_us, LEASE_US_MIN, LEASE_US_MAX)


def checkpoint(body: messages.CheckpointRequest) -> None:
    check_names("checkpoint", (body.job, body.token))
    check_document("cursor", body.cursor)


def reports(body: messages.ReportRequest) -> None:
    for each in body.reports:
        check_names("reports", (each.id, each.token))
        check_document("reports.progress", each.progress)


def heartbeat(body: Heartbeat) -> None:
    check_name("worker", body.worker)
    check_names("queues", body.queues)
    check_names("kinds", body.kinds)
    for field in ("host", "version"):
        check_name(field, getattr(body, field) or "unknown")
    for field in ("pid", "slots", "used", "waiting"):
        check_int(field, getattr(body, field), 0, VERSION_MAX)
    check_span("uptime_us", body.uptime_us)
    for each in body.estimates:
        check_names("estimates", (each.kind, each.limit))
        check_int("estimates.share", each.share, 0, SCALE)
        check_int("estimates.calls", each.calls, 0, CALLS_MAX)


def history_rows(body: messages.RecordRequest) -> None:
    for row in body.rows:
        check_names("rows", (row.id, row.tenant, row.queue, row.kind or "-", *row.cell.counts, *row.cell.times))
        numbers = [*row.cell.counts.values()]
        for buckets in row.cell.times.values():
            check_count("rows.cell.times", len(buckets), len(TIMES_US))
            for bucket, count in buckets.items():
                check_int("rows.cell.times", bucket, 0, len(TIMES_US) - 1)
                numbers.append(count)
        check_count("rows.cell", len(row.cell.counts) + len(row.cell.times), CELL_NAMES_MAX)
        check_each(lambda number: check_int("rows.cell", number, 0, VERSION_MAX), numbers)


def history_range(body: messages.HistoryRequest) -> None:
    check_int("limit", body.limit, 0, COUNT_MAX)
    for field in ("since", "until"):
        check_int(field, getattr(body, field), 0, INSTANT_MAX)
    check_names("tenant", () if body.tenant is None else (body.tenant,))
    check_text("after", body.after, HISTORY_ID_BYTES_MAX)


def look(body: messages.WaitRequest) -> None:
    check_names("queues", body.queues)
    check_gates("closed", body.closed)


def old(body: messages.PruneRequest) -> None:
    check_span("keep_us", body.keep_us)
    check_int("limit", body.limit, -COUNT_MAX, STEP_MAX)


def open_lanes(body: messages.OpenLanesRequest) -> None:
    check_names("name", (body.name, *(() if body.tenant is None else (body.tenant,))))
    check_int("limit", body.limit, -COUNT_MAX, STEP_MAX)


def fire(body: messages.FireRequest) -> None:
    check_name("name", body.name)
    jobs(body.jobs)


# -- limits and budgets ---------------------------------------------------------------------------------------------


def calls(body: messages.AcquireRequest | messages.EndCallsRequest | messages.RenewCallsRequest) -> None:
    check_requests(body.asks)
    if body.holder:
        check_name("holder", body.holder)


def give_back(body: messages.ReturnUnusedRequest) -> None:
    check_requests(body.granted.asks)
    if len(body.granted.generations) != len(body.granted.asks):
        raise BadValue("granted", "must be given back as it was granted")


def hold(body: HoldRequest | SettleHoldRequest) -> None:
    check_name("id", body.id)
    if body.owner:
        check_name("owner", body.owner)
    if isinstance(body, HoldRequest):
        charges(charge for charge, _ in body.lines)


def charges(values: Iterable[Charge]) -> None:
    for charge in values:
        check_names("charges", (charge.name, charge.budget))


def step_limit(body: Any) -> None:
    check_int("limit", body.limit, -COUNT_MAX, STEP_MAX)


def page_limit(body: Any) -> None:
    check_int("limit", body.limit, -COUNT_MAX, PAGE_MAX)


def booked(body: messages.BookedRequest) -> None:
    start, id_ = body.after
    check_name("budget", body.budget)
    check_span("after", start, 0, INSTANT_MAX)
    check_text("after", id_, NAME_LENGTH_MAX)
    page_limit(body)


def booked_for(body: messages.BookedForRequest) -> None:
    check_text("prefix", body.prefix, NAME_LENGTH_MAX)
    page_limit(body)


def one_limit(body: messages.ChangeLimitRequest) -> None:
    limits.check_limit(body.definition)
    version(body.expected)


def one_budget(body: messages.ChangeBudgetRequest) -> None:
    budget.check_budget(body.definition)
    version(body.expected)


def version(expected: int | None) -> None:
    if expected is not None:
        check_int("expected", expected, 0, VERSION_MAX)


CHECKS: dict[type, Callable[[Any], object]] = {
    Exchange: exchange,
    messages.SubmitRequest: lambda body: jobs(body.jobs),
    messages.RenewRequest: renew,
    messages.TracesRequest: renew,
    messages.CheckpointRequest: checkpoint,
    messages.ReportRequest: reports,
    messages.WaitRequest: look,
    Heartbeat: heartbeat,
    messages.RecordRequest: history_rows,
    messages.HistoryRequest: history_range,
    messages.WorkerRequest: lambda body: check_name("worker", body.worker),
    messages.WorkersRequest: lambda body: None if body.tenant is None else check_name("tenant", body.tenant),
    messages.LanesRequest: lambda body: None if body.tenant is None else check_name("tenant", body.tenant),
    messages.OpenLanesRequest: open_lanes,
    messages.PruneRequest: old,
    messages.FireRequest: fire,
    messages.BulkRequest: page_limit,
    messages.JobsRequest: page_limit,
    messages.ExpireHoldsRequest: step_limit,
    messages.JournalRequest: page_limit,
    messages.BookedRequest: booked,
    messages.BookedForRequest: booked_for,
    messages.JobRequest: lambda body: check_name("job", body.job),
    messages.AcquireRequest: calls,
    messages.EndCallsRequest: calls,
    messages.RenewCallsRequest: calls,
    messages.ObserveRequest: lambda body: check_names("notice", (body.notice.name, body.notice.limit)),
    messages.LevelsRequest: lambda body: check_each(lambda ask: check_names("asks", (ask.name, ask.limit)), body.asks),
    HoldRequest: hold,
    SettleHoldRequest: hold,
    messages.PostRequest: lambda body: check_each(hold, (*body.holds, *body.settlements)),
    messages.BudgetWaitRequest: lambda body: charges(body.charges),
    messages.ReservedRequest: lambda body: check_name("prefix", body.prefix),
    messages.HoldIdRequest: lambda body: check_name("id", body.id),
    messages.CorrectHoldRequest: lambda body: check_name("id", body.id),
    messages.NameRequest: lambda body: check_name("name", body.name),
    messages.PauseScheduleRequest: lambda body: check_name("name", body.name),
    messages.SetTenantRequest: lambda body: tenant.check_tenant(body.tenant),
    messages.DeclareSchedulesRequest: lambda body: check_each(schedule.check_schedule, body.schedules),
    messages.DeclareLimitsRequest: lambda body: check_each(limits.check_limit, body.definitions),
    messages.ChangeLimitRequest: one_limit,
    messages.ReturnUnusedRequest: give_back,
    messages.DeclareBudgetsRequest: lambda body: check_each(budget.check_budget, body.definitions),
    messages.ChangeBudgetRequest: one_budget,
}
"""What the stores check themselves is missing here."""
