"""Balances of budget windows, the journal, and the audit that compares them. Pure: values in, values out."""

from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.budgets.budget import BudgetDefinition
from leaseway.domain.budgets.calendar_windows import CalendarWindow, window_at
from leaseway.domain.health import Finding, ok, problem
from leaseway.domain.ids import Instant

THRESHOLDS = (50, 80, 100)


class Balance(Struct, frozen=True, kw_only=True):
    """What one window of one budget has seen."""

    limit_micros: int
    spent_micros: int = 0
    held_micros: int = 0
    overdraft_micros: int = 0
    """How far it went beyond its limit: by what calls cost more than was held, by what its definition permits, or by a
    limit that was lowered."""
    told: int = 0
    """The highest threshold that was told."""

    @property
    def used_micros(self) -> int:
        return self.spent_micros + self.held_micros


class HoldLine(Struct, frozen=True, kw_only=True):
    """One budget's part of a hold, pinned to one window."""

    name: str
    budget: str
    unit: str
    window: CalendarWindow
    amount_micros: int
    actual_micros: int | None = None
    """What it was settled or captured with."""


class Posting(Struct, frozen=True):
    """What one step does to one book; the journal keeps it."""

    hold: str
    line: HoldLine
    kind: str
    held_micros: int
    spent_micros: int
    overdraft_allowed_micros: int | None = None
    """How much overdraft this move may make; None: what it books is a fact."""


ReadBalance = Callable[[str, CalendarWindow], Balance | None]
"""Look up the book of a name's window; None: nothing was booked there yet."""


def apply_posting(book: Balance, move: Posting) -> tuple[Balance, tuple[int, ...]]:
    """The book after a move, and the thresholds that it crossed."""
    held, spent = book.held_micros + move.held_micros, book.spent_micros + move.spent_micros
    beyond = max(held + spent - book.limit_micros, 0)
    if move.overdraft_allowed_micros is not None:
        # Never more than is allowed: if the decision was wrong, the database refuses the move.
        beyond = max(book.overdraft_micros, min(beyond, move.overdraft_allowed_micros))
    crossed = tuple(each for each in thresholds_reached(spent, book.limit_micros) if each > book.told)
    told = max((book.told, *crossed))
    book = replace(book, held_micros=held, spent_micros=spent, overdraft_micros=beyond, told=told)
    return book, crossed


def thresholds_reached(spent_micros: int, limit_micros: int) -> list[int]:
    return [each for each in THRESHOLDS if spent_micros * 100 >= each * limit_micros]


def apply_limit(book: Balance, limit_micros: int) -> Balance:
    """The book under another limit. What a higher limit takes back is told again when it is crossed."""
    beyond = max(book.used_micros - limit_micros, 0)
    told = min(book.told, max(thresholds_reached(book.spent_micros, limit_micros), default=0))
    return replace(book, limit_micros=limit_micros, overdraft_micros=beyond, told=told)


def is_balanced(book: Balance) -> bool:
    return (
        book.held_micros >= 0
        and book.spent_micros >= 0
        and book.used_micros <= book.limit_micros + book.overdraft_micros
    )


class BudgetWindow(Struct, frozen=True, kw_only=True):
    """One window of one budget, for people. What is held in a window that has not begun is booked ahead."""

    name: str
    budget: str
    unit: str
    window: CalendarWindow
    book: Balance
    has_begun: bool = True

    @property
    def left_micros(self) -> int:
        return max(self.book.limit_micros - self.book.used_micros, 0)

    @property
    def booked_ahead_micros(self) -> int:
        return 0 if self.has_begun else self.book.held_micros


def fresh_window(definition: BudgetDefinition, now: Instant) -> BudgetWindow:
    """The window under way of a budget in which nothing was booked yet."""
    window, book = window_at(definition.every, definition.tz, now), Balance(limit_micros=definition.limit_micros)
    return BudgetWindow(name=definition.name, budget=definition.name, unit=definition.unit, window=window, book=book)


class JournalEntry(Struct, frozen=True, kw_only=True):
    """One line of the journal."""

    seq: int
    at: Instant
    hold: str
    name: str
    window: CalendarWindow
    kind: str
    """hold, settle, correct (a late settlement), capture, void or expire."""
    held_micros: int
    spent_micros: int
    crossed: int = 0
    """The highest threshold that it crossed."""


class Sums(Struct, frozen=True):
    held_micros: int = 0
    spent_micros: int = 0


WindowKey = tuple[str, CalendarWindow]


def sum_journal(entries: Iterable[JournalEntry]) -> dict[WindowKey, Sums]:
    return _summed((entry.name, entry.window, entry.held_micros, entry.spent_micros) for entry in entries)


def _summed(parts: Iterable[tuple[str, CalendarWindow, int, int]]) -> dict[WindowKey, Sums]:
    sums: dict[WindowKey, Sums] = {}
    for name, window, held, spent in parts:
        before = sums.get((name, window), Sums())
        sums[name, window] = Sums(before.held_micros + held, before.spent_micros + spent)
    return {place: each for place, each in sums.items() if each != Sums()}


class Audit(Struct, frozen=True):
    """The same sums from three sides: the books, the journal, the holds. They must agree."""

    books: dict[WindowKey, Sums]
    journal: dict[WindowKey, Sums]
    holds: dict[WindowKey, Sums]
    unbalanced: tuple[WindowKey, ...] = ()

    def wrong(self) -> list[str]:
        places = sorted({*self.books, *self.journal, *self.holds}, key=lambda place: (place[0], place[1]))
        differing = [place for place in places if not self.agrees(place)]
        return [f"{name} {window.label}" for name, window in dict.fromkeys([*differing, *self.unbalanced])]

    def agrees(self, place: WindowKey) -> bool:
        return self.books.get(place, Sums()) == self.journal.get(place, Sums()) == self.holds.get(place, Sums())


def sum_balances(accounts: Iterable[BudgetWindow]) -> dict[WindowKey, Sums]:
    return _summed(
        (account.name, account.window, account.book.held_micros, account.book.spent_micros) for account in accounts
    )


def judge_ledger(audit: Audit) -> Finding:
    """For `leaseway doctor`."""
    wrong = audit.wrong()
    if not wrong:
        return ok("budgets", f"{len(audit.books):,} windows agree with their journal and their holds")
    text = f"{len(wrong):,} windows do not agree with their journal: {', '.join(wrong[:3])}"
    return problem("budgets", text, "This is a defect of leaseway or of the disk: please report it, with this output")
