"""The schema: numbered migrations, forward only. The file's header holds its version and marks it as leaseway's.

Version 1 is the folder `schema/`, one script per topic. A later version adds an entry to MIGRATIONS with scripts of its
own; released scripts never change.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

from leaseway.domain.errors import SchemaVersions, StoreRefused
from leaseway.stores.sqlite.errors import refuse_impossible, translate_error

SCHEMA = files(__package__) / "schema"
TOPICS = ("lanes", "jobs", "schedules", "keys", "budgets", "clock", "workers", "history")
APPLICATION_ID = 0x4C535759
"""LSWY in the file's header, by which other programs, and `file`, recognize the database."""


class Migration(NamedTuple):
    name: str
    scripts: Sequence[Traversable]


MIGRATIONS = (Migration("initial", [SCHEMA / f"{topic}.sql" for topic in TOPICS]),)
"""The first one makes version 1, the second one version 2, and so on."""


def migrate(connection: sqlite3.Connection, path: str) -> int:
    """Bring the file to the newest version within the caller's transaction; return the number of migrations."""
    present, newest = check_version(connection, path)
    for migration in MIGRATIONS[present:]:
        for script in migration.scripts:
            for statement in split(script.read_text("utf-8")):
                connection.execute(statement)
    if present < newest:
        write_version(connection, newest)
    return newest - present


def check_version(connection: sqlite3.Connection, path: str) -> SchemaVersions:
    """The version of the file and the newest known one. Refuses files of other programs and newer versions."""
    refuse_foreign(connection, path)
    present, newest = read_version(connection), len(MIGRATIONS)
    if present > newest:
        raise StoreRefused(
            f"{path}: has schema version {present}, and this leaseway supports versions up to {newest}; "
            "install a newer leaseway"
        )
    return SchemaVersions(present, newest)


def read_versions(path: str) -> SchemaVersions:
    """Do the same as `check_version` without creating or changing the file."""
    if not Path(path).exists():
        return SchemaVersions(0, len(MIGRATIONS))
    refuse_impossible(Path(path))
    try:
        with closing(connect_read_only(path)) as connection:
            return check_version(connection, path)
    except sqlite3.Error as error:
        raise translate_error(error, path) from error


def read_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def write_version(connection: sqlite3.Connection, version: int) -> None:
    connection.execute(f"PRAGMA user_version = {version}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def connect_read_only(path: str) -> sqlite3.Connection:
    """Open a connection that neither creates nor writes the file."""
    # Not mode=ro: such a connection leaves the files of the write-ahead log behind if it is the last one to close.
    address = f"{Path(path).absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(address, uri=True, timeout=5, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA query_only = 1")
    return connection


def refuse_foreign(connection: sqlite3.Connection, path: str) -> None:
    """Never create tables in a database that belongs to another program."""
    owner = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])
    if owner != APPLICATION_ID and tables:
        raise StoreRefused(f"{path}: is the database of another program; use another file")


def split(script: str) -> Iterator[str]:
    """Single statements: `executescript` would commit the open transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
