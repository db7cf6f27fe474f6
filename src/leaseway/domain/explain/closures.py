"""Why the gate of a lane is closed: limits that are used up, caps of a tenant, budgets that are spent, or pauses.

This module explains it to users; workers find out by taking permits. Times are durations, because limits may be kept by
another clock than jobs. `reasons` says what that means for one job.
"""

from collections.abc import Iterable, Mapping, Sequence
from shlex import quote

from msgspec import Struct

from leaseway.domain.budgets.balances import Balance, BudgetWindow, window_with_room
from leaseway.domain.budgets.budget import BudgetDefinition, Charge, amount_text, definition_for
from leaseway.domain.budgets.calendar_windows import CalendarWindow
from leaseway.domain.budgets.holds import wait_us
from leaseway.domain.exchange import Gate
from leaseway.domain.ids import Instant
from leaseway.domain.lane import LaneCount, Pause, covering_pause
from leaseway.domain.limits import breaker
from leaseway.domain.limits.buckets import (
    NO_HOLDER,
    PAUSED,
    Acquisition,
    Denial,
    available,
    refill_us,
    repace,
    units_at_once,
)
from leaseway.domain.limits.level import Level
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, Rate, Sizing, size_limit
from leaseway.domain.requirements import UNREADABLE, readable_needs
from leaseway.domain.tenant import Tenant


class Closure(Struct, frozen=True):
    """One reason why a gate is closed."""

    what: str
    """lane, limit, tenant, budget or session"""
    name: str
    why: str
    wait_us: int | None = None
    """How long at least it stays closed; None: not known."""
    then: str = "It opens"
    """What happens after that time."""
    advice: str | None = None
    """What an operator must do, if the gate does not open by itself."""


class LevelReading(Struct, frozen=True):
    """A limit's level, and the limiter's clock when it was read."""

    level: Level
    now: Instant


def longest_closure(shuts: Sequence[Closure]) -> Closure:
    return max(shuts, key=lambda shut: (shut.advice is not None, shut.wait_us or 0))


def gate_requests(gate: Gate, tenants: Mapping[str, Tenant]) -> tuple[PermitRequest, ...]:
    """The permits that a job behind this gate needs."""
    asks = readable_needs(gate.needs).limits
    tenant = tenants.get(gate.tenant)
    return (*asks, PermitRequest(tenant.limit, tenant.limit)) if tenant is not None and tenant.is_capped else asks


# -- limits ---------------------------------------------------------------------------------------------------------


def closed_by_limit(ask: PermitRequest, definition: LimitDefinition, seen: LevelReading) -> Closure | None:
    what, name = limit_label(ask)
    if definition.paused:
        return Closure(what, name, PAUSED, advice=f"Resume it: leaseway limits resume {quote(definition.name)}")
    taking, now = Acquisition(ask, size_limit(definition), seen.level), seen.now
    if units_at_once(taking) < 1:
        return too_heavy(ask, taking.sizing, definition)
    # The definition may be newer than the level, and have windows that this does not know.
    level = repace(seen.level, taking.sizing, now)
    hindrance, units = available(taking, level, now, 1, NO_HOLDER)
    if hindrance.wait_us <= 0 and units >= 1:
        return None
    if hindrance.window_us is not None:
        rate = next(rate for rate in definition.rates if rate.window_us == hindrance.window_us)
        then = "The next permit is free" if ask.cost == 1 else f"The {ask.cost:,} permits for one call are free"
        return Closure(
            what,
            name,
            f"{rate} {describe_bucket(level, taking.sizing, rate, now)}{slowdown_note(level)}",
            hindrance.wait_us,
            then,
        )
    if hindrance.why in (breaker.OPEN, breaker.PROBED):
        return closed_by_breaker(what, name, level, hindrance)
    if level.blocked_until > now and level.blocked_until - now == hindrance.wait_us:
        return Closure(what, name, f"the provider asked for a wait{slowdown_note(level)}", hindrance.wait_us)
    return Closure(what, name, describe_concurrency(what, definition.concurrency or 0))


def closed_by_breaker(what: str, name: str, level: Level, hindrance: Denial) -> Closure:
    if hindrance.why == breaker.PROBED:
        return Closure(what, name, hindrance.why, hindrance.wait_us, "It is known whether the provider answers")
    failures = level.breaker.failures
    why = f"{hindrance.why}: " + ("a call failed" if failures == 1 else f"{failures:,} calls in a row failed")
    return Closure(what, name, why, hindrance.wait_us, "One call probes the provider")


def describe_concurrency(what: str, most: int) -> str:
    """The cap of a tenant counts jobs, a limit counts calls."""
    if what == "tenant":
        return "its only job is running" if most == 1 else f"all {most:,} jobs that it may run at once are running"
    return "its only call is in flight" if most == 1 else f"all its {most:,} calls are in flight"


