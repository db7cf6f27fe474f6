"""What keeps a gate shut: limits that are used up, caps of a tenant, budgets that are spent. For people who ask why
nothing starts; workers find out by asking for tokens.

Times are spans, not instants: limits may be kept by another clock than jobs.
"""

from collections.abc import Iterable, Mapping, Sequence
from shlex import quote

from msgspec import DecodeError, Struct

from leaseway.domain.budgets.balances import Balance, BudgetWindow
from leaseway.domain.budgets.budget import BudgetDefinition, Charge, amount_text, definition_for
from leaseway.domain.budgets.calendar_windows import CalendarWindow
from leaseway.domain.budgets.holds import wait_us
from leaseway.domain.exchange import Gate
from leaseway.domain.ids import Instant
from leaseway.domain.lane import Pause, covering_pause
from leaseway.domain.limits.buckets import (
    NO_HOLDER,
    PAUSED,
    Acquisition,
    Level,
    Sizing,
    available,
    refill_us,
    repace,
    size_limit,
    units_at_once,
)
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, Rate
from leaseway.domain.requirements import NO_NEEDS, Needs, parse_needs
from leaseway.domain.tenant import Tenant


class Closure(Struct, frozen=True):
    """One thing that keeps a gate shut."""

    what: str
    """lane, limit, tenant or budget"""
    name: str
    why: str
    wait_us: int | None = None
    """How long at least; None: nobody can know."""
    then: str = "It opens"
    """What happens after that."""
    advice: str | None = None
    """It does not end by itself: somebody must do something."""


class LevelReading(Struct, frozen=True):
    """A level as the limiter's `look` told it, and the limiter's clock at that moment."""

    level: Level
    now: Instant


def longest_closure(shuts: Sequence[Closure]) -> Closure:
    return max(shuts, key=lambda shut: (shut.advice is not None, shut.wait_us or 0))


def readable_needs(text: str) -> Needs:
    """What cannot be read must not keep people from looking at the rest."""
    try:
        return parse_needs(text)
    except DecodeError:
        return NO_NEEDS


def gate_requests(gate: Gate, tenants: Mapping[str, Tenant]) -> tuple[PermitRequest, ...]:
    """All that a job behind this gate asks the limiter for."""
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
        then = "The next token comes" if ask.cost == 1 else f"The {ask.cost:,} tokens for one call are there"
        return Closure(
            what,
            name,
            f"{rate} {describe_bucket(level, taking.sizing, rate)}{slowdown_note(level)}",
            hindrance.wait_us,
            then,
        )
    if level.blocked_until > now and level.blocked_until - now == hindrance.wait_us:
        return Closure(what, name, f"the provider asked us to wait{slowdown_note(level)}", hindrance.wait_us)
    seats = "its only seat is" if definition.concurrency == 1 else f"all its {definition.concurrency:,} seats are"
    return Closure(what, name, f"{seats} taken")


def describe_bucket(level: Level, sizing: Sizing, rate: Rate) -> str:
    """A limit that nobody has used since the limiter began is not used up; but what was used before, nobody knows."""
    window = next(window for window in sizing.windows if window.window_us == rate.window_us)
    bucket = level.buckets[rate.window_us]
    is_untouched = bucket.tat == level.since + refill_us(window, bucket)
    return "begins empty, since nobody knows what was used before" if is_untouched else "is used up"


def limit_label(ask: PermitRequest) -> tuple[str, str]:
    """A tenant's caps are kept like a limit; people know them as the tenant's."""
    tenant = ask.name.removeprefix("tenant:")
    return ("tenant", tenant) if tenant != ask.name and ask.name == ask.limit else ("limit", ask.name)


def too_heavy(ask: PermitRequest, sizing: Sizing, definition: LimitDefinition) -> Closure:
    most = min(window.burst for window in sizing.windows)
    why = f"a call weighs {ask.cost:,}, and it never grants more than {most:,} at once"
    advice = f"Let it grant more: leaseway limits set {quote(definition.name)} --cost-max {ask.cost}"
    return Closure("limit", ask.name, why, advice=advice)


def slowdown_note(level: Level) -> str:
    return f", and it is slowed to {level.percent} % since the provider refused calls" if level.percent < 100 else ""


def undefined_limit(ask: PermitRequest) -> Closure:
    what, name = limit_label(ask)
    if what == "tenant":
        return Closure(what, name, "its caps are not known yet; the first worker that needs them makes them known")
    advice = f"Start a worker of the app that declares it, or: leaseway limits set {quote(ask.limit)} 100/minute"
    return Closure(what, name, "nobody has defined it", advice=advice)


def unreachable_limit(ask: PermitRequest, error: Exception) -> Closure:
    what, name = limit_label(ask)
    return Closure(what, name, f"it cannot be asked from here ({error})")


# -- budgets --------------------------------------------------------------------------------------------------------


def closed_by_budget(
    charge: Charge, definitions: Sequence[BudgetDefinition], accounts: Sequence[BudgetWindow], now: Instant
) -> Closure | None:
    """`accounts`: the windows of this budget that are under way or to come, as the ledger's `books` tells them."""
    definition = definition_for(charge.name, charge.budget, definitions)
    if definition is None:
        advice = f"Start a worker of the app that declares it, or: leaseway budgets set {quote(charge.budget)} --usd 25"
        return Closure("budget", charge.name, "nobody has defined it", advice=advice)
    if definition.paused:
        advice = f"Resume it: leaseway budgets resume {quote(definition.name)}"
        return Closure("budget", charge.name, PAUSED, advice=advice)
    books = {account.window: account.book for account in accounts if account.name == charge.name}

    def read(_: str, window: CalendarWindow) -> Balance | None:
        return books.get(window)

    left_us = wait_us(definition, charge.name, read, now)
    book = next((book for window, book in books.items() if now in window), None)
    if left_us <= 0 or book is None:
        return None
    spent, limit = amount_text(book.spent_micros), amount_text(book.limit_micros)
    then = "A window that is not used up begins"
    return Closure("budget", charge.name, f"{spent} of {limit} {definition.unit} are spent", left_us, then)


# -- pauses ---------------------------------------------------------------------------------------------------------


def closed_by_pauses(queue: str, tenant: str, pauses: Iterable[Pause]) -> list[Closure]:
    """What keeps a lane from being served besides its gate."""
    pause = covering_pause(queue, tenant, pauses)
    return [] if pause is None else [closed_by_pause(pause)]


def closed_by_pause(pause: Pause) -> Closure:
    tenant = "" if pause.tenant is None else f" --tenant {quote(pause.tenant)}"
    return Closure("lane", pause.queue, PAUSED, advice=f"Resume it: leaseway lanes resume {quote(pause.queue)}{tenant}")
