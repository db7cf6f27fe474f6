"""Every decision about holds and books, pure: what is there goes in, the answer and what to write come out.

Memory and SQLite call this module inside a transaction; PostgreSQL says the same in its own language, and one contract
proves that they agree. Five things hold at every moment:

- spent + held ≤ limit + overdraft, in every window, as a constraint of the database;
- held is the sum of what open holds reserve, spent the sum of what settled and captured ones cost;
- a call that may have been made has a hold that is dispatched, captured or settled;
- an id stands for one call: repeating a step neither charges twice nor frees twice;
- the journal, added up, gives the books.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.budgets.budget import (
    FULL,
    FULL_AHEAD,
    IMPOSSIBLE,
    PAUSED,
    BudgetDefinition,
    Charge,
    Crossed,
    HoldAnswer,
    HoldBooked,
    HoldDenied,
    HoldGranted,
    HoldUsed,
    OverPolicy,
    check_micros,
)
from leaseway.domain.budgets.calendar_windows import AHEAD_MAX, CalendarWindow, window_at, windows_from
from leaseway.domain.errors import BadValue, UnknownBudget, refuse_stale
from leaseway.domain.health import Finding, ok, problem
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.validators import check_name

RAISED_US = 60 * SECOND_US
"""How often somebody looks whether a budget that is used up for good was raised."""
PAUSED_US = 5 * SECOND_US
"""How often somebody looks whether a budget that is paused was resumed."""
THRESHOLDS = (50, 80, 100)
LINES_MAX = 20
TTL_US_MAX = 7 * 86_400 * 1_000_000


class HoldState(StrEnum):
    HELD = "held"
    DISPATCHED = "dispatched"
    SETTLED = "settled"
    CAPTURED = "captured"
    VOID = "void"


OPEN = (HoldState.HELD, HoldState.DISPATCHED)


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


class Hold(Struct, frozen=True, kw_only=True):
    id: str
    state: HoldState
    owner: str
    ttl_us: int
    deadline: Instant
    lines: tuple[HoldLine, ...]

    @property
    def start(self) -> Instant:
        """From here on all of its windows have begun."""
        return max(line.window.start for line in self.lines)

    @property
    def end(self) -> Instant:
        """From here on one of its windows is over."""
        return min(line.window.end for line in self.lines)


class Posting(Struct, frozen=True):
    """What one step does to one book; the journal keeps it."""

    hold: str
    line: HoldLine
    kind: str
    held_micros: int
    spent_micros: int
    overdraft_allowed_micros: int | None = None
    """How much overdraft this move may make; None: what it books is a fact."""


class HoldStep(Struct, frozen=True):
    """The hold to write, and what it does to the books."""

    hold: Hold
    moves: tuple[Posting, ...] = ()


class LineRequest(Struct, frozen=True):
    """One line that shall be held, with the definition that counts for it."""

    charge: Charge
    amount_micros: int
    definition: BudgetDefinition


ReadBalance = Callable[[str, CalendarWindow], Balance | None]
"""Look up the book of a name's window; None: nothing was booked there yet."""
Lines = Sequence[tuple[Charge, int]]


# -- holding --------------------------------------------------------------------------------------------------------


def check_lines(id_: str, lines: Lines, ttl_us: int) -> None:
    check_name("hold", id_)
    if not 1 <= len(lines) <= LINES_MAX:
        raise BadValue("lines", f"must name 1 to {LINES_MAX} budgets (there are {len(lines)})")
    if len({charge.name for charge, _ in lines}) < len(lines):
        raise BadValue("lines", "names a budget twice; add up what it shall hold")
    for charge, amount_micros in lines:
        check_micros(f"budget {charge.name}", amount_micros)
    if not 0 < ttl_us <= TTL_US_MAX:
        raise BadValue("ttl_us", f"must be between 1 and {TTL_US_MAX:,} (is {ttl_us})")


def repeat_hold(hold: Hold, owner: str, dispatch: bool, now: Instant) -> tuple[HoldAnswer, HoldStep] | None:
    """The answer for an id that is known. None: what was held is void, or should be; hold anew."""
    if hold.state is HoldState.VOID or is_missed(hold, now):
        return None
    is_under_way = hold.state is HoldState.DISPATCHED and hold.owner == owner and now < hold.deadline
    if hold.state is not HoldState.HELD and not is_under_way:
        return HoldUsed(), HoldStep(hold)
    hold = replace(hold, owner=owner)
    if now < hold.start:
        return HoldBooked(hold.start, last_line(hold).name), HoldStep(hold)
    if dispatch and hold.state is HoldState.HELD:
        hold = dispatch_hold(hold, now)
    return HoldGranted(tuple(line.window for line in hold.lines), hold.deadline), HoldStep(hold)


