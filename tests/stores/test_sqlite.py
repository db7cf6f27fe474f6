"""What only the SQLite store can get wrong."""

import sqlite3
from pathlib import Path

import pytest
from tests.sqlite_files import open_sqlite

from leaseway.domain.exchange import Exchange, Wants
from leaseway.domain.ids import JobId, Token, WorkerId
from leaseway.domain.job import NewJob
from leaseway.stores.sqlite.migrate import APPLICATION_ID
from leaseway.stores.sqlite.statements import migrations, statements
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"{", "{broken", 7], ids=repr)
async def test_a_damaged_payload_does_not_keep_the_others_from_being_claimed(tmp_path: Path, damage: object) -> None:
    """One claim reads many rows at once: one that cannot be read must fail alone, later, when it is run."""
    path = tmp_path / "work.db"
    store = SqliteStore(str(path), FakeClock().now_us)
    await store.open()
    await store.jobs.submit([NewJob(id=JobId(f"job-{n}"), kind="k", payload="{}") for n in range(3)])
    with open_sqlite(path) as connection:
        connection.execute("UPDATE jobs SET payload = ? WHERE id = 'job-1'", [damage])
    connection.close()
    claimed = await store.jobs.exchange(Exchange(WorkerId("w"), (), Wants(("default",), 10, Token("t"))))
    assert [lease.id for lease in claimed.leases] == ["job-0", "job-1", "job-2"]
    assert claimed.leases[1].payload != "{}"
    await store.close()


HOT = [
    "lane_floor",
    "claimable",
    "claim",
    "settleable",
    "settle_done",
    "settle",
    "due",
    "expired",
    "promote",
    "renew",
    "wait",
]


@pytest.mark.parametrize("verb", HOT)
async def test_no_hot_statement_reads_the_whole_table(tmp_path: Path, verb: str) -> None:
    """A million waiting jobs must cost nothing to those who look for something else."""
    path = tmp_path / "work.db"
    store = SqliteStore(str(path), FakeClock().now_us)
    await store.open()
    await store.close()
    connection = sqlite3.connect(path)
    names = "lane count jobs token worker now results settlements limit leases queues closed"
    values = {**dict.fromkeys(names.split(), "[]"), "results": "{}"}
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statements()[verb]}", values)]
    connection.close()
    assert plan
    assert [step for step in plan if step.startswith(("SCAN jobs", "SCAN lanes")) and "USING" not in step] == []


async def test_a_file_from_before_lanes_had_needs_goes_on_with_all_its_jobs(tmp_path: Path) -> None:
    """The table of lanes is made anew: jobs find theirs by its number, and its counters are counted nowhere else."""
    path = tmp_path / "work.db"
    connection = sqlite3.connect(path)
    connection.executescript(migrations()[0])
    connection.executescript(
        f"PRAGMA user_version = 1; PRAGMA application_id = {APPLICATION_ID};"
        "INSERT INTO lanes (id, queue, tenant, ready, done, served_at) VALUES (3, 'default', 'b', 1, 7, 9),"
        " (7, 'default', 'a', 2, 0, 5);"
        "INSERT INTO jobs (id, lane, stage, kind, priority, run_at, attempts_max, lease_us, created_at, payload) VALUES"
        " ('one', 3, 0, 'k', 0, 0, 5, 9, 0, '{}'), ('two', 7, 0, 'k', 0, 0, 5, 9, 0, '{}'),"
        " ('three', 7, 0, 'k', 0, 0, 5, 9, 0, '{}');"
    )
    connection.close()
    store = SqliteStore(str(path), FakeClock().now_us)
    assert await store.open() == len(migrations()) - 1
    assert [(lane.tenant, lane.needs, lane.ready, lane.done) for lane in await store.reads.lanes()] == [
        ("a", "", 2, 0),
        ("b", "", 1, 7),
    ]
    await store.jobs.submit([NewJob(id=JobId("four"), kind="k", payload="{}", tenant="b")])
    claimed = await store.jobs.exchange(Exchange(WorkerId("w"), (), Wants(("default",), 10, Token("t"))))
    assert [(lease.id, lease.tenant) for lease in claimed.leases] == [
        ("two", "a"),
        ("three", "a"),
        ("one", "b"),
        ("four", "b"),
    ]
    assert len(await store.reads.lanes()) == 2
    await store.close()
