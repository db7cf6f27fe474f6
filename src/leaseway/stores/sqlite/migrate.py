"""Numbered scripts, forward only. The file says which version it has and that it is ours."""

import sqlite3
from collections.abc import Iterator

from leaseway.domain.errors import StoreRefused
from leaseway.stores.sqlite.queries import migrations

APPLICATION_ID = 0x4C535759
"""LSWY in the file's header: other programs, and `file`, can tell whose database this is."""


def version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, path: str) -> int:
    """Bring the file to the newest version, inside the caller's transaction; how many steps it took."""
    refuse_foreign(connection, path)
    present, newest = version(connection), len(migrations())
    if present > newest:
        raise StoreRefused(
            f"{path}: has schema version {present}, and this leaseway knows versions up to {newest}; "
            "install a newer leaseway"
        )
    for script in migrations()[present:]:
        for statement in split(script):
            connection.execute(statement)
    if present < newest:
        connection.execute(f"PRAGMA user_version = {newest}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    return newest - present


def refuse_foreign(connection: sqlite3.Connection, path: str) -> None:
    """Never write tables into a database that belongs to another program."""
    owner = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])
    if owner != APPLICATION_ID and tables:
        raise StoreRefused(f"{path}: is the database of another program; name another file")


def split(script: str) -> Iterator[str]:
    """Single statements: `executescript` would commit the transaction we are in."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
