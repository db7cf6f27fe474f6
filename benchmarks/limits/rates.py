"""How many calls per second are permitted, when none is refused.

    python -m benchmarks.limits.rates WHO ADDRESS AT_ONCE SECONDS

One of several processes that run together. leaseway acquires three limits for each call, others have one; permits are
not acquired in advance, because the window is short.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.limits.fleet import worker_of
from benchmarks.limits.hammer import OURS
from benchmarks.limits.peers import PEERS, Try
from benchmarks.postgres.database import new_database
from benchmarks.processes import done, rate_of, ready, run_together
from leaseway.domain.limits.buckets import Granted
from leaseway.domain.limits.limit import Limit
from leaseway.telemetry.log import NoEvents
from leaseway.testing.valkey import valkey_server
from leaseway.wiring import build_environment
from leaseway.worker.environment import Environment

BARE = "leaseway, each by itself"
"""The port's verb for every call, as if each call had a worker of its own."""
COUNT, WINDOW_SECONDS = 5_000_000, 5
LIMITS = 3
VALKEY, POSTGRESQL, SQLITE = "Valkey", "PostgreSQL", "SQLite"


class Setup(NamedTuple):
    processes: int
    at_once: int

    def __str__(self) -> str:
        """Rounded for the table."""
        processes = "one process" if self.processes == 1 else f"{self.processes} processes"
        return processes if self.at_once == 1 else f"{processes}, {self.at_once} calls at once"


OUR_SETUPS = [Setup(1, 16), Setup(1, 64), Setup(2, 64)]
PEER_SETUPS = [Setup(1, 1), Setup(2, 1), Setup(4, 1)]
"""In processes: in threads they are slower, or refuse."""


class Best(NamedTuple):
    rate: float
    setup: Setup

    def __str__(self) -> str:
        return f"{self.rate:,.0f} per s in {self.setup}"


def best_rate(who: str, store: str, postgres_url: str, seconds: float, setups_max: int) -> Best:
    setups = (OUR_SETUPS if who in (OURS, BARE) else PEER_SETUPS)[-setups_max:]
    return max(Best(acquired(who, store, postgres_url, setup, seconds), setup) for setup in setups)


def acquired(who: str, store: str, postgres_url: str, setup: Setup, seconds: float) -> float:
    """On an empty store."""
    match store:
        case "Valkey":
            with valkey_server() as server:
                return rate_at(who, server.url, setup, seconds)
        case "PostgreSQL":
            with new_database(postgres_url) as url:
                return rate_at(who, url, setup, seconds)
        case _:
            with TemporaryDirectory(prefix="leaseway-benchmarks-") as folder:
                return rate_at(who, f"sqlite:///{Path(folder) / 'work.db'}", setup, seconds)


def rate_at(who: str, address: str, setup: Setup, seconds: float) -> float:
    command = [sys.executable, "-m", "benchmarks.limits.rates", who, address, str(setup.at_once), str(seconds)]
    found = run_together([command] * setup.processes)
    return rate_of(found, sum(figures["count"] for figures in found))


# -- in a process ---------------------------------------------------------------------------------------------------


async def by_leaseway(address: str, is_bare: bool, at_once: int, seconds: float) -> None:
    world = build_environment("memory://", address, NoEvents())
    may_leave = await opened(world, is_bare)
    await asyncio.to_thread(ready)
    began, count = time.monotonic_ns(), 0

    async def ask() -> None:
        nonlocal count
        while time.monotonic_ns() - began < seconds * 1e9:
            await may_leave()
            count += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(ask())
    done(count, began, time.monotonic_ns())
    await world.limiter.close()


async def opened(world: Environment, is_bare: bool) -> Callable[[], Awaitable[None]]:
    """How one call gets its permit."""
    limits = [Limit(f"limit-{number}", f"{COUNT} per {WINDOW_SECONDS} s") for number in range(LIMITS)]
    worker = worker_of(world, [limit.definition for limit in limits])
    limiter = await worker.tokens.opened()
    await worker.call_may_leave()  # a bucket starts empty

    async def take() -> None:
        assert isinstance(await limiter.acquire(worker.asks), Granted), "nothing should be refused here"

    return take if is_bare else worker.call_may_leave


def by_peer(may_send: Try, seconds: float) -> None:
    assert may_send()
    ready()
    began, count = time.monotonic_ns(), 0
    while time.monotonic_ns() - began < seconds * 1e9:
        assert may_send(), "nothing should be refused here"
        count += 1
    done(count, began, time.monotonic_ns())


if __name__ == "__main__":
    who, address, at_once, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    if who in (OURS, BARE):
        asyncio.run(by_leaseway(address, who == BARE, at_once, seconds))
    else:
        by_peer(PEERS[who].opened(address, COUNT, WINDOW_SECONDS), seconds)
