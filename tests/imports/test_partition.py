"""Plans and splits: a record in no shard is lost, and one in two shards is paid for twice."""

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.domain.errors import BadValue
from leaseway.imports.domain.boxes import WORLD, Box, expand_box, owns, parse_box, quadrants, split_wide_box
from leaseway.imports.domain.partition import (
    Shard,
    check_plan,
    country_shards,
    cross_shards,
    format_instant,
    grid_shards,
    id_range_shards,
    make_shard,
    parse_instant,
    quadtree_shards,
    window_shards,
)
from leaseway.imports.domain.splitting import split_shard
from leaseway.imports.sources.port import SourceCapabilities
from leaseway.testing.fake_open_charge_map.ocm import is_within

MINUTE_US = 60_000_000
DAY_US = 86_400_000_000
APRIL = parse_instant("2026-04-01T00:00Z")

ALL_BOUNDS = SourceCapabilities(
    cursor="keyset",
    order="ID",
    filters=frozenset({"id", "country", "window", "box"}),
    granularity_us=MINUTE_US,
)
LOWER_ONLY = SourceCapabilities(
    cursor="keyset",
    order="ID",
    filters=frozenset({"id", "country", "window"}),
    bounds={"id": (True, False), "window": (True, False)},
    granularity_us=MINUTE_US,
)

ids = st.integers(0, 400_000)
latitudes = st.floats(-90, 90, allow_nan=False) | st.sampled_from([-90.0, 0.0, 45.0, 90.0])
longitudes = st.floats(-180, 180, allow_nan=False) | st.sampled_from([-180.0, -90.0, 0.0, 90.0, 180.0])


def in_range(low: float | None, value: float, high: float | None) -> bool:
    return (low is None or low <= value) and (high is None or value < high)


def has_id(shard: Shard, number: int) -> bool:
    return in_range(shard.predicate["id"][0], number, shard.predicate["id"][1])


def has_instant(shard: Shard, instant: int) -> bool:
    low, high = shard.predicate["window"]
    return in_range(low and parse_instant(low), instant, high and parse_instant(high))


def box_in(shard: Shard) -> Box:
    south, west, north, east = shard.predicate["box"]
    return south, west, north, east


def owners(shards: Iterable[Shard], latitude: float, longitude: float) -> int:
    return sum(owns(box_in(shard), latitude, longitude) for shard in shards)


def keys(shards: Iterable[Shard]) -> list[str]:
    return [shard.key for shard in shards]


# -- plans --


@settings(deadline=None)
@given(st.integers(0, 1_000), st.integers(0, 300_000), st.integers(500, 50_000), ids)
def test_every_id_has_exactly_one_range(lower: int, upper: int, size: int, number: int) -> None:
    """Ids that are created after the plan was made belong to the last range."""
    found = sum(has_id(shard, lower + number) for shard in id_range_shards("ocm", lower, upper, size))
    assert found == 1


def test_the_last_range_is_open_and_the_ranges_are_few() -> None:
    """One open range too many would cost one more request in every run."""
    shards = id_range_shards("ocm", 0, 311_592, 20_000)
    assert len(shards) == 16
    assert shards[-1].predicate == {"id": [300_000, None]}
    assert shards[0].label == "id=000000000-000020000"


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 40), st.integers(1, 30), st.integers(0, 10**9))
def test_every_instant_of_a_span_has_exactly_one_window(start: int, days: int, step: int, offset: int) -> None:
    """Records on the border of two windows are the ones that importers typically lose."""
    begin, end = APRIL + start, APRIL + start + days * DAY_US
    shards = window_shards("ocm", begin, end, step * DAY_US, MINUTE_US)
    borders = [parse_instant(shard.predicate["window"][0]) for shard in shards]
    last = end - end % MINUTE_US
    for instant in [begin, begin + offset % (last - begin), *borders, last - 1]:
        assert sum(has_instant(shard, instant) for shard in shards) == 1
    assert not any(has_instant(shard, last) for shard in shards)


