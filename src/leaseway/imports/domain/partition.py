"""Shards, and how a source is divided into them with disjoint predicates.

Every record belongs to exactly one shard of a plan. A shard's key is derived from its predicate alone, so the same plan
always has the same shards and an interrupted run finds its place. A partition that the source cannot express is refused
before the first request. `splitting.py` divides a shard during a run.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import Instant
from leaseway.domain.validators import EPOCH, MICROSECOND
from leaseway.imports.domain.boxes import Box, area_boxes, grid_cells, parse_box, quadrants

Predicate = Mapping[str, Any]
"""The condition that every record of a shard meets, by filter name: {"id": [0, 20000]}, {"country": ["ES"]}, {"window":
["2026-04-01T00:00Z", "2026-05-01T00:00Z"]}, {"box": [40.0, -4.0, 41.0, -3.0]}. Ranges are half-open; None is an open
end.
"""

Cursor = Mapping[str, Any]
"""Which page comes next, in the source's terms: {"after": 311592}, {"offset": 2000}, {"next": "https://…"}."""


class Shard(Struct, frozen=True):
    key: str
    label: str
    predicate: Predicate
    estimated_rows: int | None = None
    depth: int = 0
    """How many splits led to this shard."""


def canonical(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces. Equal values have equal texts."""
    return msgspec.json.encode(value, order="deterministic").decode()


def make_shard(
    source: str, label: str, predicate: Predicate, estimated_rows: int | None = None, depth: int = 0
) -> Shard:
    digest = hashlib.sha256(canonical(predicate).encode()).hexdigest()[:12]
    return Shard(f"{source}/{label}/{digest}", label, predicate, estimated_rows, depth)


SHARDS_MAX = 100_000
"""More shards indicate a mistake in a step or size."""
GROUP_MAX = 50
"""Values in one request, because URLs have a limited length."""
DEPTH_MAX = 20
MINUTE_US = 60_000_000


class PartitionSupport(Protocol):
    """The part of `SourceCapabilities` that plans depend on."""

    @property
    def order(self) -> str | None: ...
    @property
    def filters(self) -> frozenset[str]: ...
    @property
    def bounds(self) -> Mapping[str, tuple[bool, bool]]: ...
    @property
    def granularity_us(self) -> int: ...


# -- ids --------------------------------------------------------------------------------------------------------------


def id_range_shards(source: str, lower: int, upper: int, size: int) -> list[Shard]:
    """Ranges of `size` from `lower` on. The last range is open, because records created during the run have
    higher ids.
    """
    if size < 1:
        raise BadValue("resource.partition.size", f"must be at least 1 (is {size})")
    # Not len(range): a source may report a maximum that is too large for it.
    check_count("resource.partition.size", max(upper - lower, 0) // size + 1)
    starts = range(lower, max(upper, lower) + 1, size)
    ends: list[int | None] = [*starts[1:], None]
    return [
        make_shard(source, id_label(low, high), {"id": [low, high]}) for low, high in zip(starts, ends, strict=True)
    ]


def id_label(low: int | None, high: int | None) -> str:
    return f"id={'' if low is None else f'{low:09}'}-{'' if high is None else f'{high:09}'}"


# -- values -----------------------------------------------------------------------------------------------------------


def country_shards(
    source: str, values: Iterable[str], estimates: Mapping[str, int] | None = None, group_below: int = 0
) -> list[Shard]:
    """One shard per country. Countries with fewer rows than `group_below` share shards, until a shard has that many
    rows.
    """
    estimates = estimates or {}
    ordered = sorted(set(values))
    small = [value for value in ordered if estimates.get(value, group_below) < group_below]
    alone = [[value] for value in ordered if value not in set(small)]
    groups = sorted([*alone, *group_small_countries(small, estimates, group_below)])
    check_count("resource.partition.values", len(groups))
    return [country_shard(source, group, estimates) for group in groups]


def group_small_countries(values: Sequence[str], estimates: Mapping[str, int], group_below: int) -> list[list[str]]:
    groups: list[list[str]] = []
    rows = group_below
    for value in values:
        if rows >= group_below or len(groups[-1]) >= GROUP_MAX:
            groups.append([])
            rows = 0
        groups[-1].append(value)
        rows += estimates[value]
    return groups


def country_shard(source: str, group: Sequence[str], estimates: Mapping[str, int]) -> Shard:
    known = all(value in estimates for value in group)
    rows = sum(estimates[value] for value in group) if known else None
    return make_shard(source, country_label(group), {"country": list(group)}, rows)


def country_label(group: Sequence[str]) -> str:
    return f"country={group[0]}" if len(group) == 1 else f"country={group[0]}-{group[-1]}({len(group)})"


# -- time -------------------------------------------------------------------------------------------------------------


def window_shards(
    source: str,
    start: Instant,
    end: Instant | None,
    step_us: int,
    granularity_us: int = 1,
    until: Instant | None = None,
) -> list[Shard]:
    """Consecutive windows [from, to), aligned to the granularity of the source's stamps.

    Start and end are rounded down to the granularity: within it, the stamps do not tell which window a record belongs
    to. With `end` None, windows reach up to about `until` (now), and the last window is open.
    """
    grain_us = max(granularity_us, 1)
    if step_us < grain_us or step_us % grain_us:
        problem = f"must be a multiple of the source's granularity, {grain_us / 1e6:g} s"
        raise BadValue("resource.partition.step", problem)
    first = start - start % grain_us
    last = max(until or first, first + 1) if end is None else end - end % grain_us
    if end is not None and last <= first:
        problem = f"must be after the start, {format_instant(first)} (is {format_instant(end)})"
        raise BadValue("resource.partition.end", problem)
    starts = range(first, last, step_us)
    check_count("resource.partition.step", len(starts))
    ends = [*starts[1:], None if end is None else last]
    return [window_shard(source, low, high) for low, high in zip(starts, ends, strict=True)]


def window_shard(source: str, low: Instant, high: Instant | None) -> Shard:
    window = [format_instant(low), None if high is None else format_instant(high)]
    return make_shard(source, window_label(window), {"window": window})


def window_label(window: Sequence[str | None]) -> str:
    return f"window={window[0] or ''}..{window[1] or ''}"


def format_instant(instant: Instant) -> str:
    """The shortest exact form: 2026-04-01T00:00Z."""
    moment = (EPOCH + timedelta(microseconds=instant)).astimezone(UTC).replace(tzinfo=None)
    spec = "minutes" if instant % MINUTE_US == 0 else "auto"
    return f"{moment.isoformat(timespec=spec)}Z"


def parse_instant(text: str) -> Instant:
    return (datetime.fromisoformat(text) - EPOCH) // MICROSECOND


# -- boxes ------------------------------------------------------------------------------------------------------------


def quadtree_shards(source: str, area: Sequence[float], count: Callable[[Box], int], rows_max: int) -> list[Shard]:
    """A quadtree: every box in which `count` finds more than `rows_max` is split in four."""
    found: list[tuple[Box, int]] = []
    waiting = [(part, 0) for part in reversed(area_boxes(parse_box("resource.partition.area", area)))]
    while waiting:  # bounded by DEPTH_MAX and SHARDS_MAX
        box, depth = waiting.pop()
        rows = count(box)
        children = quadrants(box) if rows > rows_max and depth < DEPTH_MAX else []
        waiting.extend((child, depth + 1) for child in reversed(children))
        found.extend([] if children else [(box, rows)])
        check_count("resource.partition.rows", len(found) + len(waiting))
    return [box_shard(source, box, rows) for box, rows in found]


def grid_shards(source: str, area: Sequence[float], degrees: float) -> list[Shard]:
    check_grid(area, degrees)
    found = [
        cell
        for part in area_boxes(parse_box("resource.partition.area", area))
        for cell in ([part] if part[1] == part[3] else grid_cells(part, degrees))
    ]
    return [box_shard(source, cell) for cell in found]


def check_grid(area: Sequence[float], degrees: float) -> None:
    if not 0.01 <= degrees <= 90:
        raise BadValue("resource.partition.degrees", f"must be between 0.01 and 90 (is {degrees})")
    south, west, north, east = parse_box("resource.partition.area", area)
    width = east - west if west < east else east - west + 360
    check_count("resource.partition.degrees", int(width / degrees) * int((north - south) / degrees))


def box_shard(source: str, box: Box, rows: int | None = None) -> Shard:
    return make_shard(source, box_label(box), {"box": list(box)}, rows)


def box_label(box: Sequence[float]) -> str:
    return "box=" + ",".join(f"{side:g}" for side in box)


# -- combinations -----------------------------------------------------------------------------------------------------


def cross_shards(source: str, outer: Sequence[Shard], inner: Sequence[Shard]) -> list[Shard]:
    """Every shard of the first list combined with every shard of the second: geography, then windows."""
    check_count("resource.partition", len(outer) * len(inner))
    return [combine_shards(source, first, second, len(inner)) for first in outer for second in inner]


def combine_shards(source: str, first: Shard, second: Shard, shares: int) -> Shard:
    if shared := set(first.predicate) & set(second.predicate):
        raise BadValue(
            "resource.partition", f"both parts divide by {', '.join(sorted(shared))}; use two different filters"
        )
    rows = None if first.estimated_rows is None else first.estimated_rows // shares
    return make_shard(source, f"{first.label};{second.label}", {**first.predicate, **second.predicate}, rows)


# -- checks -----------------------------------------------------------------------------------------------------------


def check_plan(shards: Sequence[Shard], can: PartitionSupport, field: str = "resource.partition.by") -> None:
    """Refuse a partition that the source cannot express, or only by reading rows many times."""
    for name in sorted({name for shard in shards for name in shard.predicate}):
        predicates = [shard.predicate for shard in shards if name in shard.predicate]
        if problem := partition_problem(name, predicates, can):
            raise BadValue(field, problem)


def partition_problem(name: str, predicates: Sequence[Predicate], can: PartitionSupport) -> str | None:
    if name not in can.filters:
        return f"the source has no filter {name!r}; it has {', '.join(sorted(can.filters)) or 'none at all'}"
    has_lower, has_upper = can.bounds.get(name, (True, True))
    distinct = len({str(predicate[name]) for predicate in predicates})
    if distinct == 1:
        return None
    if name == "window" and not (has_lower and has_upper):
        return one_sided_problem(distinct, "upper" if has_lower else "lower")
    if name == "id" and not has_lower:
        return "the source has no lower bound for ids: every range would start with the first record"
    if name == "id" and not has_upper and can.order is None:
        return "the source has no upper bound for ids and no order by them: the end of a range could not be found"
    return None


def one_sided_problem(count: int, missing: str) -> str:
    return (
        f"the source has no {missing} bound for times, so each window reads everything beyond it: about "
        f"{(count + 1) / 2:g} times the rows in {count} windows. Divide by id or country, with one window for all"
    )


def check_count(field: str, count: int) -> None:
    if count > SHARDS_MAX:
        raise BadValue(field, f"makes {count:,} shards, and {SHARDS_MAX:,} are the maximum; use larger shards")
