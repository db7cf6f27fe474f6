"""Open Charge Map as a source: complete imports from the fake API in spite of all its faults."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.imports.domain.guards import (
    ConfirmEnd,
    ContinueShard,
    EndShard,
    Expectation,
    PageVerdict,
    ParkShard,
    RetryPage,
    judge_page,
)
from leaseway.imports.domain.page import Page
from leaseway.imports.domain.partition import (
    Cursor,
    Shard,
    check_plan,
    country_shards,
    cross_shards,
    grid_shards,
    id_range_shards,
    make_shard,
    quadtree_shards,
    window_shards,
)
from leaseway.imports.domain.run_state import ShardRow, ShardState
from leaseway.imports.domain.splitting import split_shard
from leaseway.imports.sources.ocm import CAPS, OpenChargeMap
from leaseway.imports.sources.port import BadReply, HeavyPage, Source, SourceBusy, SourceRefused
from leaseway.imports.sources.status_mapping import NoSuchPage, WrongBody
from leaseway.testing.fake_open_charge_map import API_KEY, FakeApi, Faults, Poi, fake_api, synthetic
from leaseway.testing.fake_open_charge_map.data import BULK_MINUTE
from leaseway.testing.fake_open_charge_map.poi import ID_BY_CODE

NOW = 1_791_000_000_000_000
WORLD = make_shard("ocm", "all", {})
PAGES_MAX = 200


class Place:
    """A source, the fake API that it asks, and a plain client between them."""

    def __init__(self, it: FakeApi, http: httpx2.AsyncClient) -> None:
        self.it = it
        self.http = http
        self.source = OpenChargeMap(API_KEY, it.url, "acme-import/1.0 (ops@acme.example)")

    async def fetch(self, shard: Shard = WORLD, cursor: Cursor | None = None, limit: int = 100) -> Page:
        return await self.source.fetch(shard, cursor, limit, self.http)

    async def pages(self, shard: Shard, limit: int = 100) -> list[Page]:
        """Pages until the source reports the end or has no next page."""
        pages = [await self.fetch(shard, None, limit)]
        while pages[-1].next is not None and not pages[-1].is_end:
            assert len(pages) < PAGES_MAX
            pages.append(await self.fetch(shard, pages[-1].next, limit))
        return pages

    async def ids(self, shards: Sequence[Shard]) -> list[int]:
        found = [page for shard in shards for page in await self.pages(shard)]
        return [record["ID"] for page in found for record in page.records]


@asynccontextmanager
async def placed(pois: list[Poi] | int = 1_000, **faults: Any) -> AsyncIterator[Place]:
    async with fake_api(pois, faults=faults, now=lambda: NOW) as it, httpx2.AsyncClient() as http:
        yield Place(it, http)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with placed(synthetic(1_000, bulk=300, hidden_every=40)) as place:
        yield place


def readable(place: Place) -> list[int]:
    return sorted(place.it.table.readable())


# -- properties --


def test_it_is_a_source_with_the_modest_limit_that_its_policy_asks_for() -> None:
    """Open Charge Map is a free service that asks its clients to send few requests."""
    source: Source = OpenChargeMap(API_KEY)
    assert source.caps.order == "ID"
    limit = OpenChargeMap(API_KEY).limit
    assert [str(rate) for rate in limit.definition.rates] == ["1/second"]
    assert limit.definition.concurrency == 2


@pytest.mark.parametrize("agent", ["acme-crawler/1.0", "My Robot", "php-import", "FME/2020", "", "a\nb"])
def test_a_name_that_they_refuse_is_refused_here(agent: str) -> None:
    """The provider would answer 503, which looks like a temporary fault."""
    with pytest.raises(BadValue, match=r"user_agent: .*acme-import"):
        OpenChargeMap(API_KEY, user_agent=agent)


@pytest.mark.parametrize("key", ["", "test", "0123"])
def test_a_key_that_is_none_is_refused_here_and_not_shown(key: str) -> None:
    """A malformed key would cost a request to find out, and error messages end up in logs."""
    with pytest.raises(BadValue, match=r"key: must look like"):
        OpenChargeMap(key)


async def test_the_key_travels_in_a_header_only(place: Place) -> None:
    """URLs are written to logs."""
    await place.fetch()
    arrival = place.it.arrivals[0]
    assert arrival.headers["x-api-key"] == API_KEY
    assert API_KEY not in arrival.path
    assert arrival.headers["user-agent"] == "acme-import/1.0 (ops@acme.example)"


async def test_what_it_says_about_itself(place: Place) -> None:
    """The plan depends on these values, and each further request counts against the limit."""
    probe = await place.source.probe(place.http)
    assert probe.id_max == max(place.it.table.truth)
    assert probe.server_time == NOW
    assert len(probe.values["country"]) == 250
    assert len(place.it.arrivals) == 2


# -- completeness --


async def test_id_ranges_read_every_row_once(place: Place) -> None:
    """The API has no upper bound for ids, so the client has to cut each range itself."""
    probe = await place.source.probe(place.http)
    shards = id_range_shards("ocm", 0, probe.id_max or 0, 300)
    check_plan(shards, CAPS)
    assert len(shards) > 3
    assert await place.ids(shards) == readable(place)


async def test_a_range_ends_by_proof_and_the_last_one_does_not(place: Place) -> None:
    """A record beyond the end proves that the range is complete; an empty page proves nothing."""
    closed = await place.pages(make_shard("ocm", "x", {"id": [101, 300]}))
    assert closed[-1].is_end is True
    assert all(page.raw_count == 100 for page in closed)
    assert len(closed[-1].records) < 100
    opened = await place.pages(make_shard("ocm", "x", {"id": [1_000, None]}))
    assert (opened[-1].is_end, opened[-1].next, opened[-1].raw_count) == (None, None, 0)


async def test_countries_and_the_ids_behind_them(place: Place) -> None:
    """The list of countries must cost one request, however many shards there are."""
    codes = (await place.source.probe(place.http)).values["country"]
    rows = {code: sum(poi.country == ID_BY_CODE[code] for poi in place.it.table.truth.values()) for code in codes}
    shards = country_shards("ocm", codes, rows, 50)
    assert len(shards) < 30
    before = len(place.it.arrivals)
    assert sorted(await place.ids(shards)) == readable(place)
    assert not any("referencedata" in arrival.path for arrival in place.it.arrivals[before:])


async def test_boxes_lose_nothing_and_nothing_comes_twice() -> None:
    """The server's box edges are great circles, so its boxes are larger; rows beyond the planned box are dropped."""
    pois = synthetic(3_000)
    async with placed(pois) as place:
        shards = grid_shards("ocm", (-90, -180, 90, 180), 45)
        assert sorted(await place.ids(shards)) == readable(place)
        tree = quadtree_shards("ocm", (40, -20, 70, 60), lambda box: 500, 1_000)
        raw = [await place.pages(shard) for shard in tree]
        assert sum(page.raw_count for pages in raw for page in pages) > sum(
            len(page.records) for pages in raw for page in pages
        )


