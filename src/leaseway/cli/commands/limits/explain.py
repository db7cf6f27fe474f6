"""leaseway limits explain: the provider's rates, and how they are enforced"""

import math
from typing import Any

from leaseway.api.schemas.limits import limit_status_document
from leaseway.api.schemas.values import as_dict
from leaseway.cli.commands.limits.definitions import definition_named, in_flight_text, in_words, next_free
from leaseway.cli.open_limiter import ask_limiter, load_definitions, look_at
from leaseway.cli.output.json import document
from leaseway.cli.output.text import facts, heading, moment, note, say, span
from leaseway.cli.settings import CliSettings
from leaseway.domain.errors import LeasewayError
from leaseway.domain.gates import LevelReading, closed_by_limit
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import permits_left
from leaseway.domain.limits.limit import (
    LimitDefinition,
    PermitRequest,
    Rate,
    permit_lease_us,
    template_fields,
    wire_delay_us,
)
from leaseway.domain.limits.sizing import RateWindow, size_window
from leaseway.ports.limiter import Limiter
from leaseway.system import wall_clock_us


def explain_limit(settings: CliSettings, name: str) -> None:
    async def question(limiter: Limiter | None) -> tuple[LimitDefinition, int, LevelReading | None, str]:
        defined = await load_definitions(limiter)
        definition = definition_named(name, defined)
        version = defined[definition.name][1]
        if limiter is None or template_fields(name):
            return definition, version, None, ""
        try:
            seen = await look_at(limiter, [PermitRequest(name, definition.name)])
        except LeasewayError as error:
            return definition, version, None, str(error)
        return definition, version, seen.get(PermitRequest(name, definition.name)), ""

    definition, version, seen, trouble = ask_limiter(settings, question)
    if settings.json:
        sums = [sum_json(definition, rate) for rate in definition.rates]
        document(
            {**as_dict(limit_status_document(definition, version, seen, wall_clock_us())), "name": name, "sums": sums}
        )
    else:
        say(f"limit {name}  {in_words(definition)}", "bold")
        for rate in definition.rates:
            heading(f"{rate}: at most {rate.count:,} in any {span(rate.window_us)}")
            facts(figures(definition, rate))
        show_state(name, definition, seen)
    if trouble:
        note(f"its current state is unknown: {trouble}")


def figures(definition: LimitDefinition, rate: Rate) -> list[tuple[str, str]]:
    """Our bucket for one of the provider's rates."""
    window = size_window(definition, rate)
    lease_us, delay_us = permit_lease_us(definition), wire_delay_us(definition, rate)
    ahead = (
        f"workers acquire permits up to {span(lease_us)} in advance"
        if lease_us
        else "each call acquires its own permit; none are acquired in advance"
    )
    return [
        ("B", f"{tokens_in_words(window.burst)} can be used at once"),
        ("r", f"then one every {every(window)}"),
        ("E", f"{seconds(lease_us)} s: {ahead}"),
        ("delta", f"{seconds(delay_us)} s: from the grant to the provider, at most"),
        ("in any window", f"B + r * (W + E + delta) = {sum_in_words(definition, rate, window)}"),
        ("why + 1", f"two calls that are exactly W apart share no window: never more than {rate.count:,}"),
        ("sustained", f"{number(sustained(rate, window))} in {span(rate.window_us)}, {share(rate, window)}"),
        ("from empty", f"full after {span(window.burst * window.permit_ns // 1_000)}"),
    ]


def tokens_in_words(count: int) -> str:
    return "1 permit" if count == 1 else f"{count:,} permits"


def every(window: RateWindow) -> str:
    us = window.permit_ns / 1_000
    return f"{us / SECOND_US:.3g} s" if us >= 1_000 else f"{us:.3g} µs"


def sum_in_words(definition: LimitDefinition, rate: Rate, window: RateWindow) -> str:
    """The bound with numbers: leaseway never grants more."""
    lease_us, delay_us = permit_lease_us(definition), wire_delay_us(definition, rate)
    spans = f"{seconds(rate.window_us)} + {seconds(lease_us)} + {seconds(delay_us)}"
    return (
        f"{window.burst:,} + {number(SECOND_US * 1_000 / window.permit_ns)} * ({spans}) "
        f"= {number(most_in_window(definition, rate, window))} <= {rate.count + 1:,} = L + 1"
    )


def most_in_window(definition: LimitDefinition, rate: Rate, window: RateWindow) -> float:
    span_us = rate.window_us + permit_lease_us(definition) + wire_delay_us(definition, rate)
    return window.burst + span_us * 1_000 / window.permit_ns


def sustained(rate: Rate, window: RateWindow) -> float:
    """How many permits a window gets on average, if all are used."""
    return rate.window_us * 1_000 / window.permit_ns


def share(rate: Rate, window: RateWindow) -> str:
    """Rounded down, so that 100 % means all of it."""
    percent = math.floor(sustained(rate, window) / rate.count * 1_000) / 10
    return f"{percent:g} % of what the provider allows"


def seconds(us: int) -> str:
    return f"{us / SECOND_US:,g}"


def number(value: float) -> str:
    return f"{value:,.4g}" if value < 10_000 else f"{value:,.0f}"


def sum_json(definition: LimitDefinition, rate: Rate) -> dict[str, Any]:
    window = size_window(definition, rate)
    return {
        "rate": str(rate),
        "burst": window.burst,
        "permit_seconds": window.permit_ns / 1_000_000_000,
        "lease_seconds": permit_lease_us(definition) / SECOND_US,
        "delay_seconds": wire_delay_us(definition, rate) / SECOND_US,
        "most_in_window": most_in_window(definition, rate, window),
        "allowed_in_window": rate.count,
        "sustained_share": sustained(rate, window) / rate.count,
        "full_after_seconds": window.burst * window.permit_ns / 1_000_000_000,
    }


def show_state(name: str, definition: LimitDefinition, seen: LevelReading | None) -> None:
    if template_fields(name):
        heading("now")
        facts([("", f"there is one for each {' and '.join(template_fields(name))}: name one to see its state")])
    if seen is None:
        return
    now, level = wall_clock_us(), seen.level
    shut, closed_us = (
        closed_by_limit(PermitRequest(name, definition.name), definition, seen),
        level.blocked_until - seen.now,
    )
    heading("now")
    facts(
        [
            *((str(rate), tokens_now(definition, rate, seen)) for rate in definition.rates),
            ("in flight", in_flight_text(definition, seen)),
            ("pace", f"slowed to {level.percent} %: the provider refused calls" if level.percent < 100 else ""),
            ("closed", f"the provider asked for a wait; open {moment(now + closed_us, now)}" if closed_us > 0 else ""),
            ("next free", next_free(shut)),
        ]
    )


def tokens_now(definition: LimitDefinition, rate: Rate, seen: LevelReading) -> str:
    window, bucket = size_window(definition, rate), seen.level.buckets.get(rate.window_us)
    if bucket is None:
        return ""
    full_us = max(bucket.tat - seen.now, 0)
    there = f"{permits_left(window, bucket, seen.now):,} of {tokens_in_words(window.burst)}"
    return f"{there}, full in {span(full_us)}" if full_us else f"{there}, full"
