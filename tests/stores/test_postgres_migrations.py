"""Migrations: applied once by many processes, as a whole or not at all, and safe against other schemas and roles."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest
from tests.stores.postgres_support import (
    address,
    closing,
    connected,
    error_of,
    new_name,
    new_role,
    opened,
    value,
)

from leaseway.domain.errors import BadValue, StoreBusy
from leaseway.ports.store import require_inspection
from leaseway.stores.postgres import schema as migrations
from leaseway.stores.postgres.address import check_schema
from leaseway.stores.postgres.connection import CALL_SECONDS_MAX
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.job_store_contract.fixtures import ContractWorker, counts, done, id_of, ids_in, new_job
from leaseway.testing.postgres import PostgresServer

VERSIONS = len(migrations.MIGRATIONS)
AddVersion = Callable[..., None]


@pytest.fixture
def add_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AddVersion:
    """Make this leaseway one version newer, by scripts of these texts."""

    def add(*texts: str, needs: int = 1) -> None:
        scripts = [tmp_path / f"{n}.sql" for n in range(len(texts))]
        for script, text in zip(scripts, texts, strict=True):
            script.write_text(text)
        newer = (*migrations.MIGRATIONS, migrations.Migration("next", scripts, needs))
        monkeypatch.setattr(migrations, "MIGRATIONS", newer)

    return add


async def object_count(server: PostgresServer, schema: str) -> int:
    sql = """
    SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace($1))
         + (SELECT count(*) FROM pg_proc WHERE pronamespace = to_regnamespace($1))
    """
    return int(await value(server, sql, schema))


# -- the next version -------------------------------------------------------------------------------------------------


async def test_a_failing_first_migration_leaves_nothing_behind(
    server: PostgresServer, add_version: AddVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a schema can neither be used nor be completed by another try."""
    add_version("CREATE TABLE fine (x integer)", "SELECT 1 / 0")
    schema = new_name()
    async with closing(PostgresStore(address(server, schema))) as store:
        error = await error_of(store.open())
        assert "division by zero" in str(error)
        assert await object_count(server, schema) == 0
        assert await value(server, "SELECT to_regnamespace($1)", schema) is None
        monkeypatch.undo()
        assert await store.open() == VERSIONS


async def test_a_failing_next_migration_leaves_the_previous_version_in_use(
    server: PostgresServer, add_version: AddVersion
) -> None:
    """Workers of the previous release must not notice a migration that was rolled back."""
    async with opened(server) as store:
        await store.jobs.submit([new_job(1)])
        before = await object_count(server, store.address.schema)
        add_version("ALTER TABLE jobs ADD COLUMN extra integer", "SELECT 1 / 0")
        await error_of(store.open())
        assert await object_count(server, store.address.schema) == before
        assert (await store.versions()).present == VERSIONS
        await ContractWorker(store).settle(done(await ContractWorker(store).claim_one()))
        assert await counts(store) == {"done": 1}


async def test_the_next_migration_keeps_stored_jobs(server: PostgresServer, add_version: AddVersion) -> None:
    """An upgrade is forward only: there is no second copy of the jobs to fall back to."""
    async with opened(server) as store:
        await store.jobs.submit([new_job(1)])
        add_version("CREATE TABLE more (x integer)")
        assert (await store.versions()).is_due
        assert [await store.open(), await store.open()] == [1, 0]
        sql = f"SELECT array_agg(version ORDER BY version) FROM {store.address.schema}.migrations"
        assert await value(server, sql) == list(range(1, VERSIONS + 2))
        assert await ids_in(store) == [id_of(1)]


def test_every_migration_needs_a_version_that_exists() -> None:
    """A migration that needs a later version than its own would lock out the release that brings it."""
    needs = [migration.needs for migration in migrations.MIGRATIONS]
    assert needs == sorted(needs)
    assert all(needed <= version for version, needed in enumerate(needs, start=1))


def test_every_script_of_the_schema_is_loaded() -> None:
    """A topic that is missing in the list would be missing in every database."""
    there = {script.name for script in migrations.SCHEMA.iterdir()}
    assert {f"{topic}.sql" for topic in migrations.TOPICS} == there


