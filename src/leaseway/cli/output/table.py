"""Tables: aligned columns without borders. They fit the width of a terminal; in a pipe nothing is cut."""

import sys
from collections.abc import Sequence
from shutil import get_terminal_size
from typing import Literal, NamedTuple

from leaseway.cli.output.console import harmless_line, is_terminal, rich_console, say

GAP = "  "
SHRUNK_MIN = 8


class TableColumn(NamedTuple):
    title: str
    right: bool = False
    may_shrink: bool = False
    """Cut with an ellipsis where the terminal is too narrow. Ids are never cut: half an id is useless."""
    leaves: int = 0
    """Columns are dropped where the terminal is too narrow, 1 first. 0 is never dropped."""


class TableCell(NamedTuple):
    text: str
    style: str = ""


Row = Sequence[TableCell | str]


def show_table(columns: Sequence[TableColumn], rows: Sequence[Row], total: Row | None = None) -> None:
    """Columns that are empty in every row are left out."""
    cells = [[_cell(value) for value in row] for row in [*rows, *([total] if total else [])]]
    kept = [index for index in range(len(columns)) if any(row[index].text for row in cells)]
    chosen = [columns[index] for index in kept]
    lines = [[row[index] for index in kept] for row in cells]
    if is_terminal(sys.stdout):
        while (gone := _to_leave(chosen, lines)) is not None:
            chosen = chosen[:gone] + chosen[gone + 1 :]
            lines = [line[:gone] + line[gone + 1 :] for line in lines]
        _in_colour(chosen, lines, has_total=total is not None)
    else:
        _plain(chosen, lines)


def _cell(value: TableCell | str) -> TableCell:
    cell = value if isinstance(value, TableCell) else TableCell(value)
    return TableCell(harmless_line(cell.text), cell.style)


def _plain(columns: Sequence[TableColumn], rows: Sequence[Sequence[TableCell]]) -> None:
    texts = [[column.title for column in columns], *([cell.text for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in texts) for index in range(len(columns))]
    for row in texts:
        padded = [
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(row, widths, columns, strict=True)
        ]
        say(GAP.join(padded).rstrip())


def _to_leave(columns: Sequence[TableColumn], rows: Sequence[Sequence[TableCell]]) -> int | None:
    """The column to drop next; None if the table fits."""
    widths = fitted(columns, _longest(columns, rows), get_terminal_size().columns)
    if sum(widths) + len(GAP) * (len(widths) - 1) <= get_terminal_size().columns:
        return None
    leaving = [index for index, column in enumerate(columns) if column.leaves]
    return min(leaving, key=lambda index: columns[index].leaves, default=None)


def _longest(columns: Sequence[TableColumn], rows: Sequence[Sequence[TableCell]]) -> list[int]:
    from rich.cells import cell_len

    return [max([len(column.title), *(cell_len(row[i].text) for row in rows)]) for i, column in enumerate(columns)]


def _in_colour(columns: Sequence[TableColumn], rows: Sequence[Sequence[TableCell]], *, has_total: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0), header_style="bold")
    widths = fitted(columns, _longest(columns, rows), get_terminal_size().columns)
    for column, width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(column.title, justify=justify, no_wrap=True, overflow="ellipsis", width=width)
    for number, row in enumerate(rows):
        is_total = has_total and number == len(rows) - 1
        table.add_row(*(Text(cell.text, cell.style) for cell in row), style="bold" if is_total else None)
    # Wider than the terminal rather than half an id: the terminal wraps the line.
    rich_console(width=sum(widths) + len(GAP) * len(widths)).print(table)


def fitted(columns: Sequence[TableColumn], longest: Sequence[int], width: int) -> list[int]:
    """The width of each column: its natural width, or a share of the remaining space for those that may shrink."""
    widths = list(longest)
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while excess > 0:
        shrinkable = [i for i, column in enumerate(columns) if column.may_shrink and widths[i] > SHRUNK_MIN]
        if not shrinkable:
            break
        widest = max(shrinkable, key=lambda i: widths[i])
        widths[widest] -= 1
        excess -= 1
    return widths
