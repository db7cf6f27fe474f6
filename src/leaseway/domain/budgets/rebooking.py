"""Holds that are booked in a later window, and how they get to an earlier one. All functions are pure.

A hold is booked because its cost did not fit when it was requested. It may fit earlier since then: the budget was
raised, or other calls cost less than was held for them. Requesting the hold again moves it (`hold_again`). Until then
its job waits for the booked window, so a change of the budget brings forward the jobs whose holds would move
(`movable_holds`).
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.budgets.balances import Balance, BudgetWindow, HoldLine, ReadBalance, WindowKey
from leaseway.domain.budgets.budget import BudgetDefinition, Charge, HoldAnswer, HoldDenied, definition_for
from leaseway.domain.budgets.calendar_windows import CalendarWindow
from leaseway.domain.budgets.holds import (
    Hold,
    HoldState,
    HoldStep,
    LineRequest,
    amounts_by_name,
    find_room,
    pin_line,
    repeat_hold,
    void_hold,
)
from leaseway.domain.ids import Instant, JobId
from leaseway.domain.tenant import namespace

REBOOK = "rebook"
"""The kind of the postings that free the later window."""


def hold_again(
    hold: Hold, wants: Sequence[LineRequest], read: ReadBalance, now: Instant, *, owner: str, dispatch: bool
) -> tuple[HoldAnswer | None, HoldStep | None]:
    """The answer for an id that is known, and what to write. Without an answer, the hold is to be placed anew."""
    lines = [(want.charge, want.amount_micros) for want in wants]
    if amounts_by_name(hold) == {charge.name: micros for charge, micros in lines} and fits_earlier(
        hold, wants, read, now
    ):
        return None, void_hold(hold, REBOOK)
    again = repeat_hold(hold, lines, owner, dispatch, now)
    if again is not None:
        return again
    return None, void_hold(hold, "expire") if hold.state is HoldState.HELD else None


def is_booked(hold: Hold, now: Instant) -> bool:
    """Whether the hold waits for a window that has not begun."""
    return hold.state is HoldState.HELD and now < hold.start


BookedPlace = tuple[Instant, str]
"""The place of a hold among the booked ones: by the start of its window, then by its id."""
FIRST_BOOKED: BookedPlace = (0, "")


def booked_place(hold: Hold) -> BookedPlace:
    return hold.start, hold.id


def fits_earlier(hold: Hold, wants: Sequence[LineRequest], read: ReadBalance, now: Instant) -> bool:
    """Whether a booked hold has room before its window."""
    return is_booked(hold, now) and earlier_room(hold.lines, wants, read, now) is not None


def earlier_room(
    lines: Sequence[HoldLine], wants: Sequence[LineRequest], read: ReadBalance, now: Instant
) -> Instant | None:
    """The first instant before these booked lines at which all of them fit. Their own amounts do not count: one of them
    may be held in a window that has begun, while another one waits."""
    found = find_room(wants, without_lines(lines, read), now)
    if isinstance(found, HoldDenied) or found >= max(line.window.start for line in lines):
        return None
    return found


def without_lines(lines: Sequence[HoldLine], read: ReadBalance) -> ReadBalance:
    own = {(line.name, line.window): line.amount_micros for line in lines}

    def read_others(name: str, window: CalendarWindow) -> Balance | None:
        balance = read(name, window)
        if balance is None or (name, window) not in own:
            return balance
        return replace(balance, held_micros=balance.held_micros - own[name, window])

    return read_others


def movable_holds(
    holds: Iterable[Hold],
    definitions: Sequence[BudgetDefinition],
    balances: dict[WindowKey, Balance],
    now: Instant,
) -> list[Hold]:
    """Those booked holds that fit earlier, if they are moved in this order. `balances` is changed accordingly, so that
    the next holds can be passed in another call."""
    moved = []
    for hold in holds:
        wants = line_requests(hold, definitions)
        if wants is None or not is_booked(hold, now):
            continue
        room = earlier_room(hold.lines, wants, lambda name, window: balances.get((name, window)), now)
        if room is not None:
            moved.append(hold)
            add_held(balances, hold.lines, -1)
            add_held(balances, [pin_line(want, room) for want in wants], 1, wants)
    return moved


def line_requests(hold: Hold, definitions: Sequence[BudgetDefinition]) -> list[LineRequest] | None:
    """What the job will ask for again. None: a budget is not defined any more."""
    wants = []
    for line in hold.lines:
        definition = definition_for(line.name, line.budget, definitions)
        if definition is None:
            return None
        wants.append(LineRequest(Charge(line.name, line.budget), line.amount_micros, definition))
    return wants


def add_held(
    balances: dict[WindowKey, Balance], lines: Sequence[HoldLine], sign: int, wants: Sequence[LineRequest] = ()
) -> None:
    limits = {want.charge.name: want.definition.limit_micros for want in wants}
    for line in lines:
        place = (line.name, line.window)
        balance = balances.get(place) or Balance(limit_micros=limits.get(line.name, 0))
        balances[place] = replace(balance, held_micros=balance.held_micros + sign * line.amount_micros)


def balances_by_window(accounts: Iterable[BudgetWindow]) -> dict[WindowKey, Balance]:
    return {(account.name, account.window): account.balance for account in accounts}


# -- the ids of holds -------------------------------------------------------------------------------------------------

# A worker names each hold by its job, so that the holds of a job and the job of a hold can be found:
# namespace of the tenant / id of the job : fence of the lease : number of the call


class HoldOwner(Struct, frozen=True):
    """The job of a hold, as its id says. The namespace is that of the job's tenant; whoever placed the hold may have
    named another tenant's job, so compare it."""

    namespace: str
    job: JobId


def hold_prefix(tenant: str, job: JobId) -> str:
    """How the ids of a job's holds begin. The prefix of one job is not the beginning of another one's."""
    return f"{namespace(tenant)}{job}:"


def hold_id(tenant: str, job: JobId, fence: int, number: int) -> str:
    """The id of one call of one delivery."""
    return f"{hold_prefix(tenant, job)}{fence}:{number}"


def parse_hold_id(id_: str) -> HoldOwner | None:
    """None: the hold was not placed by a worker."""
    prefix, slash, rest = id_.partition("/")
    job, *numbers = rest.rsplit(":", 2)
    if not slash or not job or len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        return None
    return HoldOwner(prefix + slash, JobId(job))


def belongs_to(id_: str, tenant: str, job: JobId) -> bool:
    """Whether the hold was placed for this job."""
    return parse_hold_id(id_) == HoldOwner(namespace(tenant), job)
