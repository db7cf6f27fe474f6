"""Booking ahead: a hold that does not fit now is made in the first later window with room."""

from leaseway.domain.budgets.budget import Charge, HoldBooked, HoldDenied, HoldGranted
from leaseway.domain.budgets.calendar_windows import AHEAD_MAX
from leaseway.domain.budgets.holds import PICKUP_US, RAISED_US
from leaseway.domain.ids import SECOND_US
from leaseway.ports.ledger import Ledger
from leaseway.testing.clock import FakeClock
from leaseway.testing.ledger_contract.fixtures import (
    DAY_US,
    MINUTE_US,
    SPEND,
    account,
    agrees,
    booked,
    budget,
    called,
    daily,
    held,
    micros,
    next_day,
    numbers,
    to_next_day,
    usd,
)


async def test_a_big_cost_is_not_passed_over_for_ever(ledger: Ledger, clock: FakeClock) -> None:
    """Small costs arrive all the time and would always use the rest, so the large one must get a place in a later
    window.
    """
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "small", 3)
    assert await booked(ledger, "big", 8) == HoldBooked(next_day(clock), "spend")
    to_next_day(clock)
    assert await ledger.hold("other", usd(3), MINUTE_US) == HoldBooked(next_day(clock), "spend")
    assert isinstance(await ledger.hold("big", usd(8), MINUTE_US, dispatch=True), HoldGranted)
    await agrees(ledger)


async def test_small_costs_that_fit_do_not_wait_behind_a_big_one(ledger: Ledger) -> None:
    """The rest of today's window is worthless tomorrow."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "first", 3)
    await booked(ledger, "big", 8)
    await held(ledger, "second", 7)
    assert await numbers(ledger) == (0, 10, 0)
    assert await numbers(ledger, place=1) == (0, 8, 0)


async def test_booked_holds_fill_windows_one_after_the_other(ledger: Ledger, clock: FakeClock) -> None:
    """Each hold must be in the first window with room, even if that is before the window of another."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "today", 10)
    tomorrow = next_day(clock)
    untils = [(await booked(ledger, f"call-{amount}", amount)).until for amount in (6, 7, 4)]
    assert untils == [tomorrow, tomorrow + DAY_US, tomorrow]
    await agrees(ledger)


async def test_a_booked_hold_has_its_time_from_the_start_of_its_window(ledger: Ledger, clock: FakeClock) -> None:
    """Its deadline must not pass while it waits for its window."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 10, dispatch=True)
    await booked(ledger, "b", 8)
    clock.advance(120)
    assert (await ledger.expire(10)).captured == 1
    to_next_day(clock)
    clock.advance(PICKUP_US / SECOND_US - 1)
    assert (await ledger.expire(10)).count == 0, "its job may come late, because it waits for a worker"
    assert isinstance(await ledger.hold("b", usd(8), MINUTE_US, dispatch=True), HoldGranted)
    clock.advance(59)
    assert (await ledger.expire(10)).count == 0, "the call has the whole time for itself"
    await agrees(ledger)


async def test_a_booked_hold_that_nobody_fetches_is_given_up(ledger: Ledger, clock: FakeClock) -> None:
    """A job that comes back later must get a new hold where there is room."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 10)
    await booked(ledger, "b", 8)
    to_next_day(clock)
    clock.advance(PICKUP_US / SECOND_US)
    await held(ledger, "c", 1)
    again = await held(ledger, "b", 8, dispatch=True)
    assert again.windows[0].start == clock.now_us() - PICKUP_US
    assert await numbers(ledger) == (0, 9, 0)
    await agrees(ledger)


