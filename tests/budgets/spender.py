"""One worker of the campaign: some calls at once, each of which is held, dispatched, made and settled; slow, twice and
late at random. Holds and settlements travel together, as in a real worker.

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
from leaseway.ports.ledger import HoldRequest, Ledger, SettleHoldRequest
from leaseway.stores.mongodb.budgets import MongoLedger
from leaseway.stores.postgres.budgets import PostgresLedger
from leaseway.stores.sqlite import budget_transaction
from leaseway.stores.sqlite.budgets import SqliteLedger
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.telemetry.log import NoEvents
from leaseway.worker.ledger_client import LedgerClient

TTL_US = 150_000
SLOTS = 3
"""Calls at once."""
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
    if address.startswith("mongodb:"):
        mongo = MongoLedger(address)
        await mongo.open()
        yield mongo
        await mongo.close()
        return
    store = SqliteStore(address, now_us=now_us)
    await store.open()
    yield SqliteLedger(store.database)
    await store.close()


async def spend(ledger: Ledger, client: LedgerClient, provider: int, id_: str, chance: random.Random) -> bool:
    """Make one call; false if the budget does not cover it."""
    amount = chance.randint(MICRO // 10, MICRO)
    tenant = chance.randrange(3)
    lines = [(Charge("provider", "provider"), amount), (Charge(f"tenant:{tenant}", "tenant:{tenant}"), amount)]
    chance.shuffle(lines)
    at_once = chance.random() < 0.5
    for _ in range(chance.choice([1, 1, 2])):  # a lost reply is repeated
        answer = await client.hold(HoldRequest(id_, tuple(lines), TTL_US, id_, at_once))
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
        await client.settle(SettleHoldRequest(id_, {"usd": cost}))
    return True


def refund() -> None:
    """Remove the safeguard: refund an expired hold although its call may have been made."""
    names = vars(budget_transaction)
    assert "expire_hold" in names, "the function has another name now, so nothing would be removed"
    names["expire_hold"] = void_hold


async def work(address: str, path: str, seed: str, sabotage: str = "") -> None:
    if sabotage == "refunding":
        refund()
    provider = os.open(path, os.O_WRONLY | os.O_APPEND)
    async with opened(address) as ledger, asyncio.TaskGroup() as group:
        client = LedgerClient(ledger, NoEvents())
        for slot in range(SLOTS):
            group.create_task(keep_spending(ledger, client, provider, f"{seed}:{slot}"))


async def keep_spending(ledger: Ledger, client: LedgerClient, provider: int, seed: str) -> None:
    chance = random.Random(seed)
    for number in range(100_000):
        try:
            await ledger.expire(10)
            if not await spend(ledger, client, provider, f"{seed}:{number}", chance):
                await asyncio.sleep(0.02)
        except TransientError:
            continue


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
