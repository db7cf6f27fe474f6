"""Limits, budgets and tenants in virtual time: no provider is called too often, no budget is overspent."""

from collections import Counter
from contextlib import closing
from functools import cache

import pytest
from tests.simulation.campaign.metered_scenario import draw_offer, draw_terms, run_metered

from leaseway.domain.ids import SECOND_US
from leaseway.simulation.coverage import CATALOGUE, METERED
from leaseway.simulation.limit_oracles import IDLE_SECONDS, Meter
from leaseway.simulation.promises import new_jobs_database
from leaseway.simulation.swarm import draw
from leaseway.simulation.trace import Trace
from leaseway.simulation.world import SimulatedWorld
from leaseway.stores.sqlite.database import statements
from leaseway.testing.job_store_contract.fixtures import new_job
from leaseway.virtual_time.loop import run_now

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


@pytest.mark.parametrize("seed", [7_310_995, 7_311_537])
def test_time_is_not_skipped_while_a_worker_recovers(seed: int) -> None:
    """The simulation skips to the end of a window when no worker is active. A worker that is frozen, or that repeats a
    claim, is still active: it would lose leases and permits to the skip, and be blamed for it.
    """
    assert report_of(seed).violations == ()


@pytest.mark.slow
def test_a_slow_ledger_wastes_no_permits_of_two_limits() -> None:
    """Permits of two limits expired while the ledger placed a hold, and the next ones were far away, so jobs never
    ended. The hold comes first if the ledger is slow. With the sabotage `permit_wasted` this seed is violated."""
    assert report_of(9_504_840).violations == ()


@pytest.mark.parametrize(("wait_seconds", "is_skipped"), [(3, False), (100, True)])
def test_no_window_is_skipped_for_a_job_that_waits_for_a_limit(wait_seconds: int, is_skipped: bool) -> None:
    """The simulation skips a bounded number of windows. If it skipped an hour for jobs that wait seconds for a limit,
    none would be left for jobs that wait for their budget, and they would be reported as jobs that never end.
    """
    swarm = draw(1)
    with (
        new_jobs_database() as database,
        closing(SimulatedWorld(1, swarm, database, statements(), Trace(None))) as world,
    ):
        chance = world.streams.of("metered")
        meter = Meter(world, draw_terms(chance, draw_offer(chance), swarm))
        store = world.store(statements())
        world.loop.skip(IDLE_SECONDS)
        run_now(store.jobs.submit([new_job(1, run_at=world.now_us() + wait_seconds * SECOND_US)]))
        assert (meter.pass_time() > 0) is is_skipped


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
    """A failure that cannot be replayed cannot be debugged. And a skip to the next window that skips nothing counts
    towards the bound of skips: jobs that need many windows would be reported as jobs that never end.
    """
    trace: list[str] = []
    assert run_metered(8, write=trace.append) == report_of(8)
    skips = [line.split()[2] for line in trace if line.rstrip().endswith("s pass")]
    assert skips
    assert "0.000" not in skips
