"""Holds: never more than the window has, all or nothing, and the same result when repeated."""

import asyncio
from collections import Counter

import pytest

from leaseway.domain.budgets.budget import IMPOSSIBLE, Charge, HoldBooked, HoldDenied, HoldGranted, HoldUsed
from leaseway.domain.errors import BadValue, UnknownBudget
from leaseway.ports.ledger import HoldRequest, Ledger, Posted, SettleHoldRequest
from leaseway.testing.clock import FakeClock
from leaseway.testing.ledger_contract.fixtures import (
    MINUTE_US,
    SPEND,
    agrees,
    booked,
    budget,
    daily,
    held,
    kind_of,
    micros,
    next_day,
    numbers,
    to_next_day,
    usd,
)

TOKENS = Charge("tokens", "tokens")


async def test_a_hold_beyond_the_limit_is_denied_and_changes_nothing(ledger: Ledger, clock: FakeClock) -> None:
    """A budget must never be exceeded by a single cent."""
    await ledger.definitions.declare([daily(10, over="fail")])
    await held(ledger, "a", 7)
    answer = await ledger.hold("b", usd(3.000001), MINUTE_US)
    assert isinstance(answer, HoldDenied)
    assert (answer.budget, answer.until) == ("spend", next_day(clock))
    assert await numbers(ledger) == (0, 7, 0)
    await held(ledger, "c", 3)
    assert await numbers(ledger) == (0, 10, 0)
    await agrees(ledger)


async def test_many_at_once_hold_no_more_than_there_is(ledger: Ledger) -> None:
    """Checking first and writing later would let two calls pass where one fits."""
    await ledger.definitions.declare([daily(10, over="fail")])
    answers = await asyncio.gather(*(ledger.hold(f"call-{each}", usd(0.7), MINUTE_US) for each in range(40)))
    assert Counter(map(kind_of, answers)) == {"HoldGranted": 14, "HoldDenied": 26}
    assert await numbers(ledger) == (0, 9.8, 0)
    await agrees(ledger)


async def test_what_could_never_fit_is_called_impossible(ledger: Ledger) -> None:
    """Waiting would never end, and booking it ahead would block every later window."""
    await ledger.definitions.declare([daily(10)])
    answer = await ledger.hold("a", usd(10.5), MINUTE_US)
    assert answer == HoldDenied("spend", None, IMPOSSIBLE)
    await held(ledger, "b", 10)


async def test_a_total_budget_denies_without_a_date(ledger: Ledger) -> None:
    """There is no next window to wait for."""
    await ledger.definitions.declare([budget("spend", usd=10)])
    await held(ledger, "a", 10)
    answer = await ledger.hold("b", usd(1), MINUTE_US)
    assert isinstance(answer, HoldDenied)
    assert answer.until is None


async def test_a_permitted_overdraft_is_used_and_shown(ledger: Ledger) -> None:
    """The overdraft must not exceed the permitted amount by a single micro-unit."""
    await ledger.definitions.declare([daily(10, overdraft=2, over="fail")])
    await held(ledger, "a", 9)
    await held(ledger, "b", 3)
    assert await numbers(ledger) == (0, 12, 2)
    assert isinstance(await ledger.hold("c", usd(0.000001), MINUTE_US), HoldDenied)
    await agrees(ledger)


async def test_a_repeated_hold_is_held_once(ledger: Ledger) -> None:
    """A lost reply is repeated, perhaps after the budget has filled up."""
    await ledger.definitions.declare([daily(10, over="fail")])
    first = await held(ledger, "a", 6)
    await held(ledger, "b", 4)
    assert await ledger.hold("a", usd(6), MINUTE_US) == first
    assert await numbers(ledger) == (0, 10, 0)
    await agrees(ledger)


