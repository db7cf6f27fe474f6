"""Tokens: no window exceeds the limit, whenever the provider counts a call, and each safeguard is necessary for it."""

import pytest
from tests.limits.metered_fleet import MeteredFlaws, MeteredFleet, forget_excess, refund_at_grant

from leaseway.domain.limits.limit import Limit, LimitDefinition

LIVES = 60
SEARCH_MAX = 3_000
DEFINITIONS = [
    Limit("tpm", "100 per 10 s", unit="tokens", cost_max=40).definition,
    Limit("tpm", "7 per 3 s", "30 per 20 s", unit="tokens").definition,
    Limit("tpm", "1000/minute", unit="tokens", cost_max=300).definition,
]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda each: str(each.rates[0]))
def test_no_window_has_more_than_the_limit_by_arrival_or_by_completion(definition: LimitDefinition) -> None:
    """Providers count at different moments of a call and do not say when."""
    worst = [MeteredFleet(definition, seed).live() for seed in range(LIVES)]
    assert max(arrived for arrived, _ in worst) <= 0
    assert max(completed for _, completed in worst) <= 0
    assert max(max(each) for each in worst) == 0, "no history came near the limit, so nothing was tested"


def test_what_goes_beyond_an_estimate_is_debt() -> None:
    """An estimate that is not a cap is wrong sometimes. The excess is bounded by what was in flight at one moment, and
    the next callers wait for it."""
    fleets = [MeteredFleet(DEFINITIONS[0], seed, overrun=2.0) for seed in range(LIVES)]
    worst = [(max(fleet.live()), fleet.excess_in_flight + fleet.excess_of_dead) for fleet in fleets]
    assert all(exceeded <= bound for exceeded, bound in worst)
    assert any(exceeded > 0 for exceeded, _ in worst)


@pytest.mark.parametrize(
    ("flaws", "overrun"),
    [
        (MeteredFlaws(ended=refund_at_grant), 1.0),
        (MeteredFlaws(is_charged=False), 1.0),
        (MeteredFlaws(is_fenced=False), 1.0),
        (MeteredFlaws(ended=forget_excess), 2.0),
    ],
    ids=["counted from the start", "a crash is not charged", "lost state is trusted", "no debt"],
)
def test_without_a_safeguard_a_window_exceeds_the_limit(flaws: MeteredFlaws, overrun: float) -> None:
    """A safeguard whose removal is not noticed may be missing already."""
    for seed in range(SEARCH_MAX):
        fleet = MeteredFleet(DEFINITIONS[0], seed, flaws, overrun)
        if max(fleet.live()) > fleet.excess_in_flight:
            return
    raise AssertionError("the limit held without the safeguard")
