"""The arithmetic of buckets for any numbers: sizes hold, refusals name the right time, and returns give nothing
away.
"""

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.limits.sliding_log import excess

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits import buckets
from leaseway.domain.limits.buckets import IDLE_US, Acquisition, Granted, Never, Notice, Wait, permits_left, take
from leaseway.domain.limits.level import NEW, Level
from leaseway.domain.limits.limit import (
    Limit,
    LimitDefinition,
    PermitRequest,
    Rate,
    check_limit,
    permit_lease_us,
    size_limit,
    wire_delay_us,
)
from leaseway.domain.limits.throttling import apply_notice

NOW = 1_750_000_000 * SECOND_US
SINCE = NOW - 90 * 86_400 * SECOND_US
MINUTE_US = 60 * SECOND_US
QUICK = settings(max_examples=150, deadline=None, derandomize=True)


@st.composite
def definitions(draw: st.DrawFn) -> LimitDefinition:
    count = draw(st.integers(1, 40) | st.integers(1, 100_000))
    definition = LimitDefinition(
        name="maps",
        rates=(Rate(draw(st.integers(1_000, 100 * SECOND_US)), count),),
        burst_share=draw(st.sampled_from([0, 0.05, 0.3, 1])),
        cost_max=draw(st.integers(1, min(count, 5))),
        lease_us=draw(st.none() | st.integers(0, 3 * SECOND_US)),
        delay_us=draw(st.none() | st.integers(0, SECOND_US)),
    )
    try:
        size_limit(check_limit(definition))
    except BadValue:
        assume(False)
    return definition


def taking(definition: LimitDefinition, cost: int = 1, level: Level = NEW) -> Acquisition:
    return Acquisition(PermitRequest("maps", "maps", cost), size_limit(definition), level)


def left(taking: Acquisition, level: Level, now: Instant) -> int:
    (window,) = taking.sizing.windows
    return permits_left(window, buckets.refresh(level, taking.sizing, now, SINCE).buckets[window.window_us], now)


@QUICK
@given(definition=definitions())
def test_a_bucket_is_sized_so_that_its_window_holds(definition: LimitDefinition) -> None:
    """The whole guarantee rests on this inequality, checked in exact numbers."""
    (rate,), (window,) = definition.rates, size_limit(definition).windows
    span_us = rate.window_us + permit_lease_us(definition) + wire_delay_us(definition, rate)
    assert window.burst + Fraction(span_us * 1_000, window.permit_ns) <= rate.count + 1
    assert definition.cost_max <= window.burst <= rate.count


