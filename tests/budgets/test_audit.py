"""Balance, journal and holds must agree, and the health check must report any difference."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from leaseway.domain.budgets.balances import judge_ledger, sum_balances, sum_journal
from leaseway.domain.budgets.budget import MICRO, Budget, Charge
from leaseway.domain.health import FindingLevel
from leaseway.domain.ids import SECOND_US
from leaseway.ports.ledger import Ledger
from leaseway.ports.store import require_inspection
from leaseway.stores.sqlite.budgets import SqliteLedger
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock

SPEND = Charge("spend", "spend")


async def lived(ledger: Ledger, clock: FakeClock) -> None:
    """A day that contains every transition of a hold."""
    await ledger.definitions.declare([Budget("spend", usd=10, every="day").definition])
    for number, cost in enumerate((1, 0.5, 3)):
        await ledger.hold(f"call-{number}", ((SPEND, 2 * MICRO),), 10 * SECOND_US, dispatch=True)
        await ledger.settle(f"call-{number}", {"usd": round(cost * MICRO)})
    await ledger.hold("void", ((SPEND, MICRO),), 10 * SECOND_US)
    await ledger.void("void")
    await ledger.hold("captured", ((SPEND, 2 * MICRO),), 10 * SECOND_US, dispatch=True)
    await ledger.hold("expired", ((SPEND, MICRO),), 10 * SECOND_US)
    await ledger.hold("booked", ((SPEND, 9 * MICRO),), 10 * SECOND_US)
    clock.advance(10)
    await ledger.expire(10)
    await ledger.hold("open", ((SPEND, MICRO),), 10 * SECOND_US)


async def test_the_journal_read_from_its_beginning_gives_the_books(ledger: Ledger, clock: FakeClock) -> None:
    """A user who doubts an amount must be able to recompute it."""
    await lived(ledger, clock)
    entries = await ledger.reads.journal("spend", 1_000)
    assert sum_journal(entries[::-1]) == sum_balances(await ledger.reads.balances(since=0))
    audit = await ledger.reads.audit()
    assert audit.wrong() == []
    assert len(audit.balances) == 2
    assert judge_ledger(audit).level is FindingLevel.OK


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE budget_windows SET spent_micros = spent_micros - 1 WHERE label = '2025-06-15'",
        "UPDATE budget_journal SET held_micros = held_micros + 1 WHERE hold = 'call-1' AND kind = 'hold'",
        "DELETE FROM budget_journal WHERE hold = 'captured'",
        "UPDATE hold_lines SET amount_micros = amount_micros + 1 WHERE hold = 'open'",
        "UPDATE holds SET state = 'void' WHERE id = 'open'",
    ],
)
async def test_a_book_that_was_tampered_with_is_found(tmp_path: Path, clock: FakeClock, damage: str) -> None:
    """After a manual change, a defect or a bad disk, amounts that do not add up must be reported."""
    store = SqliteStore(str(tmp_path / "work.db"), now_us=clock.now_us)
    await store.open()
    ledger = SqliteLedger(store.database)
    await lived(ledger, clock)
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute(damage)
    (finding,) = [each for each in await require_inspection(store).health() if each.check == "budgets"]
    assert finding == judge_ledger(await ledger.reads.audit())
    assert finding.level is FindingLevel.PROBLEM
    assert "spend 2025-06-15" in finding.text
    await store.close()


async def test_a_broken_constraint_is_found_too(tmp_path: Path, clock: FakeClock) -> None:
    """The database may have been written with its constraints disabled."""
    store = SqliteStore(str(tmp_path / "work.db"), now_us=clock.now_us)
    await store.open()
    ledger = SqliteLedger(store.database)
    await lived(ledger, clock)
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = 1")
        connection.execute("UPDATE budget_windows SET limit_micros = 1 WHERE label = '2025-06-16'")
    assert (await ledger.reads.audit()).wrong() == ["spend 2025-06-16"]
    await store.close()
