"""Every store tells how it is doing, and pays for it by what goes on, not by what it holds."""

import sqlite3
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from tests.stores.conftest import KEEPING, Keeping, kept

from leaseway.domain.ids import SECOND_US
from leaseway.ports.store import require_inspection
from leaseway.stores.memory.store import MemoryStore
from leaseway.stores.sqlite.database import statements
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.contract.actors import Worker, done, new_job
from leaseway.testing.pulse_contract import *  # noqa: F403


@pytest.fixture(params=KEEPING)
async def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Keeping]:
    async with kept(request, clock, tmp_path) as store:
        yield store


async def test_nothing_is_read_that_is_not_told(tmp_path: Path, clock: FakeClock) -> None:
    """Screens ask every second: a look that reads a million jobs would be most of what the store does."""
    store = SqliteStore(str(tmp_path / "plan.db"), now_us=clock.now_us)
    await store.open()
    values = {"now": 0, "most": 1, "after": 0}
    for verb in ("owner_list", "oldest_waiting", "recent_outcomes"):
        sql = statements()[verb]
        named = {name: value for name, value in values.items() if f":{name}" in sql}
        plan = await store.connection.read(partial(plan_of, sql=sql, values=named))
        # The index of leased jobs holds nothing else, and may be read as a whole.
        scans = [step for step in plan if step.startswith("SCAN") and "INDEX jobs_leased" not in step]
        assert [scan for scan in scans if scan.split()[1] in ("jobs", "first", "later")] == []
    await store.close()


def plan_of(connection: sqlite3.Connection, sql: str, values: Mapping[str, int]) -> list[str]:
    return [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]


async def test_where_very_much_ended_the_last_of_it_is_counted(
    store: Keeping, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate must cost the same in a busy store as in a quiet one, and be right in both."""
    monkeypatch.setattr("leaseway.stores.sqlite.reads.ENDED_MAX", 10)
    monkeypatch.setattr("leaseway.stores.postgres.reads.PAGES_MAX", 1)
    many = 40
    await store.jobs.submit([new_job(number, payload=f'"{"x" * 1_000}"') for number in range(1, many + 1)])
    worker = Worker(store)
    begun = clock.now_us()
    for _ in range(many):
        clock.advance(1)
        await worker.settle(done(await worker.claim_one()))
    since, counted = await require_inspection(store).ended(begun)
    (each,) = counted
    assert since > begun or isinstance(store, MemoryStore)
    # One in each second, and the one at `since` itself may be in it or not.
    assert each.count - (clock.now_us() - since) // SECOND_US in (0, 1)
