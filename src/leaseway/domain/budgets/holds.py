"""The rules for holds. All functions are pure: they take the stored state and return the answer and what to write.

The stores in memory, SQLite and MongoDB call this module inside a transaction. PostgreSQL implements the same rules in
SQL, and one contract suite proves that they agree. These invariants hold at every moment:

- spent + held ≤ limit + overdraft, in every window, enforced by a constraint of the database;
- held is the sum of the open holds, spent is the sum of the settled and captured ones;
- a call that may have been made has a hold that is dispatched, captured or settled;
- an id stands for one call: repeating a step neither charges nor frees twice;
- the sum of the journal equals the balances.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.budgets.balances import (
    Balance,
    Evidence,
    HoldLine,
    Posting,
    ReadBalance,
    Sums,
    WindowKey,
    sum_by_window,
    window_with_room,
)
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
"""How often to check whether a budget without further windows was raised."""
PAUSED_US = 5 * SECOND_US
"""How often to check whether a paused budget was resumed."""
PICKUP_US = 600 * SECOND_US
"""How long a hold that is booked in a later window waits for its job after that window has begun."""
LINES_MAX = 20
TTL_US_MAX = 7 * 86_400 * 1_000_000
REASON_LENGTH_MAX = 500


class HoldState(StrEnum):
    HELD = "held"
    DISPATCHED = "dispatched"
    SETTLED = "settled"
    CAPTURED = "captured"
    VOID = "void"


OPEN = (HoldState.HELD, HoldState.DISPATCHED)
UNSETTLED = (*OPEN, HoldState.CAPTURED)
"""Holds whose actual cost is not known."""


class Hold(Struct, frozen=True, kw_only=True):
    id: str
    state: HoldState
    owner: str
    ttl_us: int
    deadline: Instant
    lines: tuple[HoldLine, ...]
    corrected_by: str = ""
    """Who corrected the capture by the provider's evidence; empty: it was not corrected."""

    @property
    def start(self) -> Instant:
        """When all of its windows have begun."""
        return max(line.window.start for line in self.lines)

    @property
    def end(self) -> Instant:
        """When the first of its windows ends."""
        return min(line.window.end for line in self.lines)


class HoldStep(Struct, frozen=True):
    """The hold to write, and its postings."""

    hold: Hold
    moves: tuple[Posting, ...] = ()


class LineRequest(Struct, frozen=True):
    """One amount to hold, with the definition of its budget."""

    charge: Charge
    amount_micros: int
    definition: BudgetDefinition


Lines = Sequence[tuple[Charge, int]]


# -- holding --------------------------------------------------------------------------------------------------------


def check_lines(id_: str, lines: Lines, ttl_us: int) -> None:
    check_name("hold", id_)
    if not 1 <= len(lines) <= LINES_MAX:
        raise BadValue("lines", f"must name 1 to {LINES_MAX} budgets (names {len(lines)})")
    if len(lines) > 1 and len({charge.name for charge, _ in lines}) < len(lines):
        raise BadValue("lines", "names a budget twice; add up the amounts")
    for charge, amount_micros in lines:
        check_micros(f"budget {charge.name}", amount_micros)
    if not 0 < ttl_us <= TTL_US_MAX:
        raise BadValue("ttl_us", f"must be between 1 and {TTL_US_MAX:,} (is {ttl_us})")


def repeat_hold(
    hold: Hold, lines: Lines, owner: str, dispatch: bool, now: Instant
) -> tuple[HoldAnswer, HoldStep] | None:
    """The answer for an id that is known. None: the old hold is void, expired, or held for another cost, because the
    code has changed since it was booked; place a new one."""
    if hold.state is HoldState.VOID or is_missed(hold, now):
        return None
    if hold.state is HoldState.HELD and amounts_by_name(hold) != {charge.name: micros for charge, micros in lines}:
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


def amounts_by_name(hold: Hold) -> dict[str, int]:
    return {line.name: line.amount_micros for line in hold.lines}


def is_missed(hold: Hold, now: Instant) -> bool:
    """Whether a hold can no longer be dispatched, because its deadline or its window has passed."""
    return hold.state is HoldState.HELD and (now >= hold.deadline or now >= hold.end)


