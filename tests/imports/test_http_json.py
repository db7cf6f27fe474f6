"""Any API by its spec alone: every paging style, every filter, and every invalid reply."""

import base64
import html
import json
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.provider_http.fake_admission import Place

from leaseway.aiohttp_transport import AiohttpTransport
from leaseway.domain.errors import BadValue, LeasewayError, TerminalError, UsageError
from leaseway.domain.http import HttpReply, ReplyTimeout
from leaseway.imports.domain.guards import Expectation, ParkShard, RetryPage, judge_page
from leaseway.imports.domain.page import Page
from leaseway.imports.domain.partition import Cursor, Predicate, Shard, make_shard
from leaseway.imports.domain.run_state import ShardRow, ShardState
from leaseway.imports.rows import RowBuilder
from leaseway.imports.sources.factory import make_source
from leaseway.imports.sources.http_json import JsonSource
from leaseway.imports.sources.port import BadReply, HeavyPage, Source, SourceRefused
from leaseway.imports.sources.status_mapping import NoSuchPage, WrongBody
from leaseway.imports.spec.reader import read_spec
from leaseway.testing.fake_open_charge_map import API_KEY, Faults, Listing, fake_api
from leaseway.testing.provider import Provider, provider
from leaseway.worker.provider_http import Http

EXAMPLES = Path(__file__).parents[2] / "examples" / "imports"
SECRET = "s3cr3t"
ODD_SECRET = 'hunter2 "key"/&<+%>\'\\7'
THINGS = [{"id": number, "name": f"thing {number}", "kind": "ab"[number % 2]} for number in range(1, 251)]


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    # Without the machine's certificates, which take longer to load than most of these tests run.
    place = Place(AiohttpTransport(verify=False))
    yield place.http()
    await place.wire.close()


@pytest.fixture
async def it() -> AsyncIterator[Provider]:
    async with provider() as it:
        yield it


def source_at(url: str, resource: str, source: str = "", key: str = SECRET) -> JsonSource:
    text = f"""
        version = 1
        [source]
        name = "things"
        base_url = "{url}"
        {source}
        [resource]
        key = "id"
        {resource}
        [sink]
        url = "sqlite:///data.db"
        table = "things"
    """
    return JsonSource(read_spec(text, "import.toml"), {"THINGS_KEY": f" {key}\n"})


def shard_with(predicate: Predicate) -> Shard:
    return make_shard("things", "part", predicate)


ALL = shard_with({})


async def all_of(source: JsonSource, http: Http, limit: int = 100, shard: Shard = ALL) -> list[Any]:
    """Read until the source reports the end or sends nothing more. Cursors are converted to text and back."""
    records: list[Any] = []
    cursor: Cursor | None = None
    for _ in range(1_000):
        page = await source.fetch(shard, cursor, limit, http)
        records.extend(page.records)
        if page.next is None:
            return records
        assert page.next != cursor
        cursor = json.loads(json.dumps(page.next))
    raise AssertionError("it never ends")


def query_of(it: Provider, number: int = -1) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(it.arrivals[number].path).query))


def reply(it: Provider, value: Any, headers: dict[str, str] | None = None) -> None:
    it.answer(200, headers, json.dumps(value))


# -- paging styles --

WAYS = {
    "offset": 'page = { cursor = "offset", limit_param = "limit" }\nrecords = "$.items"',
    "offset and total": 'page = { cursor = "offset", limit_param = "limit", total = "$.total" }\nrecords = "$.items"',
    "page": 'page = { cursor = "page", limit_param = "per_page" }\nrecords = "$.items"',
    "page and pages": 'page = { cursor = "page", limit_param = "per_page", pages = "$.pages" }\nrecords = "$.items"',
    "page of any size": 'page = { cursor = "page", pages = "$.pages" }\nrecords = "$.items"',
    "link": 'page = { cursor = "link", limit_param = "limit", next = "$.next" }\nrecords = "$.items[*]"',
    "link in a header": 'page = { cursor = "link", limit_param = "limit" }\nrecords = "$.items"',
    "token": 'page = { cursor = "token", param = "cursor", next = "$.next_cursor" }\nrecords = "$.items"',
    "keyset": 'page = { cursor = "keyset", param = "after", limit_param = "limit" }',
}


