"""One worker of the campaign: it holds, dispatches, calls the provider and settles; slow, twice and late at random.

    python -m tests.budgets.spender ADDRESS PROVIDER SEED [refunding]

The provider is a file to which each call is appended in one write: its content was spent, even if the worker is killed.
With `refunding`, calls with unknown outcome are refunded, as most other systems do.
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from leaseway.domain.budgets.budget import MICRO, Budget, Charge, HoldDenied, HoldGranted, HoldUsed
from leaseway.domain.budgets.holds import void_hold
from leaseway.domain.errors import TransientError
from leaseway.ports.ledger import Ledger
from leaseway.stores.postgres.budgets import PostgresLedger
from leaseway.stores.sqlite import budgets as sqlite
from leaseway.stores.sqlite.budgets import SqliteLedger
from leaseway.stores.sqlite.store import SqliteStore

TTL_US = 150_000
LIMITS = {"provider": 40, "tenant:0": 10, "tenant:1": 15, "tenant:2": 20}
DEFINITIONS = [
    Budget("provider", usd=40, over="fail").definition,
    Budget("tenant:{tenant}", usd=10, over="fail").definition,
    Budget("tenant:1", usd=15, over="fail").definition,
    Budget("tenant:2", usd=20, over="fail").definition,
]


def now_us() -> int:
    return time.time_ns() // 1_000


@asynccontextmanager
async def opened(address: str) -> AsyncIterator[Ledger]:
    if address.startswith("postgresql:"):
        ledger = PostgresLedger(address)
        await ledger.open()
        yield ledger
        await ledger.close()
        return
    store = SqliteStore(address, now_us=now_us)
    await store.open()
    yield SqliteLedger(store.database)
    await store.close()


async def spend(ledger: Ledger, provider: int, id_: str, chance: random.Random) -> bool:
    """Make one call; false if the budget does not cover it."""
    amount = chance.randint(MICRO // 10, MICRO)
    tenant = chance.randrange(3)
    lines = [(Charge("provider", "provider"), amount), (Charge(f"tenant:{tenant}", "tenant:{tenant}"), amount)]
    chance.shuffle(lines)
    at_once = chance.random() < 0.5
    for _ in range(chance.choice([1, 1, 2])):  # a lost reply is repeated
        answer = await ledger.hold(id_, lines, TTL_US, owner=id_, dispatch=at_once)
    if isinstance(answer, HoldDenied):
        return False
    if isinstance(answer, HoldUsed):
        return True
    assert isinstance(answer, HoldGranted)
    if not at_once:
        await asyncio.sleep(chance.choice([0, 0, 0, TTL_US / 1_000_000]))
        if not await ledger.dispatch(id_):
            return True
    cost = round(amount * chance.uniform(0.2, 1))
    os.write(provider, f"tenant:{tenant} {cost}\n".encode())
    await asyncio.sleep(chance.choice([0, 0.005, 0.02, 0.3]))
    for _ in range(chance.choice([0, 1, 1, 1, 2])):  # some calls are never settled
        await ledger.settle(id_, {"usd": cost})
    return True


def refund() -> None:
    """Remove the safeguard: refund an expired hold although its call may have been made."""
    names = vars(sqlite)
    assert "expire_hold" in names, "the function has another name now, so nothing would be removed"
    names["expire_hold"] = void_hold


async def work(address: str, path: str, seed: str, sabotage: str = "") -> None:
    if sabotage == "refunding":
        refund()
    chance = random.Random(seed)
    provider = os.open(path, os.O_WRONLY | os.O_APPEND)
    async with opened(address) as ledger:
        for number in range(100_000):
            try:
                await ledger.expire(10)
                if not await spend(ledger, provider, f"{seed}:{number}", chance):
                    await asyncio.sleep(0.02)
            except TransientError:
                continue


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
