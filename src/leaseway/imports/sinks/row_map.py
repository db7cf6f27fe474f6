"""What sinks in SQL share when they tell where rows lie."""

from collections.abc import Sequence
from typing import Any

from leaseway.imports.sinks.columns import quote_name
from leaseway.imports.spec.geo_grid import DEGREES, GridCell, RowPosition, Steps

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
