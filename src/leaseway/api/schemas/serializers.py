"""The domain's values as JSON documents, for the API and for the command line's --json.

Field names are the words of the domain; they stay as they are.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from leaseway.domain.budgets.budget import BudgetDefinition, amount_text
from leaseway.domain.budgets.ledger import BudgetWindow, JournalEntry
from leaseway.domain.explain import Reason
from leaseway.domain.gates import Closure, LevelReading, closed_by_limit
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.job import ErrorRecord, Job, LaneCount
from leaseway.domain.limits.buckets import Level, RateWindow, permits_left, size_limit
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, permit_lease_us, wire_delay_us
from leaseway.domain.schedule import StoredSchedule
from leaseway.domain.tenant import Tenant

LISTED_MAX = 1_000
"""Characters of one value in a list."""


def job_json(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "tenant": job.tenant,
        "state": job.state.value,
        "priority": job.priority,
        "attempts": job.attempts,
        "attempts_max": job.attempts_max,
        "fence": job.fence,
        "payload": stored(job.payload),
        "shard_key": job.shard_key,
        "cursor": stored(job.cursor),
        "progress": stored(job.progress),
        "result": stored(job.result),
        "lease_owner": job.lease_owner,
        "lease_until": iso(job.lease_until),
        "lease_seconds": seconds_of(job.lease_us),
        "timeout_seconds": seconds_of(job.timeout_us),
        "cancel_requested": job.cancel_requested,
        "created_at": iso(job.created_at),
        "run_at": iso(job.run_at),
        "finished_at": iso(job.finished_at),
        "last_error_code": job.last_error_code,
        "last_error_at": iso(job.last_error_at),
        "needs": stored(job.needs or None),
    }


def listed_job_json(job: Job) -> dict[str, Any]:
    """One of many: what is long is left out and named in `shortened`, so that a page of a list has a bound."""
    texts = {name: getattr(job, name) for name in ("payload", "cursor", "progress", "result")}
    long = [name for name, text in texts.items() if text is not None and len(text) > LISTED_MAX]
    shown = replace(job, **dict.fromkeys(long, None)) if long else job
    return {**job_json(shown), "shortened": long}


def error_json(error: ErrorRecord) -> dict[str, Any]:
    return {
        "attempt": error.attempt,
        "at": iso(error.at),
        "code": error.code,
        "message": error.message,
        "traceback": error.traceback,
    }


def timeline_json(job: Job, errors: Sequence[ErrorRecord]) -> list[dict[str, Any]]:
    """What is known of the job's life, in its order."""
    known: list[tuple[Instant, dict[str, Any]]] = [(job.created_at, {"what": "submitted"})]
    if job.run_at > job.created_at:
        known.append((job.run_at, {"what": "due"}))
    known += [(error.at, {"what": "failed_attempt", "attempt": error.attempt, "code": error.code}) for error in errors]
    if job.lease_until is not None:
        renewed = {"what": "lease_renewed", "attempt": job.attempts, "until": iso(job.lease_until)}
        known.append((job.lease_until - job.lease_us, renewed))
    if job.finished_at is not None:
        known.append((job.finished_at, {"what": job.state.value, "attempt": job.attempts}))
    return [{"at": iso(at), **event} for at, event in sorted(known, key=lambda each: each[0])]


def reason_json(job: Job, reason: Reason, shuts: Sequence[Closure] = ()) -> dict[str, Any]:
    return {
        "id": job.id,
        "state": job.state.value,
        "code": reason.code,
        "text": reason.text,
        "until": iso(reason.until),
        "advice": reason.advice,
        "waits_for": [shut_json(shut) for shut in shuts],
    }


def lane_json(lane: LaneCount, shuts: Sequence[Closure] = ()) -> dict[str, Any]:
    return {
        "queue": lane.queue,
        "tenant": lane.tenant,
        "needs": stored(lane.needs or None),
        "ready": lane.ready,
        "scheduled": lane.scheduled,
        "leased": lane.leased,
        "done": lane.done,
        "failed": lane.failed,
        "cancelled": lane.cancelled,
        "waits_for": [shut_json(shut) for shut in shuts],
    }


def shut_json(shut: Closure) -> dict[str, Any]:
    return {
        "what": shut.what,
        "name": shut.name,
        "why": shut.why,
        "wait_seconds": seconds_of(shut.wait_us),
        "advice": shut.advice,
    }


