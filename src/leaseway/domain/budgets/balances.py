"""The balances of budget windows, the journal of postings, and the audit that compares them. All functions are pure."""

from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.budgets.budget import BudgetDefinition
from leaseway.domain.budgets.calendar_windows import CalendarWindow, window_at, windows_from
from leaseway.domain.health import Finding, ok, problem
from leaseway.domain.ids import Instant

THRESHOLDS = (50, 80, 100)


class Balance(Struct, frozen=True, kw_only=True):
    """What was spent and is held in one window of one budget."""

    limit_micros: int
    spent_micros: int = 0
    held_micros: int = 0
    overdraft_micros: int = 0
    """How far the window is over its limit: because calls cost more than was held, because the definition permits
    it, or because the limit was lowered."""
    threshold_percent: int = 0
    """The highest threshold that was reported."""

    @property
    def used_micros(self) -> int:
        return self.spent_micros + self.held_micros


class HoldLine(Struct, frozen=True, kw_only=True):
    """One budget's part of a hold, fixed to one window."""

    name: str
    budget: str
    unit: str
    window: CalendarWindow
    amount_micros: int
    actual_micros: int | None = None
    """The amount with which it was settled or captured."""


class Evidence(Struct, frozen=True):
    """Who corrected a captured amount, and why: the journal records it."""

    by: str
    reason: str = ""


class Posting(Struct, frozen=True):
    """One change of one balance. The journal stores it."""

    hold: str
    line: HoldLine
    kind: str
    held_micros: int
    spent_micros: int
    overdraft_allowed_micros: int | None = None
    """How much overdraft this posting may cause; None: no bound, because the money is already spent."""
    evidence: Evidence | None = None

    @property
    def by(self) -> str | None:
        return None if self.evidence is None else self.evidence.by

    @property
    def reason(self) -> str | None:
        return None if self.evidence is None else self.evidence.reason

    @property
    def from_micros(self) -> int | None:
        """What was charged before a correction."""
        return None if self.evidence is None else self.line.actual_micros


ReadBalance = Callable[[str, CalendarWindow], Balance | None]


def window_with_room(definition: BudgetDefinition, name: str, read: ReadBalance, now: Instant) -> CalendarWindow | None:
    """The first window with an amount that is not spent. None: only a change of the budget helps."""
    for window in windows_from(definition.every, definition.tz, now):
        balance = read(name, window)
        if balance is None or balance.spent_micros < balance.limit_micros + definition.overdraft_micros:
            return window
    return None


"""Reads the balance of a budget's window; None: nothing was posted there yet."""


def apply_posting(balance: Balance, move: Posting) -> tuple[Balance, tuple[int, ...]]:
    """The balance after a posting, and the thresholds that it crossed."""
    held, spent = balance.held_micros + move.held_micros, balance.spent_micros + move.spent_micros
    beyond = max(held + spent - balance.limit_micros, 0)
    if move.overdraft_allowed_micros is not None:
        # Never more than is allowed: if the decision was wrong, a constraint of the database refuses the posting.
        beyond = max(balance.overdraft_micros, min(beyond, move.overdraft_allowed_micros))
    threshold, crossed = balance.threshold_percent, tuple[int, ...]()
    if reached := thresholds_reached(spent, balance.limit_micros):
        crossed = tuple([each for each in reached if each > threshold])
        threshold = max(threshold, *reached)
    balance = replace(
        balance, held_micros=held, spent_micros=spent, overdraft_micros=beyond, threshold_percent=threshold
    )
    return balance, crossed


def thresholds_reached(spent_micros: int, limit_micros: int) -> list[int]:
    if spent_micros * 100 < THRESHOLDS[0] * limit_micros:
        return []
    return [each for each in THRESHOLDS if spent_micros * 100 >= each * limit_micros]


def apply_limit(balance: Balance, limit_micros: int) -> Balance:
    """The balance under another limit. Thresholds that a higher limit takes back are reported again when crossed."""
    beyond = max(balance.used_micros - limit_micros, 0)
    threshold = min(balance.threshold_percent, max(thresholds_reached(balance.spent_micros, limit_micros), default=0))
    return replace(balance, limit_micros=limit_micros, overdraft_micros=beyond, threshold_percent=threshold)


