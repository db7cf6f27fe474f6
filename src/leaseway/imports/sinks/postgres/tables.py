"""The target table and the run tables in PostgreSQL: created, upgraded or refused."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import asyncpg

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

STAGING = "leaseway_page"
STAGED: Mapping[str, ColumnType] = {
    **{name: OWN[name] for name in ("external_id", "stamp", "content_hash", "document")},
    "deleted_at": ColumnType.BOOLEAN,
}
"""Here `deleted_at` is a boolean, under a name that no user column can have."""
MARKS = frozenset({"deleted_at", "deleted_reason"})

DECLARED: Mapping[ColumnType, str] = {
    ColumnType.TEXT: "text",
    ColumnType.INTEGER: "bigint",
    ColumnType.REAL: "double precision",
    ColumnType.BOOLEAN: "boolean",
    ColumnType.TIMESTAMP: "timestamp with time zone",
    ColumnType.JSON: "jsonb",
}
HELD_BY: Mapping[ColumnType, frozenset[str]] = {
    ColumnType.TEXT: frozenset({"text", "character varying"}),
    ColumnType.INTEGER: frozenset({"bigint", "numeric"}),
    ColumnType.REAL: frozenset({"double precision"}),
    ColumnType.BOOLEAN: frozenset({"boolean"}),
    ColumnType.TIMESTAMP: frozenset({"timestamp with time zone"}),
    ColumnType.JSON: frozenset({"jsonb"}),
}
"""Types that store every value without loss."""


class Statement(NamedTuple):
    """SQL with numbered parameters, and their names in order."""

    text: str
    names: tuple[str, ...]

    def arguments(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(values[name] for name in self.names)


async def prepare(
    connection: asyncpg.Connection,
    sql: Mapping[str, Statement],
    where: str,
    schema: str,
    table: str,
    columns: Mapping[str, ColumnType],
) -> None:
    """Create missing tables and refuse a table of another shape. A role without CREATE works if all tables exist."""
    # One at a time: concurrent CREATE TABLE IF NOT EXISTS statements can fail with a unique violation.
    await connection.execute("SELECT pg_advisory_xact_lock(hashtext('leaseway.imports.sinks'), hashtext($1))", schema)
    await prepare_run_tables(connection, sql, where, schema)
    if await is_missing(connection, schema, [table]):
        await connection.execute(sql["create"].text)
    else:
        await check_existing_table(connection, sql, where, f"{quote_name(schema)}.{quote_name(table)}", columns)


async def prepare_run_tables(
    connection: asyncpg.Connection, sql: Mapping[str, Statement], where: str, schema: str
) -> None:
    if await is_missing(connection, schema, run_tables.TABLES):
        await connection.execute(sql["schema"].text)
    newest, version = run_tables.schema_version(sql), await connection.fetchval(sql["version_find"].text)
    if version is None:
        await connection.execute(sql["version_add"].text, newest)
        return
    upgrades = run_tables.upgrade_verbs(where, version, sql)
    for verb in upgrades:
        await connection.execute(sql[verb].text)
    if upgrades:
        await connection.execute(sql["version_set"].text, newest)


async def is_missing(connection: asyncpg.Connection, schema: str, tables: Sequence[str]) -> bool:
    names = [f"{quote_name(schema)}.{quote_name(table)}" for table in tables]
    sql = "SELECT bool_or(to_regclass(name) IS NULL) FROM unnest($1::text[]) AS name"
    return bool(await connection.fetchval(sql, names))


async def check_existing_table(
    connection: asyncpg.Connection,
    sql: Mapping[str, Statement],
    where: str,
    name: str,
    columns: Mapping[str, ColumnType],
) -> None:
    number, kind = await connection.fetchrow(
        "SELECT oid::bigint, relkind::text FROM pg_class WHERE oid = CAST($1::text AS regclass)", name
    )
    if kind not in ("r", "p"):
        raise StoreRefused(f"{where}: {name} is not a table; choose another name")
    found = [ExistingColumn(*line) for line in await connection.fetch(sql["columns"].text, number)]
    refuse_other_shape(where, name, found, wanted_columns(columns))
    keys = await connection.fetch(sql["unique_keys"].text, number)
    refuse_without_key(where, name, [key for (key,) in keys])


def own_statements(schema: str, table: str, columns: Mapping[str, ColumnType], ending: str) -> dict[str, Statement]:
    """All statements, with the user's names."""
    written = {name: kind for name, kind in {**STAGED, **columns}.items() if name not in MARKS}
    changes = [replacement(quote_name(name)) for name in written if name not in ("external_id", "stamp")]
    changes.append("stamp = excluded.stamp")
    names = {
        ":table": f"{quote_name(schema)}.{quote_name(table)}",
        ":columns": ", ".join(map(quote_name, written)),
        ":page_columns": ", ".join(unstaged(name, kind) for name, kind in written.items()),
        ":changes": ", ".join(changes),
        ":staged": ", ".join(f"{quote_name(name)} {staged_as(kind)}" for name, kind in {**STAGED, **columns}.items()),
        ":ending": ending,
        ":bytewise": 'COLLATE "C"',
    }
    found = {verb: number_parameters(text, names, schema) for verb, text in run_tables.statements("postgres").items()}
    lines = [f"{quote_name(name)} {declared(name, kind)}" for name, kind in {**OWN, **columns}.items()]
    create = f"CREATE TABLE {names[':table']} ({', '.join(lines)}, PRIMARY KEY ({', '.join(KEY)}))"
    count = f"SELECT count(*) FROM {names[':table']} WHERE deleted_at IS NULL"
    return {**found, "create": Statement(create, ()), "count": Statement(count, ())}


