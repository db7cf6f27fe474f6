"""A small world map of dots: two by four dots per character, one for each place with rows."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from rich.text import Text

NORTH, SOUTH = 78.0, -56.0
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a braille character, by row and column."""
BLANK = 0x2800
STYLES = ((300, "#f2a33a"), (60, "#7cc36e"), (8, "#3aa6b9"), (0, "#4878a8"))
"""The more rows in a character, the warmer its colour; readable on dark and on light backgrounds."""
STRETCH = 0.8
"""Characters are twice as high as wide, and maps are usually a little taller than their degrees."""

Cell = tuple[int, int]


def world(points: Iterable[tuple[float, float]], width: int) -> Text:
    """`points`: latitude and longitude."""
    scale = width * 2 / 360
    height = math.ceil((NORTH - SOUTH) * scale / STRETCH / 4)
    bits: dict[Cell, int] = {}
    counts: Counter[Cell] = Counter()
    for latitude, longitude in points:
        if not SOUTH < latitude <= NORTH:
            continue
        x = min(int((longitude + 180) * scale), width * 2 - 1)
        y = min(int((NORTH - latitude) * scale / STRETCH), height * 4 - 1)
        cell = (y // 4, x // 2)
        bits[cell] = bits.get(cell, 0) | DOTS[y % 4][x % 2]
        counts[cell] += 1
    rows = [row for row, _ in bits]
    shown = range(min(rows), max(rows) + 1) if rows else range(0)
    return Text("\n").join(map_row(row, width, bits, counts) for row in shown)


def map_row(row: int, width: int, bits: Mapping[Cell, int], counts: Mapping[Cell, int]) -> Text:
    text = Text(no_wrap=True)
    for column in range(width):
        cell = (row, column)
        text.append(chr(BLANK | bits[cell]) if cell in bits else " ", dot_style(counts.get(cell, 0)))
    return text


def dot_style(count: int) -> str:
    return next(style for least, style in STYLES if count >= least)
