"""A shard's predicate ─► request parameters and record filters.

The request covers at least the shard. Records beyond a bound that the source cannot apply are dropped. Records beyond a
bound that the source promised to apply are kept, so that the guard `filter_ignored` sees them.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US
from leaseway.domain.validators import EPOCH
from leaseway.imports.domain.boxes import DECIMALS, Box, expand_box, geodesic_extent, keep_in_world, owns, pad_box
from leaseway.imports.domain.jsonpath import MISSING, parse_path
from leaseway.imports.domain.page import Record
from leaseway.imports.domain.partition import Predicate
from leaseway.imports.domain.timestamps import parse_stamp
from leaseway.imports.rows import KEY_LENGTH_MAX
from leaseway.imports.spec.model import Filter, KeysetPaging, Resource

SIDES = ("south", "west", "north", "east")
SLACK = 1e-6
"""In degrees: a source that rounds coordinates must not look as if it ignored the box."""

BoxTest = Callable[[Record], bool]


def to_box(wanted: Any) -> Box:
    south, west, north, east = wanted
    return south, west, north, east


def asked_box(filter_: Filter, wanted: Any) -> Box:
    if filter_.is_geodesic:
        return expand_box(to_box(wanted))
    asked = pad_box(to_box(wanted))
    return keep_in_world(asked) if filter_.includes_world_edges else asked


def asks_beyond_world(filter_: Filter, wanted: Any) -> bool:
    asked = asked_box(filter_, wanted)
    return keep_in_world(asked) != asked


def box_param(filter_: Filter, wanted: Any) -> str:
    """`box` of the filter is a template of the four sides."""
    text = str(filter_.box)
    for name, side in zip(SIDES, asked_box(filter_, wanted), strict=True):
        text = text.replace(name, f"{side:.{DECIMALS}f}")
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
    asked = asked_box(filter_, wanted)
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


DAY_US = 86_400 * SECOND_US
OPEN_END = ".."
DELETED = "deleted"
"""In a predicate: the feed of deleted records."""

RecordTest = Callable[[Record], bool]


class RangeBounds(NamedTuple):
    """One range: the wanted interval [low, high), and the requested one, inclusive. None: open, or not applied."""

    low: int | None
    high: int | None
    asked_low: int | None
    asked_high: int | None

    def wants(self, value: int) -> bool:
        return (self.low is None or value >= self.low) and (self.high is None or value < self.high)

    def allows(self, value: int) -> bool:
        above = self.asked_low is None or value >= self.asked_low
        return above and (self.asked_high is None or value <= self.asked_high)


class PredicateFilters:
    """How to request a part of one resource."""

    def __init__(self, resource: Resource) -> None:
        self._filters = dict(resource.filters)
        stamp = resource.stamp
        self._granularity_us = SECOND_US if stamp is None else max(stamp.granularity_us, 1)
        self.is_keyset = isinstance(resource.page, KeysetPaging)
        if self.is_keyset and "id" not in self._filters:
            # The cursor is the lower bound: the first page starts there, and the others after it.
            self._filters["id"] = Filter(path=resource.key)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._filters)

    def applied(self) -> dict[str, tuple[bool, bool]]:
        """For each range, the bounds that the source applies."""
        ranges = {name: filter_ for name, filter_ in self._filters.items() if filter_.param is None or filter_.interval}
        return {name: (self._has_lower(name), has_upper(filter_)) for name, filter_ in ranges.items()}

    def params(self, predicate: Predicate) -> dict[str, str]:
        params: dict[str, str] = {}
        for name, wanted in filter_items(predicate):
            filter_ = self._filter(name)
            if filter_.param is not None and filter_.box is not None:
                params[filter_.param] = box_param(filter_, wanted)
                continue
            if filter_.param is not None and filter_.interval is not None:
                params[filter_.param] = self._interval(filter_, name, wanted)
                continue
            if filter_.param is not None:
                params[filter_.param] = filter_.separator.join(str(value) for value in wanted)
                continue
            bounds, is_time = self._bounds(name, wanted), is_time_range(wanted)
            if filter_.lower is not None and bounds.asked_low is not None:
                low = bounds.asked_low
                params[filter_.lower] = format_bound(low, filter_.format, is_time)
            if filter_.upper is not None and bounds.asked_high is not None:
                params[filter_.upper] = format_bound(bounds.asked_high, filter_.format, is_time)
        return params

    def _interval(self, filter_: Filter, name: str, wanted: Any) -> str:
        bounds, is_time = self._bounds(name, wanted), is_time_range(wanted)
        ends = [
            OPEN_END if end is None else format_bound(end, filter_.format, is_time)
            for end in (bounds.asked_low, bounds.asked_high)
        ]
        return str(filter_.interval).replace("{from}", ends[0]).replace("{to}", ends[1])

    def why_refused(self, predicate: Predicate) -> str:
        """What in the parameters some sources refuse, and what to do about it."""
        boxes = [(self._filter(name), wanted) for name, wanted in filter_items(predicate)]
        if any(filter_.box is not None and asks_beyond_world(filter_, wanted) for filter_, wanted in boxes):
            return (
                " (the box reaches 0.000001 degrees beyond 180 or 90, so that points on the edges of the world are "
                "found. If the source refuses that and includes these points anyway, set "
                "resource.filters.box.includes_world_edges = true)"
            )
        return ""

    def keeps(self, predicate: Predicate) -> RecordTest:
        """False for records to drop: they do not belong to the shard, and the source cannot filter them."""
        tests = [self._keeps_in(name, wanted) for name, wanted in filter_items(predicate)]
        return match_all([test for test in tests if test is not None])

    def is_ours(self, predicate: Predicate) -> RecordTest:
        """False for records that the source should not have returned."""
        tests = [self._allows_in(name, wanted) for name, wanted in filter_items(predicate)]
        return match_all([test for test in tests if test is not None])

    def _filter(self, name: str) -> Filter:
        if name not in self._filters:
            known = ", ".join(sorted(self._filters)) or "none"
            raise BadValue("predicate", f"the source has no filter {name!r} (it has {known}); add it to the spec")
        return self._filters[name]

    def _has_lower(self, name: str) -> bool:
        filter_ = self._filters[name]
        return filter_.lower is not None or filter_.interval is not None or (self.is_keyset and name == "id")

    def _keeps_in(self, name: str, wanted: Any) -> RecordTest | None:
        filter_ = self._filter(name)
        if filter_.box is not None:
            return keeps_in_box(filter_, wanted)
        if filter_.path is None or (filter_.param is not None and filter_.interval is None):
            return None
        bounds, value_of = self._bounds(name, wanted), value_reader(filter_.path, is_time_range(wanted))

        def keeps(record: Record) -> bool:
            value = value_of(record)
            return value is None or bounds.wants(value) or not bounds.allows(value)

        return keeps

    def _allows_in(self, name: str, wanted: Any) -> RecordTest | None:
        filter_ = self._filter(name)
        if filter_.box is not None:
            return allows_in_box(filter_, wanted)
        if filter_.path is None:
            return None
        if filter_.param is not None and filter_.interval is None:
            return match_values(filter_.path, {str(value) for value in wanted})
        bounds, value_of = self._bounds(name, wanted), value_reader(filter_.path, is_time_range(wanted))

        def allows(record: Record) -> bool:
            value = value_of(record)
            return value is None or bounds.allows(value)

        return allows

    def _bounds(self, name: str, wanted: Any) -> RangeBounds:
        filter_ = self._filters[name]
        low, high = (parse_bound(name, end) for end in range_ends(name, wanted))
        asked_low = low if self._has_lower(name) else None
        if asked_low is not None and (filter_.lower or filter_.interval) and filter_.lower_is == "exclusive":
            asked_low -= self._granularity_us if is_time_range(wanted) else 1
        asked_high = high if has_upper(filter_) else None
        if filter_.format == "date":
            asked_low = None if asked_low is None else asked_low // DAY_US * DAY_US
            asked_high = None if asked_high is None else -(-asked_high // DAY_US) * DAY_US
        if filter_.format == "epoch":
            asked_low = None if asked_low is None else asked_low // SECOND_US * SECOND_US
            asked_high = None if asked_high is None else -(-asked_high // SECOND_US) * SECOND_US
        return RangeBounds(low, high, asked_low, asked_high)


def has_upper(filter_: Filter) -> bool:
    return filter_.upper is not None or filter_.interval is not None


def filter_items(predicate: Predicate) -> list[tuple[str, Any]]:
    """Without the feed of deleted records, which has its own parameters and no filter."""
    return [(name, wanted) for name, wanted in predicate.items() if name != DELETED]


def match_all(tests: list[RecordTest]) -> RecordTest:
    if not tests:
        return lambda record: True
    if len(tests) == 1:
        return tests[0]
    return lambda record: all(test(record) for test in tests)


def match_values(path: str, values: set[str]) -> RecordTest:
    get = parse_path("path", path).first

    def test(record: Record) -> bool:
        value = get(record)
        return value is None or value is MISSING or str(value) in values

    return test


def range_ends(name: str, wanted: Any) -> tuple[Any, Any]:
    if isinstance(wanted, str | Mapping) or len(wanted) != 2:
        raise BadValue("predicate", f"{name} must be a range with two ends (is {wanted!r})")
    return wanted[0], wanted[1]


def is_time_range(wanted: Any) -> bool:
    return any(isinstance(end, str) for end in wanted)


def parse_bound(name: str, end: Any) -> int | None:
    if end is None or (isinstance(end, int) and not isinstance(end, bool)):
        return end
    instant = parse_stamp(end, "iso")
    if instant is None:
        raise BadValue("predicate", f"{name}: {end!r} is neither an integer nor an instant")
    return instant


def value_reader(path: str, is_time: bool) -> Callable[[Record], int | None]:
    """The value to compare, or None if it cannot be compared; such a record becomes a bad row later."""
    get = parse_path("path", path).first

    def read(record: Record) -> int | None:
        value = get(record)
        if is_time:
            return parse_stamp(value)
        if isinstance(value, str) and len(value) <= KEY_LENGTH_MAX and value.isascii() and value.isdecimal():
            return int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    return read


def format_bound(value: int, format: str, is_time: bool) -> str:
    if not is_time:
        return str(value)
    moment = EPOCH + timedelta(microseconds=value)
    match format:
        case "date":
            return f"{moment:%Y-%m-%d}"
        case "epoch":
            return str(value // SECOND_US)
        case "epoch_ms":
            return str(value // 1_000)
    return moment.replace(tzinfo=None).isoformat() + "Z"
