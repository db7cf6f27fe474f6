"""How long a test of a user takes in virtual time: a limit and a budget per day, a retry and a checkpoint."""

import time
from collections.abc import Callable, Sequence

from benchmarks.harness import BELOW, Figure, Measured, Target, median, say, spread
from benchmarks.results import versions
from leaseway import App, Backoff, Budget, Context, Limit
from leaseway.testing import virtual_time

REPEATS = 20
PAGES = 4

app = App("memory://")


@app.job(
    limits=[Limit("maps", "5/day")],
    budget=Budget("spend", usd=0.015, every="day"),
    cost_usd=0.005,
    attempts=3,
    backoff=Backoff(first_seconds=3_600),
)
async def fetch(ctx: Context) -> int:
    for page in range(ctx.cursor or 0, PAGES):
        async with ctx.call() as call:
            call.settle(usd=0.004)
        await ctx.checkpoint(page + 1)
        if ctx.attempt == 1 and page == 1:
            raise ConnectionError("the provider is down")
    return PAGES


def measure_milliseconds() -> float:
    """What one test function takes."""
    began = time.perf_counter()
    with virtual_time(app) as clock:
        job = fetch.submit_sync()
        clock.run_until_empty()
        record = clock.run(app.find(job))
        assert record is not None
        assert (record.state, record.attempts) == ("done", 2)
        assert clock.elapsed.total_seconds() > 12 * 3_600
    return (time.perf_counter() - began) * 1_000


def unit_test(quick: bool, repeats: int | None) -> list[Figure]:
    first, *others = [measure_milliseconds() for _ in range(3 if quick else repeats or REPEATS)]
    note = f"4 calls, a failed attempt and a retry within days of virtual time; the first in a process {first:.0f} ms"
    return [
        Figure("a unit test in virtual time", median(others), "ms", Target(BELOW, 100), f"{note}; {spread(others)}")
    ]


CASES: dict[str, Callable[[bool, int | None], list[Figure]]] = {"unit_test": unit_test}


def run(names: Sequence[str], quick: bool, repeats: int | None) -> Measured:
    figures: list[Figure] = []
    for name in names:
        say(name)
        figures += CASES[name](quick, repeats)
    return Measured(figures, versions("msgspec"))