def test_a_window_without_an_end_is_one() -> None:
    """An open window that is divided would have to invent an end and lose what comes after it."""
    shards = window_shards("ocm", APRIL + 1, None, DAY_US, MINUTE_US)
    assert [shard.predicate for shard in shards] == [{"window": ["2026-04-01T00:00Z", None]}]


@pytest.mark.parametrize("step_us", [1, MINUTE_US + 1, 0])
def test_a_step_between_two_grains_is_refused(step_us: int) -> None:
    """The source rounds its stamps, so such a window could not decide which records it contains."""
    with pytest.raises(BadValue, match=r"partition.step: must be a multiple of the source's granularity, 60 s"):
        window_shards("ocm", APRIL, APRIL + DAY_US, step_us, MINUTE_US)


@settings(deadline=None)
@given(st.dictionaries(st.text("ABCDEF", min_size=2, max_size=2), st.integers(0, 5_000)), st.integers(0, 2_000))
def test_every_country_has_exactly_one_shard_and_small_ones_share(rows: dict[str, int], group_below: int) -> None:
    """121 of 246 countries have fewer than 100 rows; a shard for each would spend a request on almost nothing."""
    shards = country_shards("ocm", [*rows, *rows], rows, group_below)
    listed = [code for shard in shards for code in shard.predicate["country"]]
    assert sorted(listed) == sorted(rows)
    for shard in shards:
        group = shard.predicate["country"]
        assert shard.estimated_rows == sum(rows[code] for code in group)
        assert len(group) == 1 or all(rows[code] < group_below for code in group)
    small = [shard for shard in shards if (shard.estimated_rows or 0) < group_below]
    assert len(small) <= 1 + len(rows) // 50


def test_countries_come_in_any_order_and_make_the_same_plan() -> None:
    """Sources list countries in any order, and the plan must not depend on it."""
    rows = {"ES": 900, "AD": 3, "MC": 2, "LI": 4}
    assert keys(country_shards("ocm", rows, rows, 100)) == keys(country_shards("ocm", reversed(rows), rows, 100))


def test_a_group_is_not_longer_than_an_address_can_be() -> None:
    """Two hundred countries without rows never reach the sum that ends a group, so the URL would become too long."""
    codes = [f"{number:03}" for number in range(200)]
    shards = country_shards("ocm", codes, dict.fromkeys(codes, 0), 10)
    assert [len(shard.predicate["country"]) for shard in shards] == [50, 50, 50, 50]
    assert shards[0].label == "country=000-049(50)"


@settings(deadline=None)
@given(latitudes, longitudes)
def test_every_point_has_exactly_one_box_of_a_grid(latitude: float, longitude: float) -> None:
    """Points on edges and corners, at the poles and at the antimeridian are easily lost."""
    assert owners(GRID, latitude, longitude) == 1


@settings(deadline=None)
@given(st.lists(st.tuples(latitudes, longitudes), max_size=60), st.integers(1, 10))
def test_every_point_has_exactly_one_box_of_a_tree_and_no_box_has_too_many(
    points: list[tuple[float, float]], rows_max: int
) -> None:
    """A point on an edge that belongs to no box is lost, and one in two boxes is imported twice."""

    def count(box: Box) -> int:
        return sum(owns(box, *point) for point in points)

    shards = quadtree_shards("ocm", WORLD, count, rows_max)
    assert all(owners(shards, *point) == 1 for point in points)
    assert sum(shard.estimated_rows or 0 for shard in shards) == len(points)
    dense = {point for point in points if sum(near(point, other) for other in points) > rows_max}
    assert dense or all((shard.estimated_rows or 0) <= rows_max for shard in shards)


