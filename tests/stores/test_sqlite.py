"""Hazards of the SQLite store only."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from tests.sqlite_files import open_sqlite

from leaseway.domain.errors import SchemaVersions, StoreRefused, TerminalError
from leaseway.domain.exchange import LANES_MAX, Closing, Exchange, Gate, Wants
from leaseway.domain.ids import SECOND_US, JobId, Token, WorkerId
from leaseway.domain.job import NewJob
from leaseway.stores.sqlite import schema
from leaseway.stores.sqlite.database import SQL, Transaction, statements
from leaseway.stores.sqlite.jobs import exchange
from leaseway.stores.sqlite.schema import SCHEMA, Migration
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import ContractWorker, done, id_of, new_job

T = TypeVar("T")


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
        connection.execute("UPDATE jobs SET payload = CAST(? AS TEXT) WHERE id = 'job-1'", [damage])
    connection.close()
    claimed = await store.jobs.exchange(Exchange(WorkerId("w"), (), Wants(("default",), 10, Token("t"))))
    assert [lease.id for lease in claimed.leases] == ["job-0", "job-1", "job-2"]
    assert claimed.leases[1].payload != "{}"
    await store.close()


async def test_a_claim_and_a_settlement_do_not_write_a_long_payload_again(tmp_path: Path) -> None:
    """SQLite writes whole rows. Jobs with 64 KB of arguments ran at a fiftieth of the speed of short ones."""
    log, jobs, size = tmp_path / "work.db-wal", 50, 65_536
    async with opened(str(tmp_path / "work.db"), FakeClock()) as store:
        await store.jobs.submit([new_job(number, payload="x" * size) for number in range(jobs)])
        with open_sqlite(tmp_path / "work.db") as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        worker = ContractWorker(store)
        await worker.settle(*(done(lease) for lease in await worker.claim(jobs)))
        assert log.stat().st_size < jobs * size / 4


@pytest.mark.parametrize(("column", "value"), [("payload", b"{}"), ("attempts", "one"), ("run_at", 0.5)])
async def test_a_value_of_another_type_is_refused(tmp_path: Path, column: str, value: object) -> None:
    """Readers and claims handle many rows at once, and none of them expects bytes or a text in place of a number."""
    store = SqliteStore(str(tmp_path / "work.db"), FakeClock().now_us)
    await store.open()
    await store.jobs.submit([NewJob(id=JobId("job-1"), kind="k", payload="{}")])
    with open_sqlite(tmp_path / "work.db") as connection, pytest.raises(sqlite3.IntegrityError, match=column):
        connection.execute(f"UPDATE jobs SET {column} = ?", [value])
    await store.close()


def test_every_table_is_strict() -> None:
    """Without STRICT, a column of SQLite takes values of every type."""
    for script in [*SCHEMA.iterdir(), SQL / "limits" / "schema.sql"]:
        text = script.read_text("utf-8")
        assert text.count("CREATE TABLE") == text.count(") STRICT"), script.name


HOT = [
    "flow_floor",
    "lanes_with_work",
    "flows_gated",
    "lanes_gated",
    "lanes_close",
    "lanes_reopen",
    "claimable",
    "claim",
    "settleable",
    "settle_done",
    "settle",
    "due",
    "expired",
    "promote",
    "promote_lane",
    "promotion_visit",
    "kept_sizes",
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
    names = "lane count jobs token worker now results settlements limit leases queues closed admits floor"
    names += " tenant lanes_max gates_max closings lease_us_min lease_us_max backlog ids lanes queue has_plain"
    values = {**dict.fromkeys(names.split(), "[]"), "results": "{}"}
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statements()[verb]}", values)]
    connection.close()
    assert plan
    assert [step for step in plan if step.startswith(("SCAN jobs", "SCAN lanes")) and "USING" not in step] == []


# -- a hundred thousand lanes ----------------------------------------------------------------------------------------

CROWD = """
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :many)
INSERT INTO lanes (queue, tenant, needs, ready, closed_until, closed_why)
SELECT 'default', 'crowd', 'mail:' || n, 1, :closed_until, 'limit mail' FROM numbers
"""


def copied(path: Path, many: int) -> sqlite3.Connection:
    copy = path.with_name(f"{many}.db")
    with open_sqlite(path) as source, open_sqlite(copy) as target:
        source.backup(target)
    return sqlite3.connect(copy)


def crowded(path: Path, many: int, closed_until: int | None) -> sqlite3.Connection:
    """A copy of a store in which one tenant has this many lanes with a ready job."""
    connection = copied(path, many)
    connection.execute("INSERT INTO flows (queue, tenant) VALUES ('default', 'crowd')")
    connection.execute(CROWD, {"many": many, "closed_until": closed_until})
    return connection


def steps(connection: sqlite3.Connection, work: Callable[[], T]) -> tuple[int, T]:
    """The steps of SQLite's virtual machine that this work takes: a measure that does not depend on the machine."""
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1

    connection.set_progress_handler(step, 1)
    answer = work()
    connection.set_progress_handler(None, 0)
    return taken, answer


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "open"])
async def test_a_hundred_thousand_lanes_of_one_tenant_cost_nothing(tmp_path: Path, is_closed: bool) -> None:
    """An exchange and a poll do not read closed lanes, and read only the first of the open ones."""
    path, clock = tmp_path / "work.db", FakeClock()
    async with opened(str(path), clock) as store:
        await store.jobs.submit([new_job(1, tenant="zeta"), new_job(2, tenant="zeta", needs="maps")])
    now, costs = clock.now_us(), []
    for many in (200, 100_000):
        connection = crowded(path, many, now + 60 * SECOND_US if is_closed else None)
        closing = Closing(Gate("mail:7", "crowd"), 60 * SECOND_US, "limit mail")
        call = Exchange(WorkerId("w"), (), Wants(("default",), 1, Token("t"), closed=(closing,)))
        transaction = Transaction(connection, now, statements())
        exchanged, reply = steps(connection, lambda: exchange(transaction, call))  # noqa: B023
        asked = {"queues": '["default"]', "closed": '[["maps", "zeta"]]'}
        polled, _ = steps(connection, lambda: connection.execute(statements()["wait"], asked).fetchall())  # noqa: B023
        connection.close()
        assert "maps" in [each.gate.needs for each in reply.gated][:2]
        assert len(reply.gated) == (1 if is_closed else LANES_MAX)
        assert [lease.id for lease in reply.leases] == [id_of(1)]
        costs.append((exchanged, polled))
    (few_exchanged, few_polled), (exchanged, polled) = costs
    assert exchanged <= 1.1 * few_exchanged
    assert polled <= 1.1 * few_polled


