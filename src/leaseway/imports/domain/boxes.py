"""Boxes in degrees: (south, west, north, east). West is never larger than east; a box across the antimeridian is cut
there.

A point belongs to a box by a planar, half-open rule: south ≤ latitude < north, west ≤ longitude < east. The edges of
the world, and coordinates beyond them, belong to the boxes that touch them. Longitude 180 and -180 are the same
meridian: an area that touches it on one side has a box without width on the other side.

Every server is asked for a slightly larger box, because some exclude points on its edges and others draw the edges as
great circles. Records outside the original box are dropped. `prove_cover` checks the boxes of each plan.
"""

import math
from collections.abc import Callable, Iterator, Sequence
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


def area_boxes(area: Box) -> list[Box]:
    """The parts of an area, each of which a server understands."""
    (south, _, north, _), parts = area, split_wide_box(area)
    if not parts:
        raise BadValue("resource.partition.area", "has no width: west 180 and east -180 are the same meridian")
    sides = {side for _, low, _, high in parts for side in (low, high)}
    return [
        *parts,
        *((south, side, north, side) for side in (-180.0, 180.0) if {side, -side} & sides and side not in sides),
    ]


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
    is_between = (south <= latitude or south == -90) and (latitude < north or north == 90)
    is_east = west <= longitude or west == -180
    return is_between and is_east and (longitude < east or east == 180 or west == longitude == east)


def expand_box(box: Box) -> Box:
    """The box to request from a server that draws edges as great circles, so that no point of the box is missed.

    Such an edge bends towards its pole. The edge nearer to the equator bends into the box, so it is moved until its
    highest point, in the middle, lies on the parallel: tan φ' = tan φ · cos(Δλ/2). The other edges bend outwards.
    """
    south, west, north, east = box
    flatter = math.cos(math.radians((east - west) / 2))
    low = bend_latitude(south, flatter) if south > 0 else south
    high = bend_latitude(north, flatter) if north < 0 else north
    return keep_in_world(pad_box((low, west, high, east)))


def pad_box(box: Box) -> Box:
    """The box to request from any other server. Some servers exclude points on its edges, so boxes overlap, and those
    at the edges of the world reach beyond them."""
    south, west, north, east = box
    return south - MARGIN, west - MARGIN, north + MARGIN, east + MARGIN


def keep_in_world(box: Box) -> Box:
    """For servers that refuse coordinates beyond 90 or 180 degrees."""
    south, west, north, east = box
    return max(-90.0, south), max(-180.0, west), min(90.0, north), min(180.0, east)


def geodesic_extent(box: Box) -> Box:
    """The largest area that such a server can return: its edges bend out of the box, towards the poles."""
    south, west, north, east = box
    steeper = 1 / math.cos(math.radians((east - west) / 2))
    low = bend_latitude(south, steeper) if south < 0 else south
    high = bend_latitude(north, steeper) if north > 0 else north
    return max(-90.0, low - MARGIN), west - MARGIN, min(90.0, high + MARGIN), east + MARGIN


def bend_latitude(latitude: float, flatter: float) -> float:
    return math.degrees(math.atan(math.tan(math.radians(latitude)) * flatter))


# -- the proof ---------------------------------------------------------------------------------------------------------

DECIMALS = 7
"""How a side is written in a request: a centimetre."""


def prove_cover(area: Box, boxes: Sequence[Box], asked: Callable[[Box], Box], *, is_edge_included: bool) -> None:
    """Raises unless every point of the area belongs to exactly one box, and the request for that box includes it.

    `asked`: the box that is requested. `is_edge_included`: the server includes points on the edges of the world, which
    therefore need no margin.
    """
    for box in boxes:
        if missing := missing_side(box, asked(box), is_edge_included):
            raise UncoveredArea(f"the request for {box} does not reach beyond its {missing} edge")
    for part in area_boxes(area):
        inside = [box for box in boxes if is_part(box, part)]
        if part[1] == part[3]:
            check_column(part, inside)
            continue
        wide = [box for box in inside if box[1] < box[3]]
        lines = sorted({part[0], part[2], *(side for box in wide for side in (box[0], box[2]))})
        for (low, high), row in zip(pairwise(lines), rows_between(lines, wide), strict=True):
            check_row(part, low, high, row)


class UncoveredArea(BadValue):
    """The boxes of a plan leave out a part of its area, or read a part twice."""

    def __init__(self, problem: str) -> None:
        super().__init__("resource.partition", f"{problem}; choose other degrees or another area")


def missing_side(box: Box, asked: Box, is_edge_included: bool) -> str | None:
    """The side at which a server that excludes edges would leave points out."""
    south, west, north, east = (round(side, DECIMALS) for side in asked)
    for name, is_beyond, is_edge in (
        ("south", south < box[0], box[0] == -90), ("west", west < box[1], box[1] in (-180, 180)),
        ("north", north > box[2], box[2] == 90), ("east", east > box[3], box[3] in (-180, 180)),
    ):  # fmt: skip
        if not is_beyond and not (is_edge and is_edge_included):
            return name
    return None


def is_part(box: Box, area: Box) -> bool:
    return area[0] <= box[0] and area[1] <= box[1] and box[2] <= area[2] and box[3] <= area[3]


def rows_between(lines: Sequence[float], boxes: Sequence[Box]) -> list[list[Box]]:
    """The boxes between each parallel and the next."""
    numbers = {line: number for number, line in enumerate(lines)}
    rows: list[list[Box]] = [[] for _ in lines[1:]]
    for box in boxes:
        for row in rows[numbers[box[0]] : numbers[box[2]]]:
            row.append(box)
    return rows


def check_row(area: Box, low: float, high: float, boxes: Sequence[Box]) -> None:
    """Between two parallels, the boxes follow each other without a gap and without an overlap."""
    _, west, _, east = area
    for _, left, _, right in sorted(boxes, key=lambda box: box[1]):
        if left != west:
            problem = "belongs to no box" if left > west else "belongs to two boxes"
            raise UncoveredArea(f"latitude {low:g} to {high:g} at longitude {west:g} {problem}")
        west = right
    if west != east:
        raise UncoveredArea(f"latitude {low:g} to {high:g} at longitude {west:g} belongs to no box")


def check_column(area: Box, boxes: Sequence[Box]) -> None:
    """The meridian at ±180 degrees, on the side that no other box has."""
    south, west, north, _ = area
    if [(box[0], box[2]) for box in boxes if box[1] == box[3]] != [(south, north)]:
        raise UncoveredArea(f"longitude {west:g} belongs to no box")
