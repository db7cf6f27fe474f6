"""Limits."""

from typing import Any

from leaseway.api.schemas.serializers import iso, limit_json, seconds_of
from leaseway.domain.gates import Closure, LevelReading, closed_by_limit
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.buckets import Level, RateWindow, permits_left, size_limit
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, Rate


def document(definition: LimitDefinition, version: int, seen: LevelReading | None, now: Instant) -> dict[str, Any]:
    """`definition` is what PUT takes. `now`: of the store; limits may be kept by another clock."""
    shut = None if seen is None else closed_by_limit(PermitRequest(definition.name, definition.name), definition, seen)
    return {
        **limit_json(definition, version, seen, now),
        "definition": definition_body(definition),
        "gauges": [] if seen is None else gauges_of(definition, seen),
        "reason": None if shut is None else shut.why,
        "until": until_of(shut, now),
    }


def until_of(shut: Closure | None, now: Instant) -> str | None:
    return None if shut is None or shut.wait_us is None else iso(now + shut.wait_us)


def definition_body(definition: LimitDefinition) -> dict[str, Any]:
    return {
        "rates": [str(rate) for rate in definition.rates],
        "concurrency": definition.concurrency,
        "burst": definition.burst_share,
        "cost_max": definition.cost_max,
        "lease_seconds": seconds_of(definition.lease_us),
        "delay_seconds": seconds_of(definition.delay_us),
        "degraded_share": definition.degraded_share,
    }


def gauges_of(definition: LimitDefinition, seen: LevelReading) -> list[dict[str, Any]]:
    """One for each window, and one for the seats: `used` and `room` make up `of`."""
    rates = {rate.window_us: rate for rate in definition.rates}
    gauges = [
        gauge_of(window, rates[window.window_us], seen.level, seen.now) for window in size_limit(definition).windows
    ]
    if definition.concurrency is not None:
        taken = sum(seat.count for seat in seen.level.seats.values())
        room = max(definition.concurrency - taken, 0)
        gauges.append({"what": "seats", "window_seconds": None, "rate": None, "of": definition.concurrency,
                       "used": taken, "room": room, "full_seconds": None})  # fmt: skip
    return gauges


def gauge_of(window: RateWindow, rate: Rate, level: Level, now: Instant) -> dict[str, Any]:
    """Tokens come back all the time: `of` is what one may take at once, and `full_seconds` when all of it is back."""
    bucket = level.buckets.get(window.window_us)
    room = 0 if bucket is None else min(permits_left(window, bucket, now), window.burst)
    return {
        "what": "tokens",
        "window_seconds": window.window_us / SECOND_US,
        "rate": str(rate),
        "of": window.burst,
        "used": window.burst - room,
        "room": room,
        "full_seconds": None if bucket is None else max(bucket.tat - now, 0) / SECOND_US,
    }
