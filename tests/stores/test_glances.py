"""Every store shows jobs in passing, and pays for it by what it shows, not by what it holds."""

import sqlite3
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from tests.stores.conftest import KEEPING, Keeping, kept

from leaseway.domain.ids import SECOND_US
from leaseway.ports.store import require_inspection
from leaseway.stores.postgres.store import PostgresStore
from leaseway.stores.sqlite.database import statements
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.contract.actors import Worker, done, new_job
from leaseway.testing.glances_contract import *  # noqa: F403
from leaseway.testing.postgres import PostgresServer


@pytest.fixture(params=KEEPING)
async def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Keeping]:
    async with kept(request, clock, tmp_path) as store:
        yield store


async def test_a_look_at_a_file_reads_along_its_indexes(tmp_path: Path, clock: FakeClock) -> None:
    """Somebody watches all day: a look that reads every job would be most of what the store does."""
    store = SqliteStore(str(tmp_path / "plan.db"), now_us=clock.now_us)
    await store.open()
    for verb, values in (
        ("recent_summaries", {"newest": 5, "after": 0, "ended": 5}),
        ("summaries_by_id", {"ids": "[]"}),
    ):
        plan = await store.connection.read(partial(query_plan, sql=statements()[verb], values=values))
        scans = [step for _, step in plan if step.startswith("SCAN jobs") and "INDEX" not in step]
        assert scans == [], plan
        # SQLite 3.53 sorts the few rows of each subquery for a UNION; sorting the table itself would read all of it.
        sorting = {parent for parent, step in plan if "TEMP B-TREE FOR ORDER BY" in step}
        assert [step for parent, step in plan if parent in sorting and " jobs " in step] == [], plan
    await store.close()


def query_plan(connection: sqlite3.Connection, sql: str, values: Mapping[str, object]) -> list[tuple[int, str]]:
    """The parent and the description of each step."""
    steps = connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)
    return [(parent, description) for _, parent, _, description in steps]


async def test_a_look_at_postgresql_reads_the_end_of_the_history(server: PostgresServer) -> None:
    """The index by time is blind for what came after the last vacuum: with it, a look would read all of that."""
    store = PostgresStore(f"{server.url}?schema=glances")
    await store.open()
    await store.operations.prune(7 * 86_400 * SECOND_US, 1)  # makes the table of today
    await store.jobs.submit([new_job(number) for number in range(1, 301)])
    worker = Worker(store)
    await worker.settle(*[done(lease) for lease in await worker.claim(300)])
    now, seen = await require_inspection(store).recent(0, 0, 1_000)
    assert len(seen) == 300
    day = now - now % (86_400 * SECOND_US)
    sql = store.database.sql["recent_summaries"]
    values = (50, now - SECOND_US, 50, day, day + 86_400 * SECOND_US, '"glances".history_' + day_of(day))
    async with store.connections.borrow() as connection:
        plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN (ANALYZE) {sql}", *values))
        await connection.execute("DROP SCHEMA glances CASCADE")
    await store.close()
    assert plan.count("Tid Range Scan") >= 2, plan
    assert "Seq Scan on history" not in plan, plan


def day_of(instant: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(instant // SECOND_US, UTC):%Y%m%d}"
