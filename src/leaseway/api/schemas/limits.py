"""Limits: their definitions, and how much of them is in use."""

from msgspec import UNSET, UnsetType

from leaseway.api.schemas.values import Document, Timestamp, extend, seconds, timestamp
from leaseway.domain.explain.closures import Closure, LevelReading, closed_by_limit
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.breaker import BreakerState, breaker_state
from leaseway.domain.limits.buckets import permits_left
from leaseway.domain.limits.level import Level
from leaseway.domain.limits.limit import (
    LimitDefinition,
    PermitRequest,
    Rate,
    RateWindow,
    StartLevel,
    permit_lease_us,
    size_limit,
    wire_delay_us,
)

NS_PER_SECOND = 1_000_000_000


class RateDocument(Document, kw_only=True):
    count: int
    window_seconds: float


class LimitWindowDocument(Document, kw_only=True):
    window_seconds: float
    burst: int
    permit_seconds: float
    """The time after which one permit becomes available again."""
    permits: int | None
    """How many permits are available now."""


class GaugeDocument(Document, kw_only=True):
    """How much of a limit is in use: `used` and `room` add up to `of`."""

    what: str
    """permits or concurrency"""
    window_seconds: float | None
    rate: str | None
    of: int
    """How many permits can be taken at once, or how many calls can be in flight."""
    used: int
    room: int
    full_seconds: float | None
    """The time until all permits are available again."""


class LimitDefinitionDocument(Document, kw_only=True):
    """The body of PUT /v1/limits/{name}."""

    rates: list[str]
    concurrency: int | None
    burst: float
    cost_max: int
    lease_seconds: float | None
    delay_seconds: float | None
    degraded_share: float
    start: StartLevel | None
    unit: str
    breaker: int | None
    """How many calls fail in a row before the circuit breaker opens."""


class LimitChangedDocument(Document, kw_only=True):
    name: str
    version: int
    paused: bool
    definition: LimitDefinitionDocument


class LimitSettingsDocument(Document, kw_only=True):
    name: str
    rates: list[RateDocument]
    concurrency: int | None
    burst: float
    cost_max: int
    lease_seconds: float
    delay_seconds: list[float]
    unit: str
    """What the provider counts: requests, tokens, …"""
    paused: bool
    """A paused limit grants no permits until it is resumed."""


class LimitStatusDocument(LimitSettingsDocument, kw_only=True):
    version: int
    windows: list[LimitWindowDocument] | None
    in_flight: int | None
    """Calls that hold a permit of the concurrency limit."""
    next_free_seconds: float | None
    percent: int | None
    """The pace, in percent of the definition; below 100 the provider has rejected calls."""
    breaker: BreakerState | None
    """The state of its circuit breaker; null: it has none, or the state is unknown."""
    breaker_until: Timestamp | None
    """Until when the breaker is open. After that, one call probes the provider."""
    closed_until: Timestamp | UnsetType | None = UNSET


class LimitDocument(LimitStatusDocument, kw_only=True):
    limit: str | UnsetType = UNSET
    """The definition that applies to this name; only where one limit was requested."""
    definition: LimitDefinitionDocument
    gauges: list[GaugeDocument]
    reason: str | None
    until: Timestamp | None


class LimitNowDocument(Document, kw_only=True):
    name: str
    version: int
    gauges: list[GaugeDocument]
    percent: int | None
    breaker: BreakerState | None
    reason: str | None
    until: Timestamp | None


# -- definitions ----------------------------------------------------------------------------------------------------


def limit_definition_document(definition: LimitDefinition) -> LimitDefinitionDocument:
    return LimitDefinitionDocument(
        rates=[str(rate) for rate in definition.rates],
        concurrency=definition.concurrency,
        burst=definition.burst_share,
        cost_max=definition.cost_max,
        lease_seconds=seconds(definition.lease_us),
        delay_seconds=seconds(definition.delay_us),
        degraded_share=definition.degraded_share,
        start=definition.start,
        unit=definition.unit,
        breaker=definition.breaker,
    )


def limit_settings_document(definition: LimitDefinition) -> LimitSettingsDocument:
    return LimitSettingsDocument(
        name=definition.name,
        rates=[RateDocument(count=rate.count, window_seconds=rate.window_us / SECOND_US) for rate in definition.rates],
        concurrency=definition.concurrency,
        burst=definition.burst_share,
        cost_max=definition.cost_max,
        lease_seconds=permit_lease_us(definition) / SECOND_US,
        delay_seconds=[wire_delay_us(definition, rate) / SECOND_US for rate in definition.rates],
        unit=definition.unit,
        paused=definition.paused,
    )