async def test_a_repeated_dispatching_hold_may_call(ledger: Ledger, clock: FakeClock) -> None:
    """The caller whose reply was lost has not called yet and may do so until its deadline."""
    await ledger.definitions.declare([daily()])
    first = await ledger.hold("a", usd(6), MINUTE_US, owner="1", dispatch=True)
    clock.advance(30)
    assert await ledger.hold("a", usd(6), MINUTE_US, owner="1", dispatch=True) == first
    clock.advance(30)
    assert await ledger.hold("a", usd(6), MINUTE_US, owner="1", dispatch=True) == HoldUsed()


async def test_an_id_under_which_another_dispatched_is_used(ledger: Ledger) -> None:
    """Two deliveries of one attempt must not make two calls with the money of one."""
    await ledger.definitions.declare([daily()])
    await ledger.hold("a", usd(6), MINUTE_US, owner="1", dispatch=True)
    assert await ledger.hold("a", usd(6), MINUTE_US, owner="2", dispatch=True) == HoldUsed()
    await ledger.settle("a", {})
    assert await ledger.hold("a", usd(6), MINUTE_US, owner="1", dispatch=True) == HoldUsed()
    assert await numbers(ledger) == (6, 0, 0)


async def test_what_is_only_held_may_be_taken_over(ledger: Ledger) -> None:
    """A job that waited for its window comes back with another lease and the same id."""
    await ledger.definitions.declare([daily()])
    await ledger.hold("a", usd(6), MINUTE_US, owner="1")
    assert isinstance(await ledger.hold("a", usd(6), MINUTE_US, owner="2", dispatch=True), HoldGranted)
    assert await ledger.hold("a", usd(6), MINUTE_US, owner="1", dispatch=True) == HoldUsed()
    assert await numbers(ledger) == (0, 6, 0)


async def test_a_hold_for_another_cost_is_made_anew(ledger: Ledger) -> None:
    """A job that waits for its window may come back with newer code and a higher cost. The call must not be made under
    the smaller hold."""
    await ledger.definitions.declare([daily(10, over="fail")])
    await held(ledger, "a", 1)
    assert isinstance(await ledger.hold("a", usd(11), MINUTE_US), HoldDenied)
    assert await numbers(ledger) == (0, 0, 0)
    await held(ledger, "a", 1)
    await held(ledger, "a", 4, dispatch=True)
    assert await numbers(ledger) == (0, 4, 0)
    await agrees(ledger)


async def test_several_budgets_are_held_together_or_not_at_all(ledger: Ledger) -> None:
    """A hold on some of the budgets would be money that is neither used nor freed."""
    await ledger.definitions.declare([daily(10, over="fail"), budget("calls", requests=2, every="day", over="fail")])
    lines = (*usd(1), (Charge("calls", "calls"), micros(1)))
    assert [kind_of(await ledger.hold(id_, lines, MINUTE_US)) for id_ in "abc"] == [
        "HoldGranted",
        "HoldGranted",
        "HoldDenied",
    ]
    assert await numbers(ledger) == (0, 2, 0)
    assert await numbers(ledger, "calls") == (0, 2, 0)
    await agrees(ledger)


async def test_opposite_orders_of_lines_do_not_block_each_other(ledger: Ledger) -> None:
    """Two callers that lock the same two budgets in opposite orders would deadlock."""
    await ledger.definitions.declare([budget("one", usd=1000), budget("two", usd=1000)])
    one, two = (Charge("one", "one"), micros(1)), (Charge("two", "two"), micros(1))
    answers = await asyncio.gather(
        *(ledger.hold(f"call-{each}", (one, two) if each % 2 else (two, one), MINUTE_US) for each in range(40))
    )
    assert Counter(map(kind_of, answers)) == {"HoldGranted": 40}
    assert await numbers(ledger, "one") == await numbers(ledger, "two") == (0, 40, 0)