async def test_one_window_for_each_country(place: Place) -> None:
    """300 rows share one minute, so a page boundary within it must lose none of the changes."""
    shards = cross_shards(
        "ocm", country_shards("ocm", ["US", "DE"]), window_shards("ocm", BULK_MINUTE, None, 60_000_000, 60_000_000)
    )
    check_plan(shards, CAPS)
    ids = {ID_BY_CODE["US"], ID_BY_CODE["DE"]}
    rows = [poi for poi in place.it.table.truth.values() if poi.is_readable and poi.modified >= BULK_MINUTE]
    assert sorted(await place.ids(shards)) == sorted(poi.id for poi in rows if poi.country in ids)
    since = make_shard("ocm", "x", {"since": "2026-04-01T03:00Z"})
    assert await place.ids([since]) == [poi.id for poi in rows]


async def test_history_windows_are_refused() -> None:
    """The API has no upper bound for times, so every window would fetch everything after its start."""
    with pytest.raises(BadValue, match="no upper bound for times"):
        check_plan(window_shards("ocm", 0, BULK_MINUTE, 30 * 86_400_000_000, 60_000_000), CAPS)


async def test_children_of_a_split_read_exactly_the_rest(place: Place) -> None:
    """A gap between children loses rows, and an overlap pays for them twice."""
    shard = make_shard("ocm", "x", {"id": [101, 900]})
    first = await place.fetch(shard)
    children = split_shard(shard, first.next, "idle", CAPS)
    read = [record["ID"] for record in first.records] + await place.ids(children)
    assert read == [number for number in readable(place) if number < 900]


# -- wrong replies --


async def test_an_unknown_country_is_never_asked_for(place: Place) -> None:
    """The API would send the whole world."""
    with pytest.raises(BadValue, match="country: Open Charge Map does not know UK, Spain"):
        await place.fetch(make_shard("ocm", "x", {"country": ["ES", "UK", "Spain"]}))
    assert not any("/poi" in arrival.path for arrival in place.it.arrivals)


async def test_strangers_are_recognised(place: Place) -> None:
    """When the API ignores a filter, the guards must be able to notice it."""
    shard = make_shard("ocm", "x", {"country": ["DE"], "id": [200, None], "window": ["2026-04-01T03:00Z", None]})
    good = await place.fetch(shard)
    place.it.faults = Faults(ignores_filters=True)
    bad = await place.fetch(shard)
    is_ours = place.source.is_ours(shard)
    assert all(is_ours(record) for record in good.records)
    assert not all(is_ours(record) for record in bad.records)
    for wrong in ({"ID": 199}, {"AddressInfo": {"CountryID": 1}}, {"DateLastStatusUpdate": "2026-04-01T02:59:00Z"}):
        assert not is_ours({**good.records[0], **wrong})
    assert is_ours({**good.records[0], "DateLastStatusUpdate": "soon"}), "a bad row is no stranger"


async def test_a_page_out_of_order_is_shown_whole_and_proves_no_end() -> None:
    """If the rows beyond the end were dropped first, the rest could look ordered and the shard complete."""
    async with placed(1_000, reordered=True) as place:
        page = await place.fetch(make_shard("ocm", "x", {"id": [0, 150]}))
    ids = [record["ID"] for record in page.records]
    assert ids != sorted(ids)
    assert (len(ids), page.is_end) == (page.raw_count, None)


