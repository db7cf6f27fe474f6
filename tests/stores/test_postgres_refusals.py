"""Unsuitable servers, databases, roles and schemas: the error names the cause and the solution."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import asyncpg
import pytest
from tests.stores.postgres_support import (
    SOON_SECONDS,
    address,
    closing,
    connected,
    error_of,
    new_name,
    new_role,
    opened,
    value,
)

from leaseway.domain.errors import StoreBusy, StoreRefused, TerminalError, UsageError
from leaseway.domain.ids import JobId
from leaseway.ports.store import require_inspection
from leaseway.stores.postgres import schema as migrations
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.job_store_contract.fixtures import id_of, ids_in, new_job
from leaseway.testing.postgres import PostgresServer

SECRET = "hush-hush"


async def schema_exists(server: PostgresServer, schema: str) -> bool:
    return await value(server, "SELECT to_regnamespace($1) IS NOT NULL", schema) is True


# -- who are you ------------------------------------------------------------------------------------------------------


async def test_an_unknown_database_is_named(server: PostgresServer) -> None:
    """The message must say what to create."""
    error = await error_of(PostgresStore(f"postgresql://postgres@127.0.0.1:{server.port}/nowhere").open())
    assert isinstance(error, StoreRefused)
    assert '"nowhere" does not exist' in str(error)
    assert "create the database first" in str(error)


async def test_an_unknown_role_is_named(server: PostgresServer) -> None:
    """The message must say what to check."""
    error = await error_of(PostgresStore(address(server, "leaseway", user="stranger")).open())
    assert isinstance(error, StoreRefused)
    assert '"stranger" does not exist' in str(error)
    assert "check user and password" in str(error)


async def test_an_unknown_option_is_refused(server: PostgresServer) -> None:
    """?shema=jobs would otherwise use the schema `leaseway` without notice."""
    error = await error_of(PostgresStore(f"{server.url}?shema=jobs").open())
    assert isinstance(error, StoreRefused)
    assert "shema" in str(error)
    assert "own are schema, pool and pooler" in str(error)


class Locked(NamedTuple):
    url: str
    role: str


@pytest.fixture
async def locked(server: PostgresServer) -> AsyncIterator[Locked]:
    """A role that needs a password; the other roles of the server do not."""
    role = new_name("role")
    rules = server.data / "pg_hba.conf"
    before = rules.read_text()
    async with connected(server) as connection:
        await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'")
        rules.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{before}")
        await connection.execute("SELECT pg_reload_conf()")
        await until_locked(server, role)
        yield Locked(f"postgresql://{role}:{{}}@127.0.0.1:{server.port}/postgres", role)
        rules.write_text(before)
        await connection.execute("SELECT pg_reload_conf()")


async def until_locked(server: PostgresServer, role: str) -> None:
    """Wait until the server has reloaded its rules."""
    async with asyncio.timeout(SOON_SECONDS):
        while True:
            try:
                async with connected(server, role, password="wrong"):
                    await asyncio.sleep(0.01)
            except asyncpg.InvalidPasswordError:
                return


async def test_a_wrong_password_is_reported_and_not_shown(locked: Locked) -> None:
    """A retry cannot succeed, so it must not look like an outage."""
    error = await error_of(PostgresStore(locked.url.format("guess-" + SECRET)).open())
    assert isinstance(error, StoreRefused)
    assert f'password authentication failed for user "{locked.role}"' in str(error)
    assert "check user and password" in str(error)
    assert SECRET not in str(error)


async def test_a_missing_password_is_reported(locked: Locked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A retry cannot succeed."""
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    error = await error_of(PostgresStore(locked.url.replace(":{}", "")).open())
    assert isinstance(error, StoreRefused)
    assert "password" in str(error)


async def test_a_correct_password_is_not_shown_by_later_errors(locked: Locked) -> None:
    """All errors contain the URL."""
    async with closing(PostgresStore(locked.url.format(SECRET) + f"?schema={new_name()}")) as store:
        for call in (store.open(), store.jobs.submit([new_job(1)]), store.reads.job(id_of(1))):
            error = await error_of(call)
            assert locked.role in str(error)
            assert SECRET not in repr(error)
        (finding, *_) = await require_inspection(store).health()
        assert SECRET not in repr(finding)


# -- what may you do --------------------------------------------------------------------------------------------------


