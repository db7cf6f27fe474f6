"""The map in the demo's report shows places where they are."""

import pytest

from leaseway.demo.report import world

WIDTH = 72


def at(latitude: float, longitude: float) -> tuple[int, int]:
    """Row and column of a place on the map; two further places mark the corners."""
    corners = [(78.0, -180.0), (-55.9, 179.9)]
    lines = world([*corners, (latitude, longitude)], WIDTH).plain.split("\n")
    assert {len(line) for line in lines} == {WIDTH}
    dots = [(row, line.index(mark)) for row, line in enumerate(lines) for mark in line if mark != " "]
    return next(dot for dot in dots if dot not in (dots[0], dots[-1]))


def test_north_is_up_and_east_is_right() -> None:
    """A mirrored map would be noticed by every user and by no other test."""
    zurich, quito, sydney, apia = at(47.4, 8.5), at(-0.2, -78.5), at(-33.9, 151.2), at(-13.8, -171.8)
    assert zurich[0] < quito[0] < apia[0] < sydney[0]
    assert apia[1] < quito[1] < zurich[1] < sydney[1]
    assert zurich[1] == pytest.approx(WIDTH / 2, abs=3)


def test_the_edges_of_the_world_are_on_the_map() -> None:
    """A place at 180 degrees must not make the report fail."""
    assert world([(10.0, 180.0), (10.0, -180.0)], WIDTH).plain.strip(" ") != ""


def test_without_rows_there_is_no_map() -> None:
    """An import that brought nothing must still produce a report."""
    assert world([], WIDTH).plain == ""
    assert world([(-89.0, 0.0)], WIDTH).plain == ""


def test_more_rows_have_a_warmer_colour() -> None:
    """The colour is the only sign of how many rows a place has."""
    few, many = world([(10.0, 10.0)], WIDTH), world([(10.0, 10.0)] * 1_000, WIDTH)
    assert few.plain == many.plain
    assert {span.style for span in few.spans} < {span.style for span in [*few.spans, *many.spans]}
