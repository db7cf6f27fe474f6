"""Numbered scripts, forward only. The file says which version it has and that it is ours."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from leaseway.domain.errors import SchemaVersions, StoreRefused
from leaseway.stores.sqlite.connection import refuse_impossible, translated
from leaseway.stores.sqlite.statements import migrations

APPLICATION_ID = 0x4C535759
"""LSWY in the file's header: other programs, and `file`, can tell whose database this is."""


def version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, path: str) -> int:
    """Bring the file to the newest version, inside the caller's transaction; how many steps it took."""
    present, newest = schema(connection, path)
    for script in migrations()[present:]:
        for statement in split(script):
            connection.execute(statement)
    if present < newest:
        connection.execute(f"PRAGMA user_version = {newest}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    return newest - present


def schema(connection: sqlite3.Connection, path: str) -> SchemaVersions:
    """The version that a file has and the one it may have; refuses files that are not ours to change."""
    refuse_foreign(connection, path)
    present, newest = version(connection), len(migrations())
    if present > newest:
        raise StoreRefused(
            f"{path}: has schema version {present}, and this leaseway knows versions up to {newest}; "
            "install a newer leaseway"
        )
    return SchemaVersions(present, newest)


def schema_at(path: str) -> SchemaVersions:
    """The same, without creating or changing anything."""
    if not Path(path).exists():
        return SchemaVersions(0, len(migrations()))
    refuse_impossible(Path(path))
    try:
        with closing(look_into(path)) as connection:
            return schema(connection, path)
    except sqlite3.Error as error:
        raise translated(error, path) from error


def look_into(path: str) -> sqlite3.Connection:
    """A connection that never creates the file and never writes."""
    # Not mode=ro: such a connection leaves the files of the write-ahead log behind when it is the last to close.
    address = f"{Path(path).absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(address, uri=True, timeout=5, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA query_only = 1")
    return connection


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