def place_hold(
    id_: str, wants: Sequence[LineRequest], read: ReadBalance, now: Instant, *, ttl_us: int, owner: str, dispatch: bool
) -> tuple[HoldAnswer, HoldStep | None]:
    """Hold all lines or none, in the windows of the first instant at which all of them fit."""
    instant = find_room(wants, read, now)
    if isinstance(instant, HoldDenied):
        return instant, None
    lines = tuple(pin_line(want, instant) for want in wants)
    state = HoldState.DISPATCHED if dispatch and instant == now else HoldState.HELD
    deadline = instant + (ttl_us if instant == now else max(ttl_us, PICKUP_US))
    hold = Hold(id=id_, state=state, owner=owner, ttl_us=ttl_us, deadline=deadline, lines=lines)
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
    """The first instant from this one on at which one line fits."""
    definition, name = want.definition, want.charge.name
    if definition.paused:
        return HoldDenied(name, instant + PAUSED_US, PAUSED)
    if want.amount_micros > definition.most_micros:
        return HoldDenied(name, None, IMPOSSIBLE)
    window = window_at(definition.every, definition.tz, instant)
    if fits(want, read(name, window)):
        return instant  # the usual case: no further window is computed
    if not definition.waits:
        return HoldDenied(name, next_start(window), FULL)
    for later in windows_from(definition.every, definition.tz, instant):
        if later != window and fits(want, read(name, later)):
            return later.start
    return HoldDenied(name, None, FULL_AHEAD)


def next_start(window: CalendarWindow) -> Instant | None:
    return window.end if window.label != "total" else None


def fits(want: LineRequest, balance: Balance | None) -> bool:
    used = 0 if balance is None else balance.used_micros
    limit = want.definition.limit_micros if balance is None else balance.limit_micros
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
    """The line whose window begins last."""
    return max(hold.lines, key=lambda line: (line.window.start, line.name))


def wait_us(definition: BudgetDefinition, name: str, read: ReadBalance, now: Instant) -> int:
    """How long until a window of this budget has an amount that is not spent. 0: it has one now, or jobs shall not
    wait.

    Held amounts do not count as spent, because they may be held for the jobs that ask. If no window helps, check again
    after a while, because the limit may be raised.
    """
    if definition.paused:
        return PAUSED_US
    if definition.over is OverPolicy.FAIL:
        return 0
    window = window_with_room(definition, name, read, now)
    return RAISED_US if window is None else max(window.start - now, 0)


# -- what becomes of holds ------------------------------------------------------------------------------------------


def may_dispatch(hold: Hold, now: Instant) -> bool:
    """Whether the call may be made now. Asking again gives the same answer until the deadline."""
    in_time = hold.start <= now < hold.end if hold.state is HoldState.HELD else True
    return hold.state in OPEN and in_time and now < hold.deadline


def dispatch_hold(hold: Hold, now: Instant) -> Hold:
    """Record that the call may have been made. Its time to live starts again."""
    return replace(hold, state=HoldState.DISPATCHED, deadline=now + hold.ttl_us)


def settle_hold(hold: Hold, actuals: Mapping[str, int], owner: str | None = None) -> HoldStep:
    """Book the actual cost, whatever the state of the hold, because the money is spent. A second settlement has no
    effect, and neither has one by another owner than the hold's."""
    costs = line_costs(hold, actuals)
    if hold.state is HoldState.SETTLED or owner not in (None, hold.owner):
        return HoldStep(hold)
    kind = "correct" if hold.state in (HoldState.CAPTURED, HoldState.VOID) else "settle"
    return close_hold(hold, HoldState.SETTLED, kind, costs)


def line_costs(hold: Hold, actuals: Mapping[str, int]) -> list[int]:
    """The cost of each line, given by budget or by unit. A line without a given cost costs what was held."""
    known = {line.name for line in hold.lines} | {line.unit for line in hold.lines} if actuals else set()
    for what, micros in actuals.items():
        check_micros(f"settle {what}", micros)
        if what not in known:
            raise BadValue(
                f"settle {what}", f"is not part of this hold; its budgets and units: {', '.join(sorted(known))}"
            )
    return [actuals.get(line.name, actuals.get(line.unit, line.amount_micros)) for line in hold.lines]


def capture_hold(hold: Hold) -> HoldStep:
    """Charge a hold in full, because its call was not settled."""
    return close_hold(hold, HoldState.CAPTURED, "capture", [line.amount_micros for line in hold.lines])


def void_hold(hold: Hold, kind: str = "void") -> HoldStep:
    return close_hold(hold, HoldState.VOID, kind, [None] * len(hold.lines))