TENANTS = """
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :many)
INSERT INTO {table} SELECT 'default', 'tenant-' || n {rest} FROM numbers
"""


@pytest.mark.parametrize("needs", ["", "mail"], ids=["plain", "gated"])
async def test_ten_thousand_tenants_with_ready_jobs_cost_nothing(tmp_path: Path, needs: str) -> None:
    """A claim serves a hundred flows at most, so it does not read and rank the others."""
    path, clock, costs = tmp_path / "work.db", FakeClock(), []
    async with opened(str(path), clock) as store:
        await store.jobs.submit([new_job(1)])
    for many in (200, 10_000):
        connection = copied(path, many)
        flows = TENANTS.format(table="flows (queue, tenant, vtime)", rest=", 1")
        lanes = TENANTS.format(table="lanes (queue, tenant, needs, ready)", rest=", :needs, 1")
        connection.execute(flows, {"many": many})
        connection.execute(lanes, {"many": many, "needs": needs})
        call = Exchange(WorkerId("w"), (), Wants(("default",), 1, Token("t")))
        transaction = Transaction(connection, clock.now_us(), statements())
        exchanged, reply = steps(connection, lambda: exchange(transaction, call))  # noqa: B023
        asked = {"queues": '["default"]', "closed": "[]"}
        polled, _ = steps(connection, lambda: connection.execute(statements()["wait"], asked).fetchall())  # noqa: B023
        connection.close()
        assert [lease.id for lease in reply.leases] == [id_of(1)]
        assert len(reply.gated) == (LANES_MAX if needs else 0)
        costs.append((exchanged, polled))
    (few_exchanged, few_polled), (exchanged, polled) = costs
    assert exchanged <= 1.1 * few_exchanged
    assert polled <= 1.1 * few_polled


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
