"""The end of holds: settled, captured or void, each once, and actual costs are always booked."""

import asyncio
from itertools import chain

import pytest

from leaseway.domain.budgets.balances import Evidence
from leaseway.domain.budgets.budget import Charge, HoldDenied
from leaseway.domain.errors import BadValue
from leaseway.ports.ledger import Expired, Ledger
from leaseway.testing.clock import FakeClock
from leaseway.testing.ledger_contract.fixtures import (
    MINUTE_US,
    SPEND,
    agrees,
    booked,
    budget,
    called,
    daily,
    held,
    micros,
    next_day,
    numbers,
    usd,
)


async def test_a_call_that_nobody_settles_is_charged(ledger: Ledger, clock: FakeClock) -> None:
    """Its worker may have crashed after sending the request: a refund would spend the money twice."""
    await ledger.definitions.declare([daily(10, over="fail")])
    await held(ledger, "a", 6, dispatch=True)
    clock.advance(60)
    assert await ledger.expire(10) == Expired(captured=1, crossed=(("spend", 50),))
    assert await numbers(ledger) == (6, 0, 0)
    assert isinstance(await ledger.hold("b", usd(5), MINUTE_US), HoldDenied)
    await agrees(ledger)


async def test_a_hold_that_was_never_dispatched_is_freed(ledger: Ledger, clock: FakeClock) -> None:
    """No caller can use the hold any more, so its money is free."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 6)
    clock.advance(59.999999)
    assert await ledger.expire(10) == Expired()
    clock.advance(0.000001)
    assert await ledger.expire(10) == Expired(voided=1)
    assert await numbers(ledger) == (0, 0, 0)
    assert await ledger.dispatch("a") is False
    await agrees(ledger)


async def test_expiring_takes_no_more_than_it_is_told_and_the_oldest_first(ledger: Ledger, clock: FakeClock) -> None:
    """A sweep must be bounded, however many holds have expired."""
    await ledger.definitions.declare([daily(10)])
    for each in range(5):
        await held(ledger, f"call-{each}", 1, dispatch=True)
        clock.advance(1)
    clock.advance(60)
    assert (await ledger.expire(0)).count == 0
    assert (await ledger.expire(2)).count == 2
    assert [each.hold for each in await ledger.reads.journal("spend", 2)] == ["call-1", "call-0"]
    assert await numbers(ledger) == (2, 3, 0)
    assert (await ledger.expire(10)).count == 3
    assert (await ledger.expire(10)).count == 0
    await agrees(ledger)


async def test_a_late_settlement_corrects_what_was_captured(ledger: Ledger, clock: FakeClock) -> None:
    """The worker was slow, not dead, and its actual cost is better than the assumed one."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 6, dispatch=True)
    clock.advance(60)
    await ledger.expire(10)
    await ledger.settle("a", {"usd": micros(2)})
    assert await numbers(ledger) == (2, 0, 0)
    await ledger.settle("a", {"usd": micros(2)})
    assert await numbers(ledger) == (2, 0, 0)
    await agrees(ledger)


# -- corrections by operators ---------------------------------------------------------------------------------------


async def captured(ledger: Ledger, clock: FakeClock, id_: str, amount: float) -> None:
    await held(ledger, id_, amount, dispatch=True)
    clock.advance(60)
    await ledger.expire(10)


async def test_the_providers_evidence_corrects_a_captured_amount_once(ledger: Ledger, clock: FakeClock) -> None:
    """Killed workers leave captured amounts behind: without a correction, a part of the budget is lost for its window.
    The journal must say who corrected what."""
    await ledger.definitions.declare([daily(10)])
    await captured(ledger, clock, "a", 6)
    evidence = Evidence("alice", "invoice 7")
    answer = await ledger.correct("a", {"usd": micros(2)}, evidence)
    (each,) = answer
    assert (each.name, each.unit, each.before_micros, each.after_micros) == ("spend", "usd", micros(6), micros(2))
    assert await numbers(ledger) == (2, 0, 0)
    assert await ledger.correct("a", {"usd": micros(2)}, evidence) == answer, "a lost reply is repeated"
    (entry, *_) = await ledger.reads.journal("spend")
    assert (entry.kind, entry.hold, entry.by, entry.reason) == ("correct", "a", "alice", "invoice 7")
    assert (entry.from_micros, entry.spent_micros, entry.at) == (micros(6), micros(-4), clock.now_us())
    with pytest.raises(BadValue, match="was settled by alice before; a hold is corrected once"):
        await ledger.correct("a", {"usd": micros(1)}, evidence)
    await ledger.settle("a", {"usd": micros(1)})
    assert await numbers(ledger) == (2, 0, 0), "neither an operator nor a late worker corrects it a second time"
    await agrees(ledger)