async def test_the_definition_of_a_full_name_wins(ledger: Ledger) -> None:
    """One tenant may have a larger budget than the others."""
    await ledger.definitions.declare([budget("spend:{tenant}", usd=1), budget("spend:acme", usd=5)])
    for tenant, amount in (("acme", 5), ("other", 1)):
        charge = Charge(f"spend:{tenant}", "spend:{tenant}")
        assert isinstance(await ledger.hold(f"{tenant}-1", usd(amount, charge), MINUTE_US), HoldGranted)
        assert isinstance(await ledger.hold(f"{tenant}-2", usd(0.1, charge), MINUTE_US), HoldDenied)


async def test_each_value_of_a_field_has_its_own_window(ledger: Ledger) -> None:
    """One tenant must not spend the budget of another."""
    await ledger.definitions.declare([budget("spend:{tenant}", usd=1, every="day")])
    for tenant in ("a", "b"):
        charge = Charge(f"spend:{tenant}", "spend:{tenant}")
        assert isinstance(await ledger.hold(tenant, usd(1, charge), MINUTE_US), HoldGranted)
    assert [each.name for each in await ledger.reads.balances()] == ["spend:a", "spend:b"]


async def test_an_unknown_budget_is_named(ledger: Ledger) -> None:
    """A misspelled name must not mean that nothing is limited."""
    await ledger.definitions.declare([daily()])
    with pytest.raises(UnknownBudget, match="spent"):
        await ledger.hold("a", ((SPEND, 1), (Charge("spent", "spent"), 1)), MINUTE_US)
    assert await numbers(ledger) == (0, 0, 0)


@pytest.mark.parametrize(
    ("lines", "ttl_us"),
    [((), 1), (((SPEND, 1), (SPEND, 1)), 1), (((SPEND, -1),), 1), (((SPEND, 10**17),), 1), (((SPEND, 1),), 0)],
    ids=["no lines", "one budget twice", "a negative amount", "too much", "no time"],
)
async def test_senseless_holds_are_refused(ledger: Ledger, lines: tuple[tuple[Charge, int], ...], ttl_us: int) -> None:
    """A negative amount would increase the budget."""
    await ledger.definitions.declare([daily()])
    with pytest.raises(BadValue):
        await ledger.hold("a", lines, ttl_us)


async def test_a_new_window_begins_empty_at_its_instant(ledger: Ledger, clock: FakeClock) -> None:
    """Nothing is reset: a new window starts at an exact microsecond."""
    await ledger.definitions.declare([daily(10, over="fail")])
    clock.set_us(next_day(clock) - 1)
    await held(ledger, "a", 10)
    assert isinstance(await ledger.hold("b", usd(10), MINUTE_US), HoldDenied)
    clock.advance_us(1)
    await held(ledger, "b", 10)
    assert await numbers(ledger) == (0, 10, 0)


async def test_what_was_held_for_yesterday_is_not_dispatched_today(ledger: Ledger, clock: FakeClock) -> None:
    """Today's call is paid from today's window, so the hold must be made again there."""
    await ledger.definitions.declare([daily(10)])
    clock.set_us(next_day(clock) - 1)
    yesterday = await held(ledger, "a", 6)
    clock.advance_us(1)
    assert await ledger.dispatch("a") is False
    today = await held(ledger, "a", 6, dispatch=True)
    assert yesterday.windows[0].end == today.windows[0].start
    assert await numbers(ledger) == (0, 6, 0)
    (past, *_) = await ledger.reads.balances(since=0)
    assert past.balance.held_micros == 0
    await agrees(ledger)


