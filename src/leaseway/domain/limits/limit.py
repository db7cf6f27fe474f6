"""A provider's rate limits, as the provider states them: Limit("maps", "3/second", "100/minute", "2000/day").

A `Limit` becomes a `LimitDefinition`, which is stored. `size_limit` turns it into a `Sizing`, with which `buckets.py`
decides about permits.

For "L in any window W" a bucket of B permits gains one permit every T, such that B + (W + E + δ) / T ≤ L + 1. E is how
long a worker may keep permits that it took ahead; δ is the delay from the grant to the provider. Costs are whole
numbers, and two calls exactly W apart are not in one window, so the + 1 is safe. T is in whole nanoseconds, rounded up.
"""

import math
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import lru_cache

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.templates import refuse_stray_braces
from leaseway.domain.validators import Seconds, check_int, check_name
from leaseway.domain.validators import parse_duration_us as duration_us_of

WINDOWS_MAX = 4
COUNT_MAX = 1_000_000_000
WINDOW_SECONDS_MIN = 0.001
WINDOW_SECONDS_MAX = 31 * 86_400

LEASE_US = SECOND_US
"""How long permits that a worker took ahead are valid."""
LEASED_WINDOW_US_MIN = 10 * SECOND_US
"""For shorter windows, taking permits ahead would cost too much of the rate."""
DEGRADED_SHARE_MAX = 0.5
FALLBACK_WORKERS_MAX = 16
"""How many workers share the `degraded_share`. Other workers stop when they cannot reach the limiter."""
DELAY_US_MAX = SECOND_US // 2
AHEAD_US_MAX = 60 * SECOND_US
DELAY_SHARE = 10
"""The delay from the grant to the provider is assumed to be half a second, or a tenth of a short window."""

UNITS_US = {
    "millisecond": SECOND_US // 1_000, "second": SECOND_US, "minute": 60 * SECOND_US, "hour": 3_600 * SECOND_US,
    "day": 86_400 * SECOND_US, "week": 7 * 86_400 * SECOND_US,
}  # fmt: skip
SHORT = {"ms": "millisecond", "s": "second", "sec": "second", "m": "minute", "min": "minute", "h": "hour"}
SHORT |= {"d": "day", "w": "week"} | {f"{unit}s": unit for unit in UNITS_US} | {"secs": "second", "mins": "minute"}
THOUSANDS = {"": 1, "k": 1_000, "m": 1_000_000}
RATE = re.compile(
    r"\s*(?P<count>\d[\d_,]{0,30})(?P<thousands>[kKmM]?)\s*(?:/|per)"
    r"\s*(?P<length>\d{1,15}(?:\.\d{1,15})?)?\s*(?P<unit>[a-z]+)\s*"
)
REQUESTS = "requests"
"""The unit of a limit that counts calls."""
UNIT = re.compile(r"[a-z][a-z0-9_]{0,39}")
TENANT_PREFIX = "tenant:"
"""The prefix of the limits that enforce the caps of tenants."""
RESERVED = {
    TENANT_PREFIX: "the caps of tenants", "api:": "the service", "api-at-once:": "the service",
    "api-work:": "the service", "api-work-at-once:": "the service",
}  # fmt: skip
"""The prefixes of limits that jobs cannot use, and what they are for."""
RESERVED_PREFIXES = tuple(RESERVED)


class Rate(Struct, frozen=True, order=True):
    """At most `count` in any window of this length."""

    window_us: int
    count: int

    def __str__(self) -> str:
        for unit, length_us in reversed(UNITS_US.items()):
            if self.window_us == length_us:
                return f"{self.count:,}/{unit}"
        return f"{self.count:,} per {self.window_us / SECOND_US:g} s"


class StartLevel(StrEnum):
    """The level of a bucket without state."""

    EMPTY = "empty"
    FULL = "full"


