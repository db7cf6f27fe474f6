"""The schema: numbered migrations, forward only, in a schema of its own, under a lock of its own.

Version 1 is the folder `schema/`, one script per topic, loaded in the order of TOPICS. A later version adds an entry to
MIGRATIONS with a script of its own; released scripts never change.

Each migration states the oldest version that code must know to work with it. During a rolling upgrade, workers of the
previous release continue while the new schema is in place: objects that they use are dropped one release later.
"""

from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

import asyncpg

from leaseway.domain.errors import SchemaVersions, StoreBusy, StoreRefused
from leaseway.stores.postgres.address import Address
from leaseway.stores.postgres.connection import Connections

SCHEMA = files(__package__) / "schema"
TOPICS = (
    "tables", "server", "lanes", "submit", "settle", "reclaim", "claim", "notify", "operate", "prune", "schedules",
    "limits", "levels", "permits", "budgets", "holds", "keys", "workers", "work_history",
    "grants",
)  # fmt: skip
"""Types and tables come before the functions that use them; grants come last, because they cover all functions."""

VERSION_MIN = 14
ENCODING = "UTF8"
MIGRATE_SECONDS_MAX = 3_600.0
"""Creating an index over the history of a large database takes long."""
LOCK_SECONDS_MAX = 2.0
"""While a migration waits for a table lock, every later statement on that table waits behind it."""
LOCK_TRIES_MAX = 5
LOCK_PAUSE_SECONDS = 1.0
"""The time between two tries lets the waiting statements finish."""


class Migration(NamedTuple):
    name: str
    scripts: Sequence[Traversable]
    needs: int
    """The oldest version that code must know to work with a schema of this version."""


MIGRATIONS = (Migration("initial", [SCHEMA / f"{topic}.sql" for topic in TOPICS], needs=1),)
"""The first one makes version 1, the second one version 2, and so on."""

MIGRATIONS_TABLE = """
CREATE TABLE IF NOT EXISTS migrations (
  version integer PRIMARY KEY,
  name text NOT NULL,
  needs integer NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""

IS_FOREIGN = """
SELECT to_regclass(quote_ident($1) || '.migrations') IS NULL
   AND (EXISTS (SELECT 1 FROM pg_class WHERE relnamespace = to_regnamespace(quote_ident($1)))
        OR EXISTS (SELECT 1 FROM pg_proc WHERE pronamespace = to_regnamespace(quote_ident($1))))
"""

LOCK_HOLDERS = """
SELECT format('pid %s of %s, %s', pid, coalesce(nullif(application_name, ''), usename), coalesce(state, 'state hidden'))
  FROM pg_locks JOIN pg_class ON pg_class.oid = relation JOIN pg_stat_activity USING (pid)
 WHERE relnamespace = to_regnamespace($1) AND granted AND pid <> pg_backend_pid()
 GROUP BY pid, application_name, usename, state, xact_start ORDER BY xact_start LIMIT 3
"""
"""Sessions whose open transactions use the schema's tables, the oldest first."""


async def read_versions(connection: asyncpg.Connection, address: Address) -> SchemaVersions:
    """The version of the schema and the newest known one. Refuses unsupported servers and schemas that are too new."""
    refuse_old_server(connection, address)
    refuse_other_encoding(connection, address)
    newest = len(MIGRATIONS)
    table = await connection.fetchval("SELECT to_regclass($1)", f"{address.quoted}.migrations")
    if table is None:
        return SchemaVersions(0, newest)
    found = await connection.fetchrow(f"SELECT max(version), max(needs) FROM {address.quoted}.migrations")
    present, needs = (0, 0) if found[0] is None else found
    if needs > newest:
        raise StoreRefused(
            f"{address.shown}: schema {address.schema!r} has version {present}, and this leaseway supports versions up "
            f"to {newest}; install a newer leaseway"
        )
    return SchemaVersions(present, newest)


def refuse_old_server(connection: asyncpg.Connection, address: Address) -> None:
    found = connection.get_server_version()
    if found.major < VERSION_MIN:
        raise StoreRefused(
            f"{address.shown}: is PostgreSQL {found.major}, and leaseway needs {VERSION_MIN} or newer; "
            "upgrade the server"
        )


def refuse_other_encoding(connection: asyncpg.Connection, address: Address) -> None:
    found = connection.get_settings().server_encoding
    if found != ENCODING:
        raise StoreRefused(
            f"{address.shown}: the database's encoding is {found}; {ENCODING} is required. Create a database with "
            f"CREATE DATABASE name ENCODING '{ENCODING}' TEMPLATE template0"
        )


