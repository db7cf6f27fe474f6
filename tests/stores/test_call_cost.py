"""The cost of a call depends on what exists, not on the product of the lists in it.

The databases count what they do, so that the tests do not depend on the speed of the machine.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace
from tests.sqlite_files import open_sqlite
from tests.stores.conftest import empty

from leaseway.domain.exchange import (
    CHILDREN_MAX,
    CLAIM_MAX,
    GATES_MAX,
    LANES_MAX,
    QUEUES_MAX,
    Admit,
    Closing,
    Exchange,
    Gate,
    Wants,
)
from leaseway.domain.ids import SECOND_US, JobId, Token, WorkerId
from leaseway.domain.inspection import PAGE_MAX, JobFilter
from leaseway.domain.submission import SUBMIT_MAX
from leaseway.stores.postgres import rows
from leaseway.stores.postgres.statements import statements_for
from leaseway.stores.postgres.store import PostgresStore
from leaseway.stores.sqlite import operations
from leaseway.stores.sqlite.database import statements
from leaseway.stores.sqlite.reads import JobsPage, select_jobs
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import done, failed, keyed_job, new_job
from leaseway.testing.postgres import PostgresServer

GATES = [Gate(f'{{"limits":[["m{number}","m{number}",1]]}}', "acme") for number in range(GATES_MAX)]
QUEUES = tuple(f"q{number}" for number in range(QUEUES_MAX))
WANTS = Wants(
    QUEUES,
    10,
    Token("t"),
    tuple(Admit(gate, 1) for gate in GATES),
    tuple(Closing(gate, SECOND_US, "") for gate in GATES),
)
LANES = 300
MINUTE_US = 60 * SECOND_US
STEPS = 1_000
"""Instructions between two counts."""
INSTRUCTIONS_MAX = 500_000


async def test_a_file_is_not_locked_for_the_product_of_queues_and_gates(tmp_path: Path) -> None:
    """One exchange of ten thousand queues and gates held the write lock for a minute."""
    path = tmp_path / "work.db"
    store = SqliteStore(str(path), FakeClock().now_us)
    await store.open()
    await store.jobs.submit([new_job(n, queue=f"q{n}", tenant="acme", needs=GATES[n].needs) for n in range(LANES)])
    await store.close()
    gates = [(gate.needs, gate.tenant) for gate in GATES]
    closings = [(*gate, 10**15, "busy") for gate in gates]
    asked = {"queues": json.dumps(QUEUES), "tenant": None, "floor": 0, "lanes_max": LANES_MAX}
    with open_sqlite(path) as connection, counting(connection) as counted:
        found = connection.execute(statements()["lanes_with_work"], {**asked, "admits": json.dumps(gates)}).fetchall()
        closed = connection.execute(statements()["lanes_close"], {**asked, "closings": json.dumps(closings)}).rowcount
    assert (len(found), closed) == (LANES_MAX, LANES)
    assert sum(counted) < INSTRUCTIONS_MAX


async def test_a_claim_costs_the_same_however_many_lanes_have_work(tmp_path: Path) -> None:
    """With a limit for each account, ten thousand accounts with work made every claim fourteen times as slow."""
    few, many = [await claim_instructions(tmp_path / f"{lanes}.db", lanes) for lanes in (300, 3_000)]
    assert 0 < many < 1.2 * few


async def claim_instructions(path: Path, lanes: int) -> int:
    """Of a claim from thirty of these lanes, each of which has a gate of its own."""
    store, worker = SqliteStore(str(path), FakeClock().now_us, durable=False), WorkerId("w")
    await store.open()
    await store.jobs.submit(
        [new_job(n, tenant="acme", needs=GATES[0].needs.replace("m0", f"m{n}")) for n in range(lanes)]
    )
    found = await store.jobs.exchange(Exchange(worker, (), Wants(("default",), 100, Token("a"))))
    admits, counted = tuple(Admit(each.gate, 1) for each in found.gated[:30]), list[int]()
    await store.connection.write(lambda own: own.set_progress_handler(lambda: counted.append(100), 100))
    claimed = await store.jobs.exchange(Exchange(worker, (), Wants(("default",), 100, Token("b"), admits)))
    await store.close()
    assert len(claimed.leases) == len(admits) == 30
    return sum(counted)


async def test_ids_of_a_tenant_are_not_looked_for_in_each_of_its_lanes(tmp_path: Path) -> None:
    """Thirty thousand invented ids took ten seconds under the write lock."""
    path = tmp_path / "work.db"
    store = SqliteStore(str(path), FakeClock().now_us)
    await store.open()
    await store.jobs.submit([new_job(n, queue=f"q{n}", tenant="acme") for n in range(1_000)])
    await store.close()
    which = JobFilter(ids=tuple(JobId(f"invented-{number}") for number in range(PAGE_MAX)), tenant="acme")
    with open_sqlite(path) as connection, counting(connection) as counted:
        assert operations.find(connection, which, operations.FINISHED, PAGE_MAX) == []
        assert select_jobs(connection, statements()["select_jobs"], JobsPage(which, None, PAGE_MAX, None)) == []
    assert sum(counted) < INSTRUCTIONS_MAX


async def test_jobs_to_change_are_looked_for_without_the_write_lock(tmp_path: Path) -> None:
    """A filter that matches few jobs reads all of them, and other writers would wait meanwhile."""
    path = tmp_path / "work.db"
    store = SqliteStore(str(path), FakeClock().now_us)
    await store.open()
    await store.jobs.submit([new_job(1)])
    with open_sqlite(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert await store.operations.retry(JobFilter(kind="nothing"), 10) == []
        assert await store.operations.discard(JobFilter(kind="nothing"), 10) == []
    await store.close()


async def test_a_server_does_not_read_all_lanes_of_a_tenant_for_every_gate(
    server: PostgresServer, clock: FakeClock
) -> None:
    """Ten such exchanges at once stopped every other client of the server for eleven seconds."""
    store = PostgresStore(server.url, now_us=clock.now_us)
    await store.open()
    await empty(store)
    await store.jobs.submit([new_job(n, queue=f"q{n}", tenant="acme", needs=GATES[n].needs) for n in range(LANES)])
    call = Exchange(WorkerId("w"), (), WANTS)
    async with store.connections.transaction() as connection:
        values = (call.worker, *rows.claim_arguments(call), *(None,) * 12, clock.now_us())
        gates = (rows.render_admits(call), rows.render_closings(call), None, None)
        leased = await connection.fetch(statements_for(store.address.quoted)["exchange"], *values, *gates)
        read = await connection.fetchval(
            "SELECT idx_scan + idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'lanes'"
        )
    await store.close()
    assert sum(row["what"] == "lease" for row in leased) == 10
    assert read < 5 * (QUEUES_MAX + GATES_MAX)


async def test_the_largest_submission_succeeds_within_the_time_of_a_call(server: PostgresServer) -> None:
    """A batch that always times out is repeated for ever. Each job has options and a key of its own: the worst case."""
    store = PostgresStore(server.url)
    await store.open()
    await empty(store)
    jobs = [keyed_job(n, key=f"k{n}", lease_us=MINUTE_US + n) for n in range(SUBMIT_MAX)]
    assert not any(answer.replayed for answer in await store.jobs.submit(jobs))
    assert [answer.id for answer in await store.jobs.submit(jobs)] == [job.id for job in jobs]
    await store.close()


async def test_the_largest_settlements_succeed_within_the_time_of_a_call(server: PostgresServer) -> None:
    """The same holds for failures, which move their errors, and for children."""
    store, worker = PostgresStore(server.url), WorkerId("w")
    await store.open()
    await empty(store)
    await store.jobs.submit([new_job(n, lease_us=MINUTE_US) for n in range(CLAIM_MAX)])
    granted = await store.jobs.exchange(Exchange(worker, (), Wants(("default",), CLAIM_MAX, Token("t"))))
    *others, parent = granted.leases
    assert len(others) == CLAIM_MAX - 1
    failures = tuple(failed(lease) for lease in others)
    for _ in range(2):
        assert (await store.jobs.exchange(Exchange(worker, failures))).lost == ()
    numbers = range(CLAIM_MAX, CLAIM_MAX + CHILDREN_MAX)
    children = tuple(keyed_job(n, key=f"k{n}", lease_us=MINUTE_US + n) for n in numbers)
    assert (await store.jobs.exchange(Exchange(worker, (replace(done(parent), children=children),)))).lost == ()
    await store.close()


@contextmanager
def counting(connection: sqlite3.Connection) -> Iterator[list[int]]:
    """The instructions of SQLite's virtual machine."""
    counted: list[int] = []
    connection.set_progress_handler(lambda: counted.append(STEPS), STEPS)
    yield counted
    connection.set_progress_handler(None, 0)
