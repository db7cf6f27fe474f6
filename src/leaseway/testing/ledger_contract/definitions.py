"""Definitions: declared by the code, changed by an operator, and their effect on open windows."""

import pytest
from msgspec.structs import replace

from leaseway.domain.budgets.budget import PAUSED, Charge, HoldBooked, HoldDenied, HoldGranted
from leaseway.domain.budgets.holds import PAUSED_US
from leaseway.domain.errors import BadValue, Stale, UnknownBudget
from leaseway.ports.ledger import Ledger
from leaseway.testing.clock import FakeClock
from leaseway.testing.ledger_contract.fixtures import (
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
    numbers,
    to_next_day,
    usd,
)


async def test_a_restart_does_not_undo_what_an_operator_changed(ledger: Ledger) -> None:
    """The code declares the same as before, so the operator's higher limit must stay."""
    await ledger.definitions.declare([daily(10)])
    assert await ledger.definitions.change(daily(20)) == 2
    await ledger.definitions.declare([daily(10)])
    assert await ledger.definitions.all() == [(daily(20), 2)]


async def test_a_new_word_of_the_code_counts(ledger: Ledger) -> None:
    """A deployment with another number is an intended change."""
    await ledger.definitions.declare([daily(10)])
    await ledger.definitions.change(daily(20))
    await ledger.definitions.declare([daily(30)])
    assert await ledger.definitions.all() == [(daily(30), 3)]


async def test_an_operator_may_define_what_no_code_knows(ledger: Ledger) -> None:
    """An operator may define a budget for one tenant of a budget with fields, and the code may declare the same
    later.
    """
    definition = budget("spend:acme", usd=7)
    assert await ledger.definitions.change(definition) == 1
    assert await ledger.definitions.change(definition) == 1
    await ledger.definitions.declare([definition])
    assert await ledger.definitions.all() == [(definition, 1)]


async def test_a_new_limit_holds_at_once_for_windows_under_way(ledger: Ledger) -> None:
    """Money that was granted today must be available today."""
    await ledger.definitions.declare([daily(10, over="fail")])
    await held(ledger, "a", 10)
    await ledger.definitions.change(daily(15, over="fail"))
    await held(ledger, "b", 5)
    assert (await account(ledger)).balance.limit_micros == micros(15)
    await agrees(ledger)


async def test_lowering_a_limit_below_what_is_used_denies_and_shows_it(ledger: Ledger) -> None:
    """Existing holds are kept; the amount above the new limit is overdraft, and the constraint must hold."""
    await ledger.definitions.declare([daily(10, over="fail")])
    await called(ledger, "a", 6, 6)
    await held(ledger, "b", 3, dispatch=True)
    await ledger.definitions.change(daily(4, over="fail"))
    assert await numbers(ledger) == (6, 3, 5)
    assert isinstance(await ledger.hold("c", usd(0.1), MINUTE_US), HoldDenied)
    assert isinstance(await ledger.hold("b", usd(3), MINUTE_US), HoldGranted)
    await ledger.settle("b", {})
    assert await numbers(ledger) == (9, 0, 5)
    await agrees(ledger)


async def test_windows_that_are_booked_ahead_take_the_new_limit(ledger: Ledger) -> None:
    """Otherwise tomorrow's window would use yesterday's limit."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 10)
    await booked(ledger, "b", 8)
    await ledger.definitions.change(daily(6))
    assert await numbers(ledger, place=1) == (0, 8, 2)
    assert isinstance(await ledger.hold("b", usd(8), MINUTE_US), HoldBooked)


async def test_windows_that_are_over_keep_the_limit_they_had(ledger: Ledger, clock: FakeClock) -> None:
    """Closed windows are history and must not change."""
    await ledger.definitions.declare([daily(10)])
    await called(ledger, "a", 8, 8)
    to_next_day(clock)
    await ledger.definitions.change(daily(5))
    past, *_ = await ledger.reads.balances(["spend"], since=0)
    assert past.balance.limit_micros == micros(10)


async def test_a_higher_limit_tells_its_thresholds_anew(ledger: Ledger) -> None:
    """80 percent of 20 is a new event after 80 percent of 10."""
    await ledger.definitions.declare([daily(10)])
    assert await called(ledger, "a", 9, 9) == (("spend", 50), ("spend", 80))
    await ledger.definitions.change(daily(20))
    assert await called(ledger, "b", 7, 7) == (("spend", 50), ("spend", 80))


async def test_a_definition_with_fields_changes_the_windows_of_all_its_values(ledger: Ledger) -> None:
    """The windows of a value with its own definition must not change."""
    await ledger.definitions.declare(
        [budget("spend:{tenant}", usd=1, every="day"), budget("spend:acme", usd=5, every="day")]
    )
    for tenant in ("acme", "other"):
        await ledger.hold(tenant, usd(1, Charge(f"spend:{tenant}", "spend:{tenant}")), MINUTE_US)
    await ledger.definitions.change(budget("spend:{tenant}", usd=3, every="day"))
    limits = {each.name: each.balance.limit_micros for each in await ledger.reads.balances()}
    assert limits == {"spend:acme": micros(5), "spend:other": micros(3)}


async def test_a_definition_for_one_value_takes_its_window_over(ledger: Ledger) -> None:
    """The tenant has spent something today before its own definition existed."""
    await ledger.definitions.declare([budget("spend:{tenant}", usd=1, every="day")])
    acme = Charge("spend:acme", "spend:{tenant}")
    await ledger.hold("a", usd(1, acme), MINUTE_US)
    await ledger.definitions.change(budget("spend:acme", usd=5, every="day"))
    assert isinstance(await ledger.hold("b", usd(4, acme), MINUTE_US), HoldGranted)
    assert await numbers(ledger, "spend:acme") == (0, 5, 0)


async def test_another_unit_under_the_same_name_is_refused(ledger: Ledger) -> None:
    """Dollars that were spent must not become tokens."""
    await ledger.definitions.declare([daily(10)])
    other = budget("spend", tokens=10, every="day")
    with pytest.raises(BadValue, match="usd"):
        await ledger.definitions.declare([other])
    with pytest.raises(BadValue, match="usd"):
        await ledger.definitions.change(other)
    assert await ledger.definitions.all() == [(daily(10), 1)]


async def test_windows_of_another_length_begin_anew(ledger: Ledger, clock: FakeClock) -> None:
    """Holds in the old windows stay there and can be settled."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 10, dispatch=True)
    await ledger.definitions.change(budget("spend", usd=10, every="month"))
    await held(ledger, "b", 10)
    await ledger.settle("a", {"usd": micros(4)})
    spent = {each.window.label: each.balance.spent_micros for each in await ledger.reads.balances()}
    assert spent == {"2025-06": 0, "2025-06-15": micros(4)}
    await agrees(ledger)


