"""What sinks in SQL share when they tell where rows lie."""

from collections.abc import Sequence
from typing import Any

from leaseway.imports.sinks.columns import quoted
from leaseway.imports.spec.geo_grid import DEGREES, Cell, Position, Steps

WIDE = round(360 / DEGREES)
GRID = {"degrees": DEGREES, "wide": WIDE, "high": round(180 / DEGREES)}

Line = Sequence[Any]
"""A cell as one number, how many rows, and the last place that was read. No cell: they lie nowhere."""


def cells_of(lines: Sequence[Line]) -> list[Cell]:
    return [cell_of(number, count) for number, count, _ in lines if number is not None]


def cell_of(number: int, count: int) -> Cell:
    """Its last bit says whether this run wrote them."""
    y, x = divmod(number // 2, WIDE)
    return Cell(x, y, bool(number % 2), count)


def sqlite_names(position: Position, table: str) -> dict[str, str]:
    return {
        ":latitude": sqlite_value(position.latitude),
        ":longitude": sqlite_value(position.longitude),
        ":table": quoted(table),
    }


def sqlite_value(where: str | Steps) -> str:
    if isinstance(where, str):
        return quoted(where)
    steps = (f"[{step}]" if isinstance(step, int) else f'."{step}"' for step in where)
    return f"json_extract(document, {text_of('$' + ''.join(steps))})"


def postgres_names(position: Position, table: str) -> dict[str, str]:
    """`table`: as SQL takes it."""
    return {
        ":latitude": postgres_value(position.latitude),
        ":longitude": postgres_value(position.longitude),
        ":table": table,
    }


def postgres_value(where: str | Steps) -> str:
    if isinstance(where, str):
        return quoted(where)
    steps = (str(step) if isinstance(step, int) else text_of(step) for step in where)
    value = " -> ".join(("document", *steps))
    # What is no number would be an error, and nobody would see a map for the sake of one document.
    return f"CASE jsonb_typeof({value}) WHEN 'number' THEN ({value})::double precision END"


def text_of(value: str) -> str:
    """As SQL takes it, whatever is in it."""
    return "'" + value.replace("'", "''") + "'"