@QUICK
@given(definition=definitions(), data=st.data())
def test_the_greedy_never_exceed_the_rate(definition: LimitDefinition, data: st.DataObject) -> None:
    """A client that takes all it can at any instants must stay below the rate, including rounding."""
    (window,) = size_limit(definition).windows
    cost = data.draw(st.integers(1, definition.cost_max))
    steps_us = st.sampled_from([0, 1, window.permit_ns // 1_000, window.permit_ns // 700, window.window_us // 3])
    level, now, arrivals = NEW, NOW, []
    for step_us in data.draw(st.lists(steps_us, min_size=5, max_size=40)):
        now += step_us
        verdict, (level,) = take([taking(definition, cost, level)], now, SINCE, 1, 1_000_000)
        if isinstance(verdict, Granted):
            arrivals.append((now, verdict.count * cost))
    assert excess(arrivals, definition.rates) <= 0


@pytest.mark.parametrize("limit", [Limit("one", "1/minute"), Limit("all", "7/minute", burst=1), Limit("s", "1/second")])
def test_the_smallest_limits_make_progress_and_hold(limit: Limit) -> None:
    """With one permit per window or a burst of all, a plain formula leaves no rate at all or twice the limit."""
    level, now, arrivals = NEW, NOW, []
    (rate,) = limit.definition.rates
    while now < NOW + 10 * rate.window_us:
        verdict, (level,) = take([taking(limit.definition, 1, level)], now, SINCE, 1, 100)
        if isinstance(verdict, Granted):
            arrivals.append((now, verdict.count))
        now += rate.window_us // 100
    assert excess(arrivals, limit.definition.rates) == 0
    assert sum(weight for _, weight in arrivals) >= 8


@QUICK
@given(count=st.integers(1, 1_000_000))
def test_safety_costs_little(count: int) -> None:
    """At least 92 percent of a limit per minute must be usable, including burst, lease and delay; less if a burst of
    two is a large part of the limit.
    """
    (window,) = size_limit(Limit("maps", f"{count}/minute").definition).windows
    least = Fraction(87, 100) if 10 <= count < 18 else Fraction(92, 100)
    assert Fraction(MINUTE_US * 1_000, window.permit_ns) / count >= least


@QUICK
@given(definition=definitions(), data=st.data())
def test_a_refusal_is_honest(definition: LimitDefinition, data: st.DataObject) -> None:
    """At the named instant, the first refused caller must be served, and not earlier."""
    cost = data.draw(st.integers(1, definition.cost_max))
    most_at_once = buckets.units_at_once(taking(definition, cost))
    least = data.draw(st.integers(1, most_at_once))
    _, (level,) = take([taking(definition, cost)], NOW, SINCE, 1, 1_000_000)
    wait, (level,) = take([taking(definition, cost, level)], NOW, SINCE, least, least)
    if isinstance(
        wait, Wait
    ):  # a burst that is not a multiple of the cost leaves a remainder, but never enough for all
        early, _ = take([taking(definition, cost, level)], NOW + wait.wait_us - 1, SINCE, least, least)
        late, _ = take([taking(definition, cost, level)], NOW + wait.wait_us, SINCE, least, least)
        assert isinstance(early, Wait)
        assert isinstance(late, Granted)


@QUICK
@given(definition=definitions(), cost=st.integers(1, 200_000), least=st.integers(1, 200_000))
def test_never_is_said_exactly_if_it_is_true(definition: LimitDefinition, cost: int, least: int) -> None:
    """More than the burst must never pass; exactly the burst must pass in the end."""
    (window,) = size_limit(definition).windows
    verdict, levels = take([taking(definition, cost)], NOW, SINCE, least, least)
    assert isinstance(verdict, Never) == (cost * least > window.burst)
    assert isinstance(verdict, Never) or verdict == replace(verdict, count=least)
    if isinstance(verdict, Never):
        assert levels == [NEW]


@QUICK
@given(definition=definitions(), data=st.data())
def test_a_return_is_never_worth_more_than_never_having_taken(definition: LimitDefinition, data: st.DataObject) -> None:
    """The core of the proof: at no later instant may there be more permits than if they had stayed in the bucket."""
    (window,) = size_limit(definition).windows
    token_us = window.permit_ns // 1_000 + 1
    used = data.draw(st.integers(0, window.burst - 1))
    unused = data.draw(st.integers(1, window.burst - used))
    spans_us = st.integers(0, 3 * token_us)
    _, (without,) = take([taking(definition)], NOW, SINCE, 1, used) if used else (None, [NEW])
    verdict, (level,) = take([taking(definition, 1, without)], NOW, SINCE, unused, unused)
    assume(isinstance(verdict, Granted))  # each of two takes is rounded up, so the last permit may be a moment away
    assert isinstance(verdict, Granted)
    now = NOW + data.draw(spans_us)
    # Other callers take one meanwhile if they can: in both cases or in neither.
    one, (perhaps,) = take([taking(definition, 1, level)], now, SINCE)
    if isinstance(one, Granted):
        level = perhaps
        _, (without,) = take([taking(definition, 1, without)], now, SINCE)
    now += data.draw(spans_us)
    level = buckets.credit_unused(taking(definition, 1, level), now, verdict, unused)
    for later_us in (0, token_us, window.burst * token_us):
        assert left(taking(definition), level, now + later_us) <= left(taking(definition), without, now + later_us)


@QUICK
@given(definition=definitions(), other=definitions(), used=st.integers(0, 100_000), percent=st.integers(5, 100))
def test_a_change_of_pace_keeps_used_tokens_used(
    definition: LimitDefinition, other: LimitDefinition, used: int, percent: int
) -> None:
    """After slowing, recovery or redefinition, sent requests must still count. Rounding may cost a permit but never add
    one.
    """
    other = replace(other, rates=(replace(other.rates[0], window_us=definition.rates[0].window_us),))
    try:
        (window,) = size_limit(check_limit(other)).windows
    except BadValue:
        assume(False)
    (old,) = size_limit(definition).windows
    used = min(used, old.burst)
    _, (level,) = take([taking(definition)], NOW, SINCE, 1, used) if used else (None, [NEW])
    level = replace(level, percent=percent, slowed_at=NOW)
    now_left = left(taking(other), level, NOW)
    assert max(window.burst - used, 0) - 2 <= now_left <= max(window.burst - used, 0)


@QUICK
@given(definition=definitions(), retry_after_us=st.integers(0, MINUTE_US), used=st.integers(0, 3))
def test_it_reopens_with_one_token_at_most(definition: LimitDefinition, retry_after_us: int, used: int) -> None:
    """This must hold however full the bucket was."""
    _, (level,) = take([taking(definition)], NOW, SINCE, 1, used) if used else (None, [NEW])
    notice = Notice("maps", "maps", 0, throttled=True, retry_after_us=retry_after_us)
    level = apply_notice(taking(definition, 1, level), notice, NOW, SINCE)
    assert left(taking(definition), level, NOW + retry_after_us) <= 1
    assert level.percent == 70


def test_a_bucket_faster_than_the_clock_holds_no_more_than_its_burst() -> None:
    """Instants are whole microseconds, so faster permits would be counted several at a time."""
    limit = Limit("maps", "900m/second", burst=0).definition
    verdict, _ = take([taking(limit)], NOW, SINCE, 1, 1_000)
    assert isinstance(verdict, Granted)
    assert verdict.count == 1


def test_slower_and_slower_but_never_still() -> None:
    """Each refusal must count once, however often and by how many workers it is reported."""
    limit, level = Limit("maps", "100/minute").definition, NEW
    seen = []
    for generation in (0, 0, 0, 1, 0, 1, 2, 9):
        notice = Notice("maps", "maps", generation, throttled=True, retry_after_us=0)
        level = apply_notice(taking(limit, 1, level), notice, NOW, SINCE)
        seen.append(level.percent)
    assert seen == [70, 70, 70, 49, 49, 49, 34, 34]


@QUICK
@given(definition=definitions(), steps_us=st.lists(st.integers(0, SECOND_US), min_size=1, max_size=8))
def test_what_may_be_forgotten_is_not_missed(definition: LimitDefinition, steps_us: list[int]) -> None:
    """After that, a deleted level must give the same results as one that was kept."""
    _, (level,) = take([taking(definition)], NOW, SINCE, 1, 3)
    _, (level,) = take([taking(definition, 1, level)], NOW, SINCE, 1, 1)
    idle_at = buckets.idle_at(level, size_limit(definition))
    assert idle_at is not None
    assert idle_at >= NOW + IDLE_US
    now, forgotten = idle_at, NEW
    for step_us in steps_us:
        now += step_us
        first, (level,) = take([taking(definition, 1, level)], now, SINCE, 1, 2)
        second, (forgotten,) = take([taking(definition, 1, forgotten)], now, SINCE, 1, 2)
        assert first == second


@pytest.mark.parametrize(
    "changes", [{"percent": 95}, {"generation": 1}, {"buckets": {}}], ids=["slowed", "refused once", "another window"]
)
def test_what_must_be_remembered_is_never_idle(changes: dict[str, object]) -> None:
    """Otherwise a deleted level would be faster, slowed twice, or full."""
    limit = Limit("maps", "100/minute").definition
    _, (level,) = take([taking(limit)], NOW, SINCE)
    assert buckets.idle_at(level, size_limit(limit)) is not None
    assert buckets.idle_at(replace(level, **changes), size_limit(limit)) is None


def test_what_is_written_under_another_fence_is_not_trusted() -> None:
    """A full bucket from before the restart must count as empty; the provider's refusal must still apply."""
    limit = Limit("maps", "100/minute").definition
    notice = Notice("maps", "maps", 0, throttled=True, retry_after_us=MINUTE_US)
    level = apply_notice(taking(limit), notice, NOW, SINCE)
    level = buckets.renew_calls(taking(limit), level, "one", 1, NOW + MINUTE_US)
    (window,) = size_limit(limit).windows
    after = buckets.refresh(level, size_limit(limit), NOW + 1, NOW)
    assert permits_left(window, after.buckets[MINUTE_US], NOW + 1) == 0
    assert (after.in_flight, after.blocked_until, after.percent, after.generation) == ({}, NOW + MINUTE_US, 70, 1)


def test_after_a_fence_nobody_sits_down_at_once() -> None:
    """Earlier calls are still in flight, and their workers report them within the grace period."""
    phone = Acquisition(PermitRequest("phone", "phone"), size_limit(Limit("phone", concurrency=2).definition), NEW)
    caller = buckets.CallHolder("one", SECOND_US, NOW + 10 * SECOND_US)
    verdict, _ = take([phone], NOW, NOW, caller=caller)
    assert isinstance(verdict, Wait)
    assert verdict.wait_us == 10 * SECOND_US
    verdict, _ = take([phone], NOW + 10 * SECOND_US, NOW, caller=caller)
    assert isinstance(verdict, Granted)


@pytest.mark.parametrize(("rate", "percent"), [("3000/minute", 92.7), ("100/minute", 93.7), ("10/minute", 87.8)])
def test_the_shares_that_the_documents_name_are_those_that_are_granted(rate: str, percent: float) -> None:
    """docs/concepts/limits.md states the usable share of a limit; without this test it could become wrong unnoticed."""
    definition = Limit("maps", rate).definition
    (window,) = size_limit(definition).windows
    assert round(100 * window.window_us * 1_000 / window.permit_ns / definition.rates[0].count, 1) == percent


@pytest.mark.parametrize(("rate", "seconds"), [("100/minute", 0.6), ("2000/day", 45), ("1/day", 86_402)])
def test_the_first_token_of_a_new_limiter_comes_when_the_documents_say(rate: str, seconds: float) -> None:
    """docs/concepts/limits.md states the first wait; a user who expects a shorter one takes a new limit for broken."""
    (window,) = size_limit(Limit("maps", rate).definition).windows
    assert round(window.permit_ns / 1e9, 1 if seconds < 1 else None) == seconds
