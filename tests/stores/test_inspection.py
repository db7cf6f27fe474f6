"""Every store that holds its own data can be inspected and its lanes paused, at a cost independent of its size."""

import json
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.stores.conftest import KEEPING, Keeping, empty, kept

from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.inspection import NEWEST, JobFilter, SearchStep, merge_steps
from leaseway.domain.job import State
from leaseway.ports.store import require_inspection
from leaseway.stores.memory.store import MemoryStore
from leaseway.stores.postgres import reads as postgres
from leaseway.stores.postgres.store import PostgresStore
from leaseway.stores.sqlite.database import statements
from leaseway.stores.sqlite.reads import SearchQuery, search
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.inspection_contract import *  # noqa: F403
from leaseway.testing.job_store_contract.fixtures import ContractWorker, done, failed, new_job
from leaseway.testing.pauses_contract import *  # noqa: F403
from leaseway.testing.postgres import PostgresServer


@pytest.fixture(params=KEEPING)
async def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Keeping]:
    async with kept(request, clock, tmp_path) as store:
        yield store


async def test_a_look_at_a_file_reads_along_its_indexes(tmp_path: Path, clock: FakeClock) -> None:
    """The dashboard polls all day: a query that reads every job would be most of the store's load."""
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
    """The index by time has no summary of rows after the last vacuum, so a query that used it would read all of
    them.
    """
    store = PostgresStore(f"{server.url}?schema=glances")
    await store.open()
    await store.operations.prune(7 * 86_400 * SECOND_US, 1)  # creates today's partition
    await store.jobs.submit([new_job(number) for number in range(1, 301)])
    worker = ContractWorker(store)
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


async def test_nothing_is_read_that_is_not_told(tmp_path: Path, clock: FakeClock) -> None:
    """Dashboards poll every second: a query that reads a million jobs would be most of the store's load."""
    store = SqliteStore(str(tmp_path / "plan.db"), now_us=clock.now_us)
    await store.open()
    values = {"now": 0, "most": 1, "after": 0}
    for verb in ("owner_list", "oldest_waiting", "recent_outcomes"):
        sql = statements()[verb]
        named = {name: value for name, value in values.items() if f":{name}" in sql}
        plan = await store.connection.read(partial(plan_of, sql=sql, values=named))
        # The index of leased jobs contains nothing else and may be read as a whole.
        scans = [step for step in plan if step.startswith("SCAN") and "INDEX jobs_leased" not in step]
        assert [scan for scan in scans if scan.split()[1] in ("jobs", "first", "later")] == []
    await store.close()


def plan_of(connection: sqlite3.Connection, sql: str, values: Mapping[str, int]) -> list[str]:
    return [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]


async def test_where_very_much_ended_the_last_of_it_is_counted(
    store: Keeping, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate must cost the same in a busy store as in a quiet one, and be right in both."""
    for backend in ("sqlite", "mongodb"):
        monkeypatch.setattr(f"leaseway.stores.{backend}.reads.ENDED_MAX", 10)
    monkeypatch.setattr("leaseway.stores.postgres.reads.PAGES_MAX", 1)
    many = 40
    await store.jobs.submit([new_job(number, payload=f'"{"x" * 1_000}"') for number in range(1, many + 1)])
    worker = ContractWorker(store)
    begun = clock.now_us()
    for _ in range(many):
        clock.advance(1)
        await worker.settle(done(await worker.claim_one()))
    since, counted = await require_inspection(store).ended(begun)
    (each,) = counted
    assert since > begun or isinstance(store, MemoryStore)
    # One per second; the one at `since` itself may be included or not.
    assert each.count - (clock.now_us() - since) // SECOND_US in (0, 1)


NEEDLES = (JobFilter(kind="none"), JobFilter(kind="none", tenant="t1"), JobFilter(states=(State.FAILED,), kind="none"))
MANY, LOOKS = 600, 20


async def filled(store: SqliteStore | PostgresStore) -> None:
    """A store with many ended jobs, half of them failed."""
    await store.jobs.submit([new_job(number, tenant=f"t{number % 2}", attempts_max=1) for number in range(MANY)])
    worker = ContractWorker(store)
    await worker.settle(*(failed(lease) for lease in await worker.claim(MANY // 2)))


@pytest.mark.parametrize("which", NEEDLES)
async def test_a_look_into_a_file_reads_no_more_than_it_may(which: JobFilter, tmp_path: Path, clock: FakeClock) -> None:
    """The reported position alone does not prove that the query read nothing beyond it."""
    store = SqliteStore(str(tmp_path / "much.db"), now_us=clock.now_us)
    await store.open()
    await filled(store)

    def steps(scan_max: int) -> int:
        counted = [0]
        with closing(sqlite3.connect(store.path)) as connection:
            connection.set_progress_handler(lambda: counted.append(0), 10)
            search(connection, SearchQuery(which, NEWEST, 50, scan_max))
        return len(counted)

    assert steps(LOOKS) * 5 < steps(MANY - 1)
    await store.close()


@pytest.mark.parametrize("which", NEEDLES)
async def test_a_look_into_postgresql_reads_no_more_than_it_may(which: JobFilter, server: PostgresServer) -> None:
    """The same, measured by the rows that the server reports as read."""
    store = PostgresStore(f"{server.url}?schema=search")
    await store.open()
    await empty(store)
    await filled(store)
    lanes = None if which.tenant is None else [1]
    sought = postgres.Sought(which, LOOKS, lanes, {"ready": MANY, "scheduled": MANY, "leased": MANY})
    text = postgres.render_search(sought).replace(":schema", store.address.quoted)
    values = (NEWEST, 51, lanes, which.kind, which.error_code, which.shard_key)
    async with store.connections.borrow() as connection:
        await connection.execute(f"ANALYZE {store.address.quoted}.jobs, {store.address.quoted}.history")
        plan = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}", *values)
    # In such a small table the planner may choose the other index, in which every other job belongs to another lane.
    assert 0 < max(read_by(json.loads(plan)[0]["Plan"])) <= 3 * LOOKS < MANY // 2
    await store.close()


def read_by(node: dict[str, Any]) -> Iterator[float]:
    """The rows of jobs that this part of a plan has read, including filtered ones."""
    if node.get("Relation Name", "").startswith(("jobs", "history")):
        yield node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
    for inner in node.get("Plans", ()):
        yield from read_by(inner)


def test_several_ways_came_as_far_as_the_slowest() -> None:
    """Beyond the end of one search path, another path has found jobs that this one has not reached yet."""
    far, near = SearchStep([JobId("9"), JobId("3")], JobId("2")), SearchStep([JobId("8")], JobId("6"))
    assert merge_steps([far, near], 10) == SearchStep([JobId("9"), JobId("8")], JobId("6"))
    assert merge_steps([far._replace(upto=None), near._replace(upto=None)], 10) == SearchStep(
        [JobId("9"), JobId("8"), JobId("3")], None
    )
    assert merge_steps([far, near], 1) == SearchStep([JobId("9")], JobId("9"))