async def test_a_role_that_cannot_create_the_schema_is_told_what_to_run(server: PostgresServer) -> None:
    """The role of a worker has few rights, and it may be the first to start."""
    role, schema = await new_role(server), new_name()
    async with closing(PostgresStore(address(server, schema, role))) as store:
        error = await error_of(store.open())
    assert isinstance(error, StoreRefused)
    assert "permission denied" in str(error)
    assert "Run as a role that may create it: leaseway migrate" in str(error)
    assert not await schema_exists(server, schema)


async def test_a_role_that_cannot_use_the_schema_is_told_what_to_ask_for(server: PostgresServer) -> None:
    """The missing right is granted by the owner of the schema."""
    role = await new_role(server)
    async with opened(server) as owner, closing(PostgresStore(address(server, owner.address.schema, role))) as store:
        for call in (store.open(), store.jobs.submit([new_job(1)]), store.reads.job(id_of(1))):
            error = await error_of(call)
            assert isinstance(error, StoreRefused)
            assert "permission denied for schema" in str(error)
            assert "ask the owner of the schema" in str(error)
        assert await ids_in(owner) == []


async def test_a_missing_schema_is_named_with_the_command_that_creates_it(server: PostgresServer) -> None:
    """A reading command does not open the store."""
    schema = new_name()
    async with closing(PostgresStore(address(server, schema))) as store:
        for call in (store.reads.lanes(), store.reads.job(id_of(1)), store.jobs.submit([new_job(1)])):
            error = await error_of(call)
            assert isinstance(error, StoreRefused)
            assert schema in str(error)
            assert "leaseway migrate" in str(error)
    assert not await schema_exists(server, schema)


@pytest.mark.parametrize("schema", ["order", "user", "default", "table"])
async def test_a_schema_named_like_an_sql_keyword_works_or_is_refused(server: PostgresServer, schema: str) -> None:
    """A syntax error names neither cause nor solution."""

    async def use() -> list[JobId]:
        async with opened(server, schema) as store:
            await store.jobs.submit([new_job(1)])
            return await ids_in(store)

    (answer,) = await asyncio.gather(use(), return_exceptions=True)
    assert answer == [id_of(1)] or (isinstance(answer, UsageError) and schema in str(answer)), answer


async def test_objects_of_other_programs_in_the_schema_keep_their_rights(server: PostgresServer) -> None:
    """Many users try `?schema=public`, where their own functions are, which every role may call."""
    schema, role = new_name(), await new_role(server)
    async with connected(server) as connection:
        await connection.execute(f"CREATE SCHEMA {schema}")
        await connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        await connection.execute(f"CREATE FUNCTION {schema}.theirs() RETURNS integer LANGUAGE sql AS 'SELECT 7'")
        await connection.execute(f"CREATE TABLE {schema}.secrets AS SELECT 'hush' AS word")
    try:
        async with opened(server, schema):
            await value(server, f"SELECT {schema}.grant_reader($1)", role)
    except StoreRefused:
        pass  # a refusal is acceptable, too
    assert await value(server, f"SELECT {schema}.theirs()", user=role) == 7
    assert not await value(server, "SELECT has_table_privilege($1, $2, 'SELECT')", role, f"{schema}.secrets")


# -- what are you -----------------------------------------------------------------------------------------------------


async def test_a_schema_that_is_too_new_is_refused(server: PostgresServer) -> None:
    """Old code must not write to a schema whose rules it does not know."""
    async with opened(server) as store:
        schema = store.address.schema
        await value(server, f"INSERT INTO {schema}.migrations (version, name, needs) VALUES (99, 'later', 99)")
        error = await error_of(store.open())
        assert isinstance(error, StoreRefused)
        assert "version 99" in str(error)
        assert "install a newer leaseway" in str(error)
        finding = (await require_inspection(store).health())[-1]
        assert finding.level == "problem"
        assert "version 99" in finding.text
        assert finding.advice == "Install a newer leaseway"


async def test_a_compatible_newer_schema_is_opened(server: PostgresServer) -> None:
    """Workers of the previous version continue during a rolling upgrade."""
    async with opened(server) as store:
        schema = store.address.schema
        await value(server, f"INSERT INTO {schema}.migrations (version, name, needs) VALUES (1000, 'next', 1)")
        assert await store.open() == 0
        await store.jobs.submit([new_job(1)])


class OldVersion(NamedTuple):
    major: int = 13
    minor: int = 11