# -- levels ---------------------------------------------------------------------------------------------------------


def limit_status_document(
    definition: LimitDefinition, version: int, seen: LevelReading | None, now: Instant
) -> LimitStatusDocument:
    """`now` is on the reader's clock; the limiter may have another one. `seen` None: the level cannot be read."""
    settings = limit_settings_document(definition)
    if seen is None:
        unknown = dict.fromkeys(("windows", "in_flight", "next_free_seconds", "percent", "breaker", "breaker_until"))
        return extend(LimitStatusDocument, settings, version=version, **unknown)
    level, closed_us = seen.level, seen.level.blocked_until - seen.now
    open_us = level.breaker.open_until - seen.now if definition.breaker is not None else 0
    closure = limit_closure(definition, seen)
    return extend(
        LimitStatusDocument,
        settings,
        version=version,
        windows=[window_document(window, level, seen.now) for window in size_limit(definition).windows],
        in_flight=in_flight(level),
        next_free_seconds=0.0 if closure is None else seconds(closure.wait_us),
        percent=level.percent,
        breaker=breaker_state(level.breaker, definition.breaker, seen.now),
        breaker_until=timestamp(now + open_us) if open_us > 0 else None,
        closed_until=timestamp(now + closed_us) if closed_us > 0 else None,
    )


def limit_document(definition: LimitDefinition, version: int, seen: LevelReading | None, now: Instant) -> LimitDocument:
    closure = (
        None if seen is None else closed_by_limit(PermitRequest(definition.name, definition.name), definition, seen)
    )
    return extend(
        LimitDocument,
        limit_status_document(definition, version, seen, now),
        definition=limit_definition_document(definition),
        gauges=[] if seen is None else gauge_documents(definition, seen),
        reason=None if closure is None else closure.why,
        until=closure_until(closure, now),
    )


def limit_now_document(
    definition: LimitDefinition, version: int, seen: LevelReading | None, now: Instant
) -> LimitNowDocument:
    closure = (
        None if seen is None else closed_by_limit(PermitRequest(definition.name, definition.name), definition, seen)
    )
    return LimitNowDocument(
        name=definition.name,
        version=version,
        gauges=[] if seen is None else gauge_documents(definition, seen),
        percent=None if seen is None else seen.level.percent,
        breaker=None if seen is None else breaker_state(seen.level.breaker, definition.breaker, seen.now),
        reason=None if closure is None else closure.why,
        until=closure_until(closure, now),
    )


def limit_closure(definition: LimitDefinition, seen: LevelReading) -> Closure | None:
    return closed_by_limit(PermitRequest(definition.name, definition.name), definition, seen)


def closure_until(closure: Closure | None, now: Instant) -> str | None:
    return None if closure is None or closure.wait_us is None else timestamp(now + closure.wait_us)


def in_flight(level: Level) -> int:
    return sum(calls.count for calls in level.in_flight.values())


def window_document(window: RateWindow, level: Level, now: Instant) -> LimitWindowDocument:
    bucket = level.buckets.get(window.window_us)
    return LimitWindowDocument(
        window_seconds=window.window_us / SECOND_US,
        burst=window.burst,
        permit_seconds=window.permit_ns / NS_PER_SECOND,
        permits=None if bucket is None else permits_left(window, bucket, now, level),
    )


def gauge_documents(definition: LimitDefinition, seen: LevelReading) -> list[GaugeDocument]:
    """One gauge for each window, and one for the concurrency limit."""
    rates = {rate.window_us: rate for rate in definition.rates}
    windows = size_limit(definition).windows
    gauges = [rate_gauge(window, rates[window.window_us], seen.level, seen.now) for window in windows]
    if definition.concurrency is not None:
        used = in_flight(seen.level)
        room = max(definition.concurrency - used, 0)
        gauges.append(GaugeDocument(what="concurrency", window_seconds=None, rate=None, of=definition.concurrency,
                                    used=used, room=room, full_seconds=None))  # fmt: skip
    return gauges


def rate_gauge(window: RateWindow, rate: Rate, level: Level, now: Instant) -> GaugeDocument:
    """Permits become available continuously, so `of` is the burst and not the rate's count."""
    bucket = level.buckets.get(window.window_us)
    room = 0 if bucket is None else min(permits_left(window, bucket, now, level), window.burst)
    return GaugeDocument(
        what="permits",
        window_seconds=window.window_us / SECOND_US,
        rate=str(rate),
        of=window.burst,
        used=window.burst - room,
        room=room,
        full_seconds=None if bucket is None else max(bucket.tat - now, 0) / SECOND_US,
    )
