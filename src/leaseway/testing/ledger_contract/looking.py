"""What people see: books, the journal, and whether both agree."""

from leaseway.domain.budgets.budget import Charge, HoldDenied
from leaseway.ports.ledger import Ledger
from leaseway.testing.clock import FakeClock
from leaseway.testing.ledger_contract.actors import (
    DAY_US,
    MINUTE_US,
    agrees,
    booked,
    budget,
    called,
    daily,
    held,
    micros,
    to_next_day,
    usd,
)


async def test_a_budget_is_shown_before_its_first_hold(ledger: Ledger) -> None:
    """Somebody has just defined it and looks whether it is there; one with fields has nothing to show yet."""
    await ledger.definitions.declare([daily(10), budget("spend:{tenant}", usd=1)])
    (account,) = await ledger.reads.balances()
    assert (account.name, account.unit, account.window.label) == ("spend", "usd", "2025-06-15")
    assert account.balance.limit_micros == account.left_micros == micros(10)


async def test_books_show_what_is_spent_held_and_booked_ahead(ledger: Ledger) -> None:
    """Each with its window: what is booked for tomorrow is not missing today."""
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
    """By name, and without what is over unless one asks for it."""
    await ledger.definitions.declare([budget("a", usd=1, every="day"), budget("b", usd=1, every="day")])
    assert [each.name for each in await ledger.reads.balances()] == ["a", "b"]
    assert [each.name for each in await ledger.reads.balances(["b"])] == ["b"]
    assert await ledger.reads.balances(["c"]) == []


async def test_the_journal_tells_every_move_newest_first(ledger: Ledger, clock: FakeClock) -> None:
    """Who asks where the money went reads it here."""
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
    """Tables that only grow end badly. What is still open stays, and so do windows that never end."""
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
