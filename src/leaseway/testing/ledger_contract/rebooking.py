"""Holds that are booked in a later window: how they are found, moved to an earlier one, and released."""

import asyncio
from collections import Counter

import pytest
from msgspec.structs import replace

from leaseway.domain.budgets.balances import JournalEntry
from leaseway.domain.budgets.budget import Charge, HoldBooked, HoldGranted
from leaseway.domain.budgets.rebooking import booked_place
from leaseway.domain.errors import BadValue
from leaseway.ports.ledger import Ledger
from leaseway.testing.clock import FakeClock
from leaseway.testing.ledger_contract.fixtures import (
    DAY_US,
    MINUTE_US,
    agrees,
    booked,
    budget,
    called,
    daily,
    held,
    kind_of,
    micros,
    next_day,
    numbers,
    to_next_day,
    usd,
)

HOURLY = Charge("hourly", "hourly")


def movements(entries: list[JournalEntry]) -> list[tuple[str, str, int]]:
    """Oldest first: kind, window and change of the held amount."""
    return [(entry.kind, entry.window.label, entry.held_micros) for entry in reversed(entries)]


# -- asking again ---------------------------------------------------------------------------------------------------


async def test_a_booked_hold_moves_to_today_when_the_budget_is_raised(ledger: Ledger) -> None:
    """Jobs waited for two days although the raised budget had room, and no command could bring them forward."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 10, dispatch=True)
    await booked(ledger, "b", 4)
    await ledger.definitions.change(daily(14))
    assert isinstance(await ledger.hold("b", usd(4), MINUTE_US, dispatch=True), HoldGranted)
    assert await numbers(ledger) == (0, 14, 0)
    assert await numbers(ledger, place=1) == (0, 0, 0)
    assert movements(await ledger.reads.journal("spend"))[1:] == [
        ("hold", "2025-06-16", micros(4)),
        ("rebook", "2025-06-16", -micros(4)),
        ("hold", "2025-06-15", micros(4)),
    ]
    await ledger.settle("b", {})
    await agrees(ledger)


async def test_a_booked_hold_moves_to_what_other_calls_did_not_spend(ledger: Ledger) -> None:
    """A declared cost is a maximum. What is left of it is free for jobs that wait."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 10, dispatch=True)
    await booked(ledger, "b", 4)
    await ledger.settle("a", {"usd": micros(6)})
    assert isinstance(await ledger.hold("b", usd(4), MINUTE_US, dispatch=True), HoldGranted)
    assert await numbers(ledger) == (6, 4, 0)
    await agrees(ledger)


async def test_a_booked_hold_moves_to_an_earlier_day(ledger: Ledger, clock: FakeClock) -> None:
    """Tomorrow has room for what was booked for the day after."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 10, dispatch=True)
    await booked(ledger, "b", 10)
    third = await booked(ledger, "c", 8)
    assert third.until == next_day(clock) + DAY_US
    assert await ledger.void("b")
    assert await ledger.hold("c", usd(8), MINUTE_US, dispatch=True) == HoldBooked(next_day(clock), "spend")
    assert await ledger.dispatch("c") is False
    to_next_day(clock)
    assert isinstance(await ledger.hold("c", usd(8), MINUTE_US, dispatch=True), HoldGranted)
    await agrees(ledger)


async def test_a_booked_hold_without_earlier_room_stays_and_writes_nothing(ledger: Ledger) -> None:
    """A job that asks once a minute must not fill the journal, and must not lose its place."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 8, dispatch=True)
    first = await booked(ledger, "b", 4)
    entries = await ledger.reads.journal("spend")
    assert await booked(ledger, "b", 4) == first
    assert await ledger.reads.journal("spend") == entries
    await agrees(ledger)


async def test_a_booked_hold_of_a_paused_budget_stays(ledger: Ledger) -> None:
    """A pause stops spending; what is booked keeps its place."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 10, dispatch=True)
    first = await booked(ledger, "b", 4)
    await ledger.definitions.change(budget("spend", usd=20, every="day"))
    paused = (await ledger.definitions.all())[0][0]
    await ledger.definitions.change(replace(paused, paused=True))
    assert await booked(ledger, "b", 4) == first
    await ledger.definitions.change(paused)
    assert isinstance(await ledger.hold("b", usd(4), MINUTE_US, dispatch=True), HoldGranted)
    await agrees(ledger)


async def test_its_own_amounts_do_not_keep_a_hold_from_moving(ledger: Ledger) -> None:
    """One budget is held today while the other one waits for the next hour. The hold itself fills today's window."""
    await ledger.definitions.declare([daily(10), budget("hourly", usd=5, every="hour")])
    await ledger.hold("a", usd(5, HOURLY), MINUTE_US, dispatch=True)
    lines = (*usd(10), *usd(5, HOURLY))
    assert isinstance(await ledger.hold("b", lines, MINUTE_US, dispatch=True), HoldBooked)
    await ledger.definitions.change(budget("hourly", usd=10, every="hour"))
    assert isinstance(await ledger.hold("b", lines, MINUTE_US, dispatch=True), HoldGranted)
    assert await numbers(ledger) == (0, 10, 0)
    assert await numbers(ledger, "hourly") == (0, 10, 0)
    await agrees(ledger)


