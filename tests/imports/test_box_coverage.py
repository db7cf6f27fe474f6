"""The boxes of a plan cover what the spec asks for, on servers that include, exclude or halve the edges of a box."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.imports.test_requests_by_spec import Api, Request, api, source_at
from tests.imports.test_sources_hostile import Reply
from tests.provider_http.fake_admission import Place

from leaseway.aiohttp_transport import AiohttpTransport
from leaseway.domain.errors import BadValue, TerminalError
from leaseway.imports.domain import boxes
from leaseway.imports.domain.boxes import WORLD, Box, UncoveredArea, pad_box, parse_box, prove_cover, quadrants
from leaseway.imports.domain.partition import Shard, grid_shards
from leaseway.imports.run.plan import build_plan
from leaseway.imports.sources.port import SourceCapabilities, SourceProbe
from leaseway.imports.sources.predicates import PredicateFilters, asked_box, to_box
from leaseway.imports.spec.model import Filter
from leaseway.imports.spec.reader import read_spec

SPEC = """
version = 1
[source]
name = "a"
base_url = "https://a.example"
[resource]
key = "id"
[resource.filters.box]
param = "bbox"
box = "west,south,east,north"
latitude = "lat"
longitude = "lon"
includes_world_edges = CLOSED
[resource.partition]
by = "box"
area = AREA
degrees = DEGREES
[sink]
url = "sqlite:///x.db"
table = "a"
"""
LATITUDES = st.sampled_from([-90.0, -60.0, -45.0, -0.0, 20.0, 30.0, 45.0, 89.9999995, 90.0]) | st.floats(-90, 90)
LONGITUDES = st.sampled_from([-180.0, -179.9999995, -120.0, -90.0, 0.0, 90.0, 150.0, 180.0]) | st.floats(-180, 180)
DEGREES = st.sampled_from([20.0, 30.0, 45.0, 90.0]) | st.floats(15, 90)
AREAS = st.tuples(LATITUDES, LONGITUDES, LATITUDES, LONGITUDES).filter(
    lambda area: area[0] < area[2] and area[1] != area[3] and abs(area[1]) + abs(area[3]) < 360
) | st.just(WORLD)

Server = Callable[[Box, float, float], bool]


def is_inside(box: Box, latitude: float, longitude: float) -> bool:
    return box[0] < latitude < box[2] and box[1] < longitude < box[3]


def is_on(box: Box, latitude: float, longitude: float) -> bool:
    return box[0] <= latitude <= box[2] and box[1] <= longitude <= box[3]


def is_half_open(box: Box, latitude: float, longitude: float) -> bool:
    return box[0] <= latitude < box[2] and box[1] <= longitude < box[3]


SERVERS: dict[str, Server] = {"strict": is_inside, "closed": is_on, "half-open": is_half_open}


def is_asked_for(area: Box, latitude: float, longitude: float) -> bool:
    """What a spec means, told in another way than the code does."""
    south, west, north, east = area
    if not (south <= latitude < north or latitude == north == 90):
        return False
    if abs(longitude) == 180:  # one meridian with two names, inside or at the end of the area
        return west > east or 180 in (abs(west), abs(east))
    return west <= longitude < east if west < east else longitude >= west or longitude < east


def filters_of(*, is_closed: bool = False) -> PredicateFilters:
    text = SPEC.replace("AREA", "[-90, -180, 90, 180]").replace("DEGREES", "30")
    return PredicateFilters(read_spec(text.replace("CLOSED", str(is_closed).lower()), "a").resource)


FILTERS = filters_of()
CLOSED = filters_of(is_closed=True)


def request_box(filters: PredicateFilters, shard: Shard) -> Box:
    """What the server reads."""
    west, south, east, north = map(float, filters.params(shard.predicate)["bbox"].split(","))
    return south, west, north, east


def imports_of(shards: Sequence[Shard], filters: PredicateFilters, server: Server, lat: float, lon: float) -> int:
    """How many shards write the point."""
    record = {"lat": lat, "lon": lon}
    returned = [shard for shard in shards if server(request_box(filters, shard), lat, lon)]
    assert all(filters.is_ours(shard.predicate)(record) for shard in returned)
    return sum(filters.keeps(shard.predicate)(record) for shard in returned)


@pytest.mark.parametrize("server", SERVERS.values(), ids=list(SERVERS))
@given(area=AREAS, degrees=DEGREES, latitude=LATITUDES, longitude=LONGITUDES)
@settings(max_examples=60, deadline=None)
@example(area=WORLD, degrees=30.0, latitude=90.0, longitude=180.0)
@example(area=WORLD, degrees=30.0, latitude=-90.0, longitude=-180.0)
@example(area=(-60.0, 150.0, 70.0, -120.0), degrees=30.0, latitude=0.0, longitude=180.0)
@example(area=(-60.0, 150.0, 70.0, -120.0), degrees=30.0, latitude=0.0, longitude=-180.0)
@example(area=(-60.0, 180.0, 70.0, -120.0), degrees=30.0, latitude=0.0, longitude=180.0)
@example(area=(-60.0, 150.0, 70.0, 180.0), degrees=30.0, latitude=0.0, longitude=-180.0)
@example(area=(-60.0, 150.0, 70.0, -180.0), degrees=30.0, latitude=-60.0, longitude=180.0)
def test_every_point_of_the_area_is_written_once(
    server: Server, area: Box, degrees: float, latitude: float, longitude: float
) -> None:
    """Points exactly on ±180 and ±90 degrees were lost on servers that exclude edges, and the run said that everything
    was there."""
    shards = grid_shards("a", area, degrees)
    for lat, lon in [
        (latitude, longitude),
        (area[0], area[1]),
        (area[2], area[3]),
        (latitude, -180.0),
        (90.0, longitude),
    ]:
        wanted = is_asked_for(parse_box("area", area), lat, lon)
        assert imports_of(shards, FILTERS, server, lat, lon) == wanted, (lat, lon)


@given(degrees=DEGREES, latitude=LATITUDES, longitude=LONGITUDES)
@settings(max_examples=60, deadline=None)
@example(degrees=30.0, latitude=90.0, longitude=180.0)
def test_a_server_that_includes_the_edges_of_the_world_is_not_asked_beyond(
    degrees: float, latitude: float, longitude: float
) -> None:
    """Some servers refuse a longitude of 180.000001, and others would take it the other way around the globe."""
    shards = grid_shards("a", WORLD, degrees)
    for south, west, north, east in (request_box(CLOSED, shard) for shard in shards):
        assert -90 <= south <= north <= 90
        assert -180 <= west <= east <= 180
    assert imports_of(shards, CLOSED, is_on, latitude, longitude) == 1


def test_coordinates_beyond_the_world_are_not_dropped() -> None:
    """A float that is a little more than 180 was in reach of a box and owned by none: dropped without a word."""
    shards = grid_shards("a", WORLD, 30)
    for lat, lon in [(90.0000005, 0.0), (-90.0000005, 10.0), (0.0, 180.0000005), (10.0, -180.0000005)]:
        assert imports_of(shards, FILTERS, is_inside, lat, lon) == 1, (lat, lon)


# -- the proof -----------------------------------------------------------------------------------------------------


def prove(area: Box, found: Sequence[Box], asked: Callable[[Box], Box] = pad_box) -> None:
    prove_cover(parse_box("area", area), found, asked, is_edge_included=False)


def boxes_of(area: Box, degrees: float) -> list[Box]:
    return [to_box(shard.predicate["box"]) for shard in grid_shards("a", area, degrees)]


@given(area=AREAS, degrees=DEGREES, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_plan_that_leaves_out_a_box_or_has_one_twice_is_noticed(
    area: Box, degrees: float, data: st.DataObject
) -> None:
    """A proof that accepts every plan proves nothing; one that refuses a good plan stops an import."""
    found = boxes_of(area, degrees)
    prove(area, found)
    number = data.draw(st.integers(0, len(found) - 1))
    split = quadrants(found[number])
    prove(area, [*found[:number], *(split or [found[number]]), *found[number + 1 :]])
    for wrong in (found[:number] + found[number + 1 :], [*found, found[number]], [*found, *split[:1]]):
        if len(wrong) != len(found):
            with pytest.raises(UncoveredArea):
                prove(area, wrong)


@pytest.mark.parametrize("side", range(4), ids=["south", "west", "north", "east"])
def test_a_request_that_ends_at_its_edge_is_noticed(side: int) -> None:
    """On a server that excludes edges, the points on them would be lost."""

    def asked(box: Box) -> Box:
        padded = list(pad_box(box))
        padded[side] = box[side]
        return to_box(padded)

    with pytest.raises(UncoveredArea, match="edge"):
        prove(WORLD, boxes_of(WORLD, 90), asked)
    prove_cover(
        WORLD, boxes_of(WORLD, 90), partial(asked_box, Filter(includes_world_edges=True)), is_edge_included=True
    )


def test_an_area_without_width_is_refused() -> None:
    """It made a plan without a single shard, which is complete at once."""
    with pytest.raises(BadValue, match=r"^resource\.partition\.area: has no width"):
        grid_shards("a", (0, 180, 10, -180), 5)


CAN = SourceCapabilities(cursor="none", filters=frozenset({"box"}))


def plan(area: str = "[-60, 150, 70, -120]", degrees: int = 30) -> list[Shard]:
    text = SPEC.replace("AREA", area).replace("DEGREES", str(degrees)).replace("CLOSED", "false")
    return build_plan(read_spec(text, "a"), CAN, SourceProbe(), None, 100).shards


def test_a_plan_that_does_not_cover_its_area_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a run ends as complete, and nobody notices what is missing."""
    assert len(plan()) == 5 * (1 + 2)
    lines = boxes.grid_lines
    monkeypatch.setattr(boxes, "grid_lines", lambda low, high, degrees: lines(low, high, degrees)[:-1])
    with pytest.raises(UncoveredArea, match=r"belongs to no box; choose other degrees or another area"):
        plan()


# -- a server that refuses -----------------------------------------------------------------------------------------


class Careful:
    """Refuses coordinates beyond the world."""

    def __init__(self, status: int) -> None:
        self.status = status

    def __call__(self, request: Request) -> Reply:
        return Reply("longitude out of range", self.status) if "180.0000010" in request.query["bbox"] else Reply([])


@pytest.mark.parametrize("status", [400, 422])
async def test_a_server_that_refuses_to_look_beyond_the_world_says_what_to_set(tmp_path: Path, status: int) -> None:
    """The import must not stop with a riddle, and must not give the edge up without a word either."""
    place = Place(AiohttpTransport(verify=False))

    async def fetch(it: Api, more: str) -> Any:
        box = 'filters.box = { param = "bbox", box = "west,south,east,north", latitude = "lat", longitude = "lon"'
        source = source_at(it.url, f"{box}{more} }}", "")
        return await source.fetch(grid_shards("a", WORLD, 90)[0], None, 10, place.http())

    async with api(Careful(status)) as it:
        with pytest.raises(TerminalError, match=r"resource\.filters\.box\.includes_world_edges = true"):
            await fetch(it, "")
        assert (await fetch(it, ", includes_world_edges = true")).raw_count == 0
    await place.wire.close()
