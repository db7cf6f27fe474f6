"""Lanes in PostgreSQL: closed by the thousands, and deleted while jobs are being submitted."""

import asyncio
from itertools import count
from typing import Any

import pytest
from tests.stores.postgres_support import connected, opened, recounted, value, waiting_for_a_lock

from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.job_store_contract.fixtures import ContractWorker, done, id_of, keyed_job, new_job
from leaseway.testing.postgres import PostgresServer

MANY = 100_000

# -- deleting lanes ---------------------------------------------------------------------------------------------------

SUBMISSIONS = {
    "one": lambda: [new_job(1)],
    "uniform": lambda: [new_job(1), new_job(2)],
    "keyed": lambda: [keyed_job(1)],
    "mixed": lambda: [new_job(1), new_job(2, priority=3)],
}


async def empty_lane(store: PostgresStore) -> None:
    """A lane that has no job left."""
    await store.jobs.submit([new_job(0)])
    await store.operations.cancel(id_of(0))
    await store.operations.prune(-1, 0)
    async with store.connections.borrow() as connection:
        await connection.execute(f"DELETE FROM {store.address.schema}.history")
        await connection.execute(f"UPDATE {store.address.schema}.lanes SET cancelled = 0")
        await connection.execute(f"DELETE FROM {store.address.schema}.lane_changes")


@pytest.mark.parametrize("name", SUBMISSIONS)
async def test_a_job_is_not_submitted_to_a_lane_that_is_being_deleted(server: PostgresServer, name: str) -> None:
    """The submission starts before the deletion commits. A job in a lane that does not exist would never run."""
    async with opened(server) as store, connected(server) as other:
        await empty_lane(store)
        await other.execute(f"SET search_path TO {store.address.schema}")
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT delete_empty_lanes(10)")
        assert await other.fetchval("SELECT count(*) FROM lanes") == 0
        jobs = SUBMISSIONS[name]()
        task = asyncio.create_task(store.jobs.submit(jobs))
        await waiting_for_a_lock(other)
        await transaction.commit()
        await task
        assert len(await ContractWorker(store).claim(9)) == len(jobs)
        assert await store.reads.lanes() == await recounted(store)


async def test_a_lane_with_an_uncommitted_job_stays(server: PostgresServer) -> None:
    """The transaction of a caller may stay open for minutes. Its job must find its lane when it commits, and others
    must not wait for it."""
    async with opened(server) as store, connected(server) as caller:
        await empty_lane(store)
        transactional = store.transactional
        assert transactional is not None
        async with caller.transaction():
            await transactional.submit(caller, [new_job(1)])
            await store.operations.prune(0, 10)
            await store.jobs.submit([new_job(2, queue="other")])
        assert [lease.id for lease in await ContractWorker(store).claim(9)] == [id_of(1)]


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_caller_whose_snapshot_still_has_the_lane_is_refused(server: PostgresServer, isolation: str) -> None:
    """The snapshot is older than the deletion, so the caller would submit to a lane that does not exist any more."""
    async with opened(server) as store, connected(server) as caller:
        await empty_lane(store)
        transactional = store.transactional
        assert transactional is not None
        schema = store.address.schema
        transaction = caller.transaction(isolation=isolation)
        await transaction.start()
        assert await caller.fetchval(f"SELECT count(*) FROM {schema}.lanes") == 1
        await store.operations.prune(0, 10)
        assert await value(server, f"SELECT count(*) FROM {schema}.lanes") == 0
        with pytest.raises(Exception, match="could not serialize access"):
            await transactional.submit(caller, [new_job(1)])
        await transaction.rollback()
        async with caller.transaction(isolation=isolation):
            await transactional.submit(caller, [new_job(1)])
        assert len(await ContractWorker(store).claim(9)) == 1


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_caller_is_not_refused_because_its_lane_was_counted(server: PostgresServer, isolation: str) -> None:
    """Counters change all the time. A caller with a strict isolation level must not have to repeat its work."""
    async with opened(server) as store, connected(server) as caller:
        await store.jobs.submit([new_job(0)])
        transactional = store.transactional
        assert transactional is not None
        async with caller.transaction(isolation=isolation):
            await caller.fetchval(f"SELECT count(*) FROM {store.address.schema}.lanes")
            await value(server, f"UPDATE {store.address.schema}.lanes SET ready = ready, vtime = vtime + 1 RETURNING 1")
            await transactional.submit(caller, [new_job(1)])
        assert len(await ContractWorker(store).claim(9)) == 2