async def test_many_booked_holds_share_what_became_free(ledger: Ledger) -> None:
    """Moving is a new hold: all of them together must not exceed the raised budget."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 10, dispatch=True)
    ids = [f"b{number:02}" for number in range(20)]
    for id_ in ids:
        await booked(ledger, id_, 3)
    await ledger.definitions.change(daily(20))
    answers = await asyncio.gather(*(ledger.hold(id_, usd(3), MINUTE_US, dispatch=True) for id_ in ids))
    assert Counter(map(kind_of, answers)) == {"HoldGranted": 3, "HoldBooked": 17}
    assert await numbers(ledger) == (0, 19, 0)
    await agrees(ledger)


# -- finding --------------------------------------------------------------------------------------------------------


async def test_booked_holds_are_listed_in_pages_by_window(ledger: Ledger, clock: FakeClock) -> None:
    """The jobs that have waited for longest are brought forward first."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "now", 5)
    await held(ledger, "called", 5, dispatch=True)
    for id_, amount in (("z", 10), ("y", 6), ("x", 4)):
        await booked(ledger, id_, amount)
    pages = [await ledger.reads.booked("spend", limit=2)]
    pages.append(await ledger.reads.booked("spend", after=booked_place(pages[0][-1]), limit=2))
    assert [[hold.id for hold in page] for page in pages] == [["z", "x"], ["y"]]
    assert [hold.start for hold in pages[0]] == [next_day(clock), next_day(clock) + DAY_US]
    assert await ledger.reads.booked("spend", limit=0) == []
    to_next_day(clock)
    assert [hold.id for hold in await ledger.reads.booked("spend")] == ["x", "y"]


async def test_booked_holds_are_found_by_budget_and_by_definition(ledger: Ledger) -> None:
    """A definition with fields is raised for all of its values at once."""
    await ledger.definitions.declare([budget("spend:{tenant}", usd=1, every="day"), daily(10)])
    for tenant in ("acme", "other"):
        charge = Charge(f"spend:{tenant}", "spend:{tenant}")
        for number in (1, 2):
            await ledger.hold(f"{tenant}-{number}", usd(1, charge), MINUTE_US, dispatch=True)
    assert [hold.id for hold in await ledger.reads.booked("spend:{tenant}")] == ["acme-2", "other-2"]
    assert [hold.id for hold in await ledger.reads.booked("spend:acme")] == ["acme-2"]
    assert await ledger.reads.booked("spend") == []


async def test_booked_holds_are_found_by_the_beginning_of_their_id(ledger: Ledger) -> None:
    """The holds of one job are released when it is cancelled, and those of others are not."""
    await ledger.definitions.declare([daily(1)])
    await held(ledger, "acme/a:1:1", 1, dispatch=True)
    for id_ in ("acme/a:1:2", "acme/a:2:1", "acme/ab:1:1", "acme/b:1:1", "other/a:1:1"):
        await booked(ledger, id_, 1)
    found = await ledger.reads.booked_for("acme/a:")
    assert [hold.id for hold in found] == ["acme/a:1:2", "acme/a:2:1"]
    assert [line.amount_micros for hold in found for line in hold.lines] == [micros(1)] * 2
    assert await ledger.reads.booked_for("acme/a:", 1) == found[:1]


# -- releasing ------------------------------------------------------------------------------------------------------


async def test_forgetting_a_budget_releases_what_is_only_booked(ledger: Ledger) -> None:
    """A booking for a job of next week must not keep an operator from removing a budget today."""
    await ledger.definitions.declare([daily(10), budget("other", usd=10)])
    await called(ledger, "a", 10, 10)
    await booked(ledger, "b", 4)
    await ledger.hold("c", (*usd(6), (Charge("other", "other"), micros(3))), MINUTE_US)
    assert await ledger.definitions.forget("spend") is True
    assert await numbers(ledger, "other") == (0, 0, 0)
    assert await ledger.dispatch("b") is False
    await ledger.definitions.declare([daily(10)])
    assert isinstance(await ledger.hold("b", usd(4), MINUTE_US, dispatch=True), HoldGranted)
    await agrees(ledger)


async def test_forgetting_is_refused_while_a_call_is_under_way(ledger: Ledger) -> None:
    """The call will be charged. A refusal must not release the bookings of others, either."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 10, dispatch=True)
    await booked(ledger, "b", 4)
    with pytest.raises(BadValue, match="calls under way"):
        await ledger.definitions.forget("spend")
    assert [hold.id for hold in await ledger.reads.booked("spend")] == ["b"]
    await agrees(ledger)