async def test_an_empty_page_is_no_end() -> None:
    """This API sometimes answers with an empty list, and believing it would lose the rest of the shard."""
    async with placed(1_000, empty_every=1) as place:
        page = await place.fetch()
    assert (page.raw_count, page.next, page.is_end) == (0, None, None)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((403, b"Invalid API key."), SourceRefused),
        ((403, f"bad key {API_KEY}".encode()), SourceRefused),
        ((401, b""), SourceRefused),
        ((503, b'{"description":"API requests by robots are temporarily disabled."}'), SourceRefused),
        ((502, b"Upstream API unavailable"), HeavyPage),
        ((413, b""), HeavyPage),
        ((429, b""), SourceBusy),
        ((400, b'{"status":"error"}'), NoSuchPage),
        ((200, b"<html>"), WrongBody),
        ((200, b'{"status":"error"}'), WrongBody),
        ((200, b"[1, 2]"), WrongBody),
        ((200, b'[{"ID": 1}, {"ID"'), WrongBody),
        ((200, b'[{"id": 1}]'), BadReply),
        ((200, b"\xff\xfe"), WrongBody),
    ],
)
async def test_each_wrong_reply_has_its_meaning(place: Place, answer: tuple[int, bytes], error: type) -> None:
    """A wrong key stops the run, a page that is too large is halved, and other errors are retried."""
    status, body = answer
    place.it.answer(status, body=body)
    with pytest.raises(error) as caught:
        await place.fetch()
    assert type(caught.value) is error
    assert API_KEY not in str(caught.value)


async def test_a_status_without_a_highest_id_makes_no_plan(place: Place) -> None:
    """A plan from an invalid status would cover a part of the source and look complete."""
    place.it.answer(200, body=b'{"maxPOIId": null}')
    with pytest.raises(BadReply, match="maxPOIId must be an integer"):
        await place.source.probe(place.http)
    place.it.answer(200, body=b'{"maxPOIId": 5}')
    place.it.answer(200, body=b'{"Countries": []}')
    with pytest.raises(BadReply, match="no countries"):
        await place.source.probe(place.http)


# -- with the guards --


async def guarded(place: Place, shard: Shard, limit: int) -> tuple[list[int], PageVerdict]:
    """Read a shard as an import does, but without a sink; returns the ids and how it ended."""
    row = ShardRow(run="r", shard=shard, state=ShardState.RUNNING, fence=1, cursor=None)
    found: list[int] = []
    for _ in range(PAGES_MAX):
        page = await place.fetch(shard, row.cursor, limit)
        verdict = judge_page(page, row, expectation(place, shard, row.cursor, limit))
        if isinstance(verdict, ConfirmEnd):
            probes = [await place.fetch(shard, page.next or row.cursor, 1) for _ in range(2)]
            verdict = (ContinueShard if any(probe.raw_count for probe in probes) else EndShard)(verdict.page_hash)
        if not isinstance(verdict, ContinueShard | EndShard):
            return found, verdict
        found += [record["ID"] for record in page.records]
        if isinstance(verdict, EndShard):
            return found, verdict
        row = replace(row, cursor=page.next or row.cursor)
    raise AssertionError("it has no end")


def expectation(place: Place, shard: Shard, cursor: Cursor | None, limit: int) -> Expectation:
    return Expectation(
        limit=limit,
        cursor=cursor,
        key=lambda record: record.get("ID"),
        is_ordered=True,
        is_ours=place.source.is_ours(shard),
        has_next=True,
        short_page_is_end=False,
    )


@pytest.mark.parametrize(
    "faults",
    [{}, {"empty_every": 4}, {"page_max": 30}, {"changes_every": 1, "inserted_rows": 0}, {"is_volatile": True}],
)
async def test_these_traps_are_survived(faults: dict[str, Any]) -> None:
    """With these faults, no row may be missing and none may come twice."""
    async with placed(synthetic(1_000, bulk=300, hidden_every=40), **faults) as place:
        shards = id_range_shards("ocm", 0, max(place.it.table.truth), 400)
        results = [await guarded(place, shard, 50) for shard in shards]
    assert all(isinstance(verdict, EndShard) for _, verdict in results)
    assert [number for ids, _ in results for number in ids] == readable(place)


@pytest.mark.parametrize(
    ("faults", "caught"),
    [
        ({"reordered": True}, RetryPage("order_violated", "")),
        ({"ignores_filters": True}, ParkShard("filter_ignored", "")),
    ],
)
async def test_these_traps_are_caught_before_anything_is_written(
    faults: dict[str, Any], caught: RetryPage | ParkShard
) -> None:
    """The number of rows does not reveal either of these faults."""
    async with placed(1_000, **faults) as place:
        found, verdict = await guarded(place, make_shard("ocm", "x", {"country": ["DE"], "id": [0, 600]}), 50)
    assert isinstance(verdict, type(caught))
    assert (found, verdict.guard) == ([], caught.guard)
