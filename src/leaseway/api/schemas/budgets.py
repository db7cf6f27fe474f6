"""Budgets."""

from collections.abc import Sequence
from typing import Any

from leaseway.api.schemas.serializers import account_json, budget_definition_json, budget_json, iso
from leaseway.domain.budgets.budget import BudgetDefinition
from leaseway.domain.budgets.calendar_windows import FOR_EVER
from leaseway.domain.budgets.ledger import BudgetWindow
from leaseway.domain.ids import Instant


def of_budget(definition: BudgetDefinition, accounts: Sequence[BudgetWindow]) -> list[BudgetWindow]:
    return [account for account in accounts if account.budget == definition.name]


def document(
    definition: BudgetDefinition, version: int, accounts: Sequence[BudgetWindow], now: Instant
) -> dict[str, Any]:
    """`definition` is what PUT takes."""
    return {
        **budget_json(definition, version, ()),
        "definition": definition_body(definition),
        "windows": [{**account_json(account), "burn": burn_of(account, now)} for account in accounts],
    }


def definition_body(definition: BudgetDefinition) -> dict[str, Any]:
    return {name: value for name, value in budget_definition_json(definition).items() if name not in ("name", "paused")}


def burn_of(account: BudgetWindow, now: Instant) -> dict[str, Any] | None:
    """How fast it is spent, counted from the begin of its window; None where there is none, or it has not begun.

    `lasts_until`: when it will be used up if it goes on like this; null if its window ends first."""
    window, book = account.window, account.book
    passed_us = now - window.start
    if not account.has_begun or window.end >= FOR_EVER or passed_us <= 0:
        return None
    lasts_us = account.left_micros * passed_us // book.spent_micros if book.spent_micros else None
    return {
        "passed_percent": percent(passed_us, window.end - window.start),
        "spent_percent": percent(book.spent_micros, book.limit_micros),
        "held_percent": percent(book.held_micros, book.limit_micros),
        "lasts_until": iso(now + lasts_us) if lasts_us is not None and now + lasts_us < window.end else None,
    }


def percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole else 0.0