class LimitDefinition(Struct, frozen=True, kw_only=True):
    """A limit as it is stored. A name with fields, "maps:{tenant}", defines one limit per value."""

    name: str
    rates: tuple[Rate, ...] = ()
    """Sorted by window, the shortest first."""
    concurrency: int | None = None
    """How many calls may be in flight at once."""
    burst_share: float = 0.05
    cost_max: int = 1
    """The highest cost of one call."""
    lease_us: int | None = None
    delay_us: int | None = None
    degraded_share: float = 0.0
    """The share of each count that is reserved for workers that cannot reach the limiter."""
    start: StartLevel | None = None
    """None: full if the limiter knows that nothing was used before, empty if it does not."""
    paused: bool = False
    """No permit is granted until the limit is resumed. Only operators pause; declarations of the code do not change
    it."""
    unit: str = REQUESTS
    """What the provider counts: requests, tokens, input_tokens …"""
    breaker: int | None = None
    """How many calls fail in a row before no call leaves for a while (`breaker.py`)."""

    @property
    def is_metered(self) -> bool:
        """Whether what a call used is known only when it ends, so that the limit is logged and settled."""
        return self.unit != REQUESTS


class Limit:
    """A provider's rate limit. Pass it to `@app.job(limits=[…])`.

        maps = Limit("maps", "3/second", "100/minute", concurrency=10)

    Rates read like "100/minute", "20 per 2 s" or "200k/day"; up to four of them hold at the same time, in any window.
    `concurrency`: how many calls may be in flight at once. `burst`: the share of the count that may be used at once
    after an idle time. `cost_max`: the highest cost of one call; `maps.cost(3)` is a call that costs 3. `lease`: how
    long workers may keep permits that they take ahead. `delay`: the assumed delay from the grant to the provider.
    `degraded_share`: the share that workers may use while they cannot reach the limiter. `start`: whether the limit
    starts "empty" or "full"; without it, full in a new store, and empty in a limiter that may have lost its state. A
    name with fields, such as "maps:{tenant}", defines one limit per value. `unit`: what the provider counts,
    "requests" or for example "tokens"; rate limit headers about another unit do not change the limit. `breaker`: after
    so many calls in a row that the provider did not answer, or answered with 5xx, no worker calls it for a while.
    """

    def __init__(
        self,
        name: str,
        *rates: str,
        unit: str = REQUESTS,
        concurrency: int | None = None,
        burst: float = 0.05,
        cost_max: int | None = None,
        lease: Seconds | None = None,
        delay: Seconds | None = None,
        degraded_share: float = 0.0,
        start: str | None = None,
        breaker: int | None = None,
    ) -> None:
        if str(name).startswith(RESERVED_PREFIXES):
            prefix = str(name).partition(":")[0] + ":"
            raise BadValue(
                f"limit {name}",
                f"names that start with {prefix} are reserved for {RESERVED[prefix]}; "
                "choose one such as maps:{tenant}",
            )
        parsed = tuple(sorted(parse_rate(f"limit {name}", rate) for rate in rates))
        self.definition = check_limit(
            LimitDefinition(
                name=name,
                rates=parsed,
                concurrency=concurrency,
                burst_share=burst,
                cost_max=default_cost_max(unit, parsed) if cost_max is None else cost_max,
                lease_us=None if lease is None else duration_us_of(f"limit {name}: lease", lease, most=60),
                delay_us=None if delay is None else duration_us_of(f"limit {name}: delay", delay, most=60),
                degraded_share=degraded_share,
                start=parse_start(f"limit {name}: start", start),
                unit=unit,
                breaker=breaker,
            )
        )
        self.name = name

    def cost(self, cost: "int | Estimate", *, learn: bool = False) -> "LimitUse":
        """What one call takes of this limit: a number, or a function of the job's arguments that returns it. In other
        units than requests it is the estimate that `call.settle` corrects: state the most that a call can use. `learn`:
        reserve what calls of this kind really use, at most this."""
        if learn and not self.definition.is_metered:
            raise BadValue(f"limit {self.name}: learn", "what a call uses is known only in other units than requests")
        if callable(cost):
            return LimitUse(self, 1, cost, learn)
        field, most = f"limit {self.name}: cost", self.definition.cost_max
        if isinstance(cost, int) and cost > most:
            raise BadValue(field, f"is {cost:,}, and one call takes at most {most:,}; give the limit cost_max={cost}")
        return LimitUse(self, check_int(field, cost, 1, most), learns=learn)

    def __repr__(self) -> str:
        return f"Limit({self.name!r}, {', '.join(repr(str(rate)) for rate in self.definition.rates)})"