async def test_many_corrections_of_one_hold_book_once(ledger: Ledger, clock: FakeClock) -> None:
    """Two operators may work on the same list."""
    await ledger.definitions.declare([daily(10)])
    await captured(ledger, clock, "a", 6)
    answers = await asyncio.gather(
        *(ledger.correct("a", {"usd": micros(each)}, Evidence(f"op-{each}")) for each in range(5)),
        return_exceptions=True,
    )
    (right,) = [each for each in answers if not isinstance(each, BaseException)]
    assert await numbers(ledger) == (right[0].after_micros / micros(1), 0, 0)
    await agrees(ledger)


async def test_a_correction_can_show_that_a_call_cost_more(ledger: Ledger, clock: FakeClock) -> None:
    """The money is spent, as with a settlement."""
    await ledger.definitions.declare([daily(10)])
    await captured(ledger, clock, "a", 6)
    await ledger.correct("a", {"spend": micros(11)}, Evidence("alice"))
    assert await numbers(ledger) == (11, 0, 1)
    await agrees(ledger)


async def test_a_hold_past_its_deadline_is_corrected_though_no_worker_has_expired_it(
    ledger: Ledger, clock: FakeClock
) -> None:
    """Workers expire holds. If all of them are gone, an operator must not have to start one first."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 6, dispatch=True)
    clock.advance(60)
    await ledger.correct("a", {"usd": 0}, Evidence("alice"))
    assert await numbers(ledger) == (0, 0, 0)
    kinds = [entry.kind for entry in await ledger.reads.journal("spend")]
    assert kinds == ["correct", "capture", "hold"]
    await agrees(ledger)


async def test_only_a_captured_amount_is_corrected(ledger: Ledger) -> None:
    """What a call has reported itself is a fact, an open call may still report, and a void hold charged nothing."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "held", 1)
    await held(ledger, "open", 1, dispatch=True)
    await called(ledger, "settled", 1, 1)
    await held(ledger, "void", 1)
    await ledger.void("void")
    before = await numbers(ledger)
    for id_, why in (
        ("held", "is not dispatched"),
        ("open", "its call may be under way"),
        ("settled", "was settled by its call"),
        ("void", "nothing was charged"),
        ("unknown", "there is no hold"),
    ):
        with pytest.raises(BadValue, match=why):
            await ledger.correct(id_, {"usd": 0}, Evidence("alice"))
    assert await numbers(ledger) == before
    await agrees(ledger)


@pytest.mark.parametrize(
    ("actuals", "evidence", "field"),
    [
        ({"usd": -1}, Evidence("alice"), "usd"),
        ({"eur": 1}, Evidence("alice"), "eur"),
        ({}, Evidence("alice"), "amounts"),
        ({"usd": 1}, Evidence(""), "by"),
        ({"usd": 1}, Evidence("alice", "x" * 501), "reason"),
        ({"usd": 1}, Evidence("alice", "a\x1b[2Jb"), "reason"),
    ],
)
async def test_senseless_corrections_are_refused(
    ledger: Ledger, clock: FakeClock, actuals: dict[str, int], evidence: Evidence, field: str
) -> None:
    """A balance below zero, or a correction without an author, would make the journal worthless."""
    await ledger.definitions.declare([daily(10)])
    await captured(ledger, clock, "a", 6)
    with pytest.raises(BadValue, match=field):
        await ledger.correct("a", actuals, evidence)
    assert await numbers(ledger) == (6, 0, 0)


async def test_holds_whose_cost_is_not_known_are_listed(ledger: Ledger, clock: FakeClock) -> None:
    """An operator must find what to compare with the provider's invoice."""
    await ledger.definitions.declare([daily(10), budget("other", usd=10)])
    await captured(ledger, clock, "a", 2)
    await called(ledger, "b", 1, 1)
    await ledger.hold("c", (*usd(3), (Charge("other", "other"), micros(1))), MINUTE_US, owner="7", dispatch=True)
    await held(ledger, "d", 1, ttl_us=2 * MINUTE_US)
    found = await ledger.reads.holds("spend")
    assert [(each.id, each.state) for each in found] == [("d", "held"), ("c", "dispatched"), ("a", "captured")]
    assert [(line.name, line.amount_micros) for line in found[1].lines] == [("spend", micros(3)), ("other", micros(1))]
    assert (found[1].owner, found[1].deadline) == ("7", clock.now_us() + MINUTE_US)
    assert found[2].lines[0].actual_micros == micros(2)
    assert await ledger.reads.holds("spend", 1) == found[:1]
    assert await ledger.reads.holds("other") == found[1:2]
    await ledger.correct("a", {"usd": 0}, Evidence("alice"))
    assert [each.id for each in await ledger.reads.holds("spend")] == ["d", "c"]


