"""Budgets, balances, holds and journal entries ─► values for statements, and rows ─► values of the domain."""

from collections.abc import Sequence
from typing import Any

import msgspec

from leaseway.domain.budgets.balances import Balance, BudgetWindow, HoldLine, JournalEntry, Sums, WindowKey
from leaseway.domain.budgets.budget import BudgetDefinition, StoredBudget, check_budget
from leaseway.domain.budgets.calendar_windows import CalendarWindow
from leaseway.domain.budgets.holds import Hold, HoldState
from leaseway.domain.ids import Instant
from leaseway.stores.sqlite.database import Row


def parse_definition(text: str) -> BudgetDefinition:
    return msgspec.json.decode(text, type=BudgetDefinition)


def parse_stored(row: Row) -> StoredBudget:
    text, declared, version = row
    definition = check_budget(parse_definition(text))
    return StoredBudget(definition, None if declared is None else parse_definition(declared), version)


def window_values(window: CalendarWindow) -> dict[str, Any]:
    return {"starts_at": window.start, "ends_at": window.end, "label": window.label}


def parse_balance(row: Sequence[Any]) -> Balance:
    limit_micros, spent_micros, held_micros, overdraft_micros, threshold = row
    return Balance(
        limit_micros=limit_micros, spent_micros=spent_micros, held_micros=held_micros,
        overdraft_micros=overdraft_micros, threshold_percent=threshold,
    )  # fmt: skip


def parse_hold_line(row: Sequence[Any]) -> HoldLine:
    name, budget, unit, start, end, label, amount_micros, actual_micros = row
    return HoldLine(
        name=name, budget=budget, unit=unit, window=CalendarWindow(start, end, label), amount_micros=amount_micros,
        actual_micros=actual_micros,
    )  # fmt: skip


def parse_holds(text: str) -> dict[str, Hold]:
    """From the row of holds_find.sql."""
    holds: dict[str, Hold] = {}
    for id_, state, owner, ttl_us, deadline, corrected_by, *line in msgspec.json.decode(text):
        before = holds[id_].lines if id_ in holds else ()
        holds[id_] = Hold(
            id=id_, state=HoldState(state), owner=owner, ttl_us=ttl_us, deadline=deadline,
            lines=(*before, parse_hold_line(line)), corrected_by=corrected_by or "",
        )  # fmt: skip
    return holds


def hold_values(hold: Hold) -> Row:
    """For holds_keep.sql."""
    return hold.id, hold.state.value, hold.owner, hold.ttl_us, hold.deadline, hold.corrected_by or None


def book_values(window: int, book: Balance) -> Row:
    """For windows_book.sql."""
    return window, book.spent_micros, book.held_micros, book.overdraft_micros, book.threshold_percent


def parse_window(row: Row, now: Instant) -> BudgetWindow:
    name, budget, unit, start, end, label, *numbers = row
    window = CalendarWindow(start, end, label)
    balance, has_begun = parse_balance(numbers), window.start <= now
    return BudgetWindow(name=name, budget=budget, unit=unit, window=window, balance=balance, has_begun=has_begun)


def parse_entry(row: Row) -> JournalEntry:
    seq, at, hold, name, start, end, label, kind, held_micros, spent_micros, crossed, *evidence = row
    by, reason, from_micros = evidence
    return JournalEntry(
        seq=seq, at=at, hold=hold, name=name, window=CalendarWindow(start, end, label), kind=kind,
        held_micros=held_micros, spent_micros=spent_micros, crossed=crossed, by=by, reason=reason,
        from_micros=from_micros,
    )  # fmt: skip


def window_key(row: Row) -> WindowKey:
    return (row[0], CalendarWindow(*row[1:4]))


def parse_sums(rows: Sequence[Row]) -> dict[WindowKey, Sums]:
    return {window_key(row): Sums(row[4], row[5]) for row in rows if row[4] or row[5]}