def is_balanced(balance: Balance) -> bool:
    return (
        balance.held_micros >= 0
        and balance.spent_micros >= 0
        and balance.used_micros <= balance.limit_micros + balance.overdraft_micros
    )


class BudgetWindow(Struct, frozen=True, kw_only=True):
    """One window of one budget with its balance, for display. Amounts held in a future window are booked ahead."""

    name: str
    budget: str
    unit: str
    window: CalendarWindow
    balance: Balance
    has_begun: bool = True

    @property
    def left_micros(self) -> int:
        return max(self.balance.limit_micros - self.balance.used_micros, 0)

    @property
    def booked_ahead_micros(self) -> int:
        return 0 if self.has_begun else self.balance.held_micros


def fresh_window(definition: BudgetDefinition, now: Instant) -> BudgetWindow:
    """The current window of a budget, before its first posting."""
    window, balance = window_at(definition.every, definition.tz, now), Balance(limit_micros=definition.limit_micros)
    return BudgetWindow(
        name=definition.name, budget=definition.name, unit=definition.unit, window=window, balance=balance
    )


class JournalEntry(Struct, frozen=True, kw_only=True):
    """One stored posting."""

    seq: int
    at: Instant
    hold: str
    name: str
    window: CalendarWindow
    kind: str
    """hold, settle, correct (a late settlement, or an operator's correction), capture, void or expire."""
    held_micros: int
    spent_micros: int
    crossed: int = 0
    """The highest threshold that it crossed; 0: none."""
    by: str | None = None
    """Who corrected the amount; None: the call itself."""
    reason: str | None = None
    from_micros: int | None = None
    """What was charged before an operator's correction. After it: this plus `spent_micros`."""


class Sums(Struct, frozen=True):
    held_micros: int = 0
    spent_micros: int = 0


WindowKey = tuple[str, CalendarWindow]


def sum_journal(entries: Iterable[JournalEntry]) -> dict[WindowKey, Sums]:
    return sum_by_window((entry.name, entry.window, entry.held_micros, entry.spent_micros) for entry in entries)


def sum_by_window(parts: Iterable[tuple[str, CalendarWindow, int, int]]) -> dict[WindowKey, Sums]:
    sums: dict[WindowKey, Sums] = {}
    for name, window, held, spent in parts:
        before = sums.get((name, window), Sums())
        sums[name, window] = Sums(before.held_micros + held, before.spent_micros + spent)
    return {place: each for place, each in sums.items() if each != Sums()}


class Audit(Struct, frozen=True):
    """The same sums from three sources: the balances, the journal, the holds. They must agree."""

    balances: dict[WindowKey, Sums]
    journal: dict[WindowKey, Sums]
    holds: dict[WindowKey, Sums]
    unbalanced: tuple[WindowKey, ...] = ()

    def wrong(self) -> list[str]:
        places = sorted({*self.balances, *self.journal, *self.holds}, key=lambda place: (place[0], place[1]))
        differing = [place for place in places if not self.agrees(place)]
        return [f"{name} {window.label}" for name, window in dict.fromkeys([*differing, *self.unbalanced])]

    def agrees(self, place: WindowKey) -> bool:
        return self.balances.get(place, Sums()) == self.journal.get(place, Sums()) == self.holds.get(place, Sums())


def sum_balances(accounts: Iterable[BudgetWindow]) -> dict[WindowKey, Sums]:
    return sum_by_window(
        (account.name, account.window, account.balance.held_micros, account.balance.spent_micros)
        for account in accounts
    )


def judge_ledger(audit: Audit) -> Finding:
    """For `leaseway doctor`."""
    wrong = audit.wrong()
    if not wrong:
        return ok("budgets", f"{len(audit.balances):,} windows agree with their journal and their holds")
    text = f"{len(wrong):,} windows do not agree with their journal: {', '.join(wrong[:3])}"
    return problem("budgets", text, "This is a bug in leaseway or a disk error. Report it with this output")
