"""The target table and the run tables in an SQLite file: created, upgraded or refused."""

import sqlite3
from collections.abc import Mapping
from functools import partial

from leaseway.domain.errors import StoreRefused
from leaseway.imports.domain.page import ColumnType
from leaseway.imports.sinks import run_tables
from leaseway.imports.sinks.columns import (
    KEY,
    OPTIONAL,
    OWN,
    ExistingColumn,
    RequiredColumn,
    quote_name,
    refuse_other_shape,
    refuse_without_key,
)
from leaseway.imports.sinks.shard_transitions import FLAGGED
from leaseway.stores.sqlite.schema import split

DECLARED: Mapping[ColumnType, str] = {
    ColumnType.TEXT: "TEXT",
    ColumnType.INTEGER: "INTEGER",
    ColumnType.REAL: "REAL",
    ColumnType.BOOLEAN: "BOOLEAN",
    ColumnType.TIMESTAMP: "TEXT",
    ColumnType.JSON: "TEXT",
}
"""Timestamps are texts that SQLite's date functions understand."""
HELD_BY: Mapping[ColumnType, frozenset[str]] = {
    ColumnType.TEXT: frozenset({"TEXT", "BLOB"}),
    ColumnType.INTEGER: frozenset({"INTEGER", "NUMERIC", "BLOB"}),
    ColumnType.REAL: frozenset({"REAL", "NUMERIC", "BLOB"}),
    ColumnType.BOOLEAN: frozenset({"INTEGER", "NUMERIC", "BLOB"}),
    ColumnType.TIMESTAMP: frozenset({"TEXT", "BLOB"}),
    ColumnType.JSON: frozenset({"TEXT", "BLOB"}),
}
"""Affinities that keep a value unchanged."""
ONCE = (*KEY, "first_seen")
"""Columns that an update does not change."""
AFFINITIES = (("INT", "INTEGER"), ("CHAR", "TEXT"), ("CLOB", "TEXT"), ("TEXT", "TEXT"), ("BLOB", "BLOB"))
REALS = ("REAL", "FLOA", "DOUB")


def prepare(
    connection: sqlite3.Connection, sql: Mapping[str, str], path: str, table: str, columns: Mapping[str, ColumnType]
) -> None:
    """Create missing tables and refuse a table of another shape, in the caller's transaction."""
    prepare_run_tables(connection, sql, path)
    kinds = connection.execute("SELECT type FROM sqlite_schema WHERE lower(name) = lower(?)", (table,)).fetchall()
    if not kinds:
        connection.execute(sql["create"])
    elif kinds != [("table",)]:
        raise StoreRefused(f"{path}: {quote_name(table)} is a {kinds[0][0]}, not a table; choose another table name")
    else:
        check_existing_table(connection, path, table, columns)


def prepare_run_tables(connection: sqlite3.Connection, sql: Mapping[str, str], path: str) -> None:
    for statement in split(sql["schema"]):
        connection.execute(statement)
    newest, found = run_tables.schema_version(sql), connection.execute(sql["version_find"]).fetchall()
    if not found:
        connection.execute(sql["version_add"], {"version": newest})
        return
    upgrades = run_tables.upgrade_verbs(path, found[0][0], sql)
    for verb in upgrades:
        for statement in split(sql[verb]):
            connection.execute(statement)
    if upgrades:
        connection.execute(sql["version_set"], {"version": newest})


def check_existing_table(
    connection: sqlite3.Connection, path: str, table: str, columns: Mapping[str, ColumnType]
) -> None:
    name = quote_name(table)
    refuse_other_shape(path, name, found_columns(connection, table), wanted_columns(columns))
    refuse_without_key(path, name, unique_keys(connection, table))


def own_statements(table: str, columns: Mapping[str, ColumnType]) -> dict[str, str]:
    """All statements, with the user's names."""
    name = quote_name(table)
    lines = [f"{quote_name(column)} {declared(column, kind)}" for column, kind in {**OWN, **columns}.items()]
    written = written_columns(columns)
    content = {"content_hash", "document", *map(quote_name, columns)}
    changes = ", ".join(
        f"{column} = CASE WHEN ?8 THEN {column} ELSE {value} END" if column in content else f"{column} = {value}"
        for column, value in written.items()
        if column not in ONCE
    )
    # The name is inserted last, so that its text is not replaced.
    found = {
        verb: text.replace(":bytewise", "").replace(":table", name)
        for verb, text in run_tables.statements("sqlite").items()
    }
    return {
        **found,
        "create": f"CREATE TABLE {name} ({', '.join(lines)}, PRIMARY KEY ({', '.join(KEY)}))",
        "insert": f"INSERT INTO {name} ({', '.join(written)}) VALUES ({', '.join(written.values())})",
        "update": f"UPDATE {name} SET {changes} WHERE source = ?1 AND external_id = ?4",
        "count": f"SELECT count(*) FROM {name} WHERE deleted_at IS NULL",
    }


def written_columns(columns: Mapping[str, ColumnType]) -> dict[str, str]:
    """Each column and its value: source, run and time first, then the values of the line from the fourth
    parameter on.
    """
    return {
        "source": "?1",
        "external_id": "?4",
        "stamp": "?5",
        "content_hash": "?6",
        "document": "?7",
        "deleted_at": "CASE WHEN ?8 THEN ?3 END",
        "deleted_reason": f"CASE WHEN ?8 THEN '{FLAGGED}' END",
        "run": "?2",
        "first_seen": "?3",
        "updated_at": "?3",
        **{quote_name(column): f"?{9 + place}" for place, column in enumerate(columns)},
    }


def declared(column: str, kind: ColumnType) -> str:
    return DECLARED[kind] + (" NOT NULL" if column in OWN and column not in OPTIONAL else "")


def wanted_columns(columns: Mapping[str, ColumnType]) -> list[RequiredColumn]:
    return [RequiredColumn(name, DECLARED[kind], partial(holds, kind)) for name, kind in {**OWN, **columns}.items()]


def holds(kind: ColumnType, declared_type: str) -> bool:
    return affinity(declared_type) in HELD_BY[kind]


def affinity(declared_type: str) -> str:
    """The affinity of a declared type, as defined in section 3.1 of SQLite's documentation of datatypes."""
    upper = declared_type.upper()
    if not upper:
        return "BLOB"
    for part, meaning in AFFINITIES:
        if part in upper:
            return meaning
    return "REAL" if any(part in upper for part in REALS) else "NUMERIC"


def found_columns(connection: sqlite3.Connection, table: str) -> list[ExistingColumn]:
    found = connection.execute(
        'SELECT name, type, "notnull" AND dflt_value IS NULL FROM pragma_table_info(?)', (table,)
    )
    return [ExistingColumn(name, kind, bool(is_required)) for name, kind, is_required in found]


def unique_keys(connection: sqlite3.Connection, table: str) -> list[list[str]]:
    indexes = connection.execute('SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial', (table,))
    keys = [
        [name for (name,) in connection.execute("SELECT name FROM pragma_index_info(?)", index)]
        for index in indexes.fetchall()
    ]
    primary = connection.execute("SELECT name FROM pragma_table_info(?) WHERE pk > 0", (table,))
    return [*keys, [name for (name,) in primary]]