async def test_a_migration_has_more_time_than_a_call(
    server: PostgresServer, add_version: AddVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index over a long history takes minutes; with the timeout of a call it would start again for ever."""
    assert migrations.MIGRATE_SECONDS_MAX > 100 * CALL_SECONDS_MAX
    async with opened(server) as store:
        monkeypatch.setattr(migrations, "MIGRATE_SECONDS_MAX", 0.3)
        add_version("SELECT pg_sleep(30)")
        assert "no answer within 0.3 s" in str(await error_of(store.open()))


async def test_a_migration_that_cannot_lock_a_table_gives_way_and_names_the_sessions(
    server: PostgresServer, add_version: AddVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statements queue up behind a waiting table lock: one forgotten transaction would stop all workers."""
    async with opened(server) as store, connected(server, server_settings={"application_name": "report"}) as other:
        for name, least in {"LOCK_SECONDS_MAX": 0.2, "LOCK_TRIES_MAX": 2, "LOCK_PAUSE_SECONDS": 0.1}.items():
            monkeypatch.setattr(migrations, name, least)
        add_version("ALTER TABLE payloads ADD COLUMN extra integer")
        async with other.transaction():
            await other.fetch(f"SELECT 1 FROM {store.address.schema}.payloads")
            error = await error_of(store.open())
            assert isinstance(error, StoreBusy)
            assert f"pid {other.get_server_pid()} of report, idle in transaction" in str(error)
            await store.jobs.submit([new_job(1)])
        assert await store.open() == 1


async def test_a_migration_by_another_role_leaves_everything_to_the_owner(
    server: PostgresServer, add_version: AddVersion
) -> None:
    """The owner's functions could not call a function that belongs to a superuser, and every worker would stop."""
    role = await new_role(server, "GRANT CREATE ON DATABASE postgres TO {0}")
    async with opened(server, user=role) as store, opened(server, store.address.schema) as superuser:
        add_version("CREATE TABLE more (x integer)", "CREATE FUNCTION less() RETURNS int RETURN 1")
        assert await superuser.open() == 1
        found = {finding.check: finding for finding in await require_inspection(store).health()}
        assert found["owners"].text == f"everything belongs to {role!r}"
        await value(server, f"ALTER FUNCTION {store.address.schema}.less() OWNER TO postgres")
        found = {finding.check: finding for finding in await require_inspection(store).health()}
        assert found["owners"].level == "problem"
        assert "1 of 'postgres'" in found["owners"].text


# -- many at once -----------------------------------------------------------------------------------------------------


async def test_many_processes_that_open_an_empty_database_migrate_it_once(server: PostgresServer) -> None:
    """A deployment starts all its workers within a second."""
    for _ in range(2):
        schema = new_name()
        stores = [PostgresStore(address(server, schema)) for _ in range(8)]
        try:
            assert sorted(await asyncio.gather(*(store.open() for store in stores))) == [0] * 7 + [VERSIONS]
            assert await asyncio.gather(*(store.open() for store in stores)) == [0] * 8
            assert await value(server, f"SELECT count(*) FROM {schema}.migrations") == VERSIONS
            await stores[0].jobs.submit([new_job(1)])
            assert await ids_in(stores[7]) == [id_of(1)]
        finally:
            for store in stores:
                await store.close()


async def test_a_stricter_default_isolation_does_not_migrate_twice(server: PostgresServer) -> None:
    """If the database is serializable by default, a process that waited for the lock must still see the new tables."""
    role = await new_role(
        server, "ALTER ROLE {0} SUPERUSER", "ALTER ROLE {0} SET default_transaction_isolation = 'serializable'"
    )
    schema = new_name()
    stores = [PostgresStore(address(server, schema, role)) for _ in range(4)]
    try:
        assert sorted(await asyncio.gather(*(store.open() for store in stores))) == [0, 0, 0, VERSIONS]
    finally:
        for store in stores:
            await store.close()


@pytest.mark.parametrize("pooler", ["session", "transaction"])
async def test_a_stricter_default_isolation_is_overridden(server: PostgresServer, pooler: str) -> None:
    """A statement that waited for a lock must see the other transaction: with an old snapshot it stores a job twice."""
    role = await new_role(
        server, "ALTER ROLE {0} SUPERUSER", "ALTER ROLE {0} SET default_transaction_isolation = 'repeatable read'"
    )
    async with opened(server, user=role, pooler=pooler) as store:
        ((level,),) = await store.connections.call("SHOW transaction_isolation")
        assert level == "read committed"
        async with store.connections.transaction() as connection:
            assert await connection.fetchval("SHOW transaction_isolation") == "read committed"


# -- names ------------------------------------------------------------------------------------------------------------


async def test_two_schemas_of_one_database_are_independent(server: PostgresServer) -> None:
    """Staging and production may share a database, and so may teams."""
    async with opened(server) as one, opened(server) as other:
        await one.jobs.submit([new_job(1)])
        await other.jobs.submit([new_job(1, queue="q"), new_job(2)])
        assert (await ids_in(one), await ids_in(other)) == ([id_of(1)], [id_of(1), id_of(2)])
        assert [lease.id for lease in await ContractWorker(one).claim(9, ("default", "q"))] == [id_of(1)]
        assert await counts(other) == {"ready": 1}
        await value(server, f"DROP SCHEMA {one.address.schema} CASCADE")
        assert len(await ContractWorker(other).claim(9, ("default", "q"))) == 2


async def test_schemas_of_one_database_migrate_at_the_same_time(server: PostgresServer) -> None:
    """The lock is per schema; with one lock for all, a store could take another schema's migration for its own."""
    names = [new_name() for _ in range(3)]
    stores = [PostgresStore(address(server, name)) for name in names for _ in range(2)]
    try:
        assert sum(await asyncio.gather(*(store.open() for store in stores))) == 3 * VERSIONS
    finally:
        for store in stores:
            await store.close()


async def test_a_schema_created_by_an_administrator_needs_no_right_to_create_schemas(server: PostgresServer) -> None:
    """In many companies one role creates schemas and another one owns their contents."""
    role, schema = await new_role(server), new_name()
    await value(server, f"CREATE SCHEMA {schema} AUTHORIZATION {role}")
    async with opened(server, schema, role) as store:
        await store.jobs.submit([new_job(1)])
        assert await ids_in(store) == [id_of(1)]


async def test_a_schema_of_the_longest_name_works(server: PostgresServer) -> None:
    """Channels and settings are named after the schema and must fit into PostgreSQL's limits, too."""
    schema = longest_name()
    async with opened(server, schema) as store:
        await store.jobs.submit([new_job(1)])
        await value(server, f"SELECT {schema}.notify_workers()")
        await ContractWorker(store).settle(done(await ContractWorker(store).claim_one()))
        assert await counts(store) == {"done": 1}


def longest_name() -> str:
    for length in range(63, 0, -1):
        with contextlib.suppress(BadValue):
            return check_schema("x" * length)
    raise AssertionError("no name is good enough")


# -- safety -------------------------------------------------------------------------------------------------


async def test_functions_ignore_the_callers_search_path_and_temporary_tables(server: PostgresServer) -> None:
    """The functions run with their owner's rights, so a caller must not be able to substitute their tables."""
    async with opened(server) as store, connected(server) as connection:
        schema = store.address.schema
        for table in ("lanes", "lane_changes", "jobs", "payloads", "history", "idempotency_keys"):
            await connection.execute(f"CREATE TEMP TABLE {table} (LIKE {schema}.{table})")
        await connection.execute("CREATE FUNCTION pg_temp.now_us() RETURNS bigint LANGUAGE sql AS 'SELECT 7::bigint'")
        await connection.execute("SET search_path TO pg_temp, public")
        id_ = await connection.fetchval(f"SELECT {schema}.submit_job('count', key => 'k')")
        assert await ids_in(store) == [id_]
        for table in ("lanes", "lane_changes", "jobs", "payloads", "idempotency_keys"):
            assert await connection.fetchval(f"SELECT count(*) FROM pg_temp.{table}") == 0
        job = await store.reads.job(id_)
        assert job is not None
        assert job.created_at > 1_000_000


async def test_functions_ignore_functions_of_other_schemas(server: PostgresServer) -> None:
    """Every role may create functions in a schema that comes first in the search path."""
    async with opened(server) as store, connected(server) as connection:
        schema, trap = store.address.schema, new_name("trap")
        await connection.execute(f"CREATE SCHEMA {trap}")
        await connection.execute(
            f"CREATE FUNCTION {trap}.find_or_create_lane(text, text, text) RETURNS integer LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'trapped'; END $$"
        )
        await connection.execute(f"SET search_path TO {trap}, public")
        await connection.fetchval(f"SELECT {schema}.submit_job('count')")
        assert await counts(store) == {"ready": 1}


async def test_every_security_definer_function_sets_its_search_path(server: PostgresServer) -> None:
    """One function without it would give its callers all rights of the owner."""
    async with opened(server) as store:
        sql = """
        SELECT array_agg(proname) FROM pg_proc
         WHERE pronamespace = $1::regnamespace AND prosecdef
           AND NOT coalesce(proconfig, '{}') @> ARRAY[format('search_path=%s, pg_temp', $2::text)]
        """
        schema = store.address.schema
        loose = await value(server, sql, schema, schema)
        assert loose is None
        sql = "SELECT count(*) FROM pg_proc WHERE pronamespace = $1::regnamespace AND prosecdef"
        assert await value(server, sql, schema) > 10


async def test_functions_cannot_be_called_without_a_grant(server: PostgresServer) -> None:
    """PostgreSQL lets every role execute a new function unless the right is revoked."""
    role = await new_role(server)
    async with opened(server) as store:
        schema = store.address.schema
        await value(server, f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        sql = """
        SELECT array_agg(proname) FROM pg_proc
         WHERE pronamespace = $1::regnamespace AND has_function_privilege($2, oid, 'EXECUTE')
        """
        assert await value(server, sql, schema, role) is None
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await value(server, f"SELECT {schema}.submit_job('count')", user=role)
