"""Each safeguard of the ledger, removed once: without it a budget is overspent, with it never."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest
from msgspec.structs import replace

from leaseway.domain.budgets.budget import MICRO, Budget, Charge, HoldAnswer, HoldGranted
from leaseway.domain.budgets.holds import Hold, HoldStep, Lines, place_hold, void_hold
from leaseway.domain.errors import TerminalError
from leaseway.domain.ids import SECOND_US
from leaseway.ports.ledger import Ledger
from leaseway.stores.memory.budgets import MemoryLedger, want_line
from leaseway.stores.postgres.budgets import PostgresLedger
from leaseway.stores.sqlite.budgets import SqliteLedger
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.postgres import PostgresServer

LIMIT = 10
SPEND = Charge("spend", "spend")
ONE: Lines = ((SPEND, MICRO),)
DEFINITION = Budget("spend", usd=LIMIT, every="day", over="fail").definition


class RefundsTheUnknown(MemoryLedger):
    """As in most other systems, an expired reservation is refunded, whatever happened to the call."""

    def _expired(self, hold: Hold) -> HoldStep:
        return void_hold(hold)


class ChecksThenActs(MemoryLedger):
    """As in most other systems, the limit is checked first and booked a moment later."""

    async def hold(self, id: str, lines: Lines, ttl_us: int, *, owner: str = "", dispatch: bool = False) -> HoldAnswer:
        now, wants = self._state.now_us(), [want_line(self._state, *line) for line in lines]
        answer, step = place_hold(id, wants, self._state.read, now, ttl_us=ttl_us, owner=owner, dispatch=dispatch)
        await asyncio.sleep(0)
        if step is not None:
            facts = tuple(replace(move, overdraft_allowed_micros=None) for move in step.moves)
            self._state.apply(HoldStep(step.hold, facts), now)
        return answer


async def spend_with_crashes(ledger: Ledger, clock: FakeClock) -> int:
    """Half of the workers crash between call and settlement; returns the number of calls that the provider has seen."""
    seen = 0
    for number in range(4 * LIMIT):
        id_ = f"call-{number}"
        if isinstance(await ledger.hold(id_, ONE, 10 * SECOND_US, dispatch=True), HoldGranted):
            seen += 1
            if number % 2:
                await ledger.settle(id_, {})
        clock.advance(11)
        await ledger.expire(100)
    return seen


async def spend_at_once(ledger: Ledger) -> int:
    """Many workers call at the same time; returns the number of calls that the provider has seen."""
    asked = (ledger.hold(f"call-{number}", ONE, 10 * SECOND_US, dispatch=True) for number in range(4 * LIMIT))
    return sum(isinstance(answer, HoldGranted) for answer in await asyncio.gather(*asked))


async def test_refunding_what_may_have_been_called_overspends(clock: FakeClock) -> None:
    """A worker that crashes after its call has spent the money; only charging the hold keeps the budget."""
    safe, unsafe = MemoryLedger(clock.now_us), RefundsTheUnknown(clock.now_us)
    for ledger in (safe, unsafe):
        await ledger.definitions.declare([DEFINITION])
    assert await spend_with_crashes(safe, clock) == LIMIT
    assert await spend_with_crashes(unsafe, clock) > LIMIT


async def test_checking_first_and_booking_later_overspends(clock: FakeClock) -> None:
    """All workers find room at the same time, and all of them use it."""
    safe, unsafe = MemoryLedger(clock.now_us), ChecksThenActs(clock.now_us)
    for ledger in (safe, unsafe):
        await ledger.definitions.declare([DEFINITION])
    assert await spend_at_once(safe) == LIMIT
    assert await spend_at_once(unsafe) > LIMIT


async def test_the_file_itself_refuses_more_than_the_limit(tmp_path: Path, clock: FakeClock) -> None:
    """The constraint must protect the budget even from a defect in the code."""
    store = SqliteStore(str(tmp_path / "work.db"), now_us=clock.now_us)
    await store.open()
    ledger = SqliteLedger(store.database)
    await ledger.definitions.declare([DEFINITION])
    await ledger.hold("a", ONE, SECOND_US)
    await store.close()
    with closing(sqlite3.connect(store.path)) as connection, pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        connection.execute("UPDATE budget_windows SET held_micros = limit_micros + 1")


async def test_the_server_itself_refuses_more_than_the_limit(server: PostgresServer, clock: FakeClock) -> None:
    """The same must hold for PostgreSQL."""
    ledger = PostgresLedger(f"{server.url}?schema=refusing", clock.now_us)
    await ledger.open()
    await ledger.definitions.declare([DEFINITION])
    await ledger.hold("a", ONE, SECOND_US)
    with pytest.raises(TerminalError, match="check constraint") as caught:
        async with ledger.connections.transaction() as connection:
            await connection.execute("UPDATE refusing.budget_windows SET held_micros = limit_micros + 1")
    assert isinstance(caught.value.__cause__, asyncpg.CheckViolationError)
    await ledger.close()


async def test_a_wrong_decision_is_refused_and_not_booked_as_overdraft(tmp_path: Path, clock: FakeClock) -> None:
    """A hold must not create more overdraft than is permitted. If the check were missing, the constraint must refuse
    it.
    """
    store = SqliteStore(str(tmp_path / "work.db"), now_us=clock.now_us)
    await store.open()
    ledger = SqliteLedger(store.database)
    await ledger.definitions.declare([DEFINITION])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("leaseway.domain.budgets.holds.fits", lambda want, book: True)
        assert isinstance(await ledger.hold("a", ((SPEND, LIMIT * MICRO),), SECOND_US), HoldGranted)
        with pytest.raises(TerminalError, match="CHECK"):
            await ledger.hold("b", ONE, SECOND_US)
    ((account),) = await ledger.reads.balances()
    assert account.balance.held_micros == LIMIT * MICRO
    await store.close()
