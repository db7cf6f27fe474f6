"""Numbered folders of scripts, forward only, in a schema of our own, under a lock of our own.

Each version says the oldest version that code must know to live with it. So workers of the version before go on while
a new one is being rolled out: what they use is taken away one version later, when nobody needs it any more.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import asyncpg

from leaseway.domain.errors import StoreBusy, StoreRefused
from leaseway.domain.versions import Versions
from leaseway.stores.postgres.address import Address
from leaseway.stores.postgres.connection import Connections

SQL = files(__package__) / "sql"
VERSION_MIN = 14
ENCODING = "UTF8"
MIGRATE_SECONDS_MAX = 3_600.0
"""An index over the history of a large database takes its time."""
LOCK_SECONDS_MAX = 2.0
"""Whoever waits for a table keeps everybody else waiting behind him."""
LOCK_TRIES_MAX = 5
LOCK_PAUSE_SECONDS = 1.0
"""Until the next try: time for those who had to wait."""
NEEDS = (1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
"""By version: the oldest version that code must know to work with a schema of this one."""

LEDGER = """
CREATE TABLE IF NOT EXISTS migrations (
  version integer PRIMARY KEY,
  name text NOT NULL,
  needs integer NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""

FOREIGN = """
SELECT to_regclass(quote_ident($1) || '.migrations') IS NULL
   AND (EXISTS (SELECT 1 FROM pg_class WHERE relnamespace = to_regnamespace(quote_ident($1)))
        OR EXISTS (SELECT 1 FROM pg_proc WHERE pronamespace = to_regnamespace(quote_ident($1))))
"""

HOLDERS = """
SELECT format('pid %s of %s, %s', pid, coalesce(nullif(application_name, ''), usename), coalesce(state, 'state hidden'))
  FROM pg_locks JOIN pg_class ON pg_class.oid = relation JOIN pg_stat_activity USING (pid)
 WHERE relnamespace = to_regnamespace($1) AND granted AND pid <> pg_backend_pid()
 GROUP BY pid, application_name, usename, state, xact_start ORDER BY xact_start LIMIT 3
"""
"""Those whose transactions have touched our tables, the oldest first."""


@cache
def versions() -> Mapping[str, tuple[str, ...]]:
    """The scripts of each version, in order; the first one makes version 1."""
    folders = sorted((SQL / "migrations").iterdir(), key=lambda folder: folder.name)
    return {folder.name: scripts_of(folder) for folder in folders}


def scripts_of(folder: Any) -> tuple[str, ...]:
    return tuple(script.read_text("utf-8") for script in sorted(folder.iterdir(), key=lambda file: str(file.name)))


async def schema(connection: asyncpg.Connection, address: Address) -> Versions:
    """The version that there is and the one there may be; refuses servers and schemas that do not fit."""
    refuse_old_server(connection, address)
    refuse_other_encoding(connection, address)
    table = await connection.fetchval("SELECT to_regclass($1)", f"{address.quoted}.migrations")
    if table is None:
        return Versions(0, len(versions()))
    found = await connection.fetchrow(f"SELECT max(version), max(needs) FROM {address.quoted}.migrations")
    present, needs = (0, 0) if found[0] is None else found
    if needs > len(versions()):
        raise StoreRefused(
            f"{address.shown}: schema {address.schema!r} has version {present}, and this leaseway knows versions up to "
            f"{len(versions())}; install a newer leaseway"
        )
    return Versions(present, len(versions()))


def refuse_old_server(connection: asyncpg.Connection, address: Address) -> None:
    found = connection.get_server_version()
    if found.major < VERSION_MIN:
        raise StoreRefused(
            f"{address.shown}: is PostgreSQL {found.major}, and leaseway needs {VERSION_MIN} or newer; "
            "update the server"
        )


def refuse_other_encoding(connection: asyncpg.Connection, address: Address) -> None:
    found = connection.get_settings().server_encoding
    if found != ENCODING:
        raise StoreRefused(
            f"{address.shown}: the database keeps its texts in {found}, which has no place for many of them; make one "
            f"with CREATE DATABASE name ENCODING '{ENCODING}' TEMPLATE template0"
        )


async def migrate(connections: Connections) -> int:
    """Bring the schema to the newest version, in one transaction; how many versions that took."""
    address = connections.address
    async with connections.lent() as connection:
        found = await schema(connection, address)
        if found.present >= found.newest:
            return 0
        await refuse_read_only(connection, address)
    async with connections.lent(MIGRATE_SECONDS_MAX) as connection:
        for _ in range(LOCK_TRIES_MAX):
            try:
                return await _migrate(connection, address)
            except asyncpg.InsufficientPrivilegeError as error:
                raise StoreRefused(
                    f"{address.shown}: {error}; schema {address.schema!r} has version {found.present}, "
                    f"and {found.newest} is needed. Let a role that may create it run: leaseway migrate"
                ) from error
            except asyncpg.LockNotAvailableError:
                holders = [holder for (holder,) in await connections.fetch(connection, HOLDERS, (address.schema,))]
                await connection.execute(f"SELECT pg_sleep({LOCK_PAUSE_SECONDS})")
        raise StoreBusy(
            f"{address.shown}: schema {address.schema!r} has version {found.present}, and {found.newest} is needed; "
            f"open transactions use its tables: {'; '.join(holders) or 'they have ended'}. Try again without them"
        )


async def _migrate(connection: asyncpg.Connection, address: Address) -> int:
    async with connection.transaction(isolation="read_committed"):
        # One at a time. Who comes second finds nothing to do.
        lock = "SELECT pg_advisory_xact_lock(hashtext('leaseway.migrate'), hashtext($1))"
        await connection.execute(lock, address.schema)
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS_MAX} s'")
        await _become_owner(connection, address)
        return await _apply(connection, address)


