"""Each role has the rights that it needs, and no others."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

import asyncpg
import pytest
from tests.stores.postgres_support import address, connected, error_of, new_name, new_role, opened, value

from leaseway import App
from leaseway.domain.errors import StoreRefused
from leaseway.domain.exchange import Gate, ProgressReport
from leaseway.domain.inspection import CancelResult
from leaseway.domain.job import Lease, Submitted
from leaseway.domain.schedule import Missed, Schedule
from leaseway.domain.tenant import Tenant
from leaseway.ports.store import require_inspection, require_pauses
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.job_store_contract.fixtures import (
    ALL,
    ContractWorker,
    done,
    failed,
    held,
    id_of,
    keyed_job,
    new_job,
)
from leaseway.testing.postgres import PostgresServer

ROLES = ("reader", "submitter", "worker", "operator")
DAILY = Schedule(name="daily", kind="count", cron="0 3 * * *", tz="UTC", missed=Missed.LATEST)


class Town(NamedTuple):
    server: PostgresServer
    owner: PostgresStore
    roles: dict[str, str]

    @property
    def schema(self) -> str:
        return self.owner.address.schema

    def store(self, role: str) -> AbstractAsyncContextManager[PostgresStore]:
        return opened(self.server, self.schema, self.roles[role])


@pytest.fixture
async def town(server: PostgresServer) -> AsyncIterator[Town]:
    """A schema, and one role of each kind."""
    async with opened(server) as owner:
        roles = {}
        for kind in ROLES:
            roles[kind] = await new_role(server)
            await value(server, f"SELECT {owner.address.schema}.grant_{kind}($1)", roles[kind])
        yield Town(server, owner, roles)


async def refused(call: object) -> None:
    error = await error_of(call)
    assert isinstance(error, StoreRefused), repr(error)
    assert "permission denied" in str(error)
    assert "ask the owner of the schema" in str(error)


# -- nothing more -----------------------------------------------------------------------------------------------------


async def test_no_role_can_write_to_a_table(town: Town) -> None:
    """Every change is a function, so that counters, keys and fences cannot be bypassed."""
    sql = """
    SELECT array_agg(relname || ' ' || privilege ORDER BY 1)
      FROM pg_class CROSS JOIN unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER']) AS privilege
     WHERE relnamespace = $1::regnamespace AND relkind IN ('r', 'p', 'v') AND has_table_privilege($2, oid, privilege)
    """
    for role in town.roles.values():
        assert await value(town.server, sql, town.schema, role) is None
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await value(town.server, f"DELETE FROM {town.schema}.jobs", user=role)


async def test_no_role_can_create_or_drop_objects(town: Town) -> None:
    """Only the owner migrates."""
    for role in town.roles.values():
        for sql in (f"CREATE TABLE {town.schema}.mine (x integer)", f"DROP TABLE {town.schema}.idempotency_keys"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await value(town.server, sql, user=role)


async def test_no_role_can_grant_rights(town: Town) -> None:
    """A worker could make itself an operator."""
    for role in town.roles.values():
        for kind in ROLES:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await value(town.server, f"SELECT {town.schema}.grant_{kind}($1)", role, user=role)


async def test_a_submitter_cannot_read_jobs(town: Town) -> None:
    """A compromised web server must not reveal the jobs of others."""
    await town.owner.jobs.submit([new_job(1, payload='{"secret": 1}')])
    async with town.store("submitter") as store:
        for call in (
            store.reads.job(id_of(1)),
            store.reads.jobs(ALL),
            store.reads.errors(id_of(1)),
            store.reads.lanes(),
            store.schedules.all(),
            ContractWorker(store).claim(),
            store.operations.cancel(id_of(1)),
            store.operations.prune(0, 10),
            store.jobs.wait_us(("default",)),
        ):
            await refused(call)
        for table in ("payloads", "jobs", "history", "idempotency_keys"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await value(town.server, f"SELECT * FROM {town.schema}.{table}", user=town.roles["submitter"])


async def test_a_reader_cannot_change_anything(town: Town) -> None:
    """Dashboards and reports use this role."""
    await town.owner.jobs.submit([new_job(1)])
    async with town.store("reader") as store:
        for call in (
            store.jobs.submit([new_job(2)]),
            store.jobs.submit([keyed_job(2)]),
            ContractWorker(store).claim(),
            store.operations.cancel(id_of(1)),
            store.operations.prune(0, 10),
            store.schedules.declare([DAILY]),
            store.schedules.pause("daily", True),
        ):
            await refused(call)
    assert len(await town.owner.reads.jobs(ALL)) == 1


async def test_a_worker_cannot_do_what_operators_do(town: Town) -> None:
    """Handlers run third-party code, which must not be able to delete dead letters."""
    lease = await leased(town.owner)
    await ContractWorker(town.owner).settle(failed(lease))
    async with town.store("worker") as store:
        for call in (
            store.operations.cancel(id_of(1)),
            store.operations.retry(ALL, 10),
            store.operations.discard(ALL, 10),
            store.schedules.pause("daily", True),
            store.tenants.set(Tenant(name="acme", weight=1_000)),
            store.tenants.forget("acme"),
            require_pauses(store).pause("default"),
            require_pauses(store).resume("default"),
        ):
            await refused(call)


async def leased(store: PostgresStore, number: int = 1) -> Lease:
    await store.jobs.submit([new_job(number)])
    return await ContractWorker(store).claim_one()


# -- all that it needs ------------------------------------------------------------------------------------------------


async def test_a_submitter_can_submit_in_every_way(town: Town) -> None:
    """The paths of submission use different functions."""
    async with town.store("submitter") as store:
        assert await store.jobs.submit([new_job(1)]) == [Submitted(id_of(1))]
        assert await store.jobs.submit([keyed_job(2), new_job(3)]) == [Submitted(id_of(2)), Submitted(id_of(3))]
        assert (await store.jobs.submit([keyed_job(4)]))[0].replayed
        async with connected(town.server, town.roles["submitter"]) as connection:
            assert await connection.fetchval(f"SELECT {town.schema}.submit_job('count')")
            await connection.execute(f"SELECT {town.schema}.notify_workers()")
    assert len(await town.owner.reads.jobs(ALL)) == 4


async def test_a_reader_can_read_everything_but_keys(town: Town) -> None:
    """A missing grant would break the doctor and the dashboard."""
    await ContractWorker(town.owner).settle(failed(await leased(town.owner)))
    await town.owner.schedules.declare([DAILY])
    async with town.store("reader") as store:
        assert (await store.reads.job(id_of(1))) is not None
        assert (
            len(await store.reads.jobs(ALL))
            == len(await store.reads.errors(id_of(1)))
            == len(await store.reads.lanes())
            == 1
        )
        assert len(await store.schedules.all()) == 1
        assert await store.jobs.wait_us(("default",)) is None
        assert [
            finding.level for finding in await require_inspection(store).health(deep=True) if finding.level == "problem"
        ] == []


async def test_a_reader_can_read_partitions_that_are_created_later(town: Town) -> None:
    """Rights are granted once, and there is a new partition every day."""
    async with town.store("worker") as worker:
        await value(town.server, f"SELECT {town.schema}.prune(0, 0, 4102444800000000)")  # in the year 2100
        assert await value(town.server, f"SELECT to_regclass('{town.schema}.history_21000101') IS NOT NULL")
        await ContractWorker(worker).settle(done(await leased(worker)))
    async with town.store("reader") as store:
        assert len(await store.reads.jobs(ALL)) == 1


async def test_an_operator_can_do_what_the_command_line_offers(town: Town) -> None:
    """A missing grant would show only when an operator needs the command."""
    async with town.store("operator") as store:
        await store.jobs.submit([new_job(1), new_job(2), new_job(3)])
        assert await store.operations.cancel(id_of(1)) is CancelResult.CANCELLED
        assert await store.operations.retry(ALL, 10) == [id_of(1)]
        await store.operations.cancel(id_of(2))
        assert await store.operations.discard(ALL, 10) == [id_of(2)]
        await store.schedules.declare([DAILY])
        assert await store.schedules.pause("daily", True)
        await store.tenants.set(Tenant(name="acme", weight=2))
        assert await store.tenants.forget("acme")
        assert await require_pauses(store).pause("default")
        assert len(await require_pauses(store).all()) == 1
        assert await require_pauses(store).resume("default")


async def test_a_worker_can_do_everything_that_workers_do(town: Town) -> None:
    """A missing grant would stop every worker at some later call."""
    async with town.store("worker") as store:
        lease = await leased(store)
        assert (await store.jobs.renew([held(lease)])).lost == ()
        assert await store.jobs.checkpoint(lease.id, lease.token, "1")
        await store.jobs.report([ProgressReport(lease.id, lease.token, "half")])
        await ContractWorker(store).settle(done(lease), done(lease))
        await store.schedules.declare([DAILY])
        (row,) = await store.schedules.all()
        assert await store.schedules.fire("daily", row.seen, row.now, [new_job(2)])
        assert await store.operations.prune(0, 10) == 1
        await store.jobs.submit([new_job(3, needs="maps")])
        assert len(await ContractWorker(store).claim(admits={Gate("maps", "default"): 1})) == 1
        assert await store.tenants.all() == []


async def test_an_app_works_without_any_right_to_create(server: PostgresServer) -> None:
    """In production the owner migrates, and workers have few rights."""
    schema = new_name()
    async with opened(server, schema):
        role = await new_role(server)
        await value(server, f"SELECT {schema}.grant_worker($1)", role)
    app, ran = App(address(server, schema, role)), list[int]()

    @app.job
    async def count(n: int) -> None:
        ran.append(n)

    @app.cron("* * * * *")
    @app.job
    async def minutely() -> None: ...

    async with app:
        await count.submit_many([{"n": n} for n in range(50)])
        await app.run_worker(until_empty=True)
    assert sorted(ran) == list(range(50))
