"""The circuit breaker of a limit: if calls fail one after another, no call leaves for a while. Pure.

    closed ─► failures in a row ─► open ─► half-open: one call leaves, the probe ─► answered: closed
                                    ▲                                            └► failed: open, for twice as long

A call fails if the provider does not reply, or answers with a status of 500 or more that asks for no wait. Any other
reply is an answer. `number` counts the changes of state; a report carries the number under which its call was granted,
so that calls which began before a change say nothing afterwards. `docs/decisions/0032-circuit-breaker.md` has the
reasons.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec.structs import replace

from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.level import CLOSED, Breaker

if TYPE_CHECKING:
    from leaseway.domain.limits.buckets import Notice

OPEN_US = 10 * SECOND_US
"""How long it is open at first. Each probe that fails doubles it."""
OPEN_US_MAX = 300 * SECOND_US
DOUBLED_MAX = 5
FAILURES_US = 600 * SECOND_US
"""Failures that lie further apart are not in a row."""
PROBE_US_MIN = 10 * SECOND_US
"""If nothing is heard of a probe, the next one leaves after this time, or after the longest time that the call may
take."""
PROBED_US = SECOND_US
"""When to ask again while a probe is under way."""
NO_BREAKER = -1
OPEN = "its circuit breaker is open"
PROBED = "its circuit breaker is half-open, and one call probes the provider"


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


def breaker_state(breaker: Breaker, threshold: int | None, now: Instant) -> BreakerState | None:
    """None: the limit has no breaker."""
    if threshold is None:
        return None
    if not breaker.open_until:
        return BreakerState.CLOSED
    return BreakerState.OPEN if breaker.open_until > now else BreakerState.HALF_OPEN


def is_half_open(breaker: Breaker, threshold: int | None, now: Instant) -> bool:
    """Whether the next call is a probe."""
    return threshold is not None and breaker.open_until > 0 and max(breaker.open_until, breaker.probe_until) <= now


def breaker_wait(breaker: Breaker, threshold: int | None, now: Instant) -> tuple[int, str]:
    """How long no call may leave, and why."""
    if threshold is None or not breaker.open_until:
        return 0, ""
    if breaker.open_until > now:
        return breaker.open_until - now, OPEN
    return min(max(breaker.probe_until - now, 0), PROBED_US), PROBED


def begin_probe(breaker: Breaker, threshold: int | None, now: Instant, in_flight_us: int) -> Breaker:
    """A call is granted."""
    if not is_half_open(breaker, threshold, now):
        return breaker
    return replace(breaker, probe_until=now + max(in_flight_us, PROBE_US_MIN))


def is_watched(breaker: Breaker) -> bool:
    """Whether answers are to be reported, too. While nothing fails, they cost nothing."""
    return breaker.failures > 0


def apply_call(breaker: Breaker, threshold: int | None, notice: "Notice", now: Instant) -> Breaker:
    """Apply how a call has ended."""
    if threshold is None or notice.circuit != breaker.number:
        return breaker
    if notice.answered:
        return replace(CLOSED, number=breaker.number + (breaker.open_until > 0))
    if not notice.failed:
        return breaker
    is_row = breaker.failures > 0 and now - breaker.failed_at <= FAILURES_US
    failures = breaker.failures + 1 if is_row or breaker.open_until else 1
    breaker = replace(breaker, failures=failures, failed_at=now)
    return trip(breaker, now) if breaker.open_until or failures >= threshold else breaker


def trip(breaker: Breaker, now: Instant) -> Breaker:
    open_us = min(OPEN_US << min(breaker.trips, DOUBLED_MAX), OPEN_US_MAX)
    return replace(breaker, trips=breaker.trips + 1, open_until=now + open_us, probe_until=0, number=breaker.number + 1)