def definition_json(definition: LimitDefinition) -> dict[str, Any]:
    return {
        "name": definition.name,
        "rates": [{"count": rate.count, "window_seconds": rate.window_us / SECOND_US} for rate in definition.rates],
        "concurrency": definition.concurrency,
        "burst": definition.burst_share,
        "cost_max": definition.cost_max,
        "lease_seconds": permit_lease_us(definition) / SECOND_US,
        "delay_seconds": [wire_delay_us(definition, rate) / SECOND_US for rate in definition.rates],
        "paused": definition.paused,
    }


def limit_json(definition: LimitDefinition, version: int, seen: LevelReading | None, now: Instant) -> dict[str, Any]:
    """`now`: on the clock of the machine that asks; limits may be kept by another one."""
    known = {**definition_json(definition), "version": version}
    if seen is None:
        return {**known, "windows": None, "seats_taken": None, "next_free_seconds": None, "percent": None}
    level, closed_us = seen.level, seen.level.blocked_until - seen.now
    shut = closed_by_limit(PermitRequest(definition.name, definition.name), definition, seen)
    return {
        **known,
        "windows": [window_json(window, level, seen.now) for window in size_limit(definition).windows],
        "seats_taken": sum(seat.count for seat in level.seats.values()),
        "next_free_seconds": 0.0 if shut is None else seconds_of(shut.wait_us),
        "percent": level.percent,
        "closed_until": iso(now + closed_us) if closed_us > 0 else None,
    }


def window_json(window: RateWindow, level: Level, now: Instant) -> dict[str, Any]:
    bucket = level.buckets.get(window.window_us)
    return {
        "window_seconds": window.window_us / SECOND_US,
        "burst": window.burst,
        "token_seconds": window.token_ns / 1_000_000_000,
        "tokens": None if bucket is None else permits_left(window, bucket, now),
    }


def budget_json(definition: BudgetDefinition, version: int, accounts: Sequence[BudgetWindow]) -> dict[str, Any]:
    return {
        **budget_definition_json(definition),
        "version": version,
        "windows": [account_json(account) for account in accounts],
    }


def budget_definition_json(definition: BudgetDefinition) -> dict[str, Any]:
    return {
        "name": definition.name,
        "unit": definition.unit,
        "limit": amount_text(definition.limit_micros),
        "every": definition.every.value,
        "tz": definition.tz,
        "overdraft": amount_text(definition.overdraft_micros),
        "over": definition.over.value,
        "paused": definition.paused,
    }


def account_json(account: BudgetWindow) -> dict[str, Any]:
    """Amounts are text: they are exact, and floats are not."""
    book, window = account.book, account.window
    return {
        "name": account.name,
        "window": window.label,
        "start": iso(window.start),
        "end": iso(window.end),
        "has_begun": account.has_begun,
        "limit": amount_text(book.limit_micros),
        "spent": amount_text(book.spent_micros),
        "held": amount_text(book.held_micros),
        "left": amount_text(account.left_micros),
        "overdraft": amount_text(book.overdraft_micros),
        "threshold_percent": book.told,
    }


def entry_json(entry: JournalEntry) -> dict[str, Any]:
    return {
        "seq": entry.seq,
        "at": iso(entry.at),
        "kind": entry.kind,
        "hold": entry.hold,
        "name": entry.name,
        "window": entry.window.label,
        "held": amount_text(entry.held_micros),
        "spent": amount_text(entry.spent_micros),
        "threshold_percent": entry.crossed,
    }


def tenant_json(tenant: Tenant) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        "starts": [str(rate) for rate in tenant.starts],
        "concurrency": tenant.concurrency,
    }


def schedule_json(row: StoredSchedule, next_fire: Instant | None) -> dict[str, Any]:
    schedule = row.schedule
    return {
        "name": schedule.name,
        "kind": schedule.kind,
        "cron": schedule.cron,
        "tz": schedule.tz,
        "missed": schedule.missed.value,
        "last_fire": iso(row.last_fire),
        "next_fire": iso(next_fire),
        "paused": row.paused,
    }


def stored(text: str | None) -> Any:
    """What was stored as JSON, as a value again. What cannot be read is shown as it is."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


def iso(instant: Instant | None) -> str | None:
    if instant is None:
        return None
    try:
        # Not through a float: it cannot hold all the digits.
        seconds, us = divmod(instant, SECOND_US)
        moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=us)
    except (ValueError, OverflowError, OSError):
        return None  # beyond the calendar
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds_of(us: int | None) -> float | None:
    return None if us is None else us / SECOND_US
