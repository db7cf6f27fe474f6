"""The schema: made once however many come at once, whole or not at all, and under its own name."""

import asyncio
import contextlib
from collections.abc import Mapping

import asyncpg
import pytest
from tests.stores.test_postgres_scenery import (
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
from leaseway.stores.postgres import migrate
from leaseway.stores.postgres.address import schema_of
from leaseway.stores.postgres.connection import CALL_SECONDS_MAX
from leaseway.stores.postgres.jobs import PostgresStore
from leaseway.testing.contract.actors import Worker, counts, done, id_of, ids_in, leased_job, new_job
from leaseway.testing.postgres import PostgresServer

VERSIONS = len(migrate.NEEDS)


async def things_in(server: PostgresServer, schema: str) -> int:
    sql = """
    SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace($1))
         + (SELECT count(*) FROM pg_proc WHERE pronamespace = to_regnamespace($1))
    """
    return int(await value(server, sql, schema))


def with_scripts(monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    """This leaseway has one more version, made by these scripts."""
    scripts: Mapping[str, tuple[str, ...]] = {**migrate.versions(), "9999_next": more}
    monkeypatch.setattr(migrate, "versions", lambda: scripts)
    monkeypatch.setattr(migrate, "NEEDS", (*migrate.NEEDS, 1))


# -- failing ----------------------------------------------------------------------------------------------------------


async def test_a_script_that_fails_leaves_nothing_behind(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a schema can neither be used nor be made whole by trying again."""
    with_scripts(monkeypatch, "CREATE TABLE fine (x integer)", "SELECT 1 / 0")
    schema = new_name()
    async with closing(PostgresStore(address(server, schema))) as store:
        error = await error_of(store.open())
        assert "division by zero" in str(error)
        assert await things_in(server, schema) == 0
        assert await value(server, "SELECT to_regnamespace($1)", schema) is None
        monkeypatch.undo()
        assert await store.open() == VERSIONS


async def test_a_next_version_that_fails_leaves_the_one_before_at_work(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(server) as store:
        await store.submit([new_job(1)])
        before = await things_in(server, store.address.schema)
        with_scripts(monkeypatch, "ALTER TABLE jobs ADD COLUMN extra integer", "SELECT 1 / 0")
        await error_of(store.open())
        assert await things_in(server, store.address.schema) == before
        await Worker(store).settle(done(await Worker(store).claim_one()))
        assert await counts(store) == {"done": 1}


async def test_the_next_version_is_added_to_what_is_there(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(server) as store:
        await store.submit([new_job(1)])
        with_scripts(monkeypatch, "CREATE TABLE more (x integer)")
        assert (await store.versions()).is_due
        assert [await store.open(), await store.open()] == [1, 0]
        sql = f"SELECT array_agg(version ORDER BY version) FROM {store.address.schema}.migrations"
        assert await value(server, sql) == list(range(1, VERSIONS + 2))
        assert await ids_in(store) == [id_of(1)]


def test_every_version_says_what_it_needs() -> None:
    """A folder without its number would stop every start with an IndexError."""
    assert len(migrate.NEEDS) == len(migrate.versions())
    assert list(migrate.NEEDS) == sorted(migrate.NEEDS)
    assert all(needs <= version for version, needs in enumerate(migrate.NEEDS, start=1))


async def test_a_migration_has_more_time_than_a_call(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index over a long history takes minutes; cut off after ten seconds, it would begin again for ever."""
    assert migrate.MIGRATE_SECONDS_MAX > 100 * CALL_SECONDS_MAX
    async with opened(server) as store:
        monkeypatch.setattr(migrate, "MIGRATE_SECONDS_MAX", 0.3)
        with_scripts(monkeypatch, "SELECT pg_sleep(30)")
        assert "no answer within 0.3 s" in str(await error_of(store.open()))


async def test_a_migration_that_would_wait_for_others_names_them_and_lets_everybody_by(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for a whole table keeps everybody waiting behind him: a forgotten report would stop all workers."""
    async with opened(server) as store, connected(server, server_settings={"application_name": "report"}) as other:
        for name, least in {"LOCK_SECONDS_MAX": 0.2, "LOCK_TRIES_MAX": 2, "LOCK_PAUSE_SECONDS": 0.1}.items():
            monkeypatch.setattr(migrate, name, least)
        with_scripts(monkeypatch, "ALTER TABLE payloads ADD COLUMN extra integer")
        async with other.transaction():
            await other.fetch(f"SELECT 1 FROM {store.address.schema}.payloads")
            error = await error_of(store.open())
            assert isinstance(error, StoreBusy)
            assert f"pid {other.get_server_pid()} of report, idle in transaction" in str(error)
            await store.submit([new_job(1)])
        assert await store.open() == 1


async def test_whoever_migrates_everything_belongs_to_the_owner(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of a superuser's among those of the owner: the owner's could not call it, and every worker ends."""
    role = await new_role(server, "GRANT CREATE ON DATABASE postgres TO {0}")
    async with opened(server, user=role) as store, opened(server, store.address.schema) as superuser:
        with_scripts(monkeypatch, "CREATE TABLE more (x integer)", "CREATE FUNCTION less() RETURNS int RETURN 1")
        assert await superuser.open() == 1
        found = {finding.check: finding for finding in await store.checkup()}
        assert found["owners"].text == f"everything belongs to {role!r}"
        await value(server, f"ALTER FUNCTION {store.address.schema}.less() OWNER TO postgres")
        found = {finding.check: finding for finding in await store.checkup()}
        assert found["owners"].level == "problem"
        assert "1 of 'postgres'" in found["owners"].text


# -- many at once -----------------------------------------------------------------------------------------------------


async def test_many_who_open_an_empty_database_at_once_make_it_once(server: PostgresServer) -> None:
    """A deployment starts all its workers in the same second."""
    for _ in range(2):
        schema = new_name()
        stores = [PostgresStore(address(server, schema)) for _ in range(8)]
        try:
            assert sorted(await asyncio.gather(*(store.open() for store in stores))) == [0] * 7 + [VERSIONS]
            assert await asyncio.gather(*(store.open() for store in stores)) == [0] * 8
            assert await value(server, f"SELECT count(*) FROM {schema}.migrations") == VERSIONS
            await stores[0].submit([new_job(1)])
            assert await ids_in(stores[7]) == [id_of(1)]
        finally:
            for store in stores:
                await store.close()


async def test_a_stricter_isolation_by_default_does_not_make_it_twice(server: PostgresServer) -> None:
    """Some databases are serializable by default: who waited for the lock must still see what was made."""
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
async def test_a_stricter_isolation_by_default_is_not_ours(server: PostgresServer, pooler: str) -> None:
    """A statement that waited must see what it waited for: with an old snapshot a repeated job is stored twice."""
    role = await new_role(
        server, "ALTER ROLE {0} SUPERUSER", "ALTER ROLE {0} SET default_transaction_isolation = 'repeatable read'"
    )
    async with opened(server, user=role, pooler=pooler) as store:
        ((level,),) = await store.connections.call("SHOW transaction_isolation")
        assert level == "read committed"
        async with store.connections.transaction() as connection:
            assert await connection.fetchval("SHOW transaction_isolation") == "read committed"


# -- names ------------------------------------------------------------------------------------------------------------


async def test_two_schemas_side_by_side_do_not_see_each_other(server: PostgresServer) -> None:
    """Staging and production in one database, or one schema for each team."""
    async with opened(server) as one, opened(server) as other:
        await one.submit([new_job(1)])
        await other.submit([new_job(1, queue="q"), new_job(2)])
        assert (await ids_in(one), await ids_in(other)) == ([id_of(1)], [id_of(1), id_of(2)])
        assert [lease.id for lease in await Worker(one).claim(9, ("default", "q"))] == [id_of(1)]
        assert await counts(other) == {"ready": 1}
        await value(server, f"DROP SCHEMA {one.address.schema} CASCADE")
        assert len(await Worker(other).claim(9, ("default", "q"))) == 2


async def test_one_store_in_two_schemas_of_one_database_migrates_each(server: PostgresServer) -> None:
    """The lock is by schema: nobody takes another one's for his own."""
    names = [new_name() for _ in range(3)]
    stores = [PostgresStore(address(server, name)) for name in names for _ in range(2)]
    try:
        assert sum(await asyncio.gather(*(store.open() for store in stores))) == 3 * VERSIONS
    finally:
        for store in stores:
            await store.close()


async def test_a_schema_that_an_administrator_made_is_filled_without_the_right_to_make_one(
    server: PostgresServer,
) -> None:
    """Often one role makes schemas, and another one owns what is in them."""
    role, schema = await new_role(server), new_name()
    await value(server, f"CREATE SCHEMA {schema} AUTHORIZATION {role}")
    async with opened(server, schema, role) as store:
        await store.submit([new_job(1)])
        assert await ids_in(store) == [id_of(1)]


async def test_a_schema_of_the_longest_name_works(server: PostgresServer) -> None:
    """All that is named after it must fit, too: channels, settings, tables."""
    schema = longest_name()
    async with opened(server, schema) as store:
        await store.submit([new_job(1)])
        await value(server, f"SELECT {schema}.notify_workers()")
        await Worker(store).settle(done(await Worker(store).claim_one()))
        assert await counts(store) == {"done": 1}


def longest_name() -> str:
    for length in range(63, 0, -1):
        with contextlib.suppress(BadValue):
            return schema_of("x" * length)
    raise AssertionError("no name is good enough")


# -- nobody is fooled -------------------------------------------------------------------------------------------------


async def test_a_callers_search_path_and_temporary_tables_fool_no_function(server: PostgresServer) -> None:
    """The functions run with their owner's rights: they must not touch what the caller puts in their way."""
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
        job = await store.job(id_)
        assert job is not None
        assert job.created_at > 1_000_000


async def test_functions_of_a_strangers_fool_no_function_of_ours(server: PostgresServer) -> None:
    """In a schema that comes first for everybody, where everybody may create."""
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


async def test_every_function_that_lends_its_rights_fixes_its_search_path(server: PostgresServer) -> None:
    """One forgotten SET, and whoever may call it may do everything."""
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


async def test_nobody_may_call_a_function_that_was_not_granted(server: PostgresServer) -> None:
    """PostgreSQL lets everybody execute everything, unless it is told otherwise."""
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


async def test_a_first_try_of_the_version_before_is_looked_for_as_well(server: PostgresServer) -> None:
    """Its workers call another function, which did not look: a try that is late would run a finished job again."""
    async with opened(server) as store, connected(server) as connection:
        lease = await leased_job(store)
        await Worker(store).settle(done(lease))
        call = f"SELECT {store.address.quoted}.submit_fresh($1, '{{}}', 'default', 'default', 'count', 0::smallint, 3, "
        await connection.execute(f"{call} 15000000, NULL, NULL, NULL, 0, NULL, '', NULL)", lease.id)
        assert await counts(store) == {"done": 1}
