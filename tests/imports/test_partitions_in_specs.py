"""Every partition that a spec can express: each record once, also on the edges."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.imports.apps import import_app
from tests.sqlite_files import open_sqlite

from leaseway import App, Boxes, Country, Page, Shard, Stamp, UsageError, Windows
from leaseway.domain.errors import BadValue
from leaseway.imports.domain.boxes import owns
from leaseway.imports.domain.run_state import RunState, ShardRow
from leaseway.imports.run.assembly import load_import
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.plan import Plan, build_plan, plan_with_history
from leaseway.imports.run.start import start_planned
from leaseway.imports.sources.port import BadReply, SourceCapabilities, SourceProbe
from leaseway.imports.sources.predicates import PredicateFilters
from leaseway.imports.spec.reader import read_spec
from leaseway.system import wall_clock_us
from leaseway.testing.fake_open_charge_map import API_KEY, FakeApi, Listing, fake_api, synthetic
from leaseway.testing.fake_open_charge_map.poi import ID_BY_CODE

BY_HAND = """
version = 1
[source]
name = "ocm"
base_url = "URL/v3"
auth = { header = "X-API-Key", env = "OCM_API_KEY" }
[resource]
path = "/poi"
params = { compact = true, verbose = false }
key = "ID"
volatile = ["IsRecentlyVerified", "DateLastVerified"]
page = { cursor = "keyset", param = "greaterthanid", start = 0, limit_param = "maxresults", limit = 100, \
fixed = { sortby = "id_asc" } }
[resource.filters.country]
param = "countryid"
path = "AddressInfo.CountryID"
values_from = "/referencedata#$.Countries[*].ID"
[resource.filters.box]
param = "boundingbox"
box = "(south,west),(north,east)"
latitude = "AddressInfo.Latitude"
longitude = "AddressInfo.Longitude"
is_geodesic = true
[resource.partition]
PARTITION
[sink]
url = "sqlite:///FOLDER/data.db"
table = "poi"
"""

CLIENT = """
version = 1
[source]
name = "ocm"
kind = "ocm"
base_url = "URL"
auth = { env = "OCM_API_KEY" }
limits = ["1000/second"]
[resource.partition]
PARTITION
[resource.page]
limit = 100
[sink]
url = "sqlite:///FOLDER/data.db"
table = "poi"
"""


class Place:
    def __init__(self, folder: Path, it: FakeApi) -> None:
        self.folder, self.it = folder, it

    def write(self, text: str, partition: str) -> Path:
        path = self.folder / "spec.toml"
        text = text.replace("URL", self.it.url).replace("FOLDER", str(self.folder))
        path.write_text(text.replace("PARTITION", partition), "utf-8")
        return path

    async def plan(self, text: str, partition: str) -> Plan:
        return await plan_with_history(load_import(self.write(text, partition), {"OCM_API_KEY": API_KEY}))

    async def run(self, text: str, partition: str) -> tuple[RunState, list[ShardRow]]:
        parts = load_import(self.write(text, partition), {"OCM_API_KEY": API_KEY})
        await parts.sink.open()
        app, handle = import_app(parts, f"sqlite:///{self.folder}/jobs.db")
        async with app:
            await start_planned(parts, handle, "run", await plan_with_history(parts), wall_clock_us())
            await app.run_worker(queues=[parts.queue], until_empty=True, concurrency=64)
            state, shards = await finish_run(parts, "run"), await parts.sink.shards.find_all("run")
        await parts.sink.close()
        return state, shards

    def rows(self) -> set[int]:
        with open_sqlite(self.folder / "data.db") as file:
            return {int(each) for (each,) in file.execute("SELECT external_id FROM poi")}

    def truth(self) -> set[int]:
        return set(self.it.table.readable())


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with fake_api(synthetic(1_000)) as it:
        yield Place(tmp_path, it)


# -- boxes --


@pytest.mark.parametrize("text", [BY_HAND, CLIENT], ids=["json", "ocm"])
async def test_boxes_of_a_server_with_great_circles_bring_every_row_once(place: Place, text: str) -> None:
    """A plain box would miss the points under its bent edge and count those on it twice."""
    state, shards = await place.run(text, 'by = "box"\ndegrees = 45')
    assert state is RunState.COMPLETE
    assert place.rows() == place.truth()
    assert sum(row.rows for row in shards) == len(place.truth())
    assert len(shards) == 8 * 4


async def test_a_server_with_great_circles_that_is_not_called_one_is_noticed(place: Place) -> None:
    """Such a server omits points under one edge and sends extra points beyond the other; the extra points reveal it."""
    state, shards = await place.run(BY_HAND.replace("is_geodesic = true", ""), 'by = "box"\ndegrees = 45')
    assert state is RunState.PARTIAL
    assert {guard for row in shards for guard in row.guards} >= {"filter_ignored"}


async def test_an_area_across_the_antimeridian(place: Place) -> None:
    """East of 150 and west of -120: the other way around would be the rest of the world."""
    state, _ = await place.run(CLIENT, 'by = "box"\narea = [-60, 150, 70, -120]\ndegrees = 45')
    assert state is RunState.COMPLETE
    found = [place.it.table.truth[id_] for id_ in place.truth()]
    sides = [(-60.0, 150.0, 70.0, 180.0), (-60.0, -180.0, 70.0, -120.0)]
    expected = {poi.id for poi in found if any(owns(side, poi.latitude, poi.longitude) for side in sides)}
    assert expected
    assert place.rows() == expected


def narrowing(box: str, is_geodesic: bool = False) -> PredicateFilters:
    lines = f'filters.box = {{ param = "bbox", box = "{box}", latitude = "lat", longitude = "lon"'
    text = f'version = 1\n[source]\nname = "a"\nbase_url = "https://a.example"\n[resource]\nkey = "id"\n{lines}'
    text += f", is_geodesic = {str(is_geodesic).lower()} }}\n" + '[sink]\nurl = "sqlite:///x.db"\ntable = "a"\n'
    return PredicateFilters(read_spec(text, "a").resource)


BOX = {"box": [40.0, -4.0, 50.0, 6.0]}


@pytest.mark.parametrize(
    ("box", "written"),
    [
        ("west,south,east,north", "-4.0000010,39.9999990,6.0000010,50.0000010"),
        ("south,west,north,east", "39.9999990,-4.0000010,50.0000010,6.0000010"),
        ("(south,west),(north,east)", "(39.9999990,-4.0000010),(50.0000010,6.0000010)"),
    ],
)
def test_a_box_is_written_as_the_source_wants_it(box: str, written: str) -> None:
    """Swapped coordinates give a valid box at the wrong place and an import without errors. Some servers exclude the
    edges, so a box has a margin.
    """
    assert narrowing(box).params(BOX) == {"bbox": written}


def test_a_server_with_great_circles_is_asked_for_more() -> None:
    """The edges of a geodesic box bend, so a plain box would miss points near them."""
    south, west, north, east = map(
        float, narrowing("south,west,north,east", is_geodesic=True).params(BOX)["bbox"].split(",")
    )
    assert 39.8 < south < 39.9
    assert west < -4 < 6 < east
    assert 50 < north < 50.001


@pytest.mark.parametrize(
    ("latitude", "longitude", "is_kept", "is_ours"),
    [
        (45, 0, True, True),
        (40, -4, True, True),
        (50, 0, False, True),
        (45, 6.0, False, True),
        ("45.5", "1", True, True),
        (None, 0, True, True),
        (True, 0, True, True),
        ("north", 0, True, True),
        (51, 0, True, False),
        (45, 20, True, False),
        (39.9, 0, True, False),
    ],
)
def test_who_is_of_a_box(latitude: Any, longitude: Any, is_kept: bool, is_ours: bool) -> None:
    """A record on an upper edge belongs to the next box. A record far away shows that the filter was ignored, and the
    guards must see it. A record without a position may be a bad row, but does not count as foreign.
    """
    box, record = narrowing("west,south,east,north"), {"lat": latitude, "lon": longitude}
    assert box.keeps(BOX)(record) is is_kept
    assert box.is_ours(BOX)(record) is is_ours


def test_what_lies_under_a_bent_edge_is_no_stranger() -> None:
    """The edge of a geodesic box bends beyond its parallel, so the server is right to send the points there."""
    bent, record = narrowing("west,south,east,north", is_geodesic=True), {"lat": 50.1, "lon": 1.0}
    assert bent.is_ours(BOX)(record)
    assert not bent.keeps(BOX)(record)
    assert not bent.is_ours(BOX)({"lat": 50.5, "lon": 1.0})


# -- countries --


@pytest.mark.slow
async def test_countries_of_the_clients_own_list(place: Place) -> None:
    """A country that is missing in the list would be missing in the import."""
    state, shards = await place.run(CLIENT, 'by = "country"')
    assert state is RunState.COMPLETE
    assert place.rows() == place.truth()
    assert sum(row.rows for row in shards) == len(place.truth())


async def test_some_countries_only_and_the_small_ones_together(place: Place) -> None:
    """One shard per tiny country would spend most requests on empty pages."""
    chosen = 'by = "country"\ngroup_below = 100\n[resource.filters.country]\nvalues = ["ES", "PT", "AD", "FR"]\n'
    chosen += "rows = { ES = 5000, PT = 30, AD = 5, FR = 9000 }"
    state, shards = await place.run(CLIENT, chosen)
    assert state is RunState.COMPLETE
    assert [row.shard.label for row in shards] == ["country=AD-PT(2)", "country=ES", "country=FR"]
    ids = {ID_BY_CODE[code] for code in ("ES", "PT", "AD", "FR")}
    assert place.rows() == {id_ for id_ in place.truth() if place.it.table.truth[id_].country in ids}


COUNTED = """
version = 1
[source]
name = "things"
base_url = "URL"
[resource]
path = "/offset/things"
records = "$.items"
key = "id"
page = { cursor = "offset", limit_param = "limit" }
partition = { by = "country", group_below = 100 }
[resource.filters.country]
param = "country"
values_from = "/offset/countries#$.items[*].code"
rows_from = "/offset/countries#$.items[*].count"
[sink]
url = "sqlite:///FOLDER/data.db"
table = "poi"
"""


async def test_the_source_itself_says_which_countries_are_small(tmp_path: Path) -> None:
    """Counts assigned to the wrong country would make unbalanced shards without an error."""
    rows = {"AD": 5, "ES": 5_000, "FR": 9_000, "PT": 30}
    listed: list[dict[str, Any]] = [{"code": code, "count": count} for code, count in rows.items()]
    listings = {"countries": Listing(listed, "code"), "things": Listing([{"id": 1}])}
    async with fake_api(1, listings=listings) as it:
        place = Place(tmp_path, it)
        plan = await place.plan(COUNTED, "")
        assert [(shard.label, shard.estimated_rows) for shard in plan.shards] == [
            ("country=AD-PT(2)", 35),
            ("country=ES", 5_000),
            ("country=FR", 9_000),
        ]
        with pytest.raises(
            BadReply, match=r"rows_from: .* leads to 0 numbers, and values_from to 4 values; both lists must"
        ):
            await place.plan(COUNTED.replace("[*].count", "[*].rows"), "")
        with pytest.raises(BadReply, match=r"country.rows_from: .* must lead to integers \(is 'AD'\)"):
            await place.plan(COUNTED.replace("[*].count", "[*].code"), "")


async def test_a_country_that_nobody_knows_is_refused_before_the_run(place: Place) -> None:
    """The real API takes an unknown country for the whole world."""
    chosen = 'by = "country"\n[resource.filters.country]\nvalues = ["ES", "XX"]'
    with pytest.raises(
        BadValue, match=r"resource.filters.country.values: Open Charge Map does not know XX; codes have"
    ):
        await place.plan(CLIENT, chosen)


# -- both --

MONTHS = 'then = { by = "window", start = "2026-01-01", end = "2026-04-01", step = "30d" }'
HYBRID = """
version = 1
[source]
name = "shop"
base_url = "https://shop.example"
[resource]
key = "id"
[resource.filters]
country = { param = "c", values = ["ES", "FR"] }
window = { lower = "since", upper = "until", path = "changed", format = "date" }
box = { param = "bbox", box = "west,south,east,north", latitude = "lat", longitude = "lon" }
[resource.partition]
PARTITION
[sink]
url = "sqlite:///x.db"
table = "things"
"""
ABLE = SourceCapabilities(cursor="none", filters=frozenset({"country", "window", "box"}))


def plan_for(partition: str, caps: SourceCapabilities = ABLE) -> Plan:
    spec = read_spec(HYBRID.replace("PARTITION", partition), "a")
    return build_plan(spec, caps, SourceProbe(values={"country": ["ES", "FR"]}), None, 100)


def test_windows_without_an_end_go_on_until_now_and_beyond() -> None:
    """A single window would keep all but one worker idle, and an end in the past would omit new records."""
    spec = read_spec(HYBRID.replace("PARTITION", 'by = "window"\nstart = "2026-01-01"\nstep = "30d"'), "a")
    now = 1_767_225_600_000_000 + 70 * 86_400_000_000
    plan = build_plan(spec, ABLE, SourceProbe(server_time=now), None, 100)
    assert [shard.label for shard in plan.shards] == [
        "window=2026-01-01T00:00Z..2026-01-31T00:00Z",
        "window=2026-01-31T00:00Z..2026-03-02T00:00Z",
        "window=2026-03-02T00:00Z..",
    ]
    coarse = replace(spec, resource=replace(spec.resource, stamp=Stamp(field="changed", granularity="1d")))
    start = replace(spec.resource.partition, start="2026-01-01T13:00Z")
    coarse = replace(coarse, resource=replace(coarse.resource, partition=start))
    assert build_plan(coarse, ABLE, SourceProbe(server_time=now), None, 100).shards == plan.shards, (
        "on the source's own grain"
    )
    before = build_plan(spec, ABLE, SourceProbe(server_time=0), None, 100)
    assert [shard.label for shard in before.shards] == ["window=2026-01-01T00:00Z.."]


def test_geography_first_and_then_windows() -> None:
    """Two shards with the same key would be one job, and one of them would never run."""
    plan = plan_for(f'by = "country"\n{MONTHS}')
    assert len(plan.shards) == 2 * 3
    assert plan.shards[0].predicate == {"country": ["ES"], "window": ["2026-01-01T00:00Z", "2026-01-31T00:00Z"]}
    assert plan.shards[0].label == "country=ES;window=2026-01-01T00:00Z..2026-01-31T00:00Z"
    plan = plan_for(f'by = "box"\narea = [30, -10, 50, 10]\ndegrees = 10\n{MONTHS}')
    assert len({shard.key for shard in plan.shards}) == 4 * 3


def test_what_a_source_cannot_express_is_refused_with_its_place() -> None:
    """Such windows read everything after their start: 47.7 times the rows for a year of days."""
    one_sided = replace(ABLE, bounds={"window": (True, False)})
    with pytest.raises(BadValue, match=r"^resource\.partition\.by: the source has no upper bound for times"):
        plan_for(f'by = "country"\n{MONTHS}', one_sided)
    with pytest.raises(BadValue, match=r"^resource\.partition\.by: the source has no filter 'box'; it has country"):
        plan_for('by = "box"', replace(ABLE, filters=frozenset({"country"})))
    with pytest.raises(BadValue, match=r"^resource\.partition: makes 194,400 shards"):
        plan_for(f'by = "box"\ndegrees = 1\n{MONTHS}')


async def test_a_function_that_is_cut_by_country_and_time_brings_every_row_once(tmp_path: Path) -> None:
    """Two partitions at once double the number of edges at which a row can be lost."""
    records: list[dict[str, Any]] = [
        {"id": number, "country": ("ES", "FR")[number % 2], "at": f"2026-0{1 + number % 3}-{1 + number % 28:02}T00:00Z"}
        for number in range(500)
    ]
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.importer(
        "things", key="id", sink=f"sqlite:///{tmp_path}/data.db", table="poi", page_limit=50,
        partition=Country(then=Windows(start="2026-01-01", end="2026-04-01", step="10d")),
        filters={"country": {"values": ["ES", "FR"], "path": "country"}, "window": {"path": "at"}},
    )  # fmt: skip
    async def things(shard: Shard, cursor: Mapping[str, Any] | None, limit: int) -> Page:
        (low, high), countries = shard.predicate["window"], shard.predicate["country"]
        found = [each for each in records if each["country"] in countries and low <= each["at"] < high]
        offset = cursor["offset"] if cursor else 0
        return Page.offset(found[offset : offset + limit], cursor, total=len(found))

    async with app:
        done = await things.run(workers=8)
    assert (done.state, done.rows, len(done.shards)) == (RunState.COMPLETE, 500, 18)


async def test_a_function_that_is_cut_by_boxes_is_held_to_them(tmp_path: Path) -> None:
    """A function that includes both edges of a box would count rows on an edge twice."""
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    records = [{"id": number, "lat": number % 90 - 45, "lon": number * 7 % 360 - 180} for number in range(1_000)]

    @app.importer(
        "points", key="id", sink=f"sqlite:///{tmp_path}/data.db", table="poi", page_limit=5_000,
        partition=Boxes(degrees=60), filters={"box": {"latitude": "lat", "longitude": "lon"}},
    )  # fmt: skip
    def points(shard: Shard) -> Page:
        south, west, north, east = shard.predicate["box"]
        return Page.last([each for each in records if south <= each["lat"] <= north and west <= each["lon"] <= east])

    async with app:
        done = await points.run(workers=8)
    assert (done.state, done.rows) == (RunState.COMPLETE, 1_000)


# -- the client --


async def test_the_client_needs_a_key_and_nothing_else(place: Place) -> None:
    """The shortest spec is the one that new users copy."""
    state, shards = await place.run(CLIENT.replace("[resource.partition]\nPARTITION\n", ""), "")
    assert state is RunState.COMPLETE
    assert place.rows() == place.truth()
    assert [row.shard.label for row in shards] == ["id=000000000-"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("abc", "", "source.auth.env: must look like 01234567-89ab-cdef-0123-456789abcdef; get one at"),
        ('kind = "ocm"', 'kind = "ocm"\nheaders = { User-Agent = "my crawler" }',
         "source.headers.User-Agent: Open Charge Map refuses user agents that contain 'crawler' (is 'my crawler')"),
    ],
    ids=["key", "agent"],
)  # fmt: skip
def test_a_key_or_a_name_that_they_refuse_is_not_even_tried(tmp_path: Path, old: str, new: str, message: str) -> None:
    """A request that the provider is certain to refuse only uses up its quota."""
    path = tmp_path / "spec.toml"
    path.write_text(
        CLIENT.replace("URL", "https://ocm.example").replace("PARTITION", 'by = "country"').replace(old, new)
    )
    with pytest.raises(UsageError) as caught:
        load_import(path, {"OCM_API_KEY": API_KEY if new else "abc"})
    assert message in str(caught.value)


def test_the_pace_of_the_client_is_modest_unless_the_spec_says_otherwise(tmp_path: Path) -> None:
    """The default must follow the provider's policy, and users with an agreement need more."""
    path = tmp_path / "spec.toml"
    text = CLIENT.replace("URL", "https://ocm.example").replace("PARTITION", 'by = "country"')
    path.write_text(text)
    fast = load_import(path, {"OCM_API_KEY": API_KEY}).source.limit
    path.write_text(text.replace('limits = ["1000/second"]\n', ""))
    modest = load_import(path, {"OCM_API_KEY": API_KEY}).source.limit
    assert fast is not None
    assert modest is not None
    assert [str(rate) for rate in fast.definition.rates] == ["1,000/second"]
    assert [str(rate) for rate in modest.definition.rates] == ["1/second"]
    assert modest.definition.concurrency == 2
