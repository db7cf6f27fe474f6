"""Budgets: an amount of money, or of another unit, per calendar window.

Budget("maps-spend", usd=25, every="day", tz="Europe/Zurich"). Amounts are whole micro-units. A window is computed from
an instant, so nothing has to be reset. A hold is placed before the call and settled after it:

    held ─► dispatched ─► settled
      │          └──────► captured, if the call is never settled; a late settlement corrects it
      └─► void

A cost that does not fit into the current window is held in the first later window with room, and the job waits for it.
Small jobs that fit continue meanwhile, and a large one is not passed over forever.

A `Budget` becomes a `BudgetDefinition`, which is stored; `holds.py` has the rules for holds.
"""

import re
from collections.abc import Sequence
from decimal import ROUND_CEILING, Context, Decimal, InvalidOperation
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.budgets.calendar_windows import CalendarWindow, Every, parse_zone
from leaseway.domain.errors import BadValue, UnknownBudget, refuse_stale
from leaseway.domain.ids import Instant
from leaseway.domain.limits.templates import refuse_stray_braces, template_fields
from leaseway.domain.validators import check_name

MICRO = 1_000_000
AMOUNT_MAX = 10_000_000_000
"""Ten billion of any unit: sums and percentages still fit into 64 bits."""
MICROS_MAX = AMOUNT_MAX * MICRO
# fmt: off
CURRENCIES = frozenset((
    "aed", "ars", "aud", "bgn", "brl", "cad", "chf", "clp", "cny", "cop", "czk", "dkk", "egp", "eur",
    "gbp", "hkd", "huf", "idr", "ils", "inr", "isk", "jpy", "krw", "mxn", "myr", "nok", "nzd", "pen",
    "php", "pln", "ron", "rsd", "sar", "sek", "sgd", "thb", "try", "twd", "uah", "usd", "vnd", "zar",
))
# fmt: on
UNIT = re.compile(r"[a-z][a-z0-9_]{3,31}")
"""Custom units are longer than currency codes, so that a mistyped currency is not taken for a unit."""
EXACT = Context(prec=60)
Word = TypeVar("Word", bound=StrEnum)
BILLIONTH = Decimal(1).scaleb(-9)


class Charge(Struct, frozen=True, order=True):
    """A budget that a job uses, and the name of its definition."""

    name: str
    budget: str


class OverPolicy(StrEnum):
    """What happens to a job whose cost does not fit into the current window."""

    WAIT = "wait"
    FAIL = "fail"


class BudgetDefinition(Struct, frozen=True, kw_only=True):
    """A budget as it is stored. A name with fields, "spend:{tenant}", defines one budget per value."""

    name: str
    unit: str
    limit_micros: int
    every: Every = Every.TOTAL
    tz: str = "UTC"
    overdraft_micros: int = 0
    """How far holds may exceed the limit."""
    over: OverPolicy = OverPolicy.WAIT
    paused: bool = False
    """No hold is granted until the budget is resumed. Only operators pause; declarations of the code do not change
    it."""

    def __str__(self) -> str:
        each = "in total" if self.every is Every.TOTAL else f"per {self.every.value}"
        return f"{amount_text(self.limit_micros)} {self.unit} {each}"

    @property
    def most_micros(self) -> int:
        """The most that one window can hold."""
        return self.limit_micros + self.overdraft_micros

    @property
    def waits(self) -> bool:
        """Whether a cost that does not fit waits for a later window."""
        return self.over is OverPolicy.WAIT and self.every is not Every.TOTAL


# -- what the ledger answers ----------------------------------------------------------------------------------------

Crossed = tuple[tuple[str, int], ...]
"""The budgets that reached 50, 80 or 100 percent of their window by this call."""


class HoldGranted(Struct, frozen=True):
    """The hold is placed, and dispatched if requested. Settle it, or it is captured in full at its deadline."""

    windows: tuple[CalendarWindow, ...]
    """In the order of the lines."""
    deadline: Instant
    crossed: Crossed = ()


class HoldBooked(Struct, frozen=True):
    """The hold is placed in a later window. Ask again with the same id when that begins."""

    until: Instant
    budget: str


class HoldDenied(Struct, frozen=True):
    """Nothing is held. `until`: when the next window begins; None: waiting does not help."""

    budget: str
    until: Instant | None
    why: str


class HoldUsed(Struct, frozen=True):
    """A call was made under this id before, or may have been. Use another id."""


HoldAnswer = HoldGranted | HoldBooked | HoldDenied | HoldUsed