def describe_bucket(level: Level, sizing: Sizing, rate: Rate, now: Instant) -> str:
    """A bucket that was not used since the limiter started is not used up, but earlier use is not known, so it starts
    empty."""
    window = next(window for window in sizing.windows if window.window_us == rate.window_us)
    bucket = level.buckets[rate.window_us]
    empty_at = bucket.tat - refill_us(window, bucket)
    if sizing.starts_empty and empty_at == now:
        return "starts empty, as its definition says"
    return "starts empty, because earlier use is not known" if empty_at == level.since else "is used up"


def limit_label(ask: PermitRequest) -> tuple[str, str]:
    """The caps of a tenant are kept as a limit, but are shown as the tenant's."""
    tenant = ask.name.removeprefix("tenant:")
    return ("tenant", tenant) if tenant != ask.name and ask.name == ask.limit else ("limit", ask.name)


def too_heavy(ask: PermitRequest, sizing: Sizing, definition: LimitDefinition) -> Closure:
    most = min(window.burst for window in sizing.windows)
    why = f"a call costs {ask.cost:,}, and the limit never grants more than {most:,} at once"
    advice = f"Let it grant more: leaseway limits set {quote(definition.name)} --cost-max {ask.cost}"
    return Closure("limit", ask.name, why, advice=advice)


def slowdown_note(level: Level) -> str:
    return (
        f", and it is slowed to {level.percent} % because the provider throttled calls" if level.percent < 100 else ""
    )


def undefined_limit(ask: PermitRequest) -> Closure:
    what, name = limit_label(ask)
    if what == "tenant":
        return Closure(
            what, name, "its caps are not known to the limiter yet; the first worker that needs them declares them"
        )
    if ask == UNREADABLE:
        return Closure(
            "lane", "", "its needs are damaged and cannot be read", advice="Cancel its jobs, and submit them again"
        )
    advice = f"Start a worker of the app that declares it, or: leaseway limits set {quote(ask.limit)} 100/minute"
    return Closure(what, name, "it is not defined", advice=advice)


def unreachable_limit(ask: PermitRequest, error: Exception) -> Closure:
    what, name = limit_label(ask)
    return Closure(what, name, f"it cannot be read from here ({error})")


# -- budgets --------------------------------------------------------------------------------------------------------


def closed_by_budget(
    charge: Charge, definitions: Sequence[BudgetDefinition], accounts: Sequence[BudgetWindow], now: Instant
) -> Closure | None:
    """`accounts`: the current and future windows of this budget."""
    definition = definition_for(charge.name, charge.budget, definitions)
    if definition is None:
        advice = f"Start a worker of the app that declares it, or: leaseway budgets set {quote(charge.budget)} --usd 25"
        return Closure("budget", charge.name, "it is not defined", advice=advice)
    if definition.paused:
        advice = f"Resume it: leaseway budgets resume {quote(definition.name)}"
        return Closure("budget", charge.name, PAUSED, advice=advice)
    balances = {account.window: account.balance for account in accounts if account.name == charge.name}

    def read(_: str, window: CalendarWindow) -> Balance | None:
        return balances.get(window)

    left_us = wait_us(definition, charge.name, read, now)
    balance = next((balance for window, balance in balances.items() if now in window), None)
    if left_us <= 0 or balance is None:
        return None
    spent, limit = amount_text(balance.spent_micros), amount_text(balance.limit_micros)
    why = f"{spent} of {limit} {definition.unit} are spent"
    if window_with_room(definition, charge.name, read, now) is None:
        advice = f"No window has room. Raise it: leaseway budgets set {quote(definition.name)} --amount AMOUNT"
        return Closure("budget", charge.name, why, advice=advice)
    return Closure("budget", charge.name, why, left_us, "A window with room begins")


# -- pauses ---------------------------------------------------------------------------------------------------------


def closed_by_pauses(queue: str, tenant: str, pauses: Iterable[Pause]) -> list[Closure]:
    """The pauses that keep a lane from being served."""
    pause = covering_pause(queue, tenant, pauses)
    return [] if pause is None else [closed_by_pause(pause)]


def closed_by_pause(pause: Pause) -> Closure:
    tenant = "" if pause.tenant is None else f" --tenant {quote(pause.tenant)}"
    return Closure("lane", pause.queue, PAUSED, advice=f"Resume it: leaseway lanes resume {quote(pause.queue)}{tenant}")


# -- locks ------------------------------------------------------------------------------------------------------------


def closed_by_session(session: str | None) -> list[Closure]:
    """`session`: the database session that has locked the job, if any."""
    if session is None:
        return []
    why = "a transaction that it left open has locked the job, and no worker can claim it"
    return [Closure("session", session, why, advice="Find out what it does, and end it: leaseway doctor")]


# -- lanes that a worker has closed ----------------------------------------------------------------------------------


def closed_by_worker(lane: LaneCount | None, now: Instant, others: Sequence[Closure] = ()) -> list[Closure]:
    """A worker has found the gate of this lane closed. Other closures are more exact if they are known to last."""
    is_known = any(shut.wait_us is not None or shut.advice is not None for shut in others)
    if is_known or lane is None or lane.closed_until is None or lane.closed_until <= now:
        return []
    why = f"a worker found it closed ({lane.closed_why})"
    return [Closure("lane", lane.queue, why, lane.closed_until - now, "A worker tries it again")]
