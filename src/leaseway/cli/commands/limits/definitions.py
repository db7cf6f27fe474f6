"""leaseway limits list|set|pause|resume|forget"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from leaseway.api.schemas.limits import limit_settings_document, limit_status_document
from leaseway.cli.open_limiter import ask_limiter, change_limits, load_definitions, look_at
from leaseway.cli.options import NONE, CliSettings
from leaseway.cli.output.console import moment, note, print_json, say, span
from leaseway.cli.output.table import Row, TableCell, TableColumn, show_table
from leaseway.domain.errors import BadValue, LeasewayError, UnknownLimit
from leaseway.domain.explain.closures import Closure, LevelReading, closed_by_limit
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.buckets import PAUSED, permits_left
from leaseway.domain.limits.level import Level
from leaseway.domain.limits.limit import (
    REQUESTS,
    Limit,
    LimitDefinition,
    PermitRequest,
    StartLevel,
    check_limit,
    parse_rate,
    size_limit,
)
from leaseway.domain.limits.templates import matching_limit, template_fields
from leaseway.domain.validators import parse_duration_us
from leaseway.ports.limiter import Limiter
from leaseway.system import wall_clock_us

COLUMNS = (
    TableColumn("name"),
    TableColumn("rates", may_shrink=True),
    TableColumn("permits now"),
    TableColumn("in flight"),
    TableColumn("next free"),
    TableColumn("slowed to", right=True),
    TableColumn("closed until", may_shrink=True),
)
TENANT = "tenant:"

Known = dict[str, tuple[LimitDefinition, int]]


def list_limits(settings: CliSettings) -> None:
    defined, seen, trouble = ask_limiter(settings, gather)
    now = wall_clock_us()
    rows = [(*each, seen.get(PermitRequest(name, name))) for name, each in defined.items()]
    if settings.json:
        print_json({"limits": [limit_status_document(*row, now) for row in rows]})
    elif not rows:
        note(
            "there are no limits yet: a worker declares them with the first job that needs one; or: leaseway limits set"
        )
    else:
        show_table(COLUMNS, [limit_row(definition, level, now) for definition, _, level in rows])
    if trouble:
        note(f"their current state is unknown: {trouble}")


async def gather(limiter: Limiter | None) -> tuple[Known, dict[PermitRequest, LevelReading], str]:
    """All definitions, with the state of each limit that is not a template, or why the state is unknown."""
    defined = await load_definitions(limiter)
    asks = [PermitRequest(name, name) for name in defined if not template_fields(name)]
    try:
        return defined, await look_at(limiter, asks) if limiter is not None else {}, ""
    except LeasewayError as error:
        return defined, {}, str(error)


def limit_row(definition: LimitDefinition, seen: LevelReading | None, now: Instant) -> Row:
    rates = ", ".join(map(str, definition.rates))
    if seen is None:
        each = (
            f"one for each {' and '.join(template_fields(definition.name))}" if template_fields(definition.name) else ""
        )
        return (definition.name, rates, TableCell(each, "dim"), capacity(definition), "", "", "")
    level, shut = seen.level, closed_reason(definition, seen)
    closed_us = max(level.blocked_until, open_until(definition, level)) - seen.now
    return (
        definition.name,
        rates,
        ", ".join(permit_levels(definition, seen)),
        in_flight_text(definition, seen),
        TableCell(next_free(shut), "yellow" if shut else "green"),
        TableCell(f"{level.percent} %", "yellow") if level.percent < 100 else "",
        TableCell(moment(now + closed_us, now), "red") if closed_us > 0 else "",
    )


def open_until(definition: LimitDefinition, level: Level) -> Instant:
    """Until when the circuit breaker is open."""
    return 0 if definition.breaker is None else level.breaker.open_until


def capacity(definition: LimitDefinition) -> str:
    return "" if definition.concurrency is None else f"{definition.concurrency:,}"


def closed_reason(definition: LimitDefinition, seen: LevelReading) -> Closure | None:
    return closed_by_limit(PermitRequest(definition.name, definition.name), definition, seen)


def permit_levels(definition: LimitDefinition, seen: LevelReading) -> list[str]:
    """For each window: the permits available, of the burst."""
    windows = size_limit(definition).windows
    buckets = seen.level.buckets
    return [
        f"{permits_left(window, buckets[window.window_us], seen.now, seen.level):,} of {window.burst:,}"
        for window in windows
        if window.window_us in buckets
    ]


def in_flight_text(definition: LimitDefinition, seen: LevelReading) -> str:
    if definition.concurrency is None:
        return ""
    return f"{sum(calls.count for calls in seen.level.in_flight.values()):,} of {definition.concurrency:,}"


def next_free(shut: Closure | None) -> str:
    if shut is None:
        return "now"
    if shut.why == PAUSED:
        return "when it is resumed"
    return "when a call ends" if shut.wait_us is None else f"in {span(shut.wait_us)}"


# -- changing -------------------------------------------------------------------------------------------------------


def set_limit(settings: CliSettings, name: str, rates: tuple[str, ...], given: Mapping[str, Any]) -> None:
    if name.startswith(TENANT):
        tenant = name.removeprefix(TENANT)
        raise BadValue("limit", f"{name!r} are the caps of a tenant; change them with: leaseway tenants set {tenant}")

    before, after, version = change_limits(
        settings, lambda limits: limits.change(name, lambda before: merged(name, before, rates, given))
    )
    if settings.json:
        shown = before and limit_settings_document(before)
        print_json({"before": shown, "after": limit_settings_document(after), "version": version})
    elif before == after:
        say(f"limit {name}: {in_words(after)}, as before")
    else:
        say(f"limit {name}: {in_words(after)}" + (f" (was {in_words(before)})" if before else ", new"))


def merged(
    name: str, before: LimitDefinition | None, rates: tuple[str, ...], given: Mapping[str, Any]
) -> LimitDefinition:
    """Options of `limits set`; None keeps the current value."""
    named = {option: value for option, value in given.items() if value is not None}
    if before is None:
        options: dict[str, Any] = {option: None if value == NONE else value for option, value in named.items()}
        return Limit(name, *rates, **options).definition
    if not rates and not named:
        raise BadValue(f"limit {name}", "nothing to change; give a rate such as 100/minute, or an option")
    changes: dict[str, Any] = {}
    if rates:
        changes["rates"] = tuple(sorted(parse_rate(f"limit {name}", rate) for rate in rates))
    for option in ("concurrency", "breaker"):
        if option in named:
            changes[option] = None if named[option] == NONE else named[option]
    if "start" in named:
        changes["start"] = None if named["start"] == NONE else StartLevel(named["start"])
    for option, field in (("burst", "burst_share"), ("cost_max", "cost_max"), ("unit", "unit")):
        if option in named:
            changes[field] = named[option]
    for option in ("lease", "delay"):
        if option in named:
            changes[f"{option}_us"] = parse_duration_us(f"limit {name}: {option}", named[option], most=60)
    return check_limit(replace(before, **changes))


def in_words(definition: LimitDefinition) -> str:
    """The options that were given."""
    unit = "" if definition.unit == REQUESTS else f" {definition.unit}"
    parts = [f"{rate}{unit}" for rate in definition.rates]
    if definition.concurrency is not None:
        parts.append(f"{definition.concurrency:,} at once")
    if definition.burst_share != 0.05:
        parts.append(f"burst {definition.burst_share:g}")
    if definition.cost_max != 1:
        parts.append(f"cost at most {definition.cost_max:,}")
    for name, us in (("lease", definition.lease_us), ("delay", definition.delay_us)):
        if us is not None:
            parts.append(f"{name} {us / SECOND_US:g} s")
    if definition.start is not None:
        parts.append(f"starts {definition.start}")
    if definition.breaker is not None:
        parts.append(f"breaker after {definition.breaker:,} failures")
    if definition.paused:
        parts.append("paused")
    return ", ".join(parts)


def pause_limit(settings: CliSettings, name: str, is_paused: bool) -> None:
    before, after, version = change_limits(settings, lambda limits: limits.pause(name, is_paused))
    if settings.json:
        print_json({"name": name, "paused": is_paused, "version": version})
    else:
        say(f"limit {name}: {pause_in_words(is_paused, before != after)}")


def pause_in_words(is_paused: bool, is_new: bool) -> str:
    if not is_new:
        return "was already paused" if is_paused else "was not paused"
    return "paused" if is_paused else "resumed"


def forget_limit(settings: CliSettings, name: str) -> None:
    change_limits(settings, lambda limits: limits.forget(name))
    if settings.json:
        print_json({"name": name, "forgotten": True})
    else:
        say(f"limit {name}: forgotten")


def unknown_limit(name: str, defined: Known) -> UnknownLimit:
    return UnknownLimit(f"there is no limit {name!r}; defined are: {', '.join(defined) or 'none'}")


def definition_named(name: str, defined: Known) -> LimitDefinition:
    """The limit of this name, or the template that it was made from."""
    limit = matching_limit(name, defined)
    if limit is None:
        raise unknown_limit(name, defined)
    return defined[limit][0]