async def test_a_hold_that_was_void_can_be_made_again(ledger: Ledger) -> None:
    """A released job starts again with the same id."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 6)
    assert await ledger.void("a") is True
    await held(ledger, "a", 4, dispatch=True)
    assert await numbers(ledger) == (0, 4, 0)
    await agrees(ledger)


async def test_a_hold_that_is_made_again_has_only_its_new_budgets(ledger: Ledger) -> None:
    """The code of a released job has changed and needs one budget less. Its old line must not hold money."""
    await ledger.definitions.declare([daily(10), budget("one", usd=10)])
    assert isinstance(await ledger.hold("a", (*usd(6), *usd(6, Charge("one", "one"))), MINUTE_US), HoldGranted)
    assert await ledger.void("a") is True
    await held(ledger, "a", 4, dispatch=True)
    assert await numbers(ledger, "one") == (0, 0, 0)
    await agrees(ledger)
    await ledger.settle("a", {"spend": micros(3)})
    assert await numbers(ledger) == (3, 0, 0)
    await agrees(ledger)


async def test_dispatch_is_a_fence(ledger: Ledger, clock: FakeClock) -> None:
    """A caller after the deadline must not call, because its money may be held by another call."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 1)
    await held(ledger, "b", 1)
    clock.advance(59.999999)
    assert await ledger.dispatch("a") is True
    assert await ledger.dispatch("a") is True
    clock.advance(0.000001)
    assert await ledger.dispatch("b") is False
    assert await ledger.dispatch("nobody") is False
    clock.advance(60)
    assert await ledger.dispatch("a") is False


async def test_nothing_is_dispatched_before_its_window_begins(ledger: Ledger, clock: FakeClock) -> None:
    """Tomorrow's money must not be spent today."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 10)
    assert isinstance(await ledger.hold("b", usd(5), MINUTE_US, dispatch=True), HoldBooked)
    assert await ledger.dispatch("b") is False
    to_next_day(clock)
    assert await ledger.dispatch("b") is True


async def test_reserved_holds_are_found_by_the_start_of_their_ids(ledger: Ledger, clock: FakeClock) -> None:
    """A job that comes back looks for what it has reserved. It must not find its calls, nor the holds of other jobs."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "job-1:1:1", 4, dispatch=True)
    await held(ledger, "job-1:1:2", 5, dispatch=True)
    await ledger.settle("job-1:1:2", {})
    await booked(ledger, "job-1:1:3", 2)
    await booked(ledger, "job-10:1:1", 3)
    await booked(ledger, "job-1:2:1", 2)
    assert await ledger.reads.reserved("job-1:") == ["job-1:1:3", "job-1:2:1"]
    assert await ledger.reads.reserved("job-2:") == []
    await ledger.void("job-1:2:1")
    to_next_day(clock)
    assert await ledger.reads.reserved("job-1:") == ["job-1:1:3"]
    assert isinstance(await ledger.hold("job-1:1:3", usd(2), MINUTE_US, owner="2", dispatch=True), HoldGranted)
    assert await ledger.reads.reserved("job-1:") == []


# -- several at once --------------------------------------------------------------------------------------------------


async def test_requests_that_travel_together_are_answered_each_for_itself(ledger: Ledger) -> None:
    """One transaction serves all calls of a worker. What a settlement frees can be held at once, and a hold that does
    not fit takes nothing from the others.
    """
    await ledger.definitions.declare([daily(10, over="fail")])
    first = await held(ledger, "first", 10, dispatch=True)
    asked = [HoldRequest(id_, usd(amount), MINUTE_US, "1", True) for id_, amount in (("a", 3), ("b", 6), ("c", 4))]
    posted = await ledger.post(asked, [SettleHoldRequest("first", {"usd": micros(1)})])
    assert posted.settlements == ((),)
    assert [None if each is None else kind_of(each) for each in posted.holds] in (
        ["HoldGranted", "HoldGranted", "HoldDenied"],
        ["HoldGranted", "HoldGranted", None],
    )
    assert posted.holds[0] == HoldGranted(first.windows, first.deadline)
    assert await numbers(ledger) == (1, 9, 0)
    entries = [(entry.hold, entry.kind) for entry in await ledger.reads.journal("spend")]
    assert entries == [("b", "hold"), ("a", "hold"), ("first", "settle"), ("first", "hold")]
    assert await ledger.dispatch("a") is True
    await agrees(ledger)


