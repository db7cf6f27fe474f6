"""Limits, budgets and tenants in virtual time: no provider is called too often, no budget is overspent."""

from collections import Counter
from functools import cache

import pytest
from tests.simulation.campaign.metered_scenario import run_metered

from leaseway.simulation.coverage import CATALOGUE, METERED

BATCH = 10
SEEDS = 20
SEEDS_TO_REACH_ALL = 150

report_of = cache(run_metered)


def broken_promises(seeds: range) -> list[str]:
    reports = [report_of(seed) for seed in seeds]
    return [f"seed {report.seed}: {wrong}" for report in reports for wrong in report.violations]


def test_the_first_metered_worlds_keep_every_promise() -> None:
    """Part of ./dev check. Replay a failure with `./dev simulate --scenario metered --seed N`."""
    assert broken_promises(range(BATCH)) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(BATCH, SEEDS, BATCH))
def test_every_promise_is_kept_under_limits_and_budgets(first: int) -> None:
    """Replay a failure with `./dev simulate --scenario metered --seed N`."""
    assert broken_promises(range(first, first + BATCH)) == []


@pytest.mark.slow
def test_every_refusal_and_every_late_word_is_reached() -> None:
    """A limit that was never used up was not tested."""
    reached: Counter[str] = Counter()
    for seed in range(SEEDS_TO_REACH_ALL):
        reached.update(report_of(seed).reached.keys())
        if all(reached[what] for what in METERED):
            return
    pytest.fail(f"in {SEEDS_TO_REACH_ALL} seeds never: {[what for what in METERED if not reached[what]]}")


def test_nothing_is_noted_that_no_catalogue_knows() -> None:
    """A misspelt name would be a check that is never evaluated."""
    reached = {what for seed in range(5) for what in report_of(seed).reached}
    assert reached <= {*CATALOGUE, *METERED}


def test_the_same_seed_tells_the_same_metered_story() -> None:
    """A failure that cannot be replayed cannot be debugged."""
    assert run_metered(3) == report_of(3)
