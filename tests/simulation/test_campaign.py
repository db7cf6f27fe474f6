"""Many simulated worlds: every promise holds in each of them, and every fault occurs in some. More: `./dev
simulate`.
"""

from collections import Counter
from functools import cache

import pytest
from tests.simulation.campaign.jobs_scenario import run_seed

from leaseway.simulation.coverage import CATALOGUE

BATCH = 25
SEEDS = 100
SEEDS_TO_REACH_ALL = 400

report_of = cache(run_seed)


def broken_promises(seeds: range) -> list[str]:
    reports = [report_of(seed) for seed in seeds]
    return [f"seed {report.seed}: {wrong}" for report in reports for wrong in report.violations]


def test_the_first_worlds_keep_every_promise() -> None:
    """Part of ./dev check. Replay a failure with `./dev simulate --seed N`."""
    assert broken_promises(range(BATCH)) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(BATCH, SEEDS, BATCH))
def test_every_promise_is_kept(first: int) -> None:
    """Replay a failure with `./dev simulate --seed N`."""
    assert broken_promises(range(first, first + BATCH)) == []


@pytest.mark.slow
def test_every_fault_and_every_answer_is_reached() -> None:
    """A situation that no seed reached was not tested."""
    reached: Counter[str] = Counter()
    for seed in range(SEEDS_TO_REACH_ALL):
        reached.update(report_of(seed).reached.keys())
        if all(reached[what] for what in CATALOGUE):
            return
    pytest.fail(f"in {SEEDS_TO_REACH_ALL} seeds never: {[what for what in CATALOGUE if not reached[what]]}")


def test_nothing_is_noted_that_the_catalogue_does_not_know() -> None:
    """A misspelt name would be a check that is never evaluated."""
    reached = {what for seed in range(10) for what in report_of(seed).reached}
    assert reached <= set(CATALOGUE)
