"""Money: a fleet that holds, calls and settles, whose workers are killed one after the other.

The true cost is in the provider's own file. The fleet is that of tests/budgets, where it has to pass, too.
"""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.budgets.spender import DEFINITIONS, LIMITS, opened
from tests.budgets.test_campaign import Fleet, fleet, truly_spent

from benchmarks.postgres.database import new_database
from leaseway.domain.budgets.budget import MICRO

SECONDS_MAX = 60.0
QUIET_ROUNDS = 4
VOIDING = "refunding"
"""The spender's name for it."""


class Spent(NamedTuple):
    share: float
    """Of the budget with the worst result."""
    kills: int
    calls: int


def spent(address: str, provider: Path, kills: int, *sabotage: str) -> Spent:
    asyncio.run(declare(address))
    with fleet(address, provider, *sabotage) as workers:
        done = kill_at_random(workers, provider, kills)
    return Spent(worst_share(provider), done, calls_in(provider))


async def declare(address: str) -> None:
    async with opened(address) as ledger:
        await ledger.definitions.declare(DEFINITIONS)


def kill_at_random(workers: Fleet, provider: Path, kills: int) -> int:
    """At least this many times, and until no worker finds money to spend, or too much was spent."""
    counts, deadline = [0], time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        workers.fill()
        workers.pause()
        workers.kill_one()
        counts.append(calls_in(provider))
        is_over = counts[-QUIET_ROUNDS:] == [counts[-1]] * QUIET_ROUNDS or worst_share(provider) > 1
        if len(counts) > kills and is_over:
            break
    return len(counts) - 1


def calls_in(provider: Path) -> int:
    return len(provider.read_text().splitlines())


def worst_share(provider: Path) -> float:
    return max((cost / (LIMITS[name] * MICRO) for name, cost in truly_spent(provider).items()), default=0.0)


def spent_in_sqlite(kills: int, *sabotage: str) -> Spent:
    with TemporaryDirectory(prefix="leaseway-benchmarks-") as folder:
        return spent(f"{folder}/work.db", Path(folder) / "provider", kills, *sabotage)


def spent_in_postgresql(kills: int, postgres_url: str) -> Spent:
    with TemporaryDirectory(prefix="leaseway-benchmarks-") as folder, new_database(postgres_url) as url:
        return spent(url, Path(folder) / "provider", kills)