def near(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return abs(one[0] - other[0]) < 0.01 and abs(one[1] - other[1]) < 0.01


GRID = grid_shards("ocm", WORLD, 7)


def test_an_area_across_the_antimeridian_is_cut_there() -> None:
    """A server would take such a box the other way around the globe."""
    fiji = parse_box("area", [-21, 176, -12, -178])
    assert split_wide_box(fiji) == [(-21.0, 176.0, -12.0, 180.0), (-21.0, -180.0, -12.0, -178.0)]
    shards = grid_shards("ocm", fiji, 1)
    assert owners(shards, -18.1, 178.4) == 1
    assert owners(shards, -16.8, -179.9) == 1
    assert owners(shards, -18.1, 0) == 0


@settings(deadline=None)
@given(st.tuples(st.floats(-85, 80), st.floats(-180, 89), st.floats(0.5, 60), st.floats(0.5, 90)), latitudes, st.data())
def test_a_grown_box_leaves_no_point_out_on_a_server_with_great_circles(
    corner: tuple[float, float, float, float], latitude: float, data: st.DataObject
) -> None:
    """Planar boxes on such a server lost 2 % of all points."""
    south, west, height, width = corner
    box = (south, west, min(south + height, 90.0), min(west + width, 180.0))
    inside = data.draw(st.floats(box[0], box[2])), data.draw(st.floats(box[1], box[3]))
    if owns(box, *inside):
        assert is_within(*inside, expand_box(box))


def test_a_planar_box_does_leave_points_out() -> None:
    """Otherwise the test above proves nothing."""
    box = (50.0, 0.0, 60.0, 10.0)
    assert owns(box, 50.05, 5)
    assert not is_within(50.05, 5, box)


def test_geography_first_then_windows() -> None:
    """Two shards with the same key would be one job, so a part of the source would never be read."""
    months = window_shards("ocm", APRIL, APRIL + 60 * DAY_US, 30 * DAY_US, MINUTE_US)
    shards = cross_shards("ocm", country_shards("ocm", ["ES", "DE"], {"ES": 100, "DE": 50}), months)
    assert [shard.label for shard in shards] == [
        "country=DE;window=2026-04-01T00:00Z..2026-05-01T00:00Z",
        "country=DE;window=2026-05-01T00:00Z..2026-05-31T00:00Z",
        "country=ES;window=2026-04-01T00:00Z..2026-05-01T00:00Z",
        "country=ES;window=2026-05-01T00:00Z..2026-05-31T00:00Z",
    ]
    assert len(set(keys(shards))) == 4
    with pytest.raises(BadValue, match="both parts divide by window"):
        cross_shards("ocm", months, months)


PLAN = """
import json
from leaseway.imports.domain.partition import country_shards, grid_shards, id_range_shards, window_shards
rows = {"ES": 900, "AD": 3, "MC": 2}
shards = id_range_shards("ocm", 0, 90_000, 20_000) + country_shards("ocm", {"MC", "ES", "AD"}, rows, 100)
shards += grid_shards("ocm", (35, -10, 44, 4), 5) + window_shards("ocm", 0, 10**12, 10**11, 10**6)
print(json.dumps([shard.key for shard in shards]))
"""


def test_keys_are_the_same_in_every_process() -> None:
    """Python's own hash differs between processes, so a run that resumes elsewhere would find none of its shards."""
    seeds = ("0", "1", "random")
    plans = [
        subprocess.run([sys.executable, "-c", PLAN], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True)
        for seed in seeds
    ]
    first, *others = [json.loads(plan.stdout) for plan in plans]
    assert len(set(first)) == len(first) > 20
    assert all(other == first for other in others)
    assert id_range_shards("ocm", 0, 0, 10)[0].key == "ocm/id=000000000-/058986c24820"


# -- refusals --


def test_history_windows_without_an_upper_bound_are_refused_with_their_price() -> None:
    """Monthly windows over six years fetched 47.7 times the rows in an experiment."""
    months = window_shards("ocm", APRIL, APRIL + 2_340 * DAY_US, 30 * DAY_US, MINUTE_US)
    with pytest.raises(BadValue, match=r"partition.by: the source has no upper bound .* 39.5 times the rows in 78"):
        check_plan(months, LOWER_ONLY)
    check_plan(months, ALL_BOUNDS)
    check_plan(
        cross_shards("ocm", country_shards("ocm", ["ES", "DE"]), window_shards("ocm", APRIL, None, DAY_US)), LOWER_ONLY
    )


def test_a_filter_that_the_source_does_not_have_is_refused() -> None:
    """The filter would be ignored, and every shard would read everything."""
    with pytest.raises(BadValue, match="the source has no filter 'box'; it has country, id, window"):
        check_plan(GRID, LOWER_ONLY)


@pytest.mark.parametrize(
    ("caps", "problem"),
    [
        (
            SourceCapabilities(cursor="keyset", filters=frozenset({"id"}), bounds={"id": (False, True)}),
            "no lower bound for ids",
        ),
        (
            SourceCapabilities(cursor="offset", filters=frozenset({"id"}), bounds={"id": (True, False)}),
            "no order by them",
        ),
    ],
)
def test_id_ranges_that_a_source_cannot_end_are_refused(caps: SourceCapabilities, problem: str) -> None:
    """Without an end or an order, each range would read the source to its last row."""
    with pytest.raises(BadValue, match=problem):
        check_plan(id_range_shards("x", 0, 100, 10), caps)
    check_plan(id_range_shards("x", 0, 100, 10), LOWER_ONLY)


@pytest.mark.parametrize(
    "area", [[1, 2, 3], [50, 0, 40, 10], [0, 0, 91, 1], [0, 5, 1, 5], [0, 0, 1, 181], [0, 0, float("nan"), 1]]
)
def test_an_impossible_area_is_refused(area: list[float]) -> None:
    """An impossible area would produce an empty plan that looks complete."""
    with pytest.raises(BadValue, match=r"partition.area: "):
        grid_shards("ocm", area, 1)


def test_a_plan_of_a_million_shards_is_a_mistake() -> None:
    """A wrong unit in the spec must not fill the queue with a million jobs."""
    with pytest.raises(BadValue, match=r"partition.size: makes 1,000,001 shards"):
        id_range_shards("ocm", 0, 1_000_000, 1)
    with pytest.raises(BadValue, match=r"partition.step: makes"):
        window_shards("ocm", 0, 10**6, 1)
    with pytest.raises(BadValue, match=r"partition.degrees: makes"):
        grid_shards("ocm", WORLD, 0.1)


# -- splits --


def after(number: int) -> dict[str, int]:
    return {"after": number}


@settings(deadline=None)
@given(st.integers(0, 1_000), st.integers(1, 5_000), st.integers(-1, 6_000))
def test_children_have_exactly_the_ids_that_are_left(low: int, length: int, read: int) -> None:
    """An id in no child is lost, and an id in two children is read twice."""
    shard = make_shard("ocm", "x", {"id": [low, low + length]})
    cursor = None if read < 0 else after(low + read)
    children = split_shard(shard, cursor, "limit", LOWER_ONLY)
    assert bool(children) == (length - (read + 1) >= 2)
    borders = [border for child in children for border in child.predicate["id"]]
    for number in [near for border in [low, low + read, *borders] for near in (border - 1, border, border + 1)]:
        is_left = has_id(shard, number) and number > low + read
        assert not children or sum(has_id(child, number) for child in children) == is_left


def test_an_open_range_is_divided_at_what_is_known_and_stays_open() -> None:
    """New records get ids above the known maximum, and a closed last child would miss them."""
    shard = make_shard("ocm", "x", {"id": [300_000, None]})
    assert split_shard(shard, after(310_000), "idle", LOWER_ONLY) == []
    children = split_shard(shard, after(310_000), "idle", LOWER_ONLY, id_max=330_000)
    assert [child.predicate["id"] for child in children] == [[310_001, 320_001], [320_001, None]]
    assert [child.depth for child in children] == [1, 1]
    assert [child.key.split("/")[0] for child in children] == ["ocm", "ocm"]


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 10_000), st.integers(0, 20_000))
def test_halves_of_a_window_meet_on_a_grain(start: int, length: int, at: int) -> None:
    """A boundary between two grains of the source's clock would lose or repeat records."""
    low, high = APRIL + start * MINUTE_US, APRIL + (start + length) * MINUTE_US
    shard = make_shard("ocm", "x", {"window": [format_instant(low), format_instant(high)]})
    caps = SourceCapabilities(cursor="token", filters=frozenset({"window"}), granularity_us=MINUTE_US)
    children = split_shard(shard, {"next": "abc"}, "limit", caps)
    assert bool(children) == (length >= 2)
    instant = APRIL + at * MINUTE_US
    assert not children or sum(has_instant(child, instant) for child in children) == has_instant(shard, instant)