async def _become_owner(connection: asyncpg.Connection, address: Address) -> None:
    """Everything in the schema belongs to one role, whoever migrates: functions run with the rights of their owner."""
    sql = "SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class WHERE oid = to_regclass($1)"
    owner = await connection.fetchval(sql, f"{address.quoted}.migrations")
    if owner is not None:
        await connection.execute(f"SET LOCAL ROLE {owner}")


async def refuse_read_only(connection: asyncpg.Connection, address: Address) -> None:
    if await connection.fetchval("SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean"):
        raise StoreRefused(f"{address.shown}: is a read-only server, perhaps a replica; name the primary")


async def refuse_foreign(connection: asyncpg.Connection, address: Address) -> None:
    """Never write into a schema that belongs to others: our rights would be theirs, and theirs ours."""
    if await connection.fetchval(FOREIGN, address.schema):
        raise StoreRefused(
            f"{address.shown}: schema {address.schema!r} belongs to something else; give leaseway one of its own, for "
            "example ?schema=leaseway"
        )


async def _apply(connection: asyncpg.Connection, address: Address) -> int:
    await refuse_foreign(connection, address)
    if await connection.fetchval("SELECT to_regnamespace($1) IS NULL", address.quoted):
        await connection.execute(f"CREATE SCHEMA {address.quoted}")
    # pg_temp comes last: nobody can put a table of his own in front of ours.
    await connection.execute(f"SET LOCAL search_path TO {address.quoted}, pg_temp")
    await connection.execute("SET LOCAL check_function_bodies = off")
    await connection.execute(LEDGER)
    present = await connection.fetchval("SELECT coalesce(max(version), 0) FROM migrations")
    if not present and await connection.fetchval("SELECT to_regclass('jobs') IS NOT NULL"):
        raise StoreRefused(
            f"{address.shown}: schema {address.schema!r} has tables, but nothing in its table of migrations says "
            "their version; restore it from a backup"
        )
    missing = list(enumerate(versions().items(), start=1))[present:]
    for version, (name, scripts) in missing:
        for script in scripts:
            await connection.execute(script.replace(":schema", address.quoted))
        ledger = "INSERT INTO migrations (version, name, needs) VALUES ($1, $2, $3)"
        await connection.execute(ledger, version, name, NEEDS[version - 1])
    if missing:
        await connection.execute("SELECT prepare_days(now_us())")
    return len(missing)