@pytest.mark.parametrize("limit", [7, 100, 250, 1_000])
@pytest.mark.parametrize("way", WAYS)
async def test_every_record_once(http: Http, way: str, limit: int) -> None:
    """At every page boundary of every paging style, a record can be lost or repeated."""
    async with fake_api(0, listings={"things": Listing(THINGS)}) as it:
        source = source_at(f"{it.url}/{way.split()[0]}", f'path = "/things"\n{WAYS[way]}')
        assert await all_of(source, http, limit) == THINGS


@pytest.mark.parametrize("way", WAYS)
async def test_a_source_that_sends_smaller_pages_than_asked_for(http: Http, way: str) -> None:
    """Most sources cap the page size silently, so counting in pages of the requested size would skip records."""
    async with fake_api(0, listings={"things": Listing(THINGS, page_max=40)}) as it:
        source = source_at(f"{it.url}/{way.split()[0]}", f'path = "/things"\n{WAYS[way]}')
        assert await all_of(source, http, 100) == THINGS


@pytest.mark.parametrize("way", [way for way in WAYS if "any size" not in way])
async def test_pages_may_become_smaller_on_the_way(http: Http, way: str) -> None:
    """A page that is too large is halved, and then a page number means another position."""
    async with fake_api(0, listings={"things": Listing(THINGS)}) as it:
        source = source_at(f"{it.url}/{way.split()[0]}", f'path = "/things"\n{WAYS[way]}')
        records: list[Any] = []
        cursor: Cursor | None = None
        for limit in [100, 50, 33, 1, 40, 100, 100, 100]:
            page = await source.fetch(ALL, cursor, limit, http)
            records.extend(page.records)
            cursor = page.next
            if cursor is None:
                break
        assert records == THINGS


@pytest.mark.parametrize(
    ("way", "ends"),
    [
        ("offset", [None, None, None]),
        ("offset and total", [False, False, True]),
        ("page and pages", [False, False, True]),
        ("link", [False, False, True]),
        ("token", [False, False, True]),
        ("keyset", [None, None, None]),
    ],
)
async def test_the_end_is_claimed_only_where_the_source_says_it(http: Http, way: str, ends: list[bool | None]) -> None:
    """A short page is not proof of the end; the guards must confirm it."""
    async with fake_api(0, listings={"things": Listing(THINGS)}) as it:
        source = source_at(f"{it.url}/{way.split()[0]}", f'path = "/things"\n{WAYS[way]}')
        cursor: Cursor | None = None
        seen = []
        for _ in ends:
            page = await source.fetch(ALL, cursor, 100, http)
            seen.append(page.is_end)
            cursor = page.next
        assert seen == ends


@pytest.mark.parametrize("way", WAYS)
async def test_an_empty_page_out_of_the_blue_proves_nothing(http: Http, way: str) -> None:
    """Sources answer 200 with an empty list while their database is down."""
    async with fake_api(0, listings={"things": Listing(THINGS)}, faults=Faults(empty_every=1)) as it:
        source = source_at(f"{it.url}/{way.split()[0]}", f'path = "/things"\n{WAYS[way]}')
        page = await source.fetch(ALL, None, 100, http)
        assert (page.raw_count, page.is_end, page.next) == (0, None, None)


async def test_one_reply_for_everything(http: Http, it: Provider) -> None:
    """A full page without paging may be cut, and a cut list must not count as complete."""
    source = source_at(it.url, 'page = { cursor = "none", limit_param = "limit" }')
    reply(it, THINGS[:3])
    page = await source.fetch(ALL, None, 4, http)
    assert (page.is_end, query_of(it)) == (True, {"limit": "4"})
    reply(it, THINGS[:4])
    full = await source.fetch(ALL, None, 4, http)
    assert full.is_end is None, "a full page may have been cut"


async def test_a_source_that_ignores_the_size_of_a_page(http: Http, it: Provider) -> None:
    """Page 2 would start at another record than the importer assumes."""
    source = source_at(it.url, 'page = { cursor = "page", limit_param = "size" }')
    reply(it, THINGS[:20])
    with pytest.raises(
        BadReply, match="20 records were returned where 10 were requested: the source does not support 'size'"
    ):
        await source.fetch(ALL, None, 10, http)


