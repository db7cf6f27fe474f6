"""Split the rest of a shard along the first filter that can be divided.

The split depends only on the shard and its cursor, so every worker that splits the same shard at the same cursor gets
the same children.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from leaseway.imports.domain.boxes import quadrants
from leaseway.imports.domain.partition import (
    DEPTH_MAX,
    Cursor,
    PartitionSupport,
    Predicate,
    Shard,
    box_label,
    country_label,
    format_instant,
    id_label,
    make_shard,
    parse_instant,
    window_label,
)

IDLE = "idle"
"""The reason for splitting a healthy shard: other workers are idle."""
ID_LOWEST = 0


def split_shard(
    shard: Shard, cursor: Cursor | None, why: str, can: PartitionSupport, id_max: int | None = None
) -> list[Shard]:
    """Children that cover exactly the rest of the shard. Empty if it cannot be divided.

    The rest follows from a cursor by id, if the source can filter by id. Otherwise the children start over and find
    rows that were already written unchanged; for idle workers alone that would cost too much. `id_max` is the highest
    id, for a range without an end.
    """
    if shard.depth >= DEPTH_MAX:
        return []
    rest = remaining_predicate(shard.predicate, cursor, can)
    if rest is None and why == IDLE:
        return []
    predicate = shard.predicate if rest is None else rest
    children = next((found for found in divide_predicate(predicate, can, id_max) if found), [])
    source = shard.key.rpartition(f"/{shard.label}/")[0]
    rows = None if shard.estimated_rows is None else shard.estimated_rows // max(len(children), 1)
    return [make_shard(source, predicate_label(child), child, rows, shard.depth + 1) for child in children]


def remaining_predicate(predicate: Predicate, cursor: Cursor | None, can: PartitionSupport) -> Predicate | None:
    """Returns None if the rest is unknown."""
    if cursor is None:
        return predicate
    after = cursor.get("after")
    if "id" not in can.filters or can.order is None or not isinstance(after, int):
        return None
    low, high = predicate.get("id", [None, None])
    return {**predicate, "id": [after + 1 if low is None else max(low, after + 1), high]}


def rows_left(shard: Shard, cursor: Cursor | None, rows: int, id_max: int | None) -> int | None:
    """An estimate of the rows after the cursor, assuming the same density of ids. None: unknown."""
    after = None if cursor is None else cursor.get("after")
    low, high = shard.predicate.get("id", [None, None])
    beyond = high if high is not None else None if id_max is None else id_max + 1
    if not isinstance(after, int) or beyond is None:
        return None
    passed = max(after + 1 - (ID_LOWEST if low is None else low), 1)
    return max(beyond - after - 1, 0) * rows // passed


def divide_predicate(predicate: Predicate, can: PartitionSupport, id_max: int | None) -> Iterator[list[Predicate]]:
    """Divisions along each filter, the cheapest first."""
    if "id" in can.filters and can.bounds.get("id", (True, True))[0]:
        yield [{**predicate, "id": part} for part in id_halves(predicate.get("id", [None, None]), id_max)]
    if "country" in predicate:
        yield [{**predicate, "country": part} for part in halves(predicate["country"])]
    # Without both bounds, each half would read the rows of the other half, too.
    if "window" in predicate and all(can.bounds.get("window", (True, True))):
        yield [{**predicate, "window": part} for part in window_halves(predicate["window"], can.granularity_us)]
    if "box" in predicate:
        south, west, north, east = predicate["box"]
        yield [{**predicate, "box": list(part)} for part in quadrants((south, west, north, east))]


def id_halves(ids: list[int | None], id_max: int | None) -> list[list[int | None]]:
    low, high = ids
    first = ID_LOWEST if low is None else low
    beyond = high if high is not None else None if id_max is None else id_max + 1
    if beyond is None or beyond - first < 2:
        return []
    middle = first + (beyond - first) // 2
    return [[low, middle], [middle, high]]


def halves(values: list[str]) -> list[list[str]]:
    middle = len(values) // 2
    return [values[:middle], values[middle:]] if middle else []


def window_halves(window: list[str | None], granularity_us: int) -> list[list[str | None]]:
    low, high = window
    if low is None or high is None:
        return []
    start, end, grain_us = parse_instant(low), parse_instant(high), max(granularity_us, 1)
    middle = start + (end - start) // 2
    middle -= middle % grain_us
    return [[low, format_instant(middle)], [format_instant(middle), high]] if start < middle < end else []


def predicate_label(predicate: Mapping[str, Any]) -> str:
    labels = {
        "country": lambda: country_label(predicate["country"]),
        "box": lambda: box_label(predicate["box"]),
        "id": lambda: id_label(*predicate["id"]),
        "window": lambda: window_label(predicate["window"]),
    }
    known = [labels[name]() for name in labels if name in predicate]
    others = [f"{name}={predicate[name]}" for name in sorted(predicate) if name not in labels]
    return ";".join([*known, *others])
