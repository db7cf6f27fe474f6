"""A provider's rate limits, as the provider states them: Limit("maps", "3/second", "100/minute", "2000/day").

A `Limit` becomes a `LimitDefinition`, which is stored; `buckets.py` turns it into buckets that hold in every window.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US
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
    "millisecond": SECOND_US // 1_000,
    "second": SECOND_US,
    "minute": 60 * SECOND_US,
    "hour": 3_600 * SECOND_US,
    "day": 86_400 * SECOND_US,
    "week": 7 * 86_400 * SECOND_US,
}
SHORT = {"ms": "millisecond", "s": "second", "sec": "second", "m": "minute", "min": "minute", "h": "hour"}
SHORT |= {"d": "day", "w": "week"} | {f"{unit}s": unit for unit in UNITS_US} | {"secs": "second", "mins": "minute"}
THOUSANDS = {"": 1, "k": 1_000, "m": 1_000_000}
RATE = re.compile(
    r"\s*(?P<count>\d[\d_,]{0,30})(?P<thousands>[kKmM]?)\s*(?:/|per)"
    r"\s*(?P<length>\d{1,15}(?:\.\d{1,15})?)?\s*(?P<unit>[a-z]+)\s*"
)
TENANT_PREFIX = "tenant:"
"""The prefix of the limits that enforce the caps of tenants."""
FIELD = re.compile(r"\{([a-z_][a-z0-9_]*)\}")


class Rate(Struct, frozen=True, order=True):
    """At most `count` in any window of this length."""

    window_us: int
    count: int

    def __str__(self) -> str:
        for unit, length_us in reversed(UNITS_US.items()):
            if self.window_us == length_us:
                return f"{self.count:,}/{unit}"
        return f"{self.count:,} per {self.window_us / SECOND_US:g} s"


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
    paused: bool = False
    """No permit is granted until the limit is resumed. Only operators pause; declarations of the code do not change
    it."""


class Limit:
    """A provider's rate limit. Pass it to `@app.job(limits=[…])`.

        maps = Limit("maps", "3/second", "100/minute", concurrency=10)

    Rates read like "100/minute", "20 per 2 s" or "200k/day"; up to four of them hold at the same time, in any window.
    `concurrency`: how many calls may be in flight at once. `burst`: the share of the count that may be used at once
    after an idle time. `cost_max`: the highest cost of one call; `maps.cost(3)` is a call that costs 3. `lease`: how
    long workers may keep permits that they take ahead. `delay`: the assumed delay from the grant to the provider.
    `degraded_share`: the share that workers may use while they cannot reach the limiter. A name with fields, such as
    "maps:{tenant}", defines one limit per value.
    """

    def __init__(
        self,
        name: str,
        *rates: str,
        concurrency: int | None = None,
        burst: float = 0.05,
        cost_max: int = 1,
        lease: Seconds | None = None,
        delay: Seconds | None = None,
        degraded_share: float = 0.0,
    ) -> None:
        if str(name).startswith(TENANT_PREFIX):
            raise BadValue(
                f"limit {name}",
                "names that start with tenant: are reserved for the caps of tenants; choose one such as maps:{tenant}",
            )
        self.definition = check_limit(
            LimitDefinition(
                name=name,
                rates=tuple(sorted(parse_rate(f"limit {name}", rate) for rate in rates)),
                concurrency=concurrency,
                burst_share=burst,
                cost_max=cost_max,
                lease_us=None if lease is None else duration_us_of(f"limit {name}: lease", lease, most=60),
                delay_us=None if delay is None else duration_us_of(f"limit {name}: delay", delay, most=60),
                degraded_share=degraded_share,
            )
        )
        self.name = name

    def cost(self, cost: int) -> "LimitUse":
        return LimitUse(self, check_int(f"limit {self.name}: cost", cost, 1, self.definition.cost_max))

    def __repr__(self) -> str:
        return f"Limit({self.name!r}, {', '.join(repr(str(rate)) for rate in self.definition.rates)})"


class LimitUse(Struct, frozen=True):
    """A limit with the cost of one call."""

    limit: Limit
    cost: int = 1


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


def check_limit(definition: LimitDefinition) -> LimitDefinition:
    """Refuse an invalid definition. The error names the field and the remedy."""
    field = f"limit {definition.name}"
    check_name("limit", definition.name)
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
    share = definition.burst_share
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise BadValue(f"{field}: burst", f"must be between 0 and 1, a share of the count (is {share!r})")
    for name, duration_us in (("lease", definition.lease_us), ("delay", definition.delay_us)):
        if duration_us is not None:
            check_int(f"{field}: {name} in microseconds", duration_us, 0, AHEAD_US_MAX)
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
    if definition.lease_us is not None:
        return definition.lease_us
    shortest = min((rate.window_us for rate in definition.rates), default=0)
    return LEASE_US if shortest >= LEASED_WINDOW_US_MIN else 0


def wire_delay_us(definition: LimitDefinition, rate: Rate) -> int:
    if definition.delay_us is not None:
        return definition.delay_us
    return min(DELAY_US_MAX, rate.window_us // DELAY_SHARE)


def template_fields(name: str) -> tuple[str, ...]:
    """The fields of a name: "maps:{tenant}" has one, tenant."""
    return tuple(FIELD.findall(name))


def fill_template(name: str, values: Mapping[str, Any]) -> str:
    """Fill the fields of a name. The error names a missing value."""
    for field in template_fields(name):
        if values.get(field) is None:
            raise BadValue(field, f"is required by the name {name!r}, but the job has no such argument")
    return check_name("name", FIELD.sub(lambda found: str(values[found[1]]), name))


def matching_limit(name: str, limits: Iterable[str]) -> str | None:
    """The limit of this name, or the one whose fields the name fills."""
    known = list(limits)
    if name in known:
        return name
    for limit in known:
        parts = FIELD.split(limit)[::2]
        if len(parts) > 1 and re.fullmatch(".+".join(map(re.escape, parts)), name):
            return limit
    return None