def replacement(column: str) -> str:
    """A tombstone keeps the last content of the row."""
    return f"{column} = CASE WHEN excluded.deleted_at IS NULL THEN excluded.{column} ELSE stored.{column} END"


def staged_as(kind: ColumnType) -> str:
    """The driver would turn the first and the last instant into infinities, so timestamps are sent as text. Documents
    are sent as text, too: unchanged ones need not be parsed.
    """
    return "text" if kind in (ColumnType.TIMESTAMP, ColumnType.JSON) else DECLARED[kind]


def unstaged(name: str, kind: ColumnType) -> str:
    return f"CAST(page.{quote_name(name)} AS {DECLARED[kind]})"


def number_parameters(text: str, names: Mapping[str, str], schema: str) -> Statement:
    """Replace :name by $1, $2 … and qualify the run tables. One pass, so that text inside user-given names is not
    replaced again.
    """
    parameters: list[str] = []

    def written(found: re.Match[str]) -> str:
        word = found[0]
        if word.startswith("leaseway_"):
            return f"{quote_name(schema)}.{word}"
        if word in names:
            return names[word]
        if word[1:] not in parameters:
            parameters.append(word[1:])
        return f"${parameters.index(word[1:]) + 1}"

    books_and_names = rf"\b(?:{'|'.join(run_tables.TABLES)})\b|(?<![:\w\[]):[a-z_]+"
    return Statement(re.sub(books_and_names, written, without_comments(text)), tuple(parameters))


def without_comments(text: str) -> str:
    return re.sub(r"--[^\n]*", "", text)


def declared(column: str, kind: ColumnType) -> str:
    return DECLARED[kind] + (" NOT NULL" if column in OWN and column not in OPTIONAL else "")


def wanted_columns(columns: Mapping[str, ColumnType]) -> list[RequiredColumn]:
    return [RequiredColumn(name, DECLARED[kind], partial(holds, kind)) for name, kind in {**OWN, **columns}.items()]


def holds(kind: ColumnType, found: str) -> bool:
    return found in HELD_BY[kind]
