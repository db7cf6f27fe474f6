"""Learnt estimates: what calls really used decides what the next ones reserve, and never more than the maximum."""

from random import Random

import pytest
from tests.limits.sliding_log import Arrival, excess

from leaseway import BadValue, Limit
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import Acquisition, CallHolder, Granted, end_calls, refresh, take
from leaseway.domain.limits.learnt_use import (
    CALLS_MAX,
    CALLS_MIN,
    KEYS_MAX,
    SCALE,
    LearntEstimate,
    LearntUse,
    UseHistory,
)
from leaseway.domain.limits.level import NEW
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, size_limit

CALL = PermitRequest("tpm:acme", "tpm:{tenant}", 4_000)


def learnt(uses: list[int], stated: PermitRequest = CALL) -> LearntUse:
    learnt = LearntUse()
    for used in uses:
        learnt.note("ask", stated, used)
    return learnt


def test_until_enough_calls_are_known_the_maximum_is_reserved() -> None:
    """Three small calls say nothing about the fourth, and an estimate that is too low becomes debt."""
    assert learnt([10] * (CALLS_MIN - 1)).estimate("ask", CALL) == 4_000
    assert learnt([10] * CALLS_MIN).estimate("ask", CALL) == 10


def test_one_call_in_twenty_uses_more() -> None:
    """The mean would be exceeded by half of the calls, and the highest use would be that of one odd call."""
    assert learnt([400] * 95 + [3_000] * 5).estimate("ask", CALL) == 400
    assert learnt([400] * 94 + [3_000] * 6).estimate("ask", CALL) == 3_000


@pytest.mark.parametrize("used", [0, 1, 4_000, 4_001, 1_000_000])
def test_it_is_never_above_the_maximum_and_never_nothing(used: int) -> None:
    """More than the maximum would be refused by the limit; nothing would let any number of calls leave at once."""
    assert 1 <= learnt([used] * CALLS_MAX).estimate("ask", CALL) <= CALL.cost
    assert learnt([used] * CALLS_MAX).report(1)[0].share <= SCALE
    assert learnt([used] * CALLS_MAX).estimate("ask", PermitRequest("tpm:acme", "tpm:{tenant}", 1)) == 1


def test_only_the_latest_calls_count() -> None:
    """A new prompt or a new model uses more, and an old average would let too much leave for days."""
    assert learnt([100] * 1_000 + [2_000] * CALLS_MAX).estimate("ask", CALL) == 2_000
    assert learnt([2_000] * 1_000 + [100] * CALLS_MAX).estimate("ask", CALL) == 100
    moved = learnt([100] * 1_000 + [2_000] * (CALLS_MAX // 20 + 1))
    assert moved.estimate("ask", CALL) == 2_000, "one call in twenty already uses more"


def test_calls_with_other_maximums_share_what_is_learnt() -> None:
    """The maximum depends on the arguments, so nearly every call has another one."""
    history = LearntUse()
    for size in range(1, CALLS_MAX + 1):
        history.note("ask", PermitRequest("tpm", "tpm", size * 10), size * 3)
    assert history.estimate("ask", PermitRequest("tpm", "tpm", 1_000)) == 300


def test_kinds_and_limits_learn_apart() -> None:
    """A kind with small calls would make those of another one exceed the limit."""
    history = learnt([10] * CALLS_MAX)
    assert history.estimate("other", CALL) == 4_000
    assert history.estimate("ask", PermitRequest("out", "out", 4_000)) == 4_000
    assert history.estimate("ask", PermitRequest("tpm:duck", "tpm:{tenant}", 4_000)) < 4_000
    assert history.report(5) == (LearntEstimate("ask", "tpm:{tenant}", 25, CALLS_MAX),)


def test_the_memory_of_it_is_bounded() -> None:
    """Names of limits may come from arguments."""
    history = LearntUse()
    for number in range(KEYS_MAX + 50):
        history.note("ask", PermitRequest("tpm", f"tpm-{number}", 10), 5)
    assert len(history._histories) == KEYS_MAX
    assert len(history.report(100)) == 100


def test_the_percentile_is_that_of_a_sorted_list() -> None:
    """It is kept sorted step by step, and one wrong deletion would spoil it for good."""
    chance, history, all_ = Random("learnt"), UseHistory(), list[int]()
    for _ in range(1_000):
        all_.append(chance.randint(0, SCALE))
        history.add(all_[-1])
        latest = sorted(all_[-CALLS_MAX:])
        if len(latest) >= CALLS_MIN:
            assert history.share == latest[-(-len(latest) * 95 // 100) - 1]


def test_requests_have_nothing_to_learn() -> None:
    """A call is one request, and a weight of two that is learnt as one would exceed the limit."""
    with pytest.raises(BadValue, match="learn: what a call uses is known only in other units than requests"):
        Limit("rpm", "100/minute", cost_max=5).cost(2, learn=True)


# -- what it gains, and what it costs ---------------------------------------------------------------------------------


def used_share(definition: LimitDefinition, *, learns: bool, seed: int = 7) -> tuple[float, int, int]:
    """64 calls at once of 1 to 3 s, whose use is 30 % of the maximum on average, for three minutes: the share of the
    limit that was used after the first minute, and by how much the worst window exceeded the limit, by arrivals and by
    completions."""
    chance, sizing, history = Random(seed), size_limit(definition), LearntUse()
    stated, level, now = PermitRequest("tpm", "tpm", definition.cost_max), NEW, 0
    calls: list[tuple[int, PermitRequest, int]] = []
    arrived, completed = list[Arrival](), list[Arrival]()
    while now < 180 * SECOND_US:
        for call in sorted(each for each in calls if each[0] <= now):
            calls.remove(call)
            completed.append((now, call[2]))
            taking = Acquisition(call[1], sizing, refresh(level, sizing, now, -1))
            level = end_calls(taking, "one", 1, call[2], now)
            history.note("ask", stated, call[2])
        while len(calls) < 64:
            ask = PermitRequest("tpm", "tpm", history.estimate("ask", stated) if learns else stated.cost)
            caller = CallHolder("one", 60 * SECOND_US, -1)
            verdict, (level,) = take([Acquisition(ask, sizing, level)], now, -1, caller=caller)
            if not isinstance(verdict, Granted):
                break
            used = min(int(chance.gammavariate(4, stated.cost * 0.3 / 4)), stated.cost)
            arrived.append((now, used))
            calls.append((now + chance.randint(1, 3) * SECOND_US, ask, used))
        now += SECOND_US // 4
    steady = sum(used for at, used in completed if at > 60 * SECOND_US) / 2
    return (
        steady / definition.rates[0].count,
        excess(arrived, definition.rates),
        excess(completed, definition.rates),
    )


def test_a_limit_is_used_better_and_no_window_exceeds_it() -> None:
    """What 64 calls in flight reserve at most is an eighth of this limit, and most of it is never used."""
    definition = Limit("tpm", "2M/minute", unit="tokens", cost_max=4_000, start="full").definition
    stated, learnt_ = used_share(definition, learns=False), used_share(definition, learns=True)
    assert max(*stated[1:], *learnt_[1:]) <= 0
    assert learnt_[0] > stated[0] + 0.03