async def test_a_source_that_says_whether_there_is_more(http: Http, it: Provider) -> None:
    """If this flag is ignored, the import stops early or asks for ever."""
    source = source_at(
        it.url, 'page = { cursor = "keyset", param = "starting_after", more = "$.has_more" }\nrecords = "$.data"'
    )
    reply(it, {"data": THINGS[:2], "has_more": True})
    reply(it, {"data": THINGS[2:3], "has_more": False})
    first = await source.fetch(ALL, None, 2, http)
    last = await source.fetch(ALL, first.next, 2, http)
    assert (first.is_end, first.next, last.is_end, last.next) == (False, {"after": 2}, True, None)
    assert query_of(it) == {"starting_after": "2"}


# -- keys and secrets --


async def test_the_secret_goes_as_a_header(http: Http, it: Provider) -> None:
    """A secret in the URL would appear in the logs of proxies."""
    source = source_at(it.url, "", 'auth = { header = "Authorization", env = "THINGS_KEY", scheme = "Bearer" }')
    reply(it, [])
    await source.fetch(ALL, None, 1, http)
    assert it.arrivals[0].headers["authorization"] == f"Bearer {SECRET}"


async def test_the_secret_is_never_part_of_a_cursor(http: Http, it: Provider) -> None:
    """Sources echo the secret in their links, and cursors are stored and shown."""
    source = source_at(
        it.url,
        'page = { cursor = "link", next = "$.next" }\nrecords = "$.items"',
        'auth = { param = "key", env = "THINGS_KEY" }',
    )
    reply(it, {"items": THINGS[:1], "next": f"/more?key={SECRET}&at=5&empty=#top"})
    reply(it, {"items": [], "next": None})
    page = await source.fetch(ALL, None, 1, http)
    assert page.next == {"next": f"{it.url}/more?at=5&empty="}
    await source.fetch(ALL, page.next, 1, http)
    assert it.arrivals[1].path == f"/more?at=5&empty=&key={SECRET}"


@pytest.mark.parametrize("link", ["https://elsewhere.example/next", "//elsewhere.example/next", "http://127.0.0.1/x"])
async def test_a_link_to_another_server_is_not_followed(http: Http, it: Provider, link: str) -> None:
    """The API key would be sent to that server."""
    source = source_at(it.url, 'page = { cursor = "link", next = "$.next" }\nrecords = "$.items"')
    reply(it, {"items": THINGS[:1], "next": link})
    with pytest.raises(BadReply, match="leads to another server"):
        await source.fetch(ALL, None, 1, http)


async def test_an_echoed_secret_is_not_in_the_error(http: Http, it: Provider) -> None:
    """Errors are stored with the job and shown."""
    source = source_at(it.url, "", 'auth = { param = "key", env = "THINGS_KEY" }')
    it.answer(403, body=f"key {SECRET} is not known")
    with pytest.raises(SourceRefused, match=r"answers 403: key \*\*\* is not known \(check source.auth") as caught:
        await source.fetch(ALL, None, 1, http)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "encode",
    [
        lambda key: quote(key, safe=""),
        lambda key: quote_plus(key),
        lambda key: json.dumps(json.dumps(key)),
        lambda key: repr(key.encode()),
        lambda key: base64.b64encode(f"me:{key}".encode()).decode(),
        lambda key: html.escape(key),
    ],
    ids=["percent", "form", "json", "repr", "basic", "html"],
)
@pytest.mark.parametrize("status", [200, 400, 403, 500])
async def test_an_echoed_secret_is_not_in_the_error_in_any_encoding(
    http: Http, it: Provider, status: int, encode: Callable[[str], str]
) -> None:
    """Servers echo the request in the form in which they received it, and pages of errors escape it."""
    spec = source_at(it.url, "", 'auth = { param = "k", env = "THINGS_KEY" }', key=ODD_SECRET)
    it.answer(status, body=f"<p>you sent {encode(ODD_SECRET)} at {'x' * 170} {encode(ODD_SECRET)}")
    with pytest.raises(LeasewayError) as caught:
        await spec.fetch(ALL, None, 1, http)
    told = "".join(traceback.format_exception(caught.value))
    for part in (ODD_SECRET, encode(ODD_SECRET), encode(ODD_SECRET)[8:20], "hunter"):
        assert part not in told


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({}, "the environment variable OCM_API_KEY is not set"),
        ({"OCM_API_KEY": "  "}, "the environment variable OCM_API_KEY is not set"),
        ({"OCM_API_KEY": "a\nb"}, "OCM_API_KEY contains characters that keys cannot contain"),
    ],
)
def test_a_secret_that_is_not_there(environ: dict[str, str], problem: str) -> None:
    """A missing key must be found before the first request, not as a 401 from the provider."""
    spec = read_spec((EXAMPLES / "ocm_by_hand.toml").read_text(), "ocm.toml")
    with pytest.raises(UsageError, match=problem):
        JsonSource(spec, environ)