async def test_a_budget_is_forgotten_with_all_that_is_known_of_it(ledger: Ledger) -> None:
    """A budget must not be deleted while calls are under way that will be charged."""
    await ledger.definitions.declare([daily(10), budget("other", usd=10)])
    lines = (*usd(3), (Charge("other", "other"), micros(3)))
    await ledger.hold("a", lines, MINUTE_US, dispatch=True)
    with pytest.raises(BadValue, match="calls under way"):
        await ledger.definitions.forget("spend")
    await ledger.settle("a", {})
    assert await ledger.definitions.forget("spend") is True
    assert await ledger.definitions.forget("spend") is False
    assert await ledger.reads.journal("spend") == []
    assert [each.name for each in await ledger.reads.balances()] == ["other"]
    with pytest.raises(UnknownBudget):
        await ledger.hold("b", usd(1), MINUTE_US)
    await agrees(ledger)


PAUSED_DAILY = replace(daily(10), paused=True)


async def test_a_paused_budget_holds_nothing_until_it_is_resumed(ledger: Ledger, clock: FakeClock) -> None:
    """An operator must be able to stop spending immediately, and callers must learn when to retry."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 1)
    await ledger.definitions.change(PAUSED_DAILY)
    denied = HoldDenied("spend", clock.now_us() + PAUSED_US, PAUSED)
    assert await ledger.hold("b", usd(1), MINUTE_US) == denied
    assert await ledger.reads.wait_us([SPEND]) == PAUSED_US
    await ledger.definitions.change(daily(10))
    assert await ledger.reads.wait_us([SPEND]) == 0
    await held(ledger, "b", 1)
    await agrees(ledger)


async def test_what_was_held_before_a_pause_is_dispatched_and_settled(ledger: Ledger) -> None:
    """The call may have been sent. Its hold must be repeatable after a lost reply, and its cost must be booked."""
    await ledger.definitions.declare([daily(10)])
    first = await held(ledger, "a", 2, dispatch=True)
    await held(ledger, "b", 3)
    await ledger.definitions.change(PAUSED_DAILY)
    assert await held(ledger, "a", 2, dispatch=True) == first
    assert await ledger.dispatch("b")
    await ledger.settle("a", {"usd": micros(1)})
    assert await numbers(ledger) == (1, 3, 0)
    await agrees(ledger)


async def test_new_code_does_not_resume(ledger: Ledger) -> None:
    """A deployment does not know the reason for the pause."""
    await ledger.definitions.declare([daily(10)])
    await ledger.definitions.change(PAUSED_DAILY)
    await ledger.definitions.declare([daily(20)])
    assert await ledger.definitions.all() == [(replace(daily(20), paused=True), 3)]
    assert isinstance(await ledger.hold("a", usd(1), MINUTE_US), HoldDenied)
    assert await ledger.definitions.change(daily(20)) == 4


async def test_of_two_who_saw_the_same_version_one_is_refused(ledger: Ledger) -> None:
    """The second change would silently overwrite the first."""
    await ledger.definitions.declare([daily(10)])
    assert await ledger.definitions.change(daily(20), expected=1) == 2
    with pytest.raises(Stale, match="budget spend"):
        await ledger.definitions.change(daily(30), expected=1)
    assert await ledger.definitions.all() == [(daily(20), 2)]
    assert await ledger.definitions.change(daily(30), expected=2) == 3


async def test_who_wants_to_be_the_first_is_refused_if_he_is_not(ledger: Ledger) -> None:
    """A change that expects a deleted budget must not create it again."""
    assert await ledger.definitions.change(daily(10), expected=0) == 1
    with pytest.raises(Stale):
        await ledger.definitions.change(daily(20), expected=0)
    await ledger.definitions.forget("spend")
    with pytest.raises(Stale):
        await ledger.definitions.change(daily(20), expected=1)
    assert await ledger.definitions.all() == []