async def test_settling_frees_what_was_not_spent(ledger: Ledger) -> None:
    """A hold is the maximum cost of a call; most calls cost less."""
    await ledger.definitions.declare([daily(10, over="fail")])
    await called(ledger, "a", 9, 2)
    await held(ledger, "b", 8)
    assert await numbers(ledger) == (2, 8, 0)


async def test_settling_twice_charges_once(ledger: Ledger) -> None:
    """A lost reply is repeated, and the first settlement must stay."""
    await ledger.definitions.declare([daily(10)])
    await called(ledger, "a", 6, 5)
    assert await ledger.settle("a", {"usd": micros(5)}) == ()
    await ledger.settle("a", {"usd": micros(1)})
    assert await numbers(ledger) == (5, 0, 0)
    await agrees(ledger)


async def test_many_settlements_of_one_call_charge_once(ledger: Ledger) -> None:
    """The same for concurrent settlements, several times, because the first round still opens connections."""
    await ledger.definitions.declare([daily(10), budget("other", usd=10)])
    lines = (*usd(1), (Charge("other", "other"), micros(1)))
    for id_ in "abcde":
        await ledger.hold(id_, lines, MINUTE_US, dispatch=True)
    for id_ in "abcde":
        await asyncio.gather(*(ledger.settle(id_, {"usd": micros(0.5)}) for _ in range(10)))
    assert await numbers(ledger) == await numbers(ledger, "other") == (2.5, 0, 0)
    await agrees(ledger)


async def test_a_late_settlement_does_not_free_the_hold_of_another_call(ledger: Ledger) -> None:
    """A worker that gave up before its hold was answered settles it later with no cost. By then the next delivery of
    the job may have placed a hold under the same id and made its call."""
    await ledger.definitions.declare([daily(10)])
    await ledger.hold("a", usd(6), MINUTE_US, owner="2", dispatch=True)
    assert await ledger.settle("a", {"usd": 0}, owner="1") == ()
    assert await numbers(ledger) == (0, 6, 0)
    await ledger.settle("a", {"usd": micros(2)}, owner="2")
    assert await numbers(ledger) == (2, 0, 0)
    await agrees(ledger)


async def test_a_cost_above_what_was_held_is_booked(ledger: Ledger) -> None:
    """The money is spent. It must show as overdraft, and no further hold may be granted."""
    await ledger.definitions.declare([daily(10, over="fail")])
    await held(ledger, "b", 3)
    await called(ledger, "a", 7, 9)
    assert await numbers(ledger) == (9, 3, 2)
    assert isinstance(await ledger.hold("c", usd(0.5), MINUTE_US), HoldDenied)
    await ledger.void("b")
    assert await numbers(ledger) == (9, 0, 0)
    await held(ledger, "c", 1)
    await agrees(ledger)


async def test_what_was_spent_under_a_void_hold_is_booked_too(ledger: Ledger, clock: FakeClock) -> None:
    """A caller called although the hold was void or never dispatched: the cost is still a fact."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 6)
    clock.advance(60)
    await ledger.expire(10)
    await ledger.settle("a", {"usd": micros(2)})
    assert await numbers(ledger) == (2, 0, 0)
    await agrees(ledger)


async def test_what_is_not_named_costs_what_was_held(ledger: Ledger) -> None:
    """A call that reports its tokens but no dollars has cost the dollars that were held."""
    await ledger.definitions.declare([daily(10), budget("tokens", tokens=1000)])
    tokens = Charge("tokens", "tokens")
    await ledger.hold("a", ((SPEND, micros(3)), (tokens, micros(500))), MINUTE_US, dispatch=True)
    await ledger.settle("a", {"tokens": micros(77)})
    assert await numbers(ledger) == (3, 0, 0)
    assert await numbers(ledger, "tokens") == (77, 0, 0)


async def test_all_budgets_of_a_unit_are_settled_alike_unless_one_is_named(ledger: Ledger) -> None:
    """The dollars of a call count for its tenant and for its provider."""
    await ledger.definitions.declare([daily(10), budget("tenant", usd=10)])
    lines = ((SPEND, micros(3)), (Charge("tenant", "tenant"), micros(3)))
    for id_, actuals in (("a", {"usd": micros(2)}), ("b", {"usd": micros(2), "tenant": micros(1)})):
        await ledger.hold(id_, lines, MINUTE_US, dispatch=True)
        await ledger.settle(id_, actuals)
    assert await numbers(ledger) == (4, 0, 0)
    assert await numbers(ledger, "tenant") == (3, 0, 0)


@pytest.mark.parametrize("actuals", [{"eur": 1}, {"usd": -1}, {"usd": 10**17}, {"other": 1}])
async def test_a_settlement_in_another_unit_is_refused(ledger: Ledger, actuals: dict[str, int]) -> None:
    """Euros booked as zero would be spending that no budget sees."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 3, dispatch=True)
    with pytest.raises(BadValue):
        await ledger.settle("a", actuals)
    assert await numbers(ledger) == (0, 3, 0)