class LimitUse(Struct, frozen=True):
    """A limit with the cost of one call."""

    limit: Limit
    cost: int = 1
    estimate: "Estimate | None" = None
    """A function of the job's arguments. Lanes are rendered with `cost`, so that jobs with other weights share one."""
    learns: bool = False


Estimate = Callable[..., int | float]


class PermitRequest(Struct, frozen=True, order=True):
    """A request for a permit: the name of the limit, the name of its definition, and the cost of one call."""

    name: str
    limit: str
    cost: int = 1


def parse_rate(field: str, text: object) -> Rate:
    """Parse a rate such as "100/minute", "20 per 2 s" or "200k/min"."""
    if not isinstance(text, str) or (found := RATE.fullmatch(text)) is None:
        raise BadValue(field, f"cannot read the rate {text!r}; write it like '100/minute', '20 per 2 s' or '200k/day'")
    unit = SHORT.get(found["unit"], found["unit"])
    if unit not in UNITS_US:
        raise BadValue(field, f"{text!r}: {found['unit']!r} is not a unit of time; units: {', '.join(UNITS_US)}")
    count = int(found["count"].replace("_", "").replace(",", "")) * THOUSANDS[found["thousands"].lower()]
    window_us = round(float(found["length"] or 1) * UNITS_US[unit])
    check_int(f"{field}: {text!r}: the count", count, 1, COUNT_MAX)
    if not WINDOW_SECONDS_MIN * SECOND_US <= window_us <= WINDOW_SECONDS_MAX * SECOND_US:
        raise BadValue(field, f"{text!r}: the window must be between a millisecond and 31 days")
    return Rate(window_us, count)


def default_cost_max(unit: str, rates: Sequence[Rate]) -> int:
    """A call that counts requests is one of them. Of another unit, a call may use whatever the limit allows."""
    return 1 if unit == REQUESTS else min((rate.count for rate in rates), default=1)


def parse_start(field: str, value: str | None) -> StartLevel | None:
    try:
        return None if value is None else StartLevel(value)
    except ValueError as error:
        raise BadValue(field, f"must be {' or '.join(StartLevel)} (is {value!r})") from error


def check_limit(definition: LimitDefinition) -> LimitDefinition:
    """Refuse an invalid definition. The error names the field and the remedy."""
    field = f"limit {definition.name}"
    refuse_stray_braces(field, check_name("limit", definition.name))
    if not definition.rates and definition.concurrency is None:
        raise BadValue(field, "limits nothing; give a rate such as '100/minute', or concurrency=")
    if len(definition.rates) > WINDOWS_MAX:
        raise BadValue(field, f"has {len(definition.rates)} rates; at most {WINDOWS_MAX} are allowed")
    windows = [rate.window_us for rate in definition.rates]
    if len(set(windows)) < len(windows):
        raise BadValue(field, "has two rates for the same window; keep the smaller one")
    if definition.concurrency is not None:
        check_int(f"{field}: concurrency", definition.concurrency, 1, 1_000_000)
    check_int(f"{field}: cost_max", definition.cost_max, 1, COUNT_MAX)
    if definition.breaker is not None:
        check_int(f"{field}: breaker", definition.breaker, 1, 1_000)
    share = definition.burst_share
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise BadValue(f"{field}: burst", f"must be between 0 and 1, a share of the count (is {share!r})")
    for name, duration_us in (("lease", definition.lease_us), ("delay", definition.delay_us)):
        if duration_us is not None:
            check_int(f"{field}: {name} in microseconds", duration_us, 0, AHEAD_US_MAX)
    if not isinstance(definition.unit, str) or UNIT.fullmatch(definition.unit) is None:
        raise BadValue(
            f"{field}: unit", f"must be a word such as requests, tokens or input_tokens (is {definition.unit!r})"
        )
    if definition.is_metered and (definition.concurrency is not None or not definition.rates):
        raise BadValue(f"{field}: concurrency", f"counts calls and not {definition.unit}; give it a limit of its own")
    check_degraded_share(definition)
    for rate in definition.rates:
        if definition.cost_max > rate.count:
            raise BadValue(f"{field}: cost_max", f"is {definition.cost_max:,}, more than {rate} ever allows")
    return definition