@settings(deadline=None)
@given(st.floats(-90, 89), st.floats(-180, 179), st.floats(0.01, 90), latitudes, longitudes)
def test_quadrants_have_exactly_what_their_box_has(
    south: float, west: float, side: float, latitude: float, longitude: float
) -> None:
    """A point on the line between two quadrants must be imported exactly once."""
    box = (south, west, min(south + side, 90.0), min(west + side, 180.0))
    children = quadrants(box)
    corners = [(latitude, longitude), (box[0], box[1]), ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)]
    for point in corners if children else []:
        assert sum(owns(child, *point) for child in children) == owns(box, *point)


def test_a_shard_of_several_filters_keeps_them_all() -> None:
    """A child without its country filter would read the whole world."""
    shard = make_shard("ocm", "x", {"country": ["AD", "ES"], "window": ["2026-04-01T00:00Z", None]}, 100)
    children = split_shard(shard, after(500), "limit", LOWER_ONLY)
    assert [child.predicate for child in children] == [
        {"country": ["AD"], "id": [501, None], "window": ["2026-04-01T00:00Z", None]},
        {"country": ["ES"], "id": [501, None], "window": ["2026-04-01T00:00Z", None]},
    ]
    assert [child.label for child in children] == [
        "country=AD;id=000000501-;window=2026-04-01T00:00Z..",
        "country=ES;id=000000501-;window=2026-04-01T00:00Z..",
    ]


