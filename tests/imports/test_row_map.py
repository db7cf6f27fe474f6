"""The positions of rows, as the sinks report them for a map: in parts, each row once, whatever the rows contain."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.imports.sql_sink_fixtures import PLACES, Place, empty_place

from leaseway.imports.domain.page import ColumnType, Row
from leaseway.imports.domain.partition import canonical
from leaseway.imports.sinks.port import Sink
from leaseway.imports.sinks.row_map import RowPosition, find_position
from leaseway.imports.spec.reader import read_spec
from leaseway.testing.sink_contract.fixtures import imported, row

COLUMNS = {"latitude": ColumnType.REAL, "the :table": ColumnType.REAL}
IN_COLUMNS = RowPosition("latitude", "the :table")
WAYS = {"columns": IN_COLUMNS, "documents": RowPosition(("at", "lat"), ("at", "it's lon"))}
Where = tuple[float, float, bool]


@pytest.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return await empty_place(request, tmp_path)


@pytest.fixture
async def sink(place: Place) -> AsyncIterator[Sink]:
    sink = place.sink(columns=COLUMNS)
    await sink.open()
    yield sink
    await sink.close()


@pytest.fixture(params=list(WAYS))
def position(request: pytest.FixtureRequest) -> RowPosition:
    return WAYS[request.param]


def at(number: int, latitude: Any, longitude: Any, version: int = 0) -> Row:
    """A row with its position in columns and in its document."""
    document = canonical({"id": number, "at": {"lat": latitude, "it's lon": longitude}, "version": version})
    numbers = {"latitude": latitude, "the :table": longitude}
    values: dict[str, Any] = {
        name: value if isinstance(value, int | float) else None for name, value in numbers.items()
    }
    return replace(row(number, version, **values), document=document)


async def seen(sink: Sink, position: RowPosition, run: str = "first", rows_max: int = 1_000) -> Counter[Where]:
    """All parts from the first to the last."""
    assert sink.row_map is not None
    found: Counter[Where] = Counter()
    after, has_more = "", True
    while has_more:
        part = await sink.row_map.read("maps", run, position, after, rows_max)
        found.update({(*cell.middle, cell.is_of_run): cell.rows for cell in part.cells})
        after, has_more = part.after, part.has_more
    return found


async def test_rows_that_are_close_are_one_point(sink: Sink, position: RowPosition) -> None:
    """A million rows become some thousand points; rows on the edges of the world must belong to a cell, too."""
    rows = [at(1, 40.1, -3.7), at(2, 40.2, -3.6), at(3, 48.2, 16.3), at(4, 90, 180), at(5, -90, -180)]
    await imported(sink, "first", *rows)
    found = await seen(sink, position)
    assert found == {
        (-3.75, 40.25, True): 2,
        (16.25, 48.25, True): 1,
        (179.75, 89.75, True): 1,
        (-179.75, -89.75, True): 1,
    }


async def test_what_has_no_place_is_passed_over(sink: Sink, position: RowPosition) -> None:
    """A row without a position must not hide the rows after it."""
    nowhere = [at(1, None, 1.0), at(2, 91.0, 0.0), at(3, 0.0, -181.0), at(4, "north", "west"), at(6, "40", "10")]
    await imported(sink, "first", *nowhere, at(5, 10.1, 20.1))
    assert await seen(sink, position, rows_max=1) == {(20.25, 10.25, True): 1}


async def test_a_look_goes_on_where_the_last_one_ended(sink: Sink) -> None:
    """Points appear while rows arrive, and reading the whole table for a hundred new rows would be slow."""
    assert sink.row_map is not None
    await imported(sink, "first", at(1, 10.1, 10.1), at(2, 20.1, 20.1))
    first = await sink.row_map.read("maps", "first", IN_COLUMNS, "", 1_000)
    assert (len(first.cells), first.has_more) == (2, False)
    assert (await sink.row_map.read("maps", "first", IN_COLUMNS, first.after, 1_000)).cells == []
    await imported(sink, "second", at(3, 30.1, 30.1))
    (cell,) = (await sink.row_map.read("maps", "second", IN_COLUMNS, first.after, 1_000)).cells
    assert (cell.middle, cell.is_of_run, cell.rows) == ((30.25, 30.25), True, 1)


async def test_small_parts_add_up_to_the_whole(sink: Sink) -> None:
    """Each row must be in exactly one part, however small the parts are."""
    rows = [at(number, number / 3 - 80, number / 2 - 170) for number in range(500)]
    await imported(sink, "first", *rows)
    whole = await seen(sink, IN_COLUMNS)
    assert sum(whole.values()) == 500
    assert await seen(sink, IN_COLUMNS, rows_max=7) == whole


async def test_rows_of_other_runs_and_sources_are_told_apart(sink: Sink, place: Place) -> None:
    """Unchanged rows are not new in a run, and rows of other sources and deleted rows must not appear."""
    await imported(sink, "first", at(1, 10.1, 10.1), at(2, 20.1, 20.1), at(3, 30.1, 30.1))
    await imported(sink, "second", at(2, 20.1, 20.1, version=1))
    await imported(sink, "third", at(9, 50.1, 50.1), source="others")
    await place.delete("3", 1)
    assert await seen(sink, IN_COLUMNS, "second") == {(10.25, 10.25, False): 1, (20.25, 20.25, True): 1}


SPEC = """
version = 1
[source]
name = "maps"
base_url = "http://127.0.0.1:1"
[resource]
path = "/poi"
key = "id"
{filters}
[resource.columns]
{columns}
[sink]
url = "sqlite:///x.db"
table = "poi"
"""
BOX = '[resource.filters.box]\nparam = "b"\nbox = "west,south,east,north"\nlatitude = "at.lat"\nlongitude = "at.lon"'


@pytest.mark.parametrize(
    ("filters", "columns", "expected"),
    [
        ("", 'lat = { path = "a", type = "real" }\nlng = { path = "b", type = "real" }', RowPosition("lat", "lng")),
        ("", 'latitude = { path = "a", type = "text" }\nlongitude = { path = "b", type = "real" }', None),
        ("", 'latitude = { path = "a", type = "real" }', None),
        (
            BOX,
            'y = { path = "$.at.lat", type = "real" }\nx = { path = "at.lon", type = "real" }',
            RowPosition("y", "x"),
        ),
        (BOX, 'title = { path = "t", type = "text" }', RowPosition(("at", "lat"), ("at", "lon"))),
    ],
)
def test_a_spec_says_where_its_rows_lie(filters: str, columns: str, expected: RowPosition | None) -> None:
    """The position is in columns of these names or in the fields of the box filter; otherwise there is no map."""
    assert find_position(read_spec(SPEC.format(filters=filters, columns=columns), "x.toml").resource) == expected
