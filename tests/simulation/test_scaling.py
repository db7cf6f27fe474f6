"""Simulated worlds in which an autoscaler starts and drains the workers, on old numbers, and crashes in between."""

from collections import Counter

import pytest
from tests.simulation.campaign.scaled_scenario import run_scaled

from leaseway.simulation.coverage import SCALED

BATCH = 10
SEEDS = 60


def check_worlds(seeds: range) -> None:
    """Replay a failure with `./dev simulate --scenario scaled --seed N`."""
    reports = [run_scaled(seed) for seed in seeds]
    assert [f"seed {report.seed}: {wrong}" for report in reports for wrong in report.violations] == []
    reached = Counter[str]()
    for report in reports:
        reached.update(report.reached)
    assert min(reached[what] for what in SCALED) >= len(seeds), f"too little happened: {reached}"


def test_scaling_breaks_no_promise() -> None:
    """Every action of an autoscaler is a start or a drain, so a late, wrong or forgotten one must be harmless."""
    check_worlds(range(BATCH))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(BATCH, SEEDS, BATCH))
def test_scaling_breaks_no_promise_in_more_worlds(first: int) -> None:
    """Rare combinations of faults need many worlds."""
    check_worlds(range(first, first + BATCH))
