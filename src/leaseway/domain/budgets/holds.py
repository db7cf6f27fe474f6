"""Every decision about holds and books, pure: what is there goes in, the answer and what to write come out.

Memory and SQLite call this module inside a transaction; PostgreSQL says the same in its own language, and one contract
proves that they agree. Five things hold at every moment:

- spent + held ≤ limit + overdraft, in every window, as a constraint of the database;
- held is the sum of what open holds reserve, spent the sum of what settled and captured ones cost;
- a call that may have been made has a hold that is dispatched, captured or settled;
- an id stands for one call: repeating a step neither charges twice nor frees twice;
- the journal, added up, gives the books.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.budgets.balances import Balance, HoldLine, Posting, ReadBalance, Sums, WindowKey, _summed
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
from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.validators import check_name

RAISED_US = 60 * SECOND_US
"""How often somebody looks whether a budget that is used up for good was raised."""
PAUSED_US = 5 * SECOND_US
"""How often somebody looks whether a budget that is paused was resumed."""
LINES_MAX = 20
TTL_US_MAX = 7 * 86_400 * 1_000_000


class HoldState(StrEnum):
    HELD = "held"
    DISPATCHED = "dispatched"
    SETTLED = "settled"
    CAPTURED = "captured"
    VOID = "void"


OPEN = (HoldState.HELD, HoldState.DISPATCHED)


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


class HoldStep(Struct, frozen=True):
    """The hold to write, and what it does to the books."""

    hold: Hold
    moves: tuple[Posting, ...] = ()


class LineRequest(Struct, frozen=True):
    """One line that shall be held, with the definition that counts for it."""

    charge: Charge
    amount_micros: int
    definition: BudgetDefinition


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


# -- definitions ----------------------------------------------------------------------------------------------------


def unknown_hold(id_: str) -> BadValue:
    return BadValue("hold", f"nothing is known under {id_!r}; it was never held, or it was forgotten long ago")


def still_held(name: str) -> BadValue:
    return BadValue(f"budget {name}", "something is held in it; wait until its calls are settled")


# -- for people -----------------------------------------------------------------------------------------------------


def crossed_by(moves: Iterable[tuple[Posting, tuple[int, ...]]]) -> Crossed:
    return tuple((move.line.name, each) for move, crossed in moves for each in crossed)


def sum_holds(holds: Iterable[Hold]) -> dict[WindowKey, Sums]:
    return _summed(
        (line.name, line.window, line.amount_micros if hold.state in OPEN else 0, line.actual_micros or 0)
        for hold in holds
        for line in hold.lines
    )