def is_missed(hold: Hold, now: Instant) -> bool:
    """Held, and it is too late to dispatch it."""
    return hold.state is HoldState.HELD and (now >= hold.deadline or now >= hold.end)


def place_hold(
    id_: str, wants: Sequence[LineRequest], read: ReadBalance, now: Instant, *, ttl_us: int, owner: str, dispatch: bool
) -> tuple[HoldAnswer, HoldStep | None]:
    """All lines or none, in the windows that contain the first instant at which all of them fit."""
    instant = find_room(wants, read, now)
    if isinstance(instant, HoldDenied):
        return instant, None
    lines = tuple(pin_line(want, instant) for want in wants)
    state = HoldState.DISPATCHED if dispatch and instant == now else HoldState.HELD
    hold = Hold(id=id_, state=state, owner=owner, ttl_us=ttl_us, deadline=instant + ttl_us, lines=lines)
    moves = tuple(
        Posting(id_, line, "hold", line.amount_micros, 0, want.definition.overdraft_micros)
        for line, want in zip(lines, wants, strict=True)
    )
    if instant > now:
        return HoldBooked(instant, last_line(hold).name), HoldStep(hold, moves)
    return HoldGranted(tuple(line.window for line in lines), hold.deadline), HoldStep(hold, moves)


def find_room(wants: Sequence[LineRequest], read: ReadBalance, now: Instant) -> Instant | HoldDenied:
    """The first instant from now on at which every line fits into its window."""
    instant = now
    for _ in range(AHEAD_MAX):
        found = [room_for(want, read, instant) for want in wants]
        for later in found:
            if isinstance(later, HoldDenied):
                return later
            instant = max(instant, later)
        if all(later == instant for later in found):
            return instant
    return HoldDenied(wants[0].charge.name, None, FULL_AHEAD)


def room_for(want: LineRequest, read: ReadBalance, instant: Instant) -> Instant | HoldDenied:
    """The same for one line, from this instant on."""
    definition, name = want.definition, want.charge.name
    if definition.paused:
        return HoldDenied(name, instant + PAUSED_US, PAUSED)
    if want.amount_micros > definition.most_micros:
        return HoldDenied(name, None, IMPOSSIBLE)
    for window in windows_from(definition.every, definition.tz, instant):
        if fits(want, read(name, window)):
            return max(instant, window.start)
        if not definition.waits:
            return HoldDenied(name, next_start(window), FULL)
    return HoldDenied(name, None, FULL_AHEAD)


def next_start(window: CalendarWindow) -> Instant | None:
    return window.end if window.label != "total" else None


def fits(want: LineRequest, book: Balance | None) -> bool:
    used = 0 if book is None else book.used_micros
    limit = want.definition.limit_micros if book is None else book.limit_micros
    return used + want.amount_micros <= limit + want.definition.overdraft_micros


def pin_line(want: LineRequest, instant: Instant) -> HoldLine:
    definition = want.definition
    return HoldLine(
        name=want.charge.name,
        budget=definition.name,
        unit=definition.unit,
        window=window_at(definition.every, definition.tz, instant),
        amount_micros=want.amount_micros,
    )


def last_line(hold: Hold) -> HoldLine:
    """The line for which a booked hold waits."""
    return max(hold.lines, key=lambda line: (line.window.start, line.name))


def wait_us(definition: BudgetDefinition, name: str, read: ReadBalance, now: Instant) -> int:
    """How long until a window of this budget has something that is not spent. 0: it has now, or nobody shall wait.

    What is held does not count as gone: it may be held for those who ask. Where no window helps, somebody may raise the
    limit, and it is time to look again after a while.
    """
    if definition.paused:
        return PAUSED_US
    if definition.over is OverPolicy.FAIL:
        return 0
    for window in windows_from(definition.every, definition.tz, now):
        book = read(name, window)
        if book is None or book.spent_micros < book.limit_micros + definition.overdraft_micros:
            return max(window.start - now, 0)
    return RAISED_US


# -- what becomes of holds ------------------------------------------------------------------------------------------


def may_dispatch(hold: Hold, now: Instant) -> bool:
    """The fence: whoever is told no does not call. Told yes once, the same caller may ask again."""
    in_time = hold.start <= now < hold.end if hold.state is HoldState.HELD else True
    return hold.state in OPEN and in_time and now < hold.deadline


def dispatch_hold(hold: Hold, now: Instant) -> Hold:
    """From now on the call may have been made. It has the whole time for itself."""
    return replace(hold, state=HoldState.DISPATCHED, deadline=now + hold.ttl_us)


