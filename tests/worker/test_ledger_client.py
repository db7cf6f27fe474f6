"""Holds and settlements of a worker travel together: no request may be lost, answered by another one's answer, or made
for a caller that is gone.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from leaseway.domain.budgets.budget import MICRO, Budget, Charge, HoldDenied, HoldGranted
from leaseway.domain.errors import BadValue, TerminalError, UnknownOutcome
from leaseway.domain.ids import SECOND_US
from leaseway.ports.ledger import POST_MAX, HoldRequest, Posted, SettleHoldRequest
from leaseway.stores.memory.budgets import MemoryLedger
from leaseway.testing.clock import FakeClock
from leaseway.worker.ledger_client import LedgerClient

SPEND = Charge("spend", "spend")


class SlowLedger(MemoryLedger):
    """Each batch waits until the test lets it go."""

    def __init__(self) -> None:
        super().__init__(FakeClock().now_us)
        self.batches: list[list[str]] = []
        self.may_go = asyncio.Semaphore(0)
        self.errors: list[Exception] = []
        self.events: list[str] = []
        self._begins = asyncio.Event()

    async def post(self, holds: Sequence[HoldRequest], settlements: Sequence[SettleHoldRequest]) -> Posted:
        self.batches.append([*(each.id for each in settlements), *(each.id for each in holds)])
        self._begins.set()
        await self.may_go.acquire()
        posted = await super().post(holds, settlements)
        if self.errors:
            raise self.errors.pop(0)
        return posted

    def emit(self, name: str, /, **facts: Any) -> None:
        self.events.append(name)

    async def begun(self, count: int) -> None:
        while len(self.batches) < count:
            self._begins.clear()
            await self._begins.wait()


@pytest.fixture
async def ledger() -> SlowLedger:
    ledger = SlowLedger()
    await ledger.definitions.declare([Budget("spend", usd=10, every="day", over="fail").definition])
    return ledger


@pytest.fixture
def client(ledger: SlowLedger) -> LedgerClient:
    return LedgerClient(ledger, ledger)


def order(id_: str, usd: float = 1) -> HoldRequest:
    return HoldRequest(id_, ((SPEND, round(usd * MICRO)),), SECOND_US, "1", True)


async def test_requests_that_wait_share_the_next_transaction(ledger: SlowLedger, client: LedgerClient) -> None:
    """The first request goes at once; those that come meanwhile go together, and each gets its own answer."""
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        first = group.create_task(client.hold(order("first", 8)))
        await ledger.begun(1)
        small, large = group.create_task(client.hold(order("b", 5))), group.create_task(client.hold(order("c", 6)))
        settled = group.create_task(client.settle(SettleHoldRequest("first", {"usd": MICRO}, "1")))
        await asyncio.sleep(0)
        ledger.may_go.release()
        await ledger.begun(2)
        ledger.may_go.release()
    assert ledger.batches == [["first"], ["first", "b", "c"]]
    assert isinstance(first.result(), HoldGranted)
    assert isinstance(small.result(), HoldGranted)
    assert isinstance(large.result(), HoldDenied)
    assert settled.result() == ()


async def test_a_caller_that_leaves_while_it_waits_places_no_hold(ledger: SlowLedger, client: LedgerClient) -> None:
    """The hold would be placed after the settlement that frees it, and be charged in full at its deadline."""
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(client.hold(order("first")))
        await ledger.begun(1)
        gone, stays = group.create_task(client.hold(order("gone"))), group.create_task(client.hold(order("stays")))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        for _ in range(2):
            ledger.may_go.release()
    assert stays.done()
    assert ledger.batches == [["first"], ["stays"]]


async def test_a_caller_that_leaves_later_takes_nobody_with_it(ledger: SlowLedger, client: LedgerClient) -> None:
    """The transaction serves other jobs as well, and one of them is cancelled every other second."""
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        gone = group.create_task(client.hold(order("gone")))
        await ledger.begun(1)
        stays = group.create_task(client.hold(order("stays")))
        gone.cancel()
        await asyncio.wait([gone])
        for _ in range(2):
            ledger.may_go.release()
    assert isinstance(stays.result(), HoldGranted)
    assert len(await ledger.reads.holds("spend")) == 2


async def test_a_lost_reply_is_lost_for_every_request_of_the_batch(ledger: SlowLedger, client: LedgerClient) -> None:
    """Each caller repeats its own request, under its own id."""
    ledger.errors.append(UnknownOutcome("the reply was lost"))
    for _ in range(2):
        ledger.may_go.release()
    with pytest.raises(UnknownOutcome):
        await client.hold(order("a"))
    assert isinstance(await client.hold(order("a")), HoldGranted)
    assert len(await ledger.reads.holds("spend")) == 1


async def test_a_batch_that_fails_is_made_one_by_one_and_reported(ledger: SlowLedger, client: LedgerClient) -> None:
    """One request that the store chokes on must not fail the jobs of the others."""
    ledger.errors.append(TerminalError("a constraint failed"))
    ledger.may_go.release()
    assert isinstance(await client.hold(order("a")), HoldGranted)
    assert ledger.events == ["ledger_batch_failed"]


async def test_a_wrong_request_gets_its_own_error(ledger: SlowLedger, client: LedgerClient) -> None:
    """The error names the request's own mistake."""
    ledger.may_go.release()
    with pytest.raises(BadValue, match="there is no hold 'never'"):
        await client.settle(SettleHoldRequest("never", {}, "1"))


async def test_a_batch_is_bounded(ledger: SlowLedger, client: LedgerClient) -> None:
    """A transaction locks every balance that it changes until it ends."""
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for number in range(POST_MAX + 11):
            group.create_task(client.hold(order(f"call-{number}", 0)))
        for _ in range(3):
            ledger.may_go.release()
    assert sum(map(len, ledger.batches)) == POST_MAX + 11
    assert max(map(len, ledger.batches)) == POST_MAX


async def test_closing_answers_the_callers_that_are_left(ledger: SlowLedger, client: LedgerClient) -> None:
    """A caller that waited forever would keep its worker from leaving."""
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        calls = [group.create_task(refused(client, order(f"call-{number}"))) for number in range(2)]
        await ledger.begun(1)
        await client.close()
    assert [call.result() for call in calls] == ["the worker was stopped"] * 2


async def refused(client: LedgerClient, request: HoldRequest) -> str:
    with pytest.raises(UnknownOutcome) as caught:
        await client.hold(request)
    return str(caught.value)