async def test_the_latest_window_of_several_budgets_decides(ledger: Ledger, clock: FakeClock) -> None:
    """All parts of a hold must lie in windows that contain the instant of the call."""
    await ledger.definitions.declare([daily(10), budget("hourly", usd=10, every="hour")])
    hourly = Charge("hourly", "hourly")
    await held(ledger, "a", 10)
    lines = (*usd(5), (hourly, micros(5)))
    assert await ledger.hold("b", lines, MINUTE_US) == HoldBooked(next_day(clock), "spend")
    assert (await account(ledger, "hourly", 1)).window.start == next_day(clock)
    assert await numbers(ledger, "hourly", 1) == (0, 5, 0)
    to_next_day(clock)
    answer = await ledger.hold("b", lines, MINUTE_US, dispatch=True)
    assert isinstance(answer, HoldGranted)
    assert [window.start for window in answer.windows] == [clock.now_us()] * 2
    await agrees(ledger)


async def test_the_later_window_must_have_room_in_all_budgets(ledger: Ledger, clock: FakeClock) -> None:
    """If one budget has room again, another may be full, so the search must continue until all have room."""
    await ledger.definitions.declare([daily(10), budget("hourly", usd=10, every="hour")])
    hourly = Charge("hourly", "hourly")
    await held(ledger, "a", 10)
    for id_, amount, later_us in (("b", 10, 0), ("c", 5, 60 * MINUTE_US)):
        answer = await ledger.hold(id_, (*usd(5), (hourly, micros(amount))), MINUTE_US)
        assert isinstance(answer, HoldBooked)
        assert answer.until == next_day(clock) + later_us
    await agrees(ledger)


async def test_a_budget_that_fails_is_not_made_to_wait_by_another(ledger: Ledger) -> None:
    """`over="fail"` means now or never."""
    await ledger.definitions.declare([daily(10), budget("strict", usd=10, every="day", over="fail")])
    await ledger.hold("a", ((Charge("strict", "strict"), micros(10)),), MINUTE_US)
    answer = await ledger.hold("b", ((SPEND, micros(1)), (Charge("strict", "strict"), micros(1))), MINUTE_US)
    assert isinstance(answer, HoldDenied)
    assert answer.budget == "strict"


async def test_booking_ahead_has_an_end(ledger: Ledger) -> None:
    """An endless queue would be booked into the next century, one statement per day."""
    await ledger.definitions.declare([budget("spend", usd=1, every="hour")])
    for each in range(AHEAD_MAX):
        assert not isinstance(await ledger.hold(f"call-{each}", usd(1), MINUTE_US), HoldDenied)
    answer = await ledger.hold("one-more", usd(1), MINUTE_US)
    assert isinstance(answer, HoldDenied)
    assert answer.until is None
    assert isinstance(await ledger.hold("call-9", usd(1), MINUTE_US), HoldBooked)


async def test_waiting_ends_when_something_is_left_again(ledger: Ledger, clock: FakeClock) -> None:
    """A lane must stay closed until then and not longer; held money may be held for the jobs that wait there."""
    await ledger.definitions.declare([daily(10), budget("total", usd=1)])
    charges = [SPEND, Charge("total", "total")]
    await held(ledger, "a", 10, dispatch=True)
    assert await ledger.reads.wait_us(charges) == 0
    await booked(ledger, "b", 10)
    await ledger.settle("a", {})
    assert await ledger.reads.wait_us(charges) == next_day(clock) - clock.now_us()
    to_next_day(clock)
    assert await ledger.reads.wait_us(charges) == 0
    await ledger.hold("c", ((charges[1], micros(1)),), MINUTE_US, dispatch=True)
    await ledger.settle("c", {})
    assert await ledger.reads.wait_us(charges) == RAISED_US, "it is unknown when the budget will be raised"


async def test_a_budget_is_shown_before_its_first_hold(ledger: Ledger) -> None:
    """An operator who has just defined a budget must see it; one with fields has no window yet."""
    await ledger.definitions.declare([daily(10), budget("spend:{tenant}", usd=1)])
    (account,) = await ledger.reads.balances()
    assert (account.name, account.unit, account.window.label) == ("spend", "usd", "2025-06-15")
    assert account.balance.limit_micros == account.left_micros == micros(10)


