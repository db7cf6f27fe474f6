"""leaseway limits explain: the provider's rates, and how they are enforced"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from leaseway.api.schemas.limits import limit_status_document
from leaseway.api.schemas.values import as_dict
from leaseway.cli.commands.limits.definitions import definition_named, in_flight_text, in_words, next_free
from leaseway.cli.open_limiter import ask_limiter, load_definitions, look_at
from leaseway.cli.open_store import ask
from leaseway.cli.options import CliSettings
from leaseway.cli.output.console import facts, heading, moment, note, print_json, say, span
from leaseway.domain.errors import LeasewayError
from leaseway.domain.explain.closures import LevelReading, closed_by_limit
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.breaker import BreakerState, breaker_state
from leaseway.domain.limits.buckets import permits_left
from leaseway.domain.limits.learnt_use import CALLS_MIN, SCALE
from leaseway.domain.limits.limit import (
    LimitDefinition,
    PermitRequest,
    Rate,
    RateWindow,
    permit_lease_us,
    size_window,
    wire_delay_us,
)
from leaseway.domain.limits.sliding_log import SLICES
from leaseway.domain.limits.templates import template_fields
from leaseway.domain.workers import StoredWorker
from leaseway.ports.limiter import Limiter
from leaseway.ports.store import require_workers
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
    learnt = read_learnt(settings, definition)
    if settings.json:
        sums = [sum_json(definition, rate) for rate in definition.rates]
        print_json(
            {
                **as_dict(limit_status_document(definition, version, seen, wall_clock_us())),
                "name": name,
                "sums": sums,
                "learnt": learnt,
            }
        )
    else:
        say(f"limit {name}  {in_words(definition)}", "bold")
        for rate in definition.rates:
            heading(f"{rate}: at most {rate.count:,} in any {span(rate.window_us)}")
            facts(figures(definition, rate))
        show_state(name, definition, seen)
        show_learnt(definition, learnt)
    if trouble:
        note(f"its current state is unknown: {trouble}")


def figures(definition: LimitDefinition, rate: Rate) -> list[tuple[str, str]]:
    """Our bucket for one of the provider's rates, or our log."""
    if definition.is_metered:
        unit, span_ = definition.unit, span(rate.window_us)
        return [
            ("L", f"used within {span_} + reserved by calls in flight <= {rate.count:,} {unit}"),
            ("reserved", "the estimate of each call, until it ends; then what it used counts"),
            ("slices", f"what is used counts for up to {span(rate.window_us // SLICES)} longer than {span_}"),
        ]
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
    if definition.is_metered:
        return rate.count
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
            ("breaker", breaker_in_words(definition, seen, now)),
            ("next free", next_free(shut)),
        ]
    )


def read_learnt(settings: CliSettings, definition: LimitDefinition) -> list[dict[str, Any]]:
    """What workers have learnt about the use of this limit. Each of them learns for itself."""
    if not definition.is_metered:
        return []
    workers: list[StoredWorker] = []
    with suppress(LeasewayError):  # the jobs may be elsewhere
        workers = ask(settings, lambda store: require_workers(store).all())
    return [
        {"kind": each.kind, "share": each.share / SCALE, "calls": each.calls, "worker": worker.name}
        for worker in workers
        for each in worker.beat.estimates
        if each.limit == definition.name
    ]


def show_learnt(definition: LimitDefinition, learnt: Sequence[Mapping[str, Any]]) -> None:
    if not learnt:
        return
    heading(f"learnt: 95 of 100 calls use at most this share of the {definition.unit} that are stated for them")
    facts([(each["kind"], learnt_in_words(each)) for each in learnt])


def learnt_in_words(each: Mapping[str, Any]) -> str:
    last = f"from the last {each['calls']} calls of worker {each['worker']}"
    if each["calls"] < CALLS_MIN:
        return f"all of it until {CALLS_MIN} calls are known, {last}"
    return f"{each['share']:.1%} {last}"


def breaker_in_words(definition: LimitDefinition, seen: LevelReading, now: Instant) -> str:
    breaker = seen.level.breaker
    match breaker_state(breaker, definition.breaker, seen.now):
        case None:
            return ""
        case BreakerState.CLOSED:
            return f"closed, {breaker.failures:,} of {definition.breaker:,} failures in a row"
        case BreakerState.OPEN:
            until = moment(now + breaker.open_until - seen.now, now)
            return f"open after {breaker.failures:,} failures in a row; one call probes the provider {until}"
        case BreakerState.HALF_OPEN:
            return "half-open: one call probes the provider"


def tokens_now(definition: LimitDefinition, rate: Rate, seen: LevelReading) -> str:
    window, bucket = size_window(definition, rate), seen.level.buckets.get(rate.window_us)
    if bucket is None:
        return ""
    full_us = max(bucket.tat - seen.now, 0)
    there = f"{permits_left(window, bucket, seen.now, seen.level):,} of {tokens_in_words(window.burst)}"
    return f"{there}, full in {span(full_us)}" if full_us else f"{there}, full"
