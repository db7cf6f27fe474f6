"""What users write: amounts exact to the micro-unit, known units, and errors that name the correction."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.domain.budgets.budget import (
    AMOUNT_MAX,
    MICRO,
    Budget,
    BudgetDefinition,
    OverPolicy,
    amount_text,
    definition_for,
    parse_amount_micros,
    parse_cost_micros,
    refuse_impossible,
)
from leaseway.domain.budgets.calendar_windows import Every
from leaseway.domain.errors import BadValue


def str_of(amount: object) -> str:
    """Python refuses to convert very long integers to text."""
    return "far too long" if isinstance(amount, int) and abs(amount) > 10**20 else repr(amount)


@pytest.mark.parametrize(
    ("amount", "micros"),
    [
        (25, 25_000_000),
        (0.1, 100_000),
        (0.000001, 1),
        (1e-05, 10),
        ("0.005", 5_000),
        (" 1_000 ", 1_000_000_000),
        (Decimal("2.50"), 2_500_000),
        (1e9, 10**15),
        (AMOUNT_MAX, 10**16),
    ],
)
def test_amounts_are_exact(amount: object, micros: int) -> None:
    """A budget must not be wrong by a rounding error."""
    assert parse_amount_micros("usd", amount) == micros
    assert parse_cost_micros("usd", amount) == micros


@pytest.mark.parametrize(
    "amount",
    ids=str_of,
    argvalues=[
        -1,
        0,
        "0.0",
        float("nan"),
        float("inf"),
        "-inf",
        0.0000001,
        "1e-999999",
        "1e999999",
        AMOUNT_MAX + 1,
        "x",
        "",
        None,
        True,
        b"1",
        [1],
        Decimal("NaN"),
        Decimal("sNaN"),
        10**5000,
        -(10**5000),
    ],
)
def test_impossible_amounts_are_refused_by_name(amount: object) -> None:
    """Whatever was typed, the message must name the field."""
    with pytest.raises(BadValue, match="spend"):
        parse_amount_micros("budget spend: usd", amount)


def test_costs_are_rounded_up_but_not_by_the_error_of_floats() -> None:
    """A price times a count is rarely a whole number, but one tenth plus two tenths must be three tenths."""
    assert parse_cost_micros("usd", 0.1 + 0.2) == 300_000
    assert parse_cost_micros("usd", 1234 * 0.0000025) == 3_085
    assert parse_cost_micros("usd", "0.0000001") == 1
    assert parse_cost_micros("usd", 0) == 0
    with pytest.raises(BadValue):
        parse_cost_micros("usd", -0.1)


@given(st.integers(1, AMOUNT_MAX * MICRO))
def test_amounts_survive_being_shown(micros: int) -> None:
    """An amount that is shown must be the same amount when it is typed again."""
    assert parse_amount_micros("usd", amount_text(micros)) == micros


def test_a_budget_is_what_was_written() -> None:
    """An amount or a policy that is read differently would spend money that nobody allowed."""
    budget = Budget("maps-spend", usd=25, every="day", tz="Europe/Zurich", overdraft="2.5", over="fail")
    assert budget.definition == BudgetDefinition(
        name="maps-spend",
        unit="usd",
        limit_micros=25_000_000,
        every=Every.DAY,
        tz="Europe/Zurich",
        overdraft_micros=2_500_000,
        over=OverPolicy.FAIL,
    )
    assert str(budget) == "25 usd per day"
    assert repr(Budget("all", tokens=10**6)) == "Budget('all', tokens=1000000, every='total')"
    assert str(Budget("all", tokens=10**6)) == "1000000 tokens in total"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "no amount"),
        ({"usd": 1, "eur": 2}, "exactly one"),
        ({"usx": 1}, "usx.*not a known currency"),
        ({"USD": 1}, "USD"),
        ({"to": 1}, "not a unit"),
        ({"evry": "day"}, "evry"),
        ({"usd": 1, "every": "year"}, "every.*hour, day, week, month, total"),
        ({"usd": 1, "over": "panic"}, "over.*wait, fail"),
        ({"usd": 1, "tz": "Mars"}, "tz.*time zone"),
        ({"usd": 1, "overdraft": -1}, "overdraft"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], says: str) -> None:
    """Each error must name the correction."""
    with pytest.raises(BadValue, match=says):
        Budget("spend", **options)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "spend:{tenant", "spend:{Tenant}", "spend:{}"])
def test_names_that_cannot_be_filled_are_refused(name: str) -> None:
    """A misspelled field would create one budget for all tenants."""
    with pytest.raises(BadValue, match="budget"):
        Budget(name, usd=1)


def test_a_cost_that_never_fits_is_refused_when_it_is_said() -> None:
    """The error must appear at the call that sets the cost, not in a worker."""
    definition = Budget("spend", usd=10, every="day", overdraft=1).definition
    refuse_impossible("job x: cost", definition, 11 * MICRO)
    with pytest.raises(BadValue, match=r"job x: cost: 11.000001 usd"):
        refuse_impossible("job x: cost", definition, 11 * MICRO + 1)


def test_the_definition_of_a_full_name_wins_over_the_one_with_fields() -> None:
    """The result must not depend on the order of the definitions."""
    general, own = Budget("spend:{tenant}", usd=1).definition, Budget("spend:acme", usd=5).definition
    assert definition_for("spend:acme", "spend:{tenant}", [general, own]) == own
    assert definition_for("spend:other", "spend:{tenant}", [own, general]) == general
    assert definition_for("other", "other", [own, general]) is None