# -- invalid replies --


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("<!DOCTYPE html><p>We are down</p>", "answers HTML; it begins with '<!DOCTYPE html>"),
        ("", "answers nothing"),
        ('{"items": [1, 2', "answers no JSON"),
        ('{"items": NaN}', "must lead to a list (is a number)"),
        ("[" * 100_000, "answers no JSON"),
        ("\xff\xfe", "answers no JSON"),
        ("null", "$.items must lead to a list (is missing)"),
        ("[]", "$.items must lead to a list (is missing)"),
        ('{"error": "no"}', '$.items must lead to a list (is missing); it begins with \'{"error": "no"}\''),
        ('{"items": {}}', "$.items must lead to a list (is an object)"),
        ('{"items": null}', "$.items must lead to a list (is null)"),
        ('{"items": 5}', "$.items must lead to a list (is a number)"),
    ],
)
async def test_a_body_that_makes_no_sense(http: Http, it: Provider, body: str, problem: str) -> None:
    """An invalid body must never be taken for an empty page, which would end the shard."""
    source = source_at(it.url, 'records = "$.items"')
    it.answer(200, body=body.encode("latin-1"))
    with pytest.raises(WrongBody) as caught:
        await source.fetch(ALL, None, 1, http)
    assert problem in str(caught.value)
    assert isinstance(caught.value, BadReply)
    assert caught.value.sample == body[:2_000] or not body.isascii()


async def test_a_missing_list_behind_a_star_is_not_an_empty_one(http: Http, it: Provider) -> None:
    """A renamed field would otherwise look like a source without records."""
    source = source_at(it.url, 'records = "$.items[*].thing"')
    reply(it, {"items": []})
    assert (await source.fetch(ALL, None, 1, http)).raw_count == 0
    reply(it, {"item": []})
    with pytest.raises(WrongBody, match="must lead to a list"):
        await source.fetch(ALL, None, 1, http)


async def test_half_a_surrogate_pair_costs_one_record_not_the_page(http: Http, it: Provider) -> None:
    """One broken character must not stop the import of a whole page."""
    source = source_at(it.url, "")
    it.answer(200, body='\ufeff[{"id": 1, "text": "\\ud800"}, {"id": 2}]')
    assert (await source.fetch(ALL, None, 5, http)).raw_count == 2


@pytest.mark.parametrize(
    ("status", "error", "text"),
    [
        (401, SourceRefused, "answers 401"),
        (403, SourceRefused, "answers 403"),
        (400, NoSuchPage, "answers 400: why"),
        (404, NoSuchPage, "answers 404: why"),
        (301, TerminalError, "redirects to http://x/; if that is correct, set source.base_url to it"),
        (413, HeavyPage, "answers 413: why"),
        (500, HeavyPage, "answers 500: why"),
    ],
)
async def test_what_a_status_means(http: Http, it: Provider, status: int, error: type[Exception], text: str) -> None:
    """A wrong key stops the run, a page that is too large is halved, and a request that is wrong by itself is not
    repeated.
    """
    it.answer(status, {"Location": "http://x/"}, "why")
    with pytest.raises(error) as caught:
        await source_at(it.url, "").fetch(ALL, None, 1, http)
    assert type(caught.value) is error
    assert text in str(caught.value)


SPEC = read_spec((EXAMPLES / "airports.toml").read_text(), "airports.toml")


class TooSlow:
    async def request(self, method: str, url: str, **options: Any) -> Any:
        raise ReplyTimeout("30 s without a byte")


async def test_a_page_that_takes_too_long_is_too_heavy() -> None:
    """A request of the same size would take as long again."""
    with pytest.raises(HeavyPage, match=r"GET http://x/y takes too long"):
        await source_at("http://x", 'path = "y"').fetch(ALL, None, 1, TooSlow())


