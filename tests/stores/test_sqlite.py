"""Hazards of the SQLite store only."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.sqlite_files import open_sqlite

from leaseway.domain.errors import SchemaVersions, StoreRefused, TerminalError
from leaseway.domain.exchange import Exchange, Wants
from leaseway.domain.ids import JobId, Token, WorkerId
from leaseway.domain.job import NewJob
from leaseway.stores.sqlite import schema
from leaseway.stores.sqlite.database import statements
from leaseway.stores.sqlite.schema import Migration
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import ContractWorker, done, id_of, new_job


@asynccontextmanager
async def opened(path: str, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock.now_us)
    await store.open()
    yield store
    await store.close()


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"{", "{broken", 7], ids=repr)
async def test_a_damaged_payload_does_not_keep_the_others_from_being_claimed(tmp_path: Path, damage: object) -> None:
    """One claim reads many rows; a row that cannot be decoded must fail alone when it runs."""
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
    """A million pending jobs must not slow down queries for other jobs."""
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


ADD_COLUMN = (
    "ALTER TABLE jobs ADD COLUMN note TEXT;\nCREATE INDEX jobs_with_note ON jobs (note) WHERE note IS NOT NULL;\n"
)


async def test_the_next_migration_keeps_every_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that adds version 2 proves it like this: jobs and leases of version 1 continue, and version 1 refuses
    the migrated file instead of misreading it."""
    path, clock = str(tmp_path / "work.db"), FakeClock()
    async with opened(path, clock) as store:
        await store.jobs.submit([new_job(1), new_job(2)])
        lease = await ContractWorker(store).claim_one()
    (tmp_path / "note.sql").write_text(ADD_COLUMN)
    with monkeypatch.context() as newer:
        newer.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, Migration("note", [tmp_path / "note.sql"])))
        store = SqliteStore(path, clock.now_us)
        assert await store.versions() == SchemaVersions(1, 2)
        assert await store.open() == 1
        assert await store.open() == 0
        assert (await ContractWorker(store).settle(done(lease))).lost == ()
        assert [each.id for each in await ContractWorker(store).claim(2)] == [id_of(2)]
        await store.close()
    older = SqliteStore(path, clock.now_us)
    with pytest.raises(StoreRefused, match="schema version 2, and this leaseway supports versions up to 1"):
        await older.open()
    await older.close()


async def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file between two versions could be used by neither release."""
    path, clock = str(tmp_path / "work.db"), FakeClock()
    async with opened(path, clock) as store:
        await store.jobs.submit([new_job(1)])
    (tmp_path / "note.sql").write_text(ADD_COLUMN + "CREATE TABLE jobs (id TEXT);\n")
    with monkeypatch.context() as newer:
        newer.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, Migration("note", [tmp_path / "note.sql"])))
        store = SqliteStore(path, clock.now_us)
        with pytest.raises(TerminalError):
            await store.open()
        await store.close()
    async with opened(path, clock) as store:
        assert await store.versions() == SchemaVersions(1, 1)
        assert (await ContractWorker(store).claim_one()).id == id_of(1)
