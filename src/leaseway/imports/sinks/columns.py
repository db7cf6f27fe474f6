"""The columns of a table, and whether an existing table fits.

An existing table may have more columns, if rows can be written without them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec import Struct

from leaseway.domain.errors import BadValue, StoreRefused
from leaseway.imports.domain.page import RESERVED, ColumnType

KEY = ("source", "external_id")
OWN: Mapping[str, ColumnType] = {
    "source": ColumnType.TEXT,
    "external_id": ColumnType.TEXT,
    "stamp": ColumnType.INTEGER,
    "content_hash": ColumnType.TEXT,
    "document": ColumnType.JSON,
    "deleted_at": ColumnType.INTEGER,
    "deleted_reason": ColumnType.TEXT,
    "run": ColumnType.TEXT,
    "first_seen": ColumnType.INTEGER,
    "updated_at": ColumnType.INTEGER,
}
"""Instants are microseconds since 1970."""
OPTIONAL = frozenset({"deleted_at", "deleted_reason"})

NAME_BYTES_MAX = 63
"""PostgreSQL truncates longer names silently."""
TAKEN = ("leaseway_", "sqlite_", "pg_")


class ExistingColumn(Struct, frozen=True):
    """A column of an existing table."""

    name: str
    type: str
    is_required: bool
    """Rows cannot be written without a value for it."""


class RequiredColumn(Struct, frozen=True):
    name: str
    declaration: str
    fits: Callable[[str], bool]
    """Whether an existing type can store the values."""


def quote_name(name: str) -> str:
    """The name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def check_name(field: str, name: str) -> str:
    if not name or "\0" in name or len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX or not is_storable(name):
        raise BadValue(field, f"must be 1 to {NAME_BYTES_MAX} bytes of text without NUL (is {name!r})")
    return name


def check_table(name: str, parts_max: int) -> tuple[str, ...]:
    """The parts of a table name: table, or schema and table."""
    parts = tuple(name.split(".", parts_max - 1))
    for part in parts:
        check_name("table", part)
    if parts[-1].lower().startswith(TAKEN):
        raise BadValue("table", f"{name!r}: names that begin with {', '.join(TAKEN)} are reserved; choose another name")
    return parts


def check_columns(columns: Mapping[str, ColumnType]) -> Mapping[str, ColumnType]:
    taken = set(RESERVED)
    for name, kind in columns.items():
        check_name(f"columns.{name}", name)
        if name.lower() in taken:
            raise BadValue(
                f"columns.{name}",
                f"the table already has a column with this name; reserved are {', '.join(sorted(RESERVED))}",
            )
        if kind not in tuple(ColumnType):
            raise BadValue(f"columns.{name}", f"must be one of {', '.join(ColumnType)} (is {kind!r})")
        taken.add(name.lower())
    return columns


def is_storable(text: str) -> bool:
    """Databases do not accept lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_other_shape(
    where: str, table: str, found: Collection[ExistingColumn], wanted: Iterable[RequiredColumn]
) -> None:
    """Report the first column that does not fit, and what to do."""
    present = {column.name: column for column in found}
    names = set()
    for want in wanted:
        names.add(want.name)
        column = present.get(want.name)
        if column is None:
            raise StoreRefused(
                f"{where}: table {table} has no column {want.name!r}; add it (ALTER TABLE {table} ADD COLUMN "
                f"{quote_name(want.name)} {want.declaration}), or choose another table name and it will be created"
            )
        if not want.fits(column.type):
            raise StoreRefused(
                f"{where}: table {table}: column {want.name!r} is {column.type or 'without a type'}, and "
                f"{want.declaration} is required; change it, or choose another table name and it will be created"
            )
    for column in found:
        if column.is_required and column.name not in names:
            raise StoreRefused(
                f"{where}: table {table}: column {column.name!r} requires a value, and the import provides none; "
                "give it a default, or add it to [columns]"
            )


def refuse_without_key(where: str, table: str, keys: Collection[Collection[str]]) -> None:
    if not any(set(key) == set(KEY) for key in keys):
        raise StoreRefused(
            f"{where}: table {table}: columns {' and '.join(KEY)} are not unique together; create a unique index "
            f"(CREATE UNIQUE INDEX places_key ON {table} ({', '.join(KEY)})), or choose another table name and it will "
            "be created"
        )
