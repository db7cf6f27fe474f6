"""Limits and budgets on a replica set of three members whose primary changes, is killed or frozen under load."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from threading import Event

import pytest
from tests.mongodb_collections import empty_collections

from leaseway.domain.budgets.budget import MICRO, Budget, Charge, HoldAnswer, HoldDenied, HoldGranted
from leaseway.domain.errors import TransientError
from leaseway.domain.limits.buckets import Granted
from leaseway.domain.limits.limit import Limit, PermitRequest
from leaseway.stores.mongodb.budgets import MongoLedger
from leaseway.stores.mongodb.limits import MongoLimiter
from leaseway.stores.mongodb.schema import BUDGET_LAYOUTS
from leaseway.testing.mongodb import MongoReplicaSet, mongodb_replica_set

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PERMITS = 100
"""What the limit grants at once."""
CALLS = 160
"""What the budget has room for."""
BEFORE = 100
"""At most so many calls are made before the fault is over, so that others meet what it leaves behind."""
SPEND = Charge("spend", "spend")
DAILY = Limit("daily", "1000/day", burst=PERMITS / 1_000)
"""The next permit after these comes 86 seconds later."""
CLIENTS, SPENDERS = 2, 4


@pytest.fixture(scope="module")
def members() -> Iterator[MongoReplicaSet]:
    with mongodb_replica_set() as members:
        yield members


@asynccontextmanager
async def clients(url: str) -> AsyncIterator[list[tuple[MongoLedger, MongoLimiter]]]:
    """Each is another process, as far as the servers can tell."""
    async with AsyncExitStack() as stack:
        pairs = [(MongoLedger(url), MongoLimiter(url)) for _ in range(CLIENTS)]
        for each in (each for pair in pairs for each in pair):
            stack.push_async_callback(each.close)
            await each.open()
        yield pairs


class Provider:
    """Counts the calls that were made, and the permits that were granted for them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.permits = 0
        self.is_busy = Event()
        self.fault_is_over = Event()

    async def spend(self, ledger: MongoLedger, limiter: MongoLimiter, name: str) -> None:
        for number in range(CALLS + 1):
            id_ = f"{name}-{number}"
            if len(self.calls) >= BEFORE:
                await asyncio.to_thread(self.fault_is_over.wait)
            await self.permit(limiter)
            if isinstance(answer := await self.hold(ledger, id_), HoldDenied):
                return
            assert isinstance(answer, HoldGranted), answer
            self.calls.append(id_)
            self.is_busy.set()
            await self.settle(ledger, id_)

    async def permit(self, limiter: MongoLimiter) -> None:
        try:
            verdict = await limiter.acquire([PermitRequest("daily", "daily")])
        except TransientError:
            return  # if it was granted, it is used up
        self.permits += isinstance(verdict, Granted)

    async def hold(self, ledger: MongoLedger, id_: str) -> HoldAnswer:
        while True:
            try:
                return await ledger.hold(id_, ((SPEND, MICRO),), 600_000_000, owner=id_, dispatch=True)
            except TransientError:
                await asyncio.sleep(0.05)

    async def settle(self, ledger: MongoLedger, id_: str) -> None:
        while True:
            try:
                await ledger.settle(id_, {}, owner=id_)
            except TransientError:
                await asyncio.sleep(0.05)
            else:
                return


def step_down(members: MongoReplicaSet) -> None:
    members.primary().command({"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 2})
    members.await_primary()


def kill_primary(members: MongoReplicaSet) -> None:
    killed = members.primary()
    killed.kill()
    members.await_primary()
    killed.start()


def freeze_primary(members: MongoReplicaSet) -> None:
    """The old primary still believes that it is one when it continues."""
    frozen = members.primary()
    frozen.pause()
    members.await_primary()
    frozen.resume()
    members.await_primary()


def kill_all(members: MongoReplicaSet) -> None:
    members.kill()
    for member in members.members:
        member.start()
    members.await_primary()


async def spend_all(url: str, provider: Provider) -> None:
    async with clients(url) as pairs:
        first, limiter = pairs[0]
        await empty_collections(first.connections, *BUDGET_LAYOUTS)
        await limiter.definitions.forget("daily")
        await first.definitions.declare([Budget("spend", usd=CALLS, over="fail").definition])
        await limiter.definitions.declare([DAILY.definition])
        async with asyncio.TaskGroup() as group:
            for client, (ledger, other) in enumerate(pairs):
                for spender in range(SPENDERS):
                    group.create_task(provider.spend(ledger, other, f"{client}-{spender}"))
        (account,) = await first.reads.balances(["spend"])
        assert (account.balance.spent_micros, account.balance.held_micros) == (CALLS * MICRO, 0)
        assert (await first.reads.audit()).wrong() == []


@pytest.mark.parametrize(
    "fault", [step_down, kill_primary, freeze_primary, pytest.param(kill_all, marks=pytest.mark.campaign)]
)
def test_a_changing_primary_neither_overspends_nor_loses_a_booking(
    members: MongoReplicaSet, fault: Callable[[MongoReplicaSet], None]
) -> None:
    """The provider's own count is the reference: what was granted twice, or forgotten, would show in it."""
    provider = Provider()
    with ThreadPoolExecutor(1) as pool:
        # The servers end with the thread that starts them, so the faults are in this one.
        spending = pool.submit(asyncio.run, spend_all(members.url, provider))
        assert provider.is_busy.wait(60)
        try:
            fault(members)
        finally:
            provider.fault_is_over.set()
        spending.result()
    assert len(provider.calls) == len(set(provider.calls)) == CALLS
    assert provider.permits <= PERMITS + 1, "a slow machine may take longer than that"
