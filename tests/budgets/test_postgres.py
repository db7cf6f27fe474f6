"""Budgets in PostgreSQL: the server's clock, definitions changed by other processes, concurrency, and rights."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from leaseway.domain.budgets.budget import MICRO, Budget, Charge, HoldDenied, HoldGranted
from leaseway.domain.budgets.holds import Lines
from leaseway.domain.errors import StoreRefused, UnknownBudget
from leaseway.domain.ids import SECOND_US
from leaseway.stores.postgres.budgets import PostgresLedger
from leaseway.testing.clock import FakeClock
from leaseway.testing.postgres import PostgresServer

SPEND = Charge("spend", "spend")
ONE: Lines = ((SPEND, MICRO),)
DAILY = Budget("spend", usd=10, every="day").definition


@asynccontextmanager
async def opened(server: PostgresServer, schema: str, clock: FakeClock | None = None) -> AsyncIterator[PostgresLedger]:
    ledger = PostgresLedger(f"{server.url}?schema={schema}", clock.now_us if clock else None)
    await ledger.open()
    yield ledger
    await ledger.close()


@pytest.mark.parametrize("off_days", [-400, 0, 400])
async def test_the_clock_of_the_server_decides(server: PostgresServer, off_days: int) -> None:
    """A client with an old time must not book into another day."""
    async with opened(server, "clocks") as ledger:
        await ledger.definitions.declare([DAILY])
        ledger._heard = await ledger._now() + off_days * 86_400 * SECOND_US
        answer = await ledger.hold(f"call-{off_days}", ONE, SECOND_US)
        assert isinstance(answer, HoldGranted)
        assert ledger._heard in answer.windows[0]
        assert ledger._heard == answer.deadline - SECOND_US


async def test_a_change_by_another_process_applies_at_once(server: PostgresServer, clock: FakeClock) -> None:
    """Every process caches definitions, and must not use one that is no longer in force."""
    async with opened(server, "changing", clock) as one, opened(server, "changing", clock) as other:
        await one.definitions.declare([Budget("spend:{tenant}", usd=10, every="day", over="fail").definition])
        acme = Charge("spend:acme", "spend:{tenant}")
        ten: Lines = ((acme, 10 * MICRO),)
        assert isinstance(await one.hold("a", ten, SECOND_US), HoldGranted)
        await other.definitions.change(Budget("spend:{tenant}", usd=20, every="hour", over="fail").definition)
        answer = await one.hold("b", ten, SECOND_US)
        assert isinstance(answer, HoldGranted)
        assert answer.windows[0].label == "2025-06-15T15+00:00"
        await other.definitions.change(Budget("spend:acme", usd=10, every="hour", over="fail").definition)
        assert isinstance(await one.hold("c", ten, SECOND_US), HoldDenied)
        await one.void("a")
        await one.void("b")
        assert await other.definitions.forget("spend:acme")
        assert await other.definitions.forget("spend:{tenant}")
        with pytest.raises(UnknownBudget):
            await one.hold("d", ten, SECOND_US)
        await other.definitions.declare([Budget("spend:{tenant}", usd=3, every="day", over="fail").definition])
        assert isinstance(await one.hold("d", ten, SECOND_US), HoldDenied)


async def test_concurrent_holds_near_the_limit_get_no_false_errors(server: PostgresServer, clock: FakeClock) -> None:
    """A CHECK that is evaluated on an old row version would fail although the limit is kept."""
    async with opened(server, "crowd", clock) as one, opened(server, "crowd", clock) as other:
        await one.definitions.declare([Budget("spend", usd=20, over="fail").definition])

        async def work(ledger: PostgresLedger, number: int) -> str:
            answer = await ledger.hold(f"call-{number}", ONE, SECOND_US, dispatch=True)
            if isinstance(answer, HoldGranted):
                await ledger.settle(f"call-{number}", {"usd": MICRO // 2})
            return type(answer).__name__

        answers = await asyncio.gather(*(work((one, other)[number % 2], number) for number in range(200)))
        (account,) = await one.reads.balances()
        assert account.balance.held_micros == 0
        assert account.balance.spent_micros == Counter(answers)["HoldGranted"] * MICRO // 2 <= 20 * MICRO
        assert Counter(answers)["HoldGranted"] >= 20
        assert (await one.reads.audit()).wrong() == []


async def test_a_worker_can_hold_and_settle_but_not_change_a_budget(server: PostgresServer, clock: FakeClock) -> None:
    """A compromised worker must not be able to raise its budget or write to the tables."""
    async with opened(server, "rights", clock) as owner:
        async with owner.connections.transaction() as connection:
            await connection.execute("CREATE ROLE spender LOGIN")
            await connection.execute("SELECT rights.grant_worker('spender')")
        worker = PostgresLedger(
            f"{server.url.replace('postgres@', 'spender@')}?schema=rights",
            clock.now_us,
        )
        await worker.open()
        await worker.definitions.declare([DAILY])
        assert isinstance(await worker.hold("a", ONE, SECOND_US), HoldGranted)
        assert await worker.dispatch("a")
        await worker.settle("a", {})
        assert (await worker.expire(10)).count == 0
        assert not await worker.void("a")
        assert (await worker.reads.audit()).wrong() == []
        assert len(await worker.reads.journal("spend")) == 2
        for call in (
            worker.definitions.change(DAILY),
            worker.definitions.change(DAILY, expected=1),
            worker.definitions.forget("spend"),
        ):
            with pytest.raises(StoreRefused, match="permission denied"):
                await call
        with pytest.raises(StoreRefused, match="permission denied"):
            async with worker.connections.transaction() as connection:
                await connection.execute("UPDATE rights.budget_windows SET limit_micros = 10 ^ 15")
        await worker.close()
