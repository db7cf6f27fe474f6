"""Pauses and versions: what people say to each other through a ledger."""

import pytest
from msgspec.structs import replace

from leaseway.domain.budgets.budget import PAUSED, HoldDenied
from leaseway.domain.budgets.holds import PAUSED_US
from leaseway.domain.errors import Stale
from leaseway.ports.ledger import Ledger
from leaseway.testing.clock import FakeClock
from leaseway.testing.ledger_contract.actors import MINUTE_US, SPEND, agrees, daily, held, micros, numbers, usd

PAUSED_DAILY = replace(daily(10), paused=True)


async def test_a_paused_budget_holds_nothing_until_it_is_resumed(ledger: Ledger, clock: FakeClock) -> None:
    """Somebody stops the spending now, however much is left; and whoever asks is told when to ask again."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 1)
    await ledger.definitions.change(PAUSED_DAILY)
    denied = HoldDenied("spend", clock.now_us() + PAUSED_US, PAUSED)
    assert await ledger.hold("b", usd(1), MINUTE_US) == denied
    assert await ledger.wait_us([SPEND]) == PAUSED_US
    await ledger.definitions.change(daily(10))
    assert await ledger.wait_us([SPEND]) == 0
    await held(ledger, "b", 1)
    await agrees(ledger)


async def test_what_was_held_before_a_pause_is_dispatched_and_settled(ledger: Ledger) -> None:
    """The call may be on its way. Its hold is answered again if its reply was lost, and what it costs is booked."""
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
    """A deployment that happens to come along knows nothing of the reason for the pause."""
    await ledger.definitions.declare([daily(10)])
    await ledger.definitions.change(PAUSED_DAILY)
    await ledger.definitions.declare([daily(20)])
    assert await ledger.definitions.all() == [(replace(daily(20), paused=True), 3)]
    assert isinstance(await ledger.hold("a", usd(1), MINUTE_US), HoldDenied)
    assert await ledger.definitions.change(daily(20)) == 4


async def test_of_two_who_saw_the_same_version_one_is_refused(ledger: Ledger) -> None:
    """Each of them changes what he saw; the second would undo what the first has done, and not know it."""
    await ledger.definitions.declare([daily(10)])
    assert await ledger.definitions.change(daily(20), expected=1) == 2
    with pytest.raises(Stale, match="budget spend"):
        await ledger.definitions.change(daily(30), expected=1)
    assert await ledger.definitions.all() == [(daily(20), 2)]
    assert await ledger.definitions.change(daily(30), expected=2) == 3


async def test_who_wants_to_be_the_first_is_refused_if_he_is_not(ledger: Ledger) -> None:
    """And who expects a budget that was forgotten does not make it anew."""
    assert await ledger.definitions.change(daily(10), expected=0) == 1
    with pytest.raises(Stale):
        await ledger.definitions.change(daily(20), expected=0)
    await ledger.definitions.forget("spend")
    with pytest.raises(Stale):
        await ledger.definitions.change(daily(20), expected=1)
    assert await ledger.definitions.all() == []