def test_both_sources_keep_the_port(tmp_path: Path) -> None:
    """The type checker verifies these lines."""
    source: Source = make_source(SPEC, tmp_path, {})
    assert (source.name, source.caps.page_max, source.caps.cursor) == ("airports", 500, "offset")


def test_the_limits_of_a_spec_become_a_limit() -> None:
    """Without a limit, the first run would exceed what the source allows."""
    limit = JsonSource(SPEC, {}).limit
    assert limit is not None
    assert (str(limit.definition.rates[0]), limit.definition.concurrency) == ("50/second", 4)
    assert source_at("http://x", "").limit is None


async def test_a_key_that_is_not_in_the_records(http: Http, it: Provider) -> None:
    """Without a key, the next page would start at the beginning again."""
    source = source_at(it.url, 'page = { cursor = "keyset", param = "after" }')
    reply(it, [{"ID": 1, "name": "x"}])
    with pytest.raises(BadReply, match=r"none of 1 records has the key 'id'; they have ID, name …; check resource.key"):
        await source.fetch(ALL, None, 1, http)


@pytest.mark.parametrize(
    ("resource", "body", "problem"),
    [
        ('page = { cursor = "offset", total = "$.total" }', {"items": [], "total": -1}, "must be a count (is '-1')"),
        ('page = { cursor = "token", param = "t", next = "$.t" }', {"items": [], "t": {}}, "must be text or a number"),
        ('page = { cursor = "link", next = "$.n" }', {"items": [], "n": 5}, "is not a URL: '5'"),
        (
            'page = { cursor = "keyset", param = "a" }',
            {"items": [{"id": 1}, {"id": "b"}]},
            "is a number in some records and text in others",
        ),
    ],
)
async def test_nonsense_about_the_next_page(http: Http, it: Provider, resource: str, body: Any, problem: str) -> None:
    """A guess about the next page would lose rows without an error."""
    source = source_at(it.url, f'{resource}\nrecords = "$.items"')
    reply(it, body)
    with pytest.raises(BadReply) as caught:
        await source.fetch(ALL, None, 1, http)
    assert problem in str(caught.value)