def test_what_cannot_be_divided_says_so() -> None:
    """One country, one grain, one id and the deepest split cannot be divided further; an endless split would never
    finish.
    """
    one_id = make_shard("ocm", "x", {"id": [5, 6]})
    one_country = make_shard("ocm", "x", {"country": ["ES"]})
    one_sided = make_shard("ocm", "x", {"window": ["2026-04-01T00:00Z", "2026-05-01T00:00Z"]})
    deep = make_shard("ocm", "x", {"id": [0, 100]}, depth=20)
    for shard in (one_id, one_country, one_sided, deep):
        assert split_shard(shard, None, "limit", LOWER_ONLY) == []


def test_idle_workers_never_make_rows_read_twice() -> None:
    """If the rest cannot be derived from the cursor, a split starts again, which only a shard that is too large is
    worth.
    """
    shard = make_shard("x", "x", {"country": ["AD", "ES"]})
    caps = SourceCapabilities(cursor="token", filters=frozenset({"country"}))
    assert split_shard(shard, {"next": "abc"}, "idle", caps) == []
    assert predicates(split_shard(shard, {"next": "abc"}, "limit", caps)) == [{"country": ["AD"]}, {"country": ["ES"]}]


def predicates(shards: Sequence[Shard]) -> list[object]:
    return [shard.predicate for shard in shards]


def test_the_same_split_twice_makes_the_same_children() -> None:
    """An attempt that finds the parent split must compute the same children."""
    shard = make_shard("ocm", "x", {"id": [0, 20_000]})
    assert split_shard(shard, after(7), "idle", LOWER_ONLY) == split_shard(shard, after(7), "idle", LOWER_ONLY)