def check_degraded_share(definition: LimitDefinition) -> None:
    field, share = f"limit {definition.name}: degraded_share", definition.degraded_share
    if not 0 <= share <= DEGRADED_SHARE_MAX:
        raise BadValue(field, f"must be between 0 and {DEGRADED_SHARE_MAX}, a share of the count (is {share})")
    if share and definition.concurrency is not None:
        raise BadValue(
            field, "cannot be combined with concurrency, because calls in flight cannot be counted without the limiter"
        )
    if share and definition.is_metered:
        raise BadValue(field, f"cannot be combined with unit={definition.unit!r}, whose use is settled by the limiter")
    for rate in definition.rates if share else ():
        if fallback_rate(definition, rate).count < definition.cost_max:
            raise BadValue(
                field,
                f"leaves each of {FALLBACK_WORKERS_MAX} workers less than one call of {rate}; use a larger share, or 0",
            )


def shared_rate(definition: LimitDefinition, rate: Rate) -> Rate:
    """The rate that the limiter grants: everything but the reserved share."""
    return Rate(rate.window_us, rate.count - math.ceil(rate.count * definition.degraded_share))


def fallback_rate(definition: LimitDefinition, rate: Rate) -> Rate:
    """The rate of one worker that cannot reach the limiter."""
    return Rate(rate.window_us, int(rate.count * definition.degraded_share) // FALLBACK_WORKERS_MAX)


def permit_lease_us(definition: LimitDefinition) -> int:
    """How long permits may be kept before they are used. Zero: each call asks the limiter."""
    if definition.is_metered:
        return 0  # each call has a weight of its own
    if definition.lease_us is not None:
        return definition.lease_us
    shortest = min((rate.window_us for rate in definition.rates), default=0)
    return LEASE_US if shortest >= LEASED_WINDOW_US_MIN else 0


def wire_delay_us(definition: LimitDefinition, rate: Rate) -> int:
    if definition.delay_us is not None:
        return definition.delay_us
    return min(DELAY_US_MAX, rate.window_us // DELAY_SHARE)


BURST_MIN, SMALL_COUNT = 2, 10
"""With a burst of 1, a call that comes slightly late wastes its permit, and a third of the rate is lost. Limits below
SMALL_COUNT cannot afford a larger burst."""
PERCENT_MIN = 10
"""A throttled limit is slowed to this percentage at the least."""
EXACT_MAX = 2**53
"""Lua numbers are doubles, which are exact up to this value."""
KNOWN_US = EXACT_MAX // 1_000
"""The fence of a limiter that was never used lies this far back. No bucket takes longer to fill, so all of them are
full."""
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
    start: StartLevel | None = None
    is_metered: bool = False
    """Its windows are logged (`sliding_log.py`), and `burst` is the whole count."""
    breaker: int | None = None

    @property
    def starts_empty(self) -> bool:
        return self.start is StartLevel.EMPTY

    @property
    def starts_full(self) -> bool:
        return self.start is StartLevel.FULL


@lru_cache(maxsize=1_000)
def size_limit(definition: LimitDefinition, version: int = 1) -> Sizing:
    """Every call under a limit asks for it."""
    windows = tuple(size_window(definition, shared_rate(definition, rate)) for rate in definition.rates)
    life_us, is_metered = permit_life_us(definition), definition.is_metered
    return Sizing(
        windows, definition.concurrency, life_us, version, definition.paused, definition.start, is_metered,
        definition.breaker,
    )  # fmt: skip


def permit_life_us(definition: LimitDefinition) -> int:
    """The lease plus half of the delay; the other half is left for the network. What is reserved stays reserved until
    the call ends."""
    if definition.is_metered:
        return CONCURRENCY_ONLY_US
    delays_us = [wire_delay_us(definition, rate) for rate in definition.rates]
    return permit_lease_us(definition) + min(delays_us) // 2 if delays_us else CONCURRENCY_ONLY_US


def size_window(definition: LimitDefinition, rate: Rate) -> RateWindow:
    if definition.is_metered:
        return RateWindow(rate.window_us, rate.count, max(divide_up(rate.window_us * 1_000, rate.count), 1_000))
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


def divide_up(number: int, by: int) -> int:
    """Divide and round up."""
    return -(-number // by)
