"""No window ever exceeds the rate, whatever workers and stores do, and each safeguard is necessary for it."""

import pytest
from msgspec.structs import replace
from tests.limits.fleet import SOUND, Flaws, Fleet, one_for_one

from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.limit import Limit, LimitDefinition, RateWindow, Sizing, size_limit

LIVES = 1_000
SEARCH_MAX = 3_000
"""An ablation stops at the first exceeded window, which is found much earlier."""

TIGHT = Limit("tight", "8 per 20 s", burst=0.5, lease=5, delay=0).definition
"""Four at once, one every five seconds, and no slack: a single excess permit is detected."""
T_US = 5 * SECOND_US
DEFINITIONS = [
    TIGHT,
    Limit("single", "1 per 10 s").definition,
    Limit("whole", "5 per 10 s", burst=1.0, lease=2).definition,
    Limit("weights", "60 per 12 s", cost_max=7, lease=1).definition,
    Limit("several", "4/second", "30 per 10 s", "100/minute", burst=0.2, lease=0.5).definition,
    Limit("odd", "7 per 11 s", burst=0.4, lease=3, delay=0.000_3).definition,
    Limit("quick", "997/second", burst=0.1).definition,
]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)
def test_no_window_is_ever_too_full(definition: LimitDefinition) -> None:
    """The guarantee includes late requests, returns, crashes, lost state and clocks that are set back."""
    worst = max(Fleet(definition, seed).live() for seed in range(LIVES))
    assert worst <= 0


def test_the_search_fills_a_window() -> None:
    """The bound is reached, so the guarantee does not hold by mere distance."""
    assert max(Fleet(TIGHT, seed).live() for seed in range(LIVES)) == 0


def is_broken(flaws: Flaws) -> bool:
    return any(Fleet(TIGHT, seed, flaws).live() > 0 for seed in range(SEARCH_MAX))


def test_trusting_a_store_that_forgot_would_break_a_window() -> None:
    """A limiter that lost its state looks like a full bucket."""
    assert is_broken(Flaws(fenced=False))


def test_a_bucket_as_large_as_the_rate_would_break_a_window() -> None:
    """The usual bucket lets a whole window pass at once, and another one while it is refilled."""
    naive = Sizing((RateWindow(20 * SECOND_US, 8, 20 * SECOND_US * 1_000 // 8),), lease_us=5 * SECOND_US)
    assert is_broken(Flaws(sizing=naive))


def test_ignoring_the_lease_would_break_a_window() -> None:
    """Grant time is not arrival time: permits taken ahead arrive together with those of the next window."""
    hasty = size_limit(Limit("tight", "8 per 20 s", burst=0.5, lease=0, delay=0).definition)
    assert is_broken(Flaws(sizing=replace(hasty, lease_us=5 * SECOND_US)))


def hoard(flaws: Flaws) -> int:
    """Keep all permits for the length of a lease, use the refilled ones meanwhile, and return the rest; twice."""
    fleet = Fleet(TIGHT, 0, flaws)
    kept = []
    for _ in range(2):
        everything = fleet.leased(4)
        assert everything is not None
        fleet.real += T_US
        kept.append(fleet.leased(1))
        fleet.returned(everything)
    for lease in kept:
        if lease is not None:
            fleet.sent(lease, 1, fleet.real)
    for _ in range(4):
        fleet.take_and_send()
        fleet.real += T_US
    return fleet.excess()


def test_returning_one_for_one_would_break_a_window() -> None:
    """While the permits were away, a full bucket would not have refilled, but this one did."""
    assert hoard(SOUND) <= 0
    assert hoard(Flaws(returned=one_for_one)) > 0


def rush(flaws: Flaws) -> int:
    """Two workers take all they can at every moment, for two windows."""
    fleet = Fleet(Limit("rush", "40 per 20 s", burst=0.25, delay=0).definition, 0, flaws)
    for _ in range(400):
        fleet.take_and_send(worker=0)
        fleet.take_and_send(worker=1)
        fleet.real += SECOND_US // 10
    return fleet.excess()


def test_the_clocks_of_workers_would_break_a_window() -> None:
    """With two clocks three seconds apart, the worker that is ahead sees permits that do not exist yet."""
    assert rush(SOUND) <= 0
    assert rush(Flaws(skew_us=3 * SECOND_US)) > 0
