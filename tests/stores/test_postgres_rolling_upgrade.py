"""A rolling upgrade: clients of one version continue while a newer client migrates the schema, and beside it.

Version 2 is made up; it shows what a migration may do. Until the first tagged release this is the only proof. From then
on the previous release is the baseline: install it beside the checkout, and let it take the part of the old client.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from tests.stores.postgres_support import address, closing, error_of, new_name, new_role, opened, until, value

from leaseway.domain.errors import StoreRefused
from leaseway.stores.postgres import schema as migrations
from leaseway.stores.postgres.statements import rows
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.job_store_contract.fixtures import ContractWorker, counts, done, keyed_job, new_job
from leaseway.testing.postgres import PostgresServer

ENOUGH = 20
PARAMETERS = 22
VERSION_2 = f"""
-- A new column has no default, so that it is added without rewriting the table.
ALTER TABLE payloads ADD COLUMN note text;
CREATE TABLE visitors (name text PRIMARY KEY);

-- A function with new parameters or a new meaning gets a new name: old clients continue to call the old one.
CREATE FUNCTION exchange_noted(
  text, text[], integer, text, boolean, text[], text[], text[], json,
  text[], text[], text[], text[], integer[], json, text[], text[], bigint, json, json, text, integer)
RETURNS SETOF exchange_row LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO visitors (name) VALUES ($1) ON CONFLICT DO NOTHING;
  RETURN QUERY SELECT * FROM exchange({", ".join(f"${n}" for n in range(1, PARAMETERS + 1))});
END $$;
REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA :schema FROM PUBLIC;

-- Roles that could call the old function may call the new one.
SELECT grant_functions(rolname, ARRAY['exchange_noted'])
  FROM pg_proc CROSS JOIN aclexplode(proacl) AS held JOIN pg_roles ON pg_roles.oid = held.grantee
 WHERE pronamespace = current_schema()::regnamespace AND proname = 'exchange' AND held.grantee <> proowner;
"""


@pytest.fixture
def version_2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> migrations.Migration:
    script = tmp_path / "0002_visitors.sql"
    script.write_text(VERSION_2)
    return migrations.Migration("visitors", [script], needs=1)


class Client:
    """A program that submits and works on jobs through one store, and remembers which."""

    _numbers = count(1)  # shared, so that no two clients submit the same job

    def __init__(self, store: PostgresStore, name: str) -> None:
        self.store = store
        self.name = name
        self.submitted: list[str] = []
        self.settled: list[str] = []

    async def submit(self) -> None:
        """By each path: one job, a job with a key, several uniform jobs."""
        while True:
            one, keyed, *many = [next(self._numbers) for _ in range(5)]
            await self.store.jobs.submit([new_job(one)])
            await self.store.jobs.submit([keyed_job(keyed, key=f"key-{keyed}")])
            jobs = [new_job(number) for number in many]
            await self.store.jobs.submit(jobs)
            self.submitted += [new_job(one).id, new_job(keyed).id, *(job.id for job in jobs)]
            await asyncio.sleep(0.005)

    async def work(self) -> None:
        worker = ContractWorker(self.store, self.name)
        while True:
            for lease in await worker.claim(2):
                answer = await worker.settle(done(lease))
                assert answer.lost == ()
                self.settled.append(lease.id)
            await asyncio.sleep(0.001)


@asynccontextmanager
async def running(*programs: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run these programs in the background; if one of them fails, the test fails."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(program) for program in programs]
        yield
        for task in tasks:
            task.cancel()


async def test_clients_of_two_versions_share_a_schema_during_and_after_a_migration(
    server: PostgresServer, version_2: migrations.Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade must not require stopping all workers: each runs the other's jobs, every job exactly once."""
    role = await new_role(server)
    async with opened(server) as owner:
        schema = owner.address.schema
        await value(server, f"SELECT {schema}.grant_worker($1)", role)
        async with opened(server, schema, role) as old_store, opened(server, schema, role) as new_store:
            old, new = Client(old_store, "old"), Client(new_store, "new")
            async with running(old.submit(), old.work()):
                await until(partial(has_settled, old, old))
                monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, version_2))
                assert await owner.open() == 1
                noted = rows("exchange_noted", PARAMETERS).replace(":schema", schema)
                new_store.database.sql = {**new_store.database.sql, "exchange": noted}
                async with running(new.submit(), new.work()):
                    for worker, submitter in product((old, new), repeat=2):
                        await until(partial(has_settled, worker, submitter))
        await settle_the_rest(owner)
        assert (await counts(owner)).keys() == {"done"}
        assert max(Counter(old.settled + new.settled).values()) == 1
        assert await value(server, f"SELECT array_agg(name) FROM {schema}.visitors") == ["new"]


async def has_settled(worker: Client, submitter: Client) -> bool:
    return len({*worker.settled} & {*submitter.submitted}) >= ENOUGH


async def settle_the_rest(store: PostgresStore) -> None:
    """The jobs that were ready or leased when the clients were stopped."""
    async with store.connections.borrow() as connection:
        await connection.execute(f"UPDATE {store.address.quoted}.jobs SET until = 0 WHERE state = 'leased'")
    worker = ContractWorker(store, "last")
    while leases := await worker.claim(100):
        await worker.settle(*map(done, leases))


async def test_a_schema_that_dropped_what_old_clients_use_refuses_them(
    server: PostgresServer, version_2: migrations.Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old worker that is started too late must say so, instead of failing at some later call."""
    schema = new_name()
    with monkeypatch.context() as newer:
        newer.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, version_2._replace(needs=2)))
        async with opened(server, schema):
            pass
    async with closing(PostgresStore(address(server, schema))) as old:
        error = await error_of(old.open())
        assert isinstance(error, StoreRefused)
        assert "install a newer leaseway" in str(error)
