"""How a limit's definition becomes buckets: burst and refill interval of each window. Pure."""

import math

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.limit import (
    LimitDefinition,
    Rate,
    fallback_rate,
    permit_lease_us,
    shared_rate,
    wire_delay_us,
)

BURST_MIN, SMALL_COUNT = 2, 10
"""With a burst of 1, a call that comes slightly late wastes its permit, and a third of the rate is lost. Limits below
SMALL_COUNT cannot afford a larger burst."""
PERCENT_MIN = 10
"""A throttled limit is slowed to this percentage at the least."""
EXACT_MAX = 2**53
"""Lua numbers are doubles, which are exact up to this value."""


CONCURRENCY_ONLY_US = 60 * SECOND_US
"""How long the permits of a limit without rates are valid."""


class RateWindow(Struct, frozen=True):
    """One rate of a limit as a bucket: `burst` permits, and one more every `permit_ns` nanoseconds."""

    window_us: int
    burst: int
    permit_ns: int


class Sizing(Struct, frozen=True):
    """A definition as the limiter uses it. The version grows with every change."""

    windows: tuple[RateWindow, ...]
    concurrency: int | None = None
    lease_us: int = 0
    """How long a permit is valid after its grant."""
    version: int = 1
    paused: bool = False


def size_limit(definition: LimitDefinition, version: int = 1) -> Sizing:
    windows = tuple(size_window(definition, shared_rate(definition, rate)) for rate in definition.rates)
    return Sizing(windows, definition.concurrency, permit_life_us(definition), version, definition.paused)


def size_fallback(definition: LimitDefinition) -> Sizing:
    """The share of one worker that cannot reach the limiter."""
    windows = tuple(size_window(definition, fallback_rate(definition, rate)) for rate in definition.rates)
    return Sizing(windows, None, permit_life_us(definition))


def permit_life_us(definition: LimitDefinition) -> int:
    """The lease plus half of the delay; the other half is left for the network."""
    delays_us = [wire_delay_us(definition, rate) for rate in definition.rates]
    return permit_lease_us(definition) + min(delays_us) // 2 if delays_us else CONCURRENCY_ONLY_US


def size_window(definition: LimitDefinition, rate: Rate) -> RateWindow:
    least = BURST_MIN if definition.burst_share and rate.count >= SMALL_COUNT else 1
    burst = min(max(definition.cost_max, math.ceil(definition.burst_share * rate.count), least), rate.count)
    span_us = rate.window_us + permit_lease_us(definition) + wire_delay_us(definition, rate)
    # Instants are whole microseconds. With a shorter interval a bucket would hold more than its burst.
    permit_ns = max(divide_up(span_us * 1_000, rate.count - burst + 1), 1_000)
    # When the limit is slowed, the interval is up to ten times as long.
    if burst * permit_ns * (100 // PERCENT_MIN) >= EXACT_MAX:
        raise BadValue(
            f"limit {definition.name}",
            f"{rate} with a burst of {burst:,} is too large to count exactly; use a shorter window or a smaller burst",
        )
    return RateWindow(rate.window_us, burst, permit_ns)


def us_from_ns(ns: int) -> int:
    return divide_up(ns, 1_000)


def divide_up(number: int, by: int) -> int:
    """Divide and round up."""
    return -(-number // by)