async def test_requests_that_travel_together_can_be_repeated(ledger: Ledger) -> None:
    """The reply of a whole batch may be lost. No call is held or charged twice."""
    await ledger.definitions.declare([daily(10, over="fail")])
    await held(ledger, "first", 2, dispatch=True)
    asked = [HoldRequest("a", usd(4), MINUTE_US, "1", True)]
    settled = [SettleHoldRequest("first", {"usd": micros(1)})]
    await ledger.post(asked, settled)
    again = await ledger.post(asked, settled)
    assert again.settlements == ((),)
    assert again.holds[0] is None or isinstance(again.holds[0], HoldGranted)
    assert isinstance(await ledger.hold("a", usd(4), MINUTE_US, owner="1", dispatch=True), HoldGranted)
    assert await ledger.hold("a", usd(4), MINUTE_US, owner="2", dispatch=True) == HoldUsed()
    assert await numbers(ledger) == (1, 4, 0)
    await agrees(ledger)


async def test_a_wrong_request_leaves_the_others_alone(ledger: Ledger) -> None:
    """The requests of one batch belong to different jobs, of different code."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "first", 2, dispatch=True)
    await held(ledger, "second", 1, dispatch=True)
    asked = [
        HoldRequest("a", usd(1, Charge("nothing", "nothing")), MINUTE_US),
        HoldRequest("b", (), MINUTE_US),
        HoldRequest("c", usd(2), MINUTE_US, "", True),
        HoldRequest("d", usd(2), 0),
    ]
    settled = [
        SettleHoldRequest("unknown", {}),
        SettleHoldRequest("first", {"eur": 1}),
        SettleHoldRequest("second", {"usd": micros(1)}),
        SettleHoldRequest("first", {"usd": -1}),
        SettleHoldRequest("first", {}, owner="another"),
    ]
    posted = await ledger.post(asked, settled)
    assert [each is not None for each in posted.holds] == [False, False, True, False]
    assert [each is not None for each in posted.settlements][:4] == [False, False, True, False]
    assert await numbers(ledger) == (1, 4, 0)
    await agrees(ledger)


async def test_each_settlement_of_a_batch_reports_what_it_crosses(ledger: Ledger) -> None:
    """An alarm names the job that crossed a threshold; it must neither be lost nor come twice."""
    await ledger.definitions.declare([daily(10, over="fail")])
    for number in range(4):
        await held(ledger, f"call-{number}", 2.5, dispatch=True)
    costs = {"call-0": 2.0, "call-1": 2.5, "call-2": 2.5, "call-3": 1.0}
    settled = [SettleHoldRequest(id_, {"usd": micros(cost)}) for id_, cost in costs.items()]
    posted = await ledger.post([], settled)
    assert posted.settlements == ((), (), (("spend", 50),), (("spend", 80),))
    crossed = [entry.crossed for entry in await ledger.reads.journal("spend") if entry.kind == "settle"]
    assert crossed == [80, 50, 0, 0]
    assert await ledger.post([], settled) == Posted((), ((), (), (), ()))
    assert await numbers(ledger) == (8, 0, 0)
    await agrees(ledger)


async def test_batches_from_many_sides_hold_no_more_than_there_is(ledger: Ledger) -> None:
    """Each process sends its own batches, and all of them change the same balance."""
    await ledger.definitions.declare([daily(10, over="fail"), budget("tokens", tokens=1_000, every="day")])
    await held(ledger, "first", 0)
    await ledger.hold("second", ((TOKENS, 0),), MINUTE_US)
    both = (*usd(0.5), (TOKENS, micros(1)))
    batches = [
        [
            HoldRequest(f"{batch}-{number}", both if number % 2 else both[::-1], MINUTE_US, "1", True)
            for number in range(6)
        ]
        for batch in range(8)
    ]
    posted = await asyncio.gather(*(ledger.post(batch, []) for batch in batches))
    granted = sum(isinstance(answer, HoldGranted) for each in posted for answer in each.holds)
    assert granted == 20
    assert await numbers(ledger) == (0, 10, 0)
    await agrees(ledger)