async def test_an_unknown_hold_cannot_be_settled(ledger: Ledger) -> None:
    """The budget of the cost is unknown, and ignoring it would hide the cost."""
    with pytest.raises(BadValue, match="there is no hold"):
        await ledger.settle("a", {"usd": 1})
    assert await ledger.void("a") is False


async def test_a_dispatched_hold_is_not_void(ledger: Ledger) -> None:
    """Its call may have been made."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 3, dispatch=True)
    assert await ledger.void("a") is False
    assert await numbers(ledger) == (0, 3, 0)
    await ledger.settle("a", {})
    assert await ledger.void("a") is False
    assert await numbers(ledger) == (3, 0, 0)


async def test_voiding_twice_frees_once(ledger: Ledger) -> None:
    """Both calls must return the same result."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 3)
    await held(ledger, "b", 3)
    assert [await ledger.void("a"), await ledger.void("a")] == [True, True]
    assert await numbers(ledger) == (0, 3, 0)
    await agrees(ledger)


async def test_a_call_of_yesterday_is_booked_on_yesterday(ledger: Ledger, clock: FakeClock) -> None:
    """Held before midnight and settled after it: today's window must not change."""
    await ledger.definitions.declare([daily(10)])
    clock.set_us(next_day(clock) - 1)
    await held(ledger, "a", 8, dispatch=True)
    clock.advance(10)
    await ledger.settle("a", {"usd": micros(6)})
    past, today = await ledger.reads.balances(["spend"], since=0)
    assert (past.balance.spent_micros, past.balance.held_micros) == (micros(6), 0)
    assert today.balance.spent_micros == 0
    await agrees(ledger)


async def test_a_booked_hold_can_be_given_up(ledger: Ledger) -> None:
    """The job was cancelled while it waited."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 10)
    await booked(ledger, "b", 8)
    assert await ledger.void("b") is True
    assert await numbers(ledger, place=1) == (0, 0, 0)
    await agrees(ledger)


async def test_each_threshold_is_told_once(ledger: Ledger) -> None:
    """Only the call that crosses a threshold may report it, because an alert with every call would be ignored."""
    await ledger.definitions.declare([daily(10)])
    told = [await called(ledger, f"call-{each}", 1, 1) for each in range(10)]
    assert list(chain.from_iterable(told)) == [("spend", 50), ("spend", 80), ("spend", 100)]
    assert [told[4], told[7], told[9]] == [(("spend", 50),), (("spend", 80),), (("spend", 100),)]


async def test_one_call_may_cross_several_thresholds(ledger: Ledger) -> None:
    """This includes a settlement that corrects an earlier cost."""
    await ledger.definitions.declare([daily(10)])
    assert await called(ledger, "a", 9, 9) == (("spend", 50), ("spend", 80))
    assert [entry.crossed for entry in await ledger.reads.journal("spend")] == [80, 0]


async def test_thresholds_are_told_once_by_many_at_once(ledger: Ledger) -> None:
    """Ten processes that settle at the same moment must cause one alert, not ten."""
    await ledger.definitions.declare([daily(10)])
    for each in range(10):
        await held(ledger, f"call-{each}", 1, dispatch=True)
    told = await asyncio.gather(*(ledger.settle(f"call-{each}", {}) for each in range(10)))
    assert sorted(chain.from_iterable(told)) == [("spend", 50), ("spend", 80), ("spend", 100)]
