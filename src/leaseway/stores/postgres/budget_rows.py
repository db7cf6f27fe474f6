"""Budgets, balances, holds and journal entries ─► arguments of functions, and rows ─► values of the domain."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from leaseway.domain.budgets.balances import (
    THRESHOLDS,
    Audit,
    Balance,
    BudgetWindow,
    HoldLine,
    JournalEntry,
    Sums,
    WindowKey,
)
from leaseway.domain.budgets.budget import (
    MICROS_MAX,
    BudgetDefinition,
    Crossed,
    HoldAnswer,
    HoldBooked,
    HoldGranted,
    HoldUsed,
    check_budget,
    check_micros,
)
from leaseway.domain.budgets.calendar_windows import CalendarWindow
from leaseway.domain.budgets.holds import (
    Correction,
    Hold,
    HoldState,
    Lines,
)
from leaseway.domain.errors import BadValue
from leaseway.ports.ledger import HoldRequest, Posted, SettleHoldRequest
from leaseway.stores.postgres.connection import Record

LINE_COLUMNS = 8
"""Of `line_arguments`."""
NO_ROOM = 10 * MICROS_MAX
"""More than any window can hold, including its overdraft."""


class KnownBudget(msgspec.Struct, frozen=True):
    """A definition, and the stamp by which the server checks that it is still in force."""

    definition: BudgetDefinition
    version: int
    stamp: int


def parse_known(row: Record) -> KnownBudget:
    text, version, stamp = row
    return KnownBudget(check_budget(msgspec.json.decode(text, type=BudgetDefinition)), version, stamp)


def render_definition(definition: BudgetDefinition) -> dict[str, Any]:
    """A definition for the server. `paused` is left out unless it is set, so that a declaration does not resume."""
    sent = msgspec.structs.asdict(definition)
    return sent if definition.paused else {name: value for name, value in sent.items() if name != "paused"}


def line_arguments(lines: Lines, knowns: Sequence[KnownBudget], windows: Sequence[CalendarWindow]) -> tuple[Any, ...]:
    """names, budgets, stamps, amounts, permitted overdrafts, starts, ends, labels."""
    return (
        [charge.name for charge, _ in lines],
        [charge.budget for charge, _ in lines],
        [known.stamp for known in knowns],
        # A paused budget has no room; holds that exist are answered as usual.
        [NO_ROOM if known.definition.paused else micros for (_, micros), known in zip(lines, knowns, strict=True)],
        [known.definition.overdraft_micros for known in knowns],
        [window.start for window in windows],
        [window.end for window in windows],
        [window.label for window in windows],
    )


class PlacedHold(NamedTuple):
    """A hold in the windows that are current, as far as the client knows."""

    request: HoldRequest
    knowns: Sequence[KnownBudget]
    windows: Sequence[CalendarWindow]


def hold_arguments(placed: Sequence[PlacedHold]) -> tuple[Any, ...]:
    """ids, owners, times to live, whether they are dispatched; then for each line the number of its hold, from 1, and
    what `line_arguments` says about it."""
    requests = [each.request for each in placed]
    lines = [line_arguments(each.request.lines, each.knowns, each.windows) for each in placed]
    return (
        [each.id for each in requests],
        [each.owner for each in requests],
        [each.ttl_us for each in requests],
        [each.dispatch for each in requests],
        [number for number, each in enumerate(requests, start=1) for _ in each.lines],
        *([value for values in lines for value in values[column]] for column in range(LINE_COLUMNS)),
    )


def check_actuals(request: SettleHoldRequest) -> SettleHoldRequest | None:
    """None: an amount is wrong."""
    try:
        for what, micros in request.actuals.items():
            check_micros(f"settle {what}", micros)
    except BadValue:
        return None
    return request


def settle_arguments(priced: Sequence[SettleHoldRequest | None]) -> tuple[Any, ...]:
    """ids, owners; then for each cost the number of its hold, from 1, its name and its amount."""
    requests = [each for each in priced if each is not None]
    costs = [(number, *cost) for number, each in enumerate(requests, start=1) for cost in each.actuals.items()]
    return (
        [each.id for each in requests],
        [each.owner for each in requests],
        *([cost[column] for cost in costs] for column in range(3)),
    )


def parse_posted(row: Record, asked: Sequence[PlacedHold | None], priced: Sequence[SettleHoldRequest | None]) -> Posted:
    instant, are_settled, are_held, crossed_by, *crossed = row
    crossings: dict[int, list[Any]] = {}
    for number, *crossing in zip(crossed_by or (), *(column or () for column in crossed), strict=True):
        crossings.setdefault(number, []).append(crossing)
    settled = enumerate(are_settled or (), start=1)
    told = iter([parse_crossed(crossings.get(number, ())) if was else None for number, was in settled])
    held = iter(are_held or ())
    return Posted(
        tuple(
            HoldGranted(tuple(each.windows), instant + each.request.ttl_us) if each is not None and next(held) else None
            for each in asked
        ),
        tuple(None if each is None else next(told) for each in priced),
    )


def parse_hold_answer(
    answer: str, deadline: Any, budget: Any, _: Any, starts: Any, ends: Any, labels: Any
) -> HoldAnswer:
    if answer == "used":
        return HoldUsed()
    if answer == "booked":
        return HoldBooked(max(starts), budget)
    return HoldGranted(tuple(map(CalendarWindow, starts, ends, labels)), deadline)


def parse_crossed(rows: Iterable[Record]) -> Crossed:
    return tuple((name, each) for name, before, after in rows for each in THRESHOLDS if before < each <= after)


def parse_audit(rows: Iterable[Record]) -> Audit:
    sums: dict[str, dict[WindowKey, Sums]] = {"windows": {}, "journal": {}, "holds": {}}
    unbalanced = []
    for side, name, start, end, label, held, spent, is_balanced in rows:
        place = (name, CalendarWindow(start, end, label))
        if held or spent:
            sums[side][place] = Sums(held, spent)
        if not is_balanced:
            unbalanced.append(place)
    return Audit(sums["windows"], sums["journal"], sums["holds"], tuple(unbalanced))


def parse_balance(row: Record) -> Balance:
    limit_micros, spent_micros, held_micros, overdraft_micros, threshold = row
    return Balance(
        limit_micros=limit_micros,
        spent_micros=spent_micros,
        held_micros=held_micros,
        overdraft_micros=overdraft_micros,
        threshold_percent=threshold,
    )


def parse_window(row: Record) -> BudgetWindow:
    now, name, budget, unit, start, end, label, *numbers = row
    window = CalendarWindow(start, end, label)
    return BudgetWindow(
        name=name,
        budget=budget,
        unit=unit,
        window=window,
        balance=parse_balance(numbers),
        has_begun=window.start <= now,
    )


def parse_holds(rows: Iterable[Record]) -> list[Hold]:
    """One row per line, those of a hold one after the other."""
    holds: dict[str, Hold] = {}
    for id_, state, owner, ttl_us, deadline, corrected_by, name, budget, unit, *window, amount, actual in rows:
        line = HoldLine(
            name=name,
            budget=budget,
            unit=unit,
            window=CalendarWindow(*window),
            amount_micros=amount,
            actual_micros=actual,
        )
        before = holds[id_].lines if id_ in holds else ()
        holds[id_] = Hold(
            id=id_,
            state=HoldState(state),
            owner=owner,
            ttl_us=ttl_us,
            deadline=deadline,
            lines=(*before, line),
            corrected_by=corrected_by or "",
        )
    return list(holds.values())


def parse_correction(row: Record, actuals: Mapping[str, int]) -> Correction:
    name, unit, label, amount_micros = row
    after = actuals.get(name, actuals.get(unit, amount_micros))
    return Correction(name=name, unit=unit, window=label, before_micros=amount_micros, after_micros=after)


def parse_entry(row: Record) -> JournalEntry:
    seq, at, hold, name, start, end, label, kind, held_micros, spent_micros, crossed, by, reason, from_micros = row
    return JournalEntry(
        seq=seq,
        at=at,
        hold=hold,
        name=name,
        window=CalendarWindow(start, end, label),
        kind=kind,
        held_micros=held_micros,
        spent_micros=spent_micros,
        crossed=crossed,
        by=by,
        reason=reason,
        from_micros=from_micros,
    )