async def test_books_show_what_is_spent_held_and_booked_ahead(ledger: Ledger) -> None:
    """Each amount belongs to its window: money booked for tomorrow must not be missing today."""
    await ledger.definitions.declare([daily(10)])
    await called(ledger, "a", 2, 1.5)
    await held(ledger, "b", 4)
    await booked(ledger, "c", 7)
    today, tomorrow = await ledger.reads.balances(["spend"])
    assert (today.balance.spent_micros, today.balance.held_micros, today.booked_ahead_micros) == (
        micros(1.5),
        micros(4),
        0,
    )
    assert today.left_micros == micros(4.5)
    assert (tomorrow.window.label, tomorrow.has_begun) == ("2025-06-16", False)
    assert tomorrow.booked_ahead_micros == micros(7)


async def test_books_show_those_that_are_asked_for(ledger: Ledger) -> None:
    """The filter selects by name and excludes closed windows by default."""
    await ledger.definitions.declare([budget("a", usd=1, every="day"), budget("b", usd=1, every="day")])
    assert [each.name for each in await ledger.reads.balances()] == ["a", "b"]
    assert [each.name for each in await ledger.reads.balances(["b"])] == ["b"]
    assert await ledger.reads.balances(["c"]) == []


async def test_the_journal_tells_every_move_newest_first(ledger: Ledger, clock: FakeClock) -> None:
    """The journal explains where the money went."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 3, dispatch=True)
    await held(ledger, "b", 2)
    await held(ledger, "c", 1)
    await ledger.void("c")
    clock.advance(60)
    await ledger.expire(10)
    await ledger.settle("a", {"usd": micros(1)})
    entries = await ledger.reads.journal("spend")
    assert [(each.hold, each.kind, each.held_micros, each.spent_micros) for each in entries[::-1]] == [
        ("a", "hold", micros(3), 0),
        ("b", "hold", micros(2), 0),
        ("c", "hold", micros(1), 0),
        ("c", "void", -micros(1), 0),
        ("a", "capture", -micros(3), micros(3)),
        ("b", "expire", -micros(2), 0),
        ("a", "correct", 0, -micros(2)),
    ]
    assert {each.window.label for each in entries} == {"2025-06-15"}
    assert entries[0].at == clock.now_us()
    assert [each.seq for each in entries] == sorted((each.seq for each in entries), reverse=True)
    assert await ledger.reads.journal("spend", 2) == entries[:2]
    assert await ledger.reads.journal("other") == []
    await agrees(ledger)


async def test_a_denied_hold_leaves_no_trace(ledger: Ledger) -> None:
    """Denials come by the thousand; the journal is about money."""
    await ledger.definitions.declare([daily(10, over="fail")])
    assert isinstance(await ledger.hold("a", usd(11), MINUTE_US), HoldDenied)
    assert await ledger.reads.journal("spend") == []
    assert await ledger.void("a") is False


async def test_what_is_long_over_is_forgotten(ledger: Ledger, clock: FakeClock) -> None:
    """Tables must not grow forever. Open holds and windows without an end must stay."""
    await ledger.definitions.declare([daily(10), budget("total", usd=10)])
    total = Charge("total", "total")
    await ledger.hold("a", (*usd(1), (total, micros(1))), MINUTE_US, dispatch=True)
    await ledger.settle("a", {})
    to_next_day(clock)
    await held(ledger, "b", 1, dispatch=True)
    to_next_day(clock)
    await called(ledger, "c", 1, 1)
    clock.advance_us(DAY_US)
    assert await ledger.prune(DAY_US, 0) == 0
    assert await ledger.prune(DAY_US, 10) == 1, "the second day is still open, the third not long enough over"
    labels = [(each.name, each.window.label) for each in await ledger.reads.balances(since=0)]
    assert ("spend", "2025-06-15") not in labels
    assert {("spend", "2025-06-16"), ("spend", "2025-06-17"), ("total", "total")} <= set(labels)
    assert len(await ledger.reads.journal("total")) == 2
    await agrees(ledger)
    await ledger.expire(10)
    assert await ledger.prune(0, 10) == 2
    await agrees(ledger)