FULL = "its window is used up"
FULL_AHEAD = "no later window has room"
PAUSED = "it is paused"
IMPOSSIBLE = "impossible: the cost is more than any window has"


class Budget:
    """An amount that jobs may spend per calendar window.

        spend = Budget("maps-spend", usd=25, every="day", tz="Europe/Zurich")

    Give exactly one amount: `usd=25`, another currency, or a unit of your own such as `tokens=1_000_000`. `every`:
    minute, hour, day, week, month or total. `tz`: the time zone in which windows start. `overdraft`: how far holds may
    exceed the amount. `over`: "wait" (default) lets a job that does not fit wait for the next window, "fail" fails
    it. A name with fields, such as "spend:{tenant}", defines one budget per value. Pass it to `@app.job(budget=…,
    cost=…)`.
    """

    def __init__(
        self,
        name: str,
        usd: object = None,
        *,
        every: str = "total",
        tz: str = "UTC",
        overdraft: object = 0,
        over: str = "wait",
        **units: object,
    ) -> None:
        field = f"budget {check_name('budget', name)}"
        unit, amount = _only_amount(field, units if usd is None else {"usd": usd, **units})
        self.definition = check_budget(
            BudgetDefinition(
                name=name,
                unit=unit,
                limit_micros=parse_amount_micros(f"{field}: {unit}", amount),
                every=_parse_choice(f"{field}: every", every, Every),
                tz=tz,
                overdraft_micros=parse_amount_micros(f"{field}: overdraft", overdraft, zero=True),
                over=_parse_choice(f"{field}: over", over, OverPolicy),
            )
        )
        self.name = name
        self.unit = unit

    def __str__(self) -> str:
        return str(self.definition)

    def __repr__(self) -> str:
        amount, every = amount_text(self.definition.limit_micros), self.definition.every.value
        return f"Budget({self.name!r}, {self.unit}={amount}, every={every!r})"


def check_budget(definition: BudgetDefinition) -> BudgetDefinition:
    """Refuse an invalid definition. The error names the field and the remedy."""
    field = f"budget {check_name('budget', definition.name)}"
    check_unit(field, definition.unit)
    parse_zone(f"{field}: tz", definition.tz)
    for part, micros, least in (
        (definition.unit, definition.limit_micros, 1),
        ("overdraft", definition.overdraft_micros, 0),
    ):
        check_micros(f"{field}: {part}", micros, least)
    refuse_stray_braces(field, definition.name)
    return definition


def check_unit(field: str, unit: object) -> str:
    if isinstance(unit, str) and unit in CURRENCIES:
        return unit
    if isinstance(unit, str) and re.fullmatch(r"[a-zA-Z]{3}", unit):
        raise BadValue(f"{field}: {unit}", f"is not a known currency; known ones: {', '.join(sorted(CURRENCIES))}")
    if not isinstance(unit, str) or not UNIT.fullmatch(unit):
        raise BadValue(
            f"{field}: {unit}", "is not a unit; use a currency such as usd, or a word of 4 to 32 lower-case letters"
        )
    return unit


def check_change(before: BudgetDefinition | None, after: BudgetDefinition) -> None:
    """The unit of a budget cannot change, because its stored amounts are in the old unit."""
    if before is not None and before.unit != after.unit:
        raise BadValue(
            f"budget {after.name}",
            f"counts {before.unit}, not {after.unit}; give the new budget another name, or forget the old one first",
        )


def refuse_impossible(field: str, definition: BudgetDefinition, amount_micros: int) -> None:
    """Refuse a cost that no window can hold when the job is submitted, not when it waits."""
    if amount_micros > definition.most_micros:
        raise BadValue(
            field,
            f"{amount_text(amount_micros)} {definition.unit} is more than budget {definition.name} allows in any "
            f"window ({amount_text(definition.most_micros)}); raise the budget or lower the cost",
        )


def definition_for(name: str, budget: str, definitions: Sequence[BudgetDefinition]) -> BudgetDefinition | None:
    """The definition of the full name takes precedence over the one with fields."""
    by_name = {definition.name: definition for definition in definitions}
    return by_name.get(name) or by_name.get(budget)


def is_template(name: str) -> bool:
    """Whether this name has fields and defines many budgets."""
    return bool(template_fields(name))


# -- stored definitions ---------------------------------------------------------------------------------------------


class StoredBudget(Struct, frozen=True):
    """A definition with its version."""

    definition: BudgetDefinition
    declared: BudgetDefinition | None
    """What the code declared last."""
    version: int = 1


