"""Numbered folders of scripts, forward only, in a schema of our own, under a lock of our own.

Each version says the oldest version that code must know to live with it. So workers of the version before go on while
a new one is being rolled out: what they use is taken away one version later, when nobody needs it any more.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import asyncpg

from leaseway.domain.errors import StoreRefused
from leaseway.domain.versions import Versions
from leaseway.stores.postgres.address import Address

SQL = files(__package__) / "sql"
VERSION_MIN = 14
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


async def migrate(connection: asyncpg.Connection, address: Address) -> int:
    """Bring the schema to the newest version, in one transaction; how many versions that took."""
    found = await schema(connection, address)
    if found.present >= found.newest:
        return 0
    await refuse_read_only(connection, address)
    try:
        async with connection.transaction(isolation="read_committed"):
            # One at a time. Who comes second finds nothing to do.
            await connection.execute(
                "SELECT pg_advisory_xact_lock(hashtext('leaseway.migrate'), hashtext($1))", address.schema
            )
            return await _apply(connection, address)
    except asyncpg.InsufficientPrivilegeError as error:
        raise StoreRefused(
            f"{address.shown}: {error}; schema {address.schema!r} has version {found.present}, "
            f"and {found.newest} is needed. Let a role that may create it run: leaseway migrate"
        ) from error


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
    missing = list(enumerate(versions().items(), start=1))[present:]
    for version, (name, scripts) in missing:
        for script in scripts:
            await connection.execute(script.replace(":schema", address.quoted))
        ledger = "INSERT INTO migrations (version, name, needs) VALUES ($1, $2, $3)"
        await connection.execute(ledger, version, name, NEEDS[version - 1])
    if missing:
        await connection.execute("SELECT prepare_days(now_us())")
    return len(missing)