async def migrate(connections: Connections) -> int:
    """Bring the schema to the newest version, in one transaction; returns the number of versions applied."""
    address = connections.address
    async with connections.borrow() as connection:
        found = await read_versions(connection, address)
        if found.present >= found.newest:
            return 0
        await refuse_read_only(connection, address)
    async with connections.borrow(MIGRATE_SECONDS_MAX) as connection:
        for _ in range(LOCK_TRIES_MAX):
            try:
                return await _migrate(connection, address)
            except asyncpg.InsufficientPrivilegeError as error:
                raise StoreRefused(
                    f"{address.shown}: {error}; schema {address.schema!r} has version {found.present}, "
                    f"and {found.newest} is needed. Run as a role that may create it: leaseway migrate"
                ) from error
            except asyncpg.LockNotAvailableError:
                holders = [holder for (holder,) in await connections.fetch(connection, LOCK_HOLDERS, (address.schema,))]
                await connection.execute(f"SELECT pg_sleep({LOCK_PAUSE_SECONDS})")
        raise StoreBusy(
            f"{address.shown}: schema {address.schema!r} has version {found.present}, and {found.newest} is needed; "
            f"open transactions use its tables: {'; '.join(holders) or 'they have ended'}. End them and try again"
        )


async def _migrate(connection: asyncpg.Connection, address: Address) -> int:
    async with connection.transaction(isolation="read_committed"):
        # One migration at a time; a second process then finds nothing to do.
        lock = "SELECT pg_advisory_xact_lock(hashtext('leaseway.migrate'), hashtext($1))"
        await connection.execute(lock, address.schema)
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS_MAX} s'")
        await _become_owner(connection, address)
        return await _apply(connection, address)


async def _become_owner(connection: asyncpg.Connection, address: Address) -> None:
    """Let one role own the whole schema, whichever role migrates: functions run with the rights of their owner."""
    sql = "SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class WHERE oid = to_regclass($1)"
    owner = await connection.fetchval(sql, f"{address.quoted}.migrations")
    if owner is not None:
        await connection.execute(f"SET LOCAL ROLE {owner}")


async def refuse_read_only(connection: asyncpg.Connection, address: Address) -> None:
    if await connection.fetchval("SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean"):
        raise StoreRefused(f"{address.shown}: is a read-only server, perhaps a replica; connect to the primary")


async def refuse_foreign(connection: asyncpg.Connection, address: Address) -> None:
    """Refuse a schema with objects of another program: the grants of one would give rights to the other's objects."""
    if await connection.fetchval(IS_FOREIGN, address.schema):
        raise StoreRefused(
            f"{address.shown}: schema {address.schema!r} contains objects of another program; use a separate schema, "
            "for example ?schema=leaseway"
        )


async def _apply(connection: asyncpg.Connection, address: Address) -> int:
    await refuse_foreign(connection, address)
    if await connection.fetchval("SELECT to_regnamespace($1) IS NULL", address.quoted):
        await connection.execute(f"CREATE SCHEMA {address.quoted}")
    # pg_temp comes last, so that a session cannot hide a table of the schema behind a temporary one.
    await connection.execute(f"SET LOCAL search_path TO {address.quoted}, pg_temp")
    await connection.execute("SET LOCAL check_function_bodies = off")
    await connection.execute(MIGRATIONS_TABLE)
    present = await connection.fetchval("SELECT coalesce(max(version), 0) FROM migrations")
    if not present and await connection.fetchval("SELECT to_regclass('jobs') IS NOT NULL"):
        raise StoreRefused(
            f"{address.shown}: schema {address.schema!r} has tables, but its table of migrations is empty, so their "
            "version is unknown; restore it from a backup"
        )
    missing = list(enumerate(MIGRATIONS, start=1))[present:]
    for version, migration in missing:
        await _run_scripts(connection, address, migration)
        record = "INSERT INTO migrations (version, name, needs) VALUES ($1, $2, $3)"
        await connection.execute(record, version, migration.name, migration.needs)
    if missing:
        await connection.execute("SELECT create_history_partitions(now_us())")
    return len(missing)


async def _run_scripts(connection: asyncpg.Connection, address: Address, migration: Migration) -> None:
    for script in migration.scripts:
        text = script.read_text("utf-8")
        await connection.execute(text.replace(":schema", address.quoted))