def declare_budget(kept: StoredBudget | None, definition: BudgetDefinition) -> StoredBudget | None:
    """What to store when the code declares this; None: nothing, because it declared the same before."""
    if kept is None:
        return StoredBudget(definition, definition)
    if kept.declared == definition:
        return None
    # A new release of the code does not resume a budget that an operator has paused.
    in_force = replace(definition, paused=kept.definition.paused)
    if kept.definition == in_force:
        return StoredBudget(in_force, definition, kept.version)
    return StoredBudget(in_force, definition, kept.version + 1)


def change_budget(kept: StoredBudget | None, definition: BudgetDefinition, expected: int | None = None) -> StoredBudget:
    """What to store when an operator sets this."""
    refuse_stale(f"budget {definition.name}", kept.version if kept else 0, expected)
    if kept is None:
        return StoredBudget(definition, None)
    return StoredBudget(definition, kept.declared, kept.version + (kept.definition != definition))


def unknown_budget(charge: Charge) -> UnknownBudget:
    names = charge.name if charge.name == charge.budget else f"{charge.name}, nor {charge.budget}"
    return UnknownBudget(f"no budget {names} is defined; declare it in the app, or with: leaseway budgets set")


# -- amounts --------------------------------------------------------------------------------------------------------


def parse_amount_micros(field: str, value: object, *, zero: bool = False) -> int:
    """An amount as whole micro-units, exactly: 0.1 is one tenth, not the nearest float."""
    scaled = EXACT.multiply(_parse_decimal(field, value), MICRO)
    if scaled != scaled.to_integral_value():
        raise BadValue(field, f"must not be finer than a millionth (is {value})")
    return check_micros(field, int(scaled), 0 if zero else 1)


def parse_cost_micros(field: str, value: object) -> int:
    """The cost of a call, rounded up to whole micro-units. Digits of a float beyond the ninth decimal place are
    rounding errors and are dropped."""
    amount = _parse_decimal(field, value)
    if isinstance(value, float):
        amount = amount.quantize(BILLIONTH, context=EXACT)
    scaled = EXACT.multiply(amount, MICRO).to_integral_value(ROUND_CEILING)
    return check_micros(field, int(scaled), 0)


def amount_text(micros: int) -> str:
    """Render micro-units as a plain number: "25", "0.005"."""
    return f"{(Decimal(micros) / MICRO).normalize():f}"


def _parse_decimal(field: str, value: object) -> Decimal:
    if not isinstance(value, int | float | Decimal | str) or isinstance(value, bool):
        raise BadValue(field, f"must be a number (is {value!r})")
    if isinstance(value, int) and abs(value) > AMOUNT_MAX:
        raise BadValue(field, f"must be between 0 and {AMOUNT_MAX:,}")  # a very long number cannot even be shown
    try:
        amount = Decimal(str(value).strip().replace("_", ""))
    except InvalidOperation as error:
        raise BadValue(field, f"must be a number, like 25 or '0.005' (is {value!r})") from error
    if not amount.is_finite() or amount < 0 or amount > AMOUNT_MAX:
        raise BadValue(field, f"must be between 0 and {AMOUNT_MAX:,} (is {value})")
    if amount and amount.adjusted() < -EXACT.prec // 2:
        raise BadValue(field, f"must not be finer than a millionth (is {value})")
    return amount


def check_micros(field: str, micros: object, least: int = 0) -> int:
    """Check an amount that is given in micro-units."""
    if not isinstance(micros, int) or isinstance(micros, bool):
        raise BadValue(field, f"must be whole micro-units (is {micros!r})")
    if not least <= micros <= MICROS_MAX:
        bounds = f"above 0 and at most {AMOUNT_MAX:,}" if least else f"between 0 and {AMOUNT_MAX:,}"
        raise BadValue(field, f"must be {bounds} (is {amount_text(micros)})")
    return micros


def _only_amount(field: str, units: dict[str, object]) -> tuple[str, object]:
    given = {unit: amount for unit, amount in units.items() if amount is not None}
    if len(given) != 1:
        what = f"has {len(given)} amounts ({', '.join(given)})" if given else "has no amount"
        raise BadValue(field, f"{what}; give exactly one, like usd=25 or tokens=1_000_000")
    ((unit, amount),) = given.items()
    return check_unit(field, unit), amount


def _parse_choice(field: str, value: str, kind: type[Word]) -> Word:
    try:
        return kind(value)
    except ValueError as error:
        raise BadValue(field, f"must be one of {', '.join(kind)} (is {value!r})") from error