def settle_hold(hold: Hold, actuals: Mapping[str, int]) -> HoldStep:
    """What a call cost is a fact and is booked, whatever has become of its hold. Only a second settlement is not."""
    costs = line_costs(hold, actuals)
    if hold.state is HoldState.SETTLED:
        return HoldStep(hold)
    kind = "correct" if hold.state in (HoldState.CAPTURED, HoldState.VOID) else "settle"
    return close_hold(hold, HoldState.SETTLED, kind, costs)


def line_costs(hold: Hold, actuals: Mapping[str, int]) -> list[int]:
    """By the name of a budget or by unit; what is not named costs what was held for it."""
    known = {line.name for line in hold.lines} | {line.unit for line in hold.lines}
    for what, micros in actuals.items():
        check_micros(f"settle {what}", micros)
        if what not in known:
            raise BadValue(f"settle {what}", f"was not held; there are {', '.join(sorted(known))}")
    return [actuals.get(line.name, actuals.get(line.unit, line.amount_micros)) for line in hold.lines]


def capture_hold(hold: Hold) -> HoldStep:
    """Nobody says what became of the call: it is charged."""
    return close_hold(hold, HoldState.CAPTURED, "capture", [line.amount_micros for line in hold.lines])


def void_hold(hold: Hold, kind: str = "void") -> HoldStep:
    return close_hold(hold, HoldState.VOID, kind, [None] * len(hold.lines))


def expire_hold(hold: Hold) -> HoldStep:
    """Past its deadline: what was never dispatched cannot be any more, and what was may have been called."""
    return capture_hold(hold) if hold.state is HoldState.DISPATCHED else void_hold(hold, "expire")


def close_hold(hold: Hold, state: HoldState, kind: str, costs: Sequence[int | None]) -> HoldStep:
    """Free what is held, and replace what was spent."""
    moves, lines = [], []
    for line, cost in zip(hold.lines, costs, strict=True):
        freed = line.amount_micros if hold.state in OPEN else 0
        spent = (cost or 0) - (line.actual_micros or 0)
        moves.append(Posting(hold.id, line, kind, -freed, spent))
        lines.append(replace(line, actual_micros=cost))
    return HoldStep(replace(hold, state=state, lines=tuple(lines)), tuple(moves))


# -- books ----------------------------------------------------------------------------------------------------------


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


# -- definitions ----------------------------------------------------------------------------------------------------


class StoredBudget(Struct, frozen=True):
    """A definition as the store keeps it."""

    definition: BudgetDefinition
    declared: BudgetDefinition | None
    """What the code said last."""
    version: int = 1


def declare_budget(kept: StoredBudget | None, definition: BudgetDefinition) -> StoredBudget | None:
    """What to write when the code says this; None: nothing, because it said so before."""
    if kept is None:
        return StoredBudget(definition, definition)
    if kept.declared == definition:
        return None
    # A new release of the code does not resume what an operator has paused.
    in_force = replace(definition, paused=kept.definition.paused)
    if kept.definition == in_force:
        return StoredBudget(in_force, definition, kept.version)
    return StoredBudget(in_force, definition, kept.version + 1)


def change_budget(kept: StoredBudget | None, definition: BudgetDefinition, expected: int | None = None) -> StoredBudget:
    """What to write when an operator says this."""
    refuse_stale(f"budget {definition.name}", kept.version if kept else 0, expected)
    if kept is None:
        return StoredBudget(definition, None)
    return StoredBudget(definition, kept.declared, kept.version + (kept.definition != definition))


def unknown_budget(charge: Charge) -> UnknownBudget:
    names = charge.name if charge.name == charge.budget else f"{charge.name}, nor {charge.budget}"
    return UnknownBudget(f"nobody has defined a budget {names}; declare it in the app, or with: leaseway budgets")


def unknown_hold(id_: str) -> BadValue:
    return BadValue("hold", f"nothing is known under {id_!r}; it was never held, or it was forgotten long ago")


def still_held(name: str) -> BadValue:
    return BadValue(f"budget {name}", "something is held in it; wait until its calls are settled")


# -- for people -----------------------------------------------------------------------------------------------------


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


def crossed_by(moves: Iterable[tuple[Posting, tuple[int, ...]]]) -> Crossed:
    return tuple((move.line.name, each) for move, crossed in moves for each in crossed)


def sum_journal(entries: Iterable[JournalEntry]) -> dict[WindowKey, Sums]:
    return _summed((entry.name, entry.window, entry.held_micros, entry.spent_micros) for entry in entries)


def sum_holds(holds: Iterable[Hold]) -> dict[WindowKey, Sums]:
    return _summed(
        (line.name, line.window, line.amount_micros if hold.state in OPEN else 0, line.actual_micros or 0)
        for hold in holds
        for line in hold.lines
    )


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