def expire_hold(hold: Hold) -> HoldStep:
    """End a hold past its deadline: capture it if it was dispatched, because the call may have been made; void it if
    not."""
    return capture_hold(hold) if hold.state is HoldState.DISPATCHED else void_hold(hold, "expire")


def close_hold(
    hold: Hold, state: HoldState, kind: str, costs: Sequence[int | None], evidence: Evidence | None = None
) -> HoldStep:
    """Free the held amounts and book the costs."""
    moves, lines = [], []
    for line, cost in zip(hold.lines, costs, strict=True):
        freed = line.amount_micros if hold.state in OPEN else 0
        spent = (cost or 0) - (line.actual_micros or 0)
        moves.append(Posting(hold.id, line, kind, -freed, spent, evidence=evidence))
        lines.append(replace(line, actual_micros=cost))
    return HoldStep(replace(hold, state=state, lines=tuple(lines)), tuple(moves))


# -- corrections ----------------------------------------------------------------------------------------------------


class Correction(Struct, frozen=True, kw_only=True):
    """What the provider's evidence changed in one budget."""

    name: str
    unit: str
    window: str
    before_micros: int
    after_micros: int


def check_evidence(evidence: Evidence, actuals: Mapping[str, int]) -> None:
    """A correction must name its author, and an amount."""
    check_name("by", evidence.by)
    if len(evidence.reason) > REASON_LENGTH_MAX:
        raise BadValue("reason", f"must have at most {REASON_LENGTH_MAX} characters (has {len(evidence.reason)})")
    if not evidence.reason.isprintable():
        raise BadValue("reason", "must be one line of printable characters")
    if not actuals:
        raise BadValue("amounts", "must say what the call has cost; 0 if the provider did not charge it")


def correct_hold(
    hold: Hold, actuals: Mapping[str, int], evidence: Evidence, now: Instant
) -> tuple[tuple[Correction, ...], list[HoldStep]]:
    """Replace a captured amount by the one that the provider reports, once. The same correction can be repeated."""
    costs = line_costs(hold, actuals)
    corrections = tuple(
        Correction(
            name=line.name,
            unit=line.unit,
            window=line.window.label,
            before_micros=line.amount_micros,
            after_micros=cost,
        )
        for line, cost in zip(hold.lines, costs, strict=True)
    )
    if hold.corrected_by and costs == [line.actual_micros for line in hold.lines]:
        return corrections, []
    steps = []
    if hold.state is HoldState.DISPATCHED and now >= hold.deadline:
        steps.append(capture_hold(hold))  # no worker has expired it yet
        hold = steps[0].hold
    if hold.state is not HoldState.CAPTURED:
        raise uncorrectable(hold.id, hold.state, hold.corrected_by)
    step = close_hold(hold, HoldState.SETTLED, "correct", costs, evidence)
    return corrections, [*steps, HoldStep(replace(step.hold, corrected_by=evidence.by), step.moves)]


def uncorrectable(id_: str, state: HoldState, corrected_by: str) -> BadValue:
    """Only an amount that leaseway had to assume can be corrected, and only once."""
    why = {
        HoldState.HELD: "is not dispatched: its call was not made, and it is freed at its deadline",
        HoldState.DISPATCHED: "is open: its call may be under way; it can be settled after its deadline",
        HoldState.VOID: "is void: nothing was charged",
        HoldState.SETTLED: f"was settled by {corrected_by} before; a hold is corrected once"
        if corrected_by
        else "was settled by its call, with the cost that the call reported",
    }
    return BadValue(f"hold {id_}", why[state])


def unknown_hold(id_: str) -> BadValue:
    return BadValue("hold", f"there is no hold {id_!r}; it was never placed, or it was pruned")


def still_held(name: str) -> BadValue:
    return BadValue(f"budget {name}", "has calls under way; wait until they are settled")


# -- for people -----------------------------------------------------------------------------------------------------


def crossed_by(moves: Iterable[tuple[Posting, tuple[int, ...]]]) -> Crossed:
    return tuple((move.line.name, each) for move, crossed in moves for each in crossed)


def sum_holds(holds: Iterable[Hold]) -> dict[WindowKey, Sums]:
    return sum_by_window(
        (line.name, line.window, line.amount_micros if hold.state in OPEN else 0, line.actual_micros or 0)
        for hold in holds
        for line in hold.lines
    )