async def test_no_job_is_lost_while_lanes_come_and_go(server: PostgresServer) -> None:
    """Four submitters and four workers use a few lanes that a prune deletes as soon as they are empty."""
    numbers, rounds = count(1), 25
    async with opened(server, pool="10") as store:
        queues = ("q0", "q1", "q2")
        ran: list[str] = []

        async def submit(name: int) -> None:
            for turn in range(rounds):
                await store.jobs.submit([new_job(next(numbers), queue=f"q{(name + turn) % 3}")])

        async def work(name: int) -> None:
            worker = ContractWorker(store, f"worker-{name}")
            while len(ran) < 4 * rounds:
                leases = await worker.claim(2, queues)
                ran.extend(lease.id for lease in leases)
                await worker.settle(*map(done, leases))

        async def prune() -> None:
            while len(ran) < 4 * rounds:
                await store.operations.prune(0, 100)

        async with asyncio.timeout(60):
            await asyncio.gather(*(submit(n) for n in range(4)), *(work(n) for n in range(4)), prune())
        assert len(set(ran)) == 4 * rounds
        await store.operations.prune(0, 1_000)
        assert await store.reads.lanes() == []
        assert await value(server, f"SELECT count(*) FROM {store.address.schema}.flows") == 0


# -- a hundred thousand lanes -----------------------------------------------------------------------------------------

CROWD = """
INSERT INTO flows (queue, tenant) SELECT 'default', 'crowd';
INSERT INTO lanes (flow, queue, tenant, needs, ready, has_ready, closed_until, closed_why)
SELECT flows.id, 'default', 'crowd', 'mail:' || n, 1, true, {closed_until}, {closed_why}
  FROM flows CROSS JOIN generate_series(1, {many}) AS n;
INSERT INTO jobs (id, lane, state, priority, run_at) SELECT 'crowd-' || id, id, 'ready', 0, 0 FROM lanes;
INSERT INTO payloads (id, created_at, lease_us, attempts_max, kind, payload)
SELECT 'crowd-' || id, 0, 1000000, 1, 'k', '{{}}' FROM lanes;
"""
EXCHANGE = """
SELECT what, needs FROM exchange('w', ARRAY['default'], 5, 'token', false, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                                 NULL, NULL, NULL, NULL, NULL, NULL, $1, $2)
"""
ROWS_READ = """
SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables
 WHERE schemaname = current_schema() AND relname IN ('lanes', 'flows', 'lane_changes')
"""


async def rows_read(connection: Any, sql: str, *values: object) -> tuple[int, list[Any]]:
    """How many rows of lanes a statement reads, and its answer."""
    async with connection.transaction():
        before = await connection.fetchval(ROWS_READ)
        answer = await connection.fetch(sql, *values)
        return int(await connection.fetchval(ROWS_READ) - before), answer


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "open"])
@pytest.mark.parametrize("is_analyzed", [True, False], ids=["analyzed", "unknown"])
async def test_a_hundred_thousand_lanes_of_one_tenant_cost_nothing(
    server: PostgresServer, is_closed: bool, is_analyzed: bool
) -> None:
    """An exchange and a poll do not read closed lanes, and read only the first of the open ones. The statistics of the
    planner may be out of date."""
    async with opened(server) as store, connected(server) as connection:
        await connection.execute(f"SET search_path TO {store.address.schema}")
        until = "now_us() + 60000000" if is_closed else "NULL"
        await connection.execute(CROWD.format(many=MANY, closed_until=until, closed_why="'limit mail'"))
        if is_analyzed:
            await connection.execute("ANALYZE lanes; ANALYZE flows; ANALYZE jobs")
        await store.jobs.submit([new_job(1, tenant="zeta"), new_job(2, tenant="zeta", needs="maps")])
        wait = "SELECT wait_us(ARRAY['default'], NULL, $1)"
        known = '[{"needs": "maps", "tenant": "zeta"}]'
        for _ in range(3):  # the first calls plan their statements
            rows, answer = await rows_read(connection, EXCHANGE, None, None)
            polled, _ = await rows_read(connection, wait, known)
        gates = [row["needs"] for row in answer if row["what"] == "gate"]
        assert gates[:2].count("maps") == 1
        assert len(gates) == (1 if is_closed else 100)
        assert rows <= (30 if is_closed else 150)
        assert polled <= 30
        admits = '[{"needs": "maps", "tenant": "zeta", "count": 1}]'
        closed = '[{"needs": "mail:7", "tenant": "crowd", "wait_us": 1000000, "why": "limit mail"}]'
        rows, answer = await rows_read(connection, EXCHANGE, admits, closed)
        assert [row["what"] for row in answer if row["needs"] == "maps"] == ["lease"]
        assert rows <= (60 if is_closed else 200)


async def test_lanes_that_open_again_open_a_bounded_number_at_a_time(server: PostgresServer) -> None:
    """After a minute, a hundred thousand lanes are due. One exchange must not write them all."""
    async with opened(server) as store, connected(server) as connection:
        await connection.execute(f"SET search_path TO {store.address.schema}")
        await connection.execute(CROWD.format(many=2_500, closed_until="1", closed_why="''"))
        left = []
        for _ in range(3):
            await ContractWorker(store).exchange(wants=ContractWorker(store).wants(1))
            left.append(await connection.fetchval("SELECT count(*) FROM lanes WHERE closed_until IS NOT NULL"))
        assert left == [1_500, 500, 0]
        assert await store.jobs.wait_us(("default",)) == 0
