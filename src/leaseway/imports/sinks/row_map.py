"""Rows on a map: which columns contain the position, and the grid on which rows are counted."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from leaseway.imports.domain.jsonpath import parse_path
from leaseway.imports.domain.page import ColumnType
from leaseway.imports.sinks.columns import quote_name
from leaseway.imports.spec.model import ColumnSpec, Resource

DEGREES = 0.5
"""The size of a grid cell. Land has tens of thousands of cells, however many rows there are."""
LATITUDES = ("latitude", "lat")
LONGITUDES = ("longitude", "lon", "lng", "long")
NUMBERS = (ColumnType.REAL, ColumnType.INTEGER)

Steps = tuple[str | int, ...]


class RowPosition(NamedTuple):
    """Where a row contains its position: columns of the table, or paths in the document."""

    latitude: str | Steps
    """The name of a column, or the steps of a path."""
    longitude: str | Steps


class GridCell(NamedTuple):
    """Rows close together. `x` counts from the west, `y` from the south."""

    x: int
    y: int
    is_of_run: bool
    """False if another run wrote them."""
    rows: int

    @property
    def middle(self) -> tuple[float, float]:
        """Longitude and latitude."""
        return (self.x + 0.5) * DEGREES - 180, (self.y + 0.5) * DEGREES - 90


class RowMapPage(NamedTuple):
    """One part of a table."""

    cells: list[GridCell]
    after: str
    """Where the next part starts."""
    has_more: bool
    """False at the current end of the table."""


def find_position(resource: Resource) -> RowPosition | None:
    """None if the spec does not contain it. Prefers columns, which are faster, and the paths of the filter for
    boxes.
    """
    box = resource.filters.get("box")
    paths = (box.latitude, box.longitude) if box is not None else (None, None)
    latitude = find_column(resource.columns, paths[0], LATITUDES)
    longitude = find_column(resource.columns, paths[1], LONGITUDES)
    if latitude is not None and longitude is not None:
        return RowPosition(latitude, longitude)
    if paths[0] is None or paths[1] is None:
        return None
    found = path_steps(paths[0]), path_steps(paths[1])
    return None if found[0] is None or found[1] is None else RowPosition(found[0], found[1])


def find_column(columns: Mapping[str, ColumnSpec], path: str | None, names: tuple[str, ...]) -> str | None:
    numbers = {name: column for name, column in columns.items() if column.type in NUMBERS}
    if path is not None:
        wanted = parse_path("latitude", path)
        for name, column in numbers.items():
            if parse_path(name, column.path) == wanted:
                return name
    return next((name for name in names if name in numbers), None)


def path_steps(path: str) -> Steps | None:
    """None if the path leads to many values."""
    steps = parse_path("path", path).steps
    known = tuple(step for step in steps if isinstance(step, str) or (isinstance(step, int) and step >= 0))
    return known if len(known) == len(steps) else None


WIDE = round(360 / DEGREES)
GRID = {"degrees": DEGREES, "wide": WIDE, "high": round(180 / DEGREES)}

CellLine = Sequence[Any]
"""A cell as one number, the number of rows, and the last position read. The cell is None for rows without a
position.
"""


def decode_cells(lines: Sequence[CellLine]) -> list[GridCell]:
    return [decode_cell(number, count) for number, count, _ in lines if number is not None]


def decode_cell(number: int, count: int) -> GridCell:
    """The last bit tells whether this run wrote the rows."""
    y, x = divmod(number // 2, WIDE)
    return GridCell(x, y, bool(number % 2), count)


def sqlite_names(position: RowPosition, table: str) -> dict[str, str]:
    return {
        ":latitude": sqlite_value(position.latitude),
        ":longitude": sqlite_value(position.longitude),
        ":table": quote_name(table),
    }


def sqlite_value(where: str | Steps) -> str:
    if isinstance(where, str):
        return quote_name(where)
    steps = (f"[{step}]" if isinstance(step, int) else f'."{step}"' for step in where)
    return f"json_extract(document, {quote_text('$' + ''.join(steps))})"


def postgres_names(position: RowPosition, table: str) -> dict[str, str]:
    """`table` is an SQL identifier."""
    return {
        ":latitude": postgres_value(position.latitude),
        ":longitude": postgres_value(position.longitude),
        ":table": table,
    }


def postgres_value(where: str | Steps) -> str:
    if isinstance(where, str):
        return quote_name(where)
    steps = (str(step) if isinstance(step, int) else quote_text(step) for step in where)
    value = " -> ".join(("document", *steps))
    # A value that is not a number would fail the whole statement.
    return f"CASE jsonb_typeof({value}) WHEN 'number' THEN ({value})::double precision END"


def quote_text(value: str) -> str:
    """The text as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"
