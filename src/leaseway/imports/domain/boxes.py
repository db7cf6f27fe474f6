"""Boxes in degrees: (south, west, north, east). West is never larger than east; a box across the antimeridian is cut
there.

A point belongs to a box by a planar, half-open rule: south ≤ latitude < north, west ≤ longitude < east. The edges of
the world (north 90, east 180) belong to the boxes that touch them. For servers that draw the edges of a box as great
circles, a slightly larger box is requested, and records outside the original box are dropped.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from leaseway.domain.errors import BadValue

Box = tuple[float, float, float, float]

WORLD: Box = (-90.0, -180.0, 90.0, 180.0)
WIDTH_MAX = 90.0
"""Wider boxes are split first: the great circle between two corners half a world apart is not unique."""
SIDE_MIN = 0.001
"""About a hundred metres. Denser records are treated as one place."""
MARGIN = 1e-6
"""Extra margin of an expanded edge, in degrees, against rounding: a tenth of a metre."""


def parse_box(field: str, value: Sequence[float]) -> Box:
    """Check a box from user input. West may be larger than east, across the antimeridian."""
    if len(value) != 4 or not all(isinstance(side, int | float) and math.isfinite(side) for side in value):
        raise BadValue(field, f"must be four numbers: south, west, north, east (is {value!r})")
    # Adding 0.0 turns -0.0 into 0.0; otherwise equal boxes would have different keys.
    south, west, north, east = (float(side) + 0.0 for side in value)
    if not -90 <= south < north <= 90:
        raise BadValue(field, f"south must be less than north, both between -90 and 90 (is {south:g}, {north:g})")
    if not (-180 <= west <= 180 and -180 <= east <= 180) or west == east:
        raise BadValue(field, f"west and east must differ, both between -180 and 180 (is {west:g}, {east:g})")
    return south, west, north, east


def split_wide_box(box: Box) -> list[Box]:
    """Split at the antimeridian, and at every 90 degrees if the box is wider than that."""
    south, west, north, east = box
    if west > east:
        sides = [(west, 180.0), (-180.0, east)]
        return [part for low, high in sides if low < high for part in split_wide_box((south, low, north, high))]
    if east - west <= WIDTH_MAX:
        return [box]
    cuts = [west, *(cut for cut in (-90.0, 0.0, 90.0) if west < cut < east), east]
    return [(south, low, north, high) for low, high in pairwise(cuts)]


def quadrants(box: Box) -> list[Box]:
    """South-west, south-east, north-west, north-east. Empty if the box has the minimum size."""
    south, west, north, east = box
    if min(north - south, east - west) < 2 * SIDE_MIN:
        return []
    y, x = (south + north) / 2, (west + east) / 2
    return [(south, west, y, x), (south, x, y, east), (y, west, north, x), (y, x, north, east)]


def grid_cells(box: Box, degrees: float) -> Iterator[Box]:
    """Grid lines are multiples of `degrees`, whatever the box, so plans of two areas share their cells."""
    south, west, north, east = box
    rows, columns = grid_lines(south, north, degrees), grid_lines(west, east, degrees)
    for low, high in pairwise(rows):
        for left, right in pairwise(columns):
            yield low, left, high, right


def grid_lines(low: float, high: float, degrees: float) -> list[float]:
    first, last = math.floor(low / degrees) + 1, math.ceil(high / degrees)
    return [low, *(line for step in range(first, last) if low < (line := step * degrees) < high), high]


def owns(box: Box, latitude: float, longitude: float) -> bool:
    south, west, north, east = box
    is_between = south <= latitude < north or latitude == north == 90
    return is_between and (west <= longitude < east or longitude == east == 180)


def expand_box(box: Box) -> Box:
    """The box to request from a server that draws edges as great circles, so that no point of the box is missed.

    Such an edge bends towards its pole. The edge nearer to the equator bends into the box, so it is moved until its
    highest point, in the middle, lies on the parallel: tan φ' = tan φ · cos(Δλ/2). The other edges bend outwards.
    """
    south, west, north, east = box
    flatter = math.cos(math.radians((east - west) / 2))
    low = bend_latitude(south, flatter) if south > 0 else south
    high = bend_latitude(north, flatter) if north < 0 else north
    return max(-90.0, low - MARGIN), max(-180.0, west - MARGIN), min(90.0, high + MARGIN), min(180.0, east + MARGIN)


def geodesic_extent(box: Box) -> Box:
    """The largest area that such a server can return: its edges bend out of the box, towards the poles."""
    south, west, north, east = box
    steeper = 1 / math.cos(math.radians((east - west) / 2))
    low = bend_latitude(south, steeper) if south < 0 else south
    high = bend_latitude(north, steeper) if north > 0 else north
    return max(-90.0, low - MARGIN), west - MARGIN, min(90.0, high + MARGIN), east + MARGIN


def bend_latitude(latitude: float, flatter: float) -> float:
    return math.degrees(math.atan(math.tan(math.radians(latitude)) * flatter))