class Saying:
    """Gives every request the same answer."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def request(self, method: str, url: str, **options: Any) -> Any:
        return HttpReply(200, content=self._body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["id", "items", "total", "pages", "next", "next_cursor"]), inner, max_size=4)
    ),
    max_leaves=15,
)


@settings(max_examples=60, deadline=None)
@given(body=JSON, way=st.sampled_from(sorted(WAYS)))
async def test_whatever_a_source_answers_it_is_a_page_or_a_bad_reply(body: Any, way: str) -> None:
    """Any other exception would be a crash in the middle of a nightly run."""
    source = source_at("http://x", WAYS[way])
    try:
        page = await source.fetch(ALL, None, 3, Saying(json.dumps(body).encode()))
    except BadReply:
        return
    assert page.raw_count >= len(page.records)
    RowBuilder(SPEC.resource).build(page.records)
    verdict(source, ALL, page, 3)


# -- shards --

KEYSET = 'page = { cursor = "keyset", param = "after", start = 0, limit_param = "limit" }'


async def test_id_ranges_over_a_source_without_an_upper_end(http: Http) -> None:
    """Every record must be in exactly one range, and no range may read on into the next."""
    async with fake_api(0, listings={"things": Listing(THINGS)}) as it:
        source = source_at(f"{it.url}/keyset", f'path = "/things"\n{KEYSET}')
        found = []
        for low, high in ((1, 90), (90, 200), (200, None)):
            records = await all_of(source, http, 40, shard_with({"id": [low, high]}))
            assert all(low <= record["id"] < (high or 999) for record in records)
            found += records
        assert found == THINGS
        assert source.caps.bounds == {"id": (True, False)}
        assert len(it.arrivals) <= 3 + 3 + 3


async def test_the_end_of_a_range_is_proof_only_in_order(http: Http, it: Provider) -> None:
    """A record from beyond the range that comes too early would end the shard with most of it unread."""
    source = source_at(it.url, KEYSET)
    shard = shard_with({"id": [0, 100]})
    reply(it, [{"id": 3}, {"id": 4}, {"id": 120}])
    page = await source.fetch(shard, None, 3, http)
    assert ([record["id"] for record in page.records], page.raw_count, page.is_end) == ([3, 4], 3, True)
    reply(it, [{"id": 3}, {"id": 150}, {"id": 4}, {"id": 120}])
    page = await source.fetch(shard, None, 4, http)
    assert page.is_end is None
    assert isinstance(verdict(source, shard, page, 4), RetryPage), "the guards must see the disorder"


def verdict(source: JsonSource, shard: Shard, page: Page, limit: int) -> object:
    row = ShardRow(run="r", shard=shard, state=ShardState.RUNNING, fence=1, cursor=None)
    expected = Expectation(
        limit=limit,
        cursor=None,
        key=source.record_key,
        is_ordered=source.caps.order is not None,
        is_ours=source.is_ours(shard),
        has_next=True,
        short_page_is_end=False,
    )
    return judge_page(page, row, expected)


async def test_a_filter_that_the_source_ignores_is_noticed(http: Http, it: Provider) -> None:
    """Some sources take an unknown country for no filter and send the whole world."""
    source = source_at(it.url, 'filters.country = { param = "countries", path = "where.country" }')
    shard = shard_with({"country": ["ES", "PT"]})
    reply(it, [{"id": 1, "where": {"country": "ES"}}, {"id": 2}])
    fine = await source.fetch(shard, None, 5, http)
    reply(it, [{"id": 1, "where": {"country": "DE"}}])
    strange = await source.fetch(shard, None, 5, http)
    assert query_of(it) == {"countries": "ES,PT"}
    assert not isinstance(verdict(source, shard, fine, 5), ParkShard)
    assert isinstance(verdict(source, shard, strange, 5), ParkShard)


async def test_an_upper_end_that_the_source_has_not_is_ours(http: Http, it: Provider) -> None:
    """Records beyond the upper end are dropped and counted; records before the lower end are an error of the source."""
    source = source_at(it.url, 'filters.window = { lower = "since", path = "at", format = "iso" }')
    shard = shard_with({"window": ["2026-04-01T00:00Z", "2026-05-01T00:00Z"]})
    stamps = ["2026-04-01T00:00:00Z", "2026-04-30T23:59:59Z", "2026-05-01T00:00:00Z", None]
    reply(it, [{"id": number, "at": at} for number, at in enumerate(stamps)])
    page = await source.fetch(shard, None, 4, http)
    assert query_of(it) == {"since": "2026-04-01T00:00:00Z"}
    assert ([record["id"] for record in page.records], page.raw_count) == ([0, 1, 3], 4)
    reply(it, [{"id": 9, "at": "2026-03-31T23:59:59Z"}])
    early = await source.fetch(shard, None, 4, http)
    assert isinstance(verdict(source, shard, early, 4), ParkShard)


@pytest.mark.parametrize(
    ("ends", "asked", "kept"),
    [
        ('lower = "a", upper = "z"', {"a": "10", "z": "20"}, [10, 19]),
        ('lower = "a", upper = "z", lower_is = "exclusive"', {"a": "9", "z": "20"}, [10, 19]),
        ('lower = "a", upper = "z", upper_is = "inclusive"', {"a": "10", "z": "20"}, [10, 19]),
        ('upper = "z"', {"z": "20"}, [10, 19]),
    ],
)
async def test_whether_an_end_belongs_to_a_range(
    http: Http, it: Provider, ends: str, asked: dict[str, str], kept: list[int]
) -> None:
    """Shards are half-open, and sources include either end. A record on a border must be in one shard, not in two or
    none.
    """
    source = source_at(it.url, f'filters.n = {{ {ends}, path = "n" }}')
    reply(it, [{"id": n, "n": n} for n in (10, 19, 20)])
    page = await source.fetch(shard_with({"n": [10, 20]}), None, 5, http)
    assert query_of(it) == asked
    assert [record["id"] for record in page.records] == kept


@pytest.mark.parametrize(
    ("format", "since", "until"),
    [
        ("iso", "2026-04-01T12:00:00Z", "2026-05-01T12:00:00Z"),
        ("plain", "2026-04-01T12:00:00Z", "2026-05-01T12:00:00Z"),
        ("date", "2026-04-01", "2026-05-02"),
        ("epoch", "1775044800", "1777636800"),
        ("epoch_ms", "1775044800000", "1777636800000"),
    ],
)
async def test_instants_are_written_as_the_source_wants_them(
    http: Http, it: Provider, format: str, since: str, until: str
) -> None:
    """A source that knows only days must be asked for at least the whole window."""
    source = source_at(it.url, f'filters.window = {{ lower = "s", upper = "u", format = "{format}", path = "at" }}')
    reply(it, [])
    await source.fetch(shard_with({"window": ["2026-04-01T12:00Z", "2026-05-01T12:00Z"]}), None, 5, http)
    assert query_of(it) == {"s": since, "u": until}


async def test_a_part_that_the_spec_does_not_know(http: Http, it: Provider) -> None:
    """Without its filter, the request would return everything."""
    source = source_at(it.url, 'filters.country = { param = "c" }')
    with pytest.raises(BadValue, match=r"predicate: the source has no filter 'box' \(it has country\)"):
        await source.fetch(shard_with({"box": [1, 2, 3, 4]}), None, 5, http)
    assert it.arrivals == []


# -- the examples --


async def test_open_charge_map_by_its_spec_alone(http: Http) -> None:
    """The example spec must import the rows of the fake API, in ranges of ids."""
    async with fake_api(3_000) as it:
        text = (EXAMPLES / "ocm_by_hand.toml").read_text().replace("https://api.openchargemap.io", it.url)
        source = JsonSource(read_spec(text, "ocm.toml"), {"OCM_API_KEY": API_KEY})
        probe = await source.probe(http)
        assert probe.id_max is not None
        assert probe.server_time is not None
        assert "210" in probe.values["country"]
        half = probe.id_max // 2
        found = []
        for low, high in ((0, half), (half, None)):
            found += await all_of(source, http, 1_000, shard_with({"id": [low, high]}))
        ids = [record["ID"] for record in found]
        assert len(ids) == 3_000
        assert ids == sorted(set(ids))
        spain = await all_of(source, http, 1_000, shard_with({"country": ["210"]}))
        assert spain
        assert {record["AddressInfo"]["CountryID"] for record in spain} == {210}


async def test_airports_by_their_spec_alone(http: Http) -> None:
    """A second, different API: an envelope, pages by offset, and text as keys."""
    airports = [{"icao": f"X{number:03}", "name": "x", "country": "ES", "lat": 1, "lon": 2} for number in range(1_234)]
    async with fake_api(0, listings={"airports": Listing(airports, key="icao")}) as it:
        text = (EXAMPLES / "airports.toml").read_text().replace("http://127.0.0.1:8899", it.url)
        source = JsonSource(read_spec(text, "airports.toml"), {})
        assert (await source.probe(http)).rows == 1_234
        assert await all_of(source, http, 500) == airports
        assert len(it.arrivals) == 1 + 3


# -- before the first page --


async def test_what_the_spec_refers_to_is_asked_for_once(http: Http, it: Provider) -> None:
    """Each extra request counts against the provider's limit."""
    source = source_at(
        it.url,
        f'{KEYSET}\npartition = {{ by = "id_range", size = 10, upper = "/about#$.max" }}\n'
        'filters.country = { param = "c", values_from = "/about#$.countries[*].code" }',
    )
    reply(
        it, {"max": 99, "countries": [{"code": "ES"}, {"code": "PT"}, {"code": "ES"}, {"code": None}]}, {"Date": DATE}
    )
    probe = await source.probe(http)
    assert (probe.id_max, probe.values, probe.server_time) == (99, {"country": ["ES", "PT"]}, 1_775_001_600_000_000)
    assert [arrival.path for arrival in it.arrivals] == ["/about"]


DATE = "Wed, 01 Apr 2026 00:00:00 GMT"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"max": "many", "countries": [{"code": 1}]}, "must lead to an integer (leads to 'many')"),
        ({"countries": [{"code": 1}]}, "must lead to an integer (leads to nothing)"),
        ({"max": 5, "countries": []}, "leads to 0 values"),
    ],
)
async def test_a_reference_that_leads_nowhere(http: Http, it: Provider, body: Any, problem: str) -> None:
    """Without countries, the plan would have no shards, and an import of nothing would be complete."""
    source = source_at(
        it.url,
        f'{KEYSET}\npartition = {{ by = "id_range", size = 10, upper = "/about#$.max" }}\n'
        'filters.country = { param = "c", values_from = "/about#$.countries[*].code" }',
    )
    reply(it, body)
    with pytest.raises(BadReply) as caught:
        await source.probe(http)
    assert problem in str(caught.value)
