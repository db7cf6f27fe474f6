"""A box ─► request parameter and record filters.

Servers return a point on an edge in both boxes, and some draw edges as great circles. So every record is checked: it is
kept in the one box that owns it, dropped in the neighbouring boxes, and reported as foreign where no such box could
have returned it.
"""

from collections.abc import Callable
from typing import Any

from leaseway.imports.domain.boxes import Box, expand_box, geodesic_extent, owns
from leaseway.imports.domain.jsonpath import parse_path
from leaseway.imports.domain.page import Record
from leaseway.imports.spec.model import Filter

SIDES = ("south", "west", "north", "east")
SLACK = 1e-6
"""In degrees: a source that rounds coordinates must not look as if it ignored the box."""

BoxTest = Callable[[Record], bool]


def to_box(wanted: Any) -> Box:
    south, west, north, east = wanted
    return south, west, north, east


def asked_box(wanted: Any, is_geodesic: bool) -> Box:
    return expand_box(to_box(wanted)) if is_geodesic else to_box(wanted)


def box_param(filter_: Filter, wanted: Any) -> str:
    """`box` of the filter is a template of the four sides. Seven digits are a centimetre."""
    text = str(filter_.box)
    for name, side in zip(SIDES, asked_box(wanted, filter_.is_geodesic), strict=True):
        text = text.replace(name, f"{side:.7f}")
    return text


def keeps_in_box(filter_: Filter, wanted: Any) -> BoxTest:
    """Drops records of the neighbouring box: a point on the edge is returned for both."""
    box, is_near, place_of = to_box(wanted), in_reach(filter_, wanted), place_reader(filter_)

    def keeps(record: Record) -> bool:
        place = place_of(record)
        return place is None or owns(box, *place) or not is_near(*place)

    return keeps


def allows_in_box(filter_: Filter, wanted: Any) -> BoxTest:
    is_near, place_of = in_reach(filter_, wanted), place_reader(filter_)

    def allows(record: Record) -> bool:
        place = place_of(record)
        return place is None or is_near(*place)

    return allows


def in_reach(filter_: Filter, wanted: Any) -> Callable[[float, float], bool]:
    """Whether a server may return a point for this box."""
    asked = asked_box(wanted, filter_.is_geodesic)
    south, west, north, east = geodesic_extent(asked) if filter_.is_geodesic else asked

    def is_near(latitude: float, longitude: float) -> bool:
        in_height = south - SLACK <= latitude <= north + SLACK
        return in_height and west - SLACK <= longitude <= east + SLACK

    return is_near


def place_reader(filter_: Filter) -> Callable[[Record], tuple[float, float] | None]:
    """Latitude and longitude. None if they are missing; the record is kept, and may become a bad row."""
    paths = (filter_.latitude, filter_.longitude)
    latitude_of, longitude_of = (parse_path("filters.box", str(path)).first for path in paths)

    def read(record: Record) -> tuple[float, float] | None:
        latitude, longitude = parse_degrees(latitude_of(record)), parse_degrees(longitude_of(record))
        return None if latitude is None or longitude is None else (latitude, longitude)

    return read


def parse_degrees(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
