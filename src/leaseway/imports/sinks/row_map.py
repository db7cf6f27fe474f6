"""Where on the globe rows lie: which of a spec's columns say so, and the grid on which they are counted."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from leaseway.imports.domain.jsonpath import EVERY, parse_path
from leaseway.imports.domain.page import ColumnType
from leaseway.imports.sinks.columns import quote_name
from leaseway.imports.spec.model import ColumnSpec, Resource

DEGREES = 0.5
"""One cell of the grid: however many rows there are, land has some tens of thousands of these, and cities a few."""
LATITUDES = ("latitude", "lat")
LONGITUDES = ("longitude", "lon", "lng", "long")
NUMBERS = (ColumnType.REAL, ColumnType.INTEGER)

Steps = tuple[str | int, ...]


class RowPosition(NamedTuple):
    """Where a row says it: in columns of the table, or in the document."""

    latitude: str | Steps
    """The name of a column, or the steps of a path."""
    longitude: str | Steps


class GridCell(NamedTuple):
    """Rows that lie close together: `x` counts from the west, `y` from the south."""

    x: int
    y: int
    is_of_run: bool
    """False: they were written by another run."""
    rows: int

    @property
    def middle(self) -> tuple[float, float]:
        """Longitude and latitude."""
        return (self.x + 0.5) * DEGREES - 180, (self.y + 0.5) * DEGREES - 90


class RowMapPage(NamedTuple):
    """One look at a part of a table."""

    cells: list[GridCell]
    after: str
    """Where the next look begins."""
    has_more: bool
    """False: this was the end of the table, for now."""


def find_position(resource: Resource) -> RowPosition | None:
    """None: the spec does not say it. Columns are read fastest, those of the filter for boxes are meant for sure."""
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
    """None: it leads to many values."""
    steps = parse_path("path", path).steps
    known = tuple(step for step in steps if step is not EVERY)
    return known if len(known) == len(steps) else None


WIDE = round(360 / DEGREES)
GRID = {"degrees": DEGREES, "wide": WIDE, "high": round(180 / DEGREES)}

CellLine = Sequence[Any]
"""A cell as one number, how many rows, and the last place that was read. No cell: they lie nowhere."""


def decode_cells(lines: Sequence[CellLine]) -> list[GridCell]:
    return [decode_cell(number, count) for number, count, _ in lines if number is not None]


def decode_cell(number: int, count: int) -> GridCell:
    """Its last bit says whether this run wrote them."""
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
    """`table`: as SQL takes it."""
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
    # What is no number would be an error, and nobody would see a map for the sake of one document.
    return f"CASE jsonb_typeof({value}) WHEN 'number' THEN ({value})::double precision END"


def quote_text(value: str) -> str:
    """As SQL takes it, whatever is in it."""
    return "'" + value.replace("'", "''") + "'"