async def test_a_server_that_is_too_old_is_refused(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fail in the middle of the first script."""
    monkeypatch.setattr(asyncpg.Connection, "get_server_version", lambda _: OldVersion())
    schema = new_name()
    async with closing(PostgresStore(address(server, schema))) as store:
        error = await error_of(store.open())
        findings = await require_inspection(store).health()
    assert isinstance(error, StoreRefused)
    assert "is PostgreSQL 13, and leaseway needs 14 or newer" in str(error)
    assert "upgrade the server" in str(error)
    assert findings[-1].level == "problem"
    assert not await schema_exists(server, schema)


async def test_a_read_only_server_is_not_migrated(server: PostgresServer) -> None:
    """The URL may name a replica."""
    role = await new_role(server, "ALTER ROLE {0} SUPERUSER", "ALTER ROLE {0} SET default_transaction_read_only = on")
    schema = new_name()
    async with closing(PostgresStore(address(server, schema, role))) as store:
        error = await error_of(store.open())
    assert isinstance(error, StoreRefused)
    assert "is a read-only server, perhaps a replica; connect to the primary" in str(error)
    assert not await schema_exists(server, schema)


async def test_a_server_that_becomes_read_only_is_retried(server: PostgresServer) -> None:
    """After a failover the old primary is a replica for a while; workers must not stop."""
    role = await new_role(server, "ALTER ROLE {0} SUPERUSER", "ALTER ROLE {0} SET default_transaction_read_only = on")
    async with opened(server) as owner, opened(server, owner.address.schema, role) as store:
        await owner.jobs.submit([new_job(1)])
        assert await ids_in(store) == [id_of(1)]
        error = await error_of(store.jobs.submit([new_job(2)]))
        assert isinstance(error, StoreBusy)
        assert "read-only" in str(error)
        assert "primary" in str(error)
        assert await ids_in(owner) == [id_of(1)]


async def test_a_database_without_utf8_is_refused(server: PostgresServer) -> None:
    """A result with a character that the encoding lacks would stop the worker."""
    name = new_name("latin")
    await value(server, f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    error = await error_of(PostgresStore(f"postgresql://postgres@127.0.0.1:{server.port}/{name}").open())
    assert isinstance(error, StoreRefused)
    assert "the database's encoding is LATIN1" in str(error)
    assert "ENCODING 'UTF8'" in str(error)


async def test_a_schema_without_recorded_versions_is_refused(server: PostgresServer) -> None:
    """Migrating it again could destroy jobs."""
    async with opened(server) as store:
        await store.jobs.submit([new_job(1)])
        await value(server, f"DELETE FROM {store.address.schema}.migrations RETURNING 1")
        error = await error_of(store.open())
        assert isinstance(error, StoreRefused)
        assert "its table of migrations is empty" in str(error)
        assert await ids_in(store) == [id_of(1)]


async def test_the_doctor_reports_a_read_only_session(server: PostgresServer) -> None:
    """No worker can run with it."""
    role = await new_role(server, "ALTER ROLE {0} SUPERUSER", "ALTER ROLE {0} SET default_transaction_read_only = on")
    async with opened(server) as owner, opened(server, owner.address.schema, role) as store:
        found = {finding.check: finding for finding in await require_inspection(store).health()}
    assert found["primary"].level == "problem"
    assert "read-only" in found["primary"].text


# -- what is that -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a\0b", "\udc80"], ids=["nul", "surrogate"])
async def test_text_that_postgresql_cannot_store_is_not_a_lost_connection(server: PostgresServer, text: str) -> None:
    """A command line accepts any byte. A call that cannot succeed must not be repeated."""
    async with opened(server) as store:
        with contextlib.suppress(UsageError, TerminalError):
            assert await store.reads.job(JobId(text)) is None
        for call in (store.jobs.submit([new_job(1, shard_key=text)]), store.jobs.submit([new_job(1, priority=40_000)])):
            error = await error_of(call)
            assert isinstance(error, UsageError | TerminalError), repr(error)
        assert await ids_in(store) == []


async def test_every_advice_belongs_to_a_known_sqlstate(server: PostgresServer) -> None:
    """A mistyped code would never match."""
    from leaseway.stores.postgres.errors import BUSY, LOST, REFUSED

    known = {getattr(kind, "sqlstate", "") or "" for kind in vars(asyncpg.exceptions).values()}
    for code in (*REFUSED, *BUSY, *LOST):
        assert any(one.startswith(code) for one in known), code
    assert migrations.VERSION_MIN == 14
