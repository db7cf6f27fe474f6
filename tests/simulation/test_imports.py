"""Whole imports in virtual time: the provider's own table is the oracle, under faults of workers, sink and source."""

from collections import Counter
from functools import cache

import pytest
from tests.simulation.campaign.imports_scenario import run_imports

from leaseway.simulation.coverage import CATALOGUE, IMPORTS

BATCH = 20
SEEDS = 40
SEEDS_TO_REACH_ALL = 100

report_of = cache(run_imports)


def broken_promises(seeds: range) -> list[str]:
    reports = [report_of(seed) for seed in seeds]
    return [f"seed {report.seed}: {wrong}" for report in reports for wrong in report.violations]


def test_the_first_imports_keep_every_promise() -> None:
    """Part of ./dev check. Replay a failure with `./dev simulate --scenario imports --seed N`."""
    assert broken_promises(range(BATCH)) == []


@pytest.mark.parametrize(
    ("seed", "found"),
    [
        (7_310_030, "a resumed run revived a job whose successor held the shard"),
        (7_310_281, "the job that confirms deletes was retried with a key that was refused"),
    ],
)
def test_found_seeds_stay_clean(seed: int, found: str) -> None:
    """Each seed is one of a campaign that broke a promise once."""
    assert report_of(seed).violations == (), found


@pytest.mark.slow
@pytest.mark.parametrize("first", range(BATCH, SEEDS, BATCH))
def test_every_row_comes_once_and_none_is_missing(first: int) -> None:
    """Replay a failure with `./dev simulate --scenario imports --seed N`."""
    assert broken_promises(range(first, first + BATCH)) == []


@pytest.mark.slow
def test_every_trap_and_every_guard_is_reached() -> None:
    """A guard that never triggered was not tested."""
    reached: Counter[str] = Counter()
    for seed in range(SEEDS_TO_REACH_ALL):
        reached.update(report_of(seed).reached.keys())
        if all(reached[what] for what in IMPORTS):
            return
    pytest.fail(f"in {SEEDS_TO_REACH_ALL} seeds never: {[what for what in IMPORTS if not reached[what]]}")


def test_nothing_is_noted_that_no_catalogue_knows() -> None:
    """A misspelt name would be a check that is never evaluated."""
    reached = {what for seed in range(BATCH) for what in report_of(seed).reached}
    assert reached <= {*CATALOGUE, *IMPORTS}


def test_the_same_seed_tells_the_same_import() -> None:
    """A failure that cannot be replayed cannot be debugged."""
    assert [run_imports(seed) for seed in (2, 5)] == [report_of(seed) for seed in (2, 5)]


@pytest.mark.parametrize("seed", [1, 2, 6])
def test_without_faults_nobody_loses_a_shard(seed: int) -> None:
    """Otherwise the faults would excuse defects that exist without them."""
    report = run_imports(seed, faults=False)
    assert report.violations == ()
    assert not set(report.reached) & {"a lease expired and was taken back", "a page of a fenced worker was refused"}
