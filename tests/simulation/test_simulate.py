"""Users' own jobs in virtual time, under the same faults."""

import asyncio
from collections import Counter

import pytest

from leaseway import App, Context, State, UsageError
from leaseway.simulation import Simulated, simulate

PAGES = 6


class Ledger:
    """An outside system that refuses requests with an old fence, as the documentation advises."""

    def __init__(self) -> None:
        self.fence: dict[str, int] = {}
        self.pages: dict[str, list[int]] = {}

    def write(self, job: str, fence: int, page: int) -> None:
        if fence >= self.fence.get(job, 0):
            self.fence[job] = fence
            self.pages.setdefault(job, []).append(page)


def imported(seed: int, *, faults: bool = True) -> tuple[Simulated, Ledger]:
    app, ledger = App("memory://"), Ledger()

    @app.job(attempts=20)
    async def fetch(ctx: Context) -> int:
        for page in range(ctx.cursor or 0, PAGES):
            await asyncio.sleep(0.5)
            ledger.write(ctx.id, ctx.fence, page)
            await ctx.checkpoint(page + 1)
        return PAGES

    return simulate(app, [fetch.bind() for _ in range(5)], seed=seed, faults=faults), ledger


@pytest.mark.parametrize("seed", range(5))
def test_jobs_of_an_app_end_in_spite_of_all_faults(seed: int) -> None:
    """This is what users run the simulation for."""
    simulated, ledger = imported(seed)
    assert simulated.report.violations == ()
    assert Counter(job.state for job in simulated.jobs) == {State.DONE: 5}
    for pages in ledger.pages.values():
        assert set(pages) == set(range(PAGES))


def test_without_faults_every_page_is_fetched_once() -> None:
    """The simulation itself must not repeat work."""
    simulated, ledger = imported(1, faults=False)
    assert simulated.report.is_ok
    assert sorted(ledger.pages.values()) == [list(range(PAGES))] * 5
    assert {job.attempts for job in simulated.jobs} == {1}


def test_the_same_seed_gives_the_same_history() -> None:
    """A user who finds a bug must be able to replay it."""
    assert imported(3)[0] == imported(3)[0]


def test_a_plain_function_is_refused() -> None:
    """Threads have no virtual time, so the result would be random."""
    app = App("memory://")

    @app.job
    def plain() -> None: ...

    with pytest.raises(UsageError, match="plain: is a plain function"):
        simulate(app, [plain.bind()])
