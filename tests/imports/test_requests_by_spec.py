"""What a spec can say about requests and replies: GraphQL, links by relation, headers, statuses, logins."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from tests.imports.test_sources_hostile import Reply
from tests.provider_http.fake_admission import Place

from leaseway.aiohttp_transport import AiohttpTransport
from leaseway.domain.errors import TerminalError, UsageError
from leaseway.imports.domain.page import Page
from leaseway.imports.domain.partition import Cursor, make_shard
from leaseway.imports.sources.http_json import JsonSource
from leaseway.imports.sources.port import BadReply, SourceBusy, SourceRefused
from leaseway.imports.spec.reader import BadSpec, read_spec
from leaseway.worker.provider_http import Http

RECORDS = [{"id": number} for number in range(1, 26)]
ALL = make_shard("things", "all", {})
PAGES_MAX = 50


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Api:
    def __init__(self, answers: Callable[[Request], Reply]) -> None:
        self._answers = answers
        self.asked: list[Request] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = lines[0].split()
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path = urlsplit(target)
        self.asked.append(Request(method, path.path, dict(parse_qsl(path.query)), headers, body))
        writer.write(self._answers(self.asked[-1]).sent())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def api(answers: Callable[[Request], Reply]) -> AsyncIterator[Api]:
    it = Api(answers)
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    it.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield it


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    place = Place(AiohttpTransport(verify=False))
    yield place.http()
    await place.wire.close()


def spec_text(url: str, resource: str, source: str = "") -> str:
    return f"""
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


def source_at(url: str, resource: str, source: str = "", **environ: str) -> JsonSource:
    return JsonSource(read_spec(spec_text(url, resource, source), "import.toml"), environ)


async def ids_of(source: JsonSource, http: Http) -> list[int]:
    cursor: Cursor | None = None
    found: list[int] = []
    for _ in range(PAGES_MAX):
        page = await source.fetch(ALL, cursor, 10, http)
        found += [record["id"] for record in page.records]
        if page.next is None:
            assert page.is_end
            return found
        cursor = json.loads(json.dumps(page.next))
    raise AssertionError("it never ends")


IDS = [record["id"] for record in RECORDS]


# -- requests with a body ---------------------------------------------------------------------------------------------

GRAPHQL = """
method = "POST"
records = "$.data.things.nodes"
body = { query = "query($n: Int, $after: String) { things(first: $n, after: $after) { nodes { id } } }" }
[resource.page]
cursor = "token"
param = "$.variables.after"
limit_param = "$.variables.n"
limit = 10
next = "$.data.things.pageInfo.endCursor"
more = "$.data.things.pageInfo.hasNextPage"
"""


def graphql(request: Request) -> Reply:
    """A Relay connection."""
    variables = request.json["variables"]
    start = int(variables.get("after", 0))
    end = start + variables["n"]
    info = {"endCursor": str(end), "hasNextPage": end < len(RECORDS)}
    assert request.json["query"].startswith("query(")
    return Reply({"data": {"things": {"nodes": RECORDS[start:end], "pageInfo": info}}})


async def test_a_graphql_connection_is_read_by_its_cursor(http: Http) -> None:
    """GraphQL has one URL and takes the cursor in the body, where no query parameter reaches."""
    async with api(graphql) as it:
        assert await ids_of(source_at(it.url, GRAPHQL), http) == IDS
    assert {request.method for request in it.asked} == {"POST"}
    assert it.asked[0].query == {}
    assert it.asked[0].json["variables"] == {"n": 10}


SEARCH = """
method = "POST"
path = "/_search"
records = "$.hits.hits[*]"
body = { sort = [{ id = "asc" }] }
page = { cursor = "token", param = "$.search_after", limit_param = "$.size", limit = 10, next = "$.hits.hits[-1].sort" }
"""


async def test_a_search_continues_after_the_sort_values_of_the_last_hit(http: Http) -> None:
    """The cursor of Elasticsearch is a list, and it is in the last record of the page."""

    def answers(request: Request) -> Reply:
        after = request.json.get("search_after", [0])[0]
        hits = [{**each, "sort": [each["id"]]} for each in RECORDS if each["id"] > after][: request.json["size"]]
        return Reply({"hits": {"hits": hits}})

    async with api(answers) as it:
        source = source_at(it.url, SEARCH)
        page = await source.fetch(ALL, {"token": [20]}, 10, http)
        assert [record["id"] for record in page.records] == [21, 22, 23, 24, 25]
        assert page.next == {"token": [25]}
        empty = await source.fetch(ALL, page.next, 10, http)
    assert (empty.is_empty, empty.next) == (True, None)


# -- where the next page is said --------------------------------------------------------------------------------------


async def test_a_link_is_found_by_its_relation(http: Http) -> None:
    """Every OGC API has a list of links, in any order, and on the last page none with this relation."""

    def answers(request: Request) -> Reply:
        start = int(request.query.get("offset", 0))
        onward = [{"rel": "next", "href": f"/things?offset={start + 10}"}] if start + 10 < len(RECORDS) else []
        return Reply({"features": RECORDS[start : start + 10], "links": [{"rel": "self", "href": "/x"}, *onward]})

    page = """
    path = "/things"
    records = "$.features"
    page = { cursor = "link", next = "$.links[?rel=='next'].href", limit = 10 }
    """
    async with api(answers) as it:
        assert await ids_of(source_at(it.url, page), http) == IDS


async def test_an_empty_list_of_links_states_the_end(http: Http) -> None:
    """Every empty box of such a source cost two confirmations."""
    async with api(lambda request: Reply({"features": [], "links": []})) as it:
        page = 'records = "$.features"\npage = { cursor = "link", next = "$.links[?rel==\'next\'].href" }'
        found = await source_at(it.url, page).fetch(ALL, None, 10, http)
    assert (found.is_end, found.next) == (True, None)


async def test_cursor_and_total_may_be_in_headers(http: Http) -> None:
    """GitLab says Next-Page, json-server X-Total-Count, and their bodies are bare lists."""

    def answers(request: Request) -> Reply:
        number = int(request.query.get("page", 1))
        following = str(number + 1) if number * 10 < len(RECORDS) else ""
        said = {"X-Next-Page": following, "X-Total-Count": str(len(RECORDS))}
        return Reply(RECORDS[(number - 1) * 10 : number * 10], 200, said)

    async with api(answers) as it:
        token = 'page = { cursor = "token", param = "page", next = "header:x-next-page", limit = 10 }'
        assert await ids_of(source_at(it.url, token), http) == IDS
        pages = 'page = { cursor = "page", limit_param = "n", limit = 10, total = "header:X-Total-Count" }'
        assert await ids_of(source_at(it.url, pages), http) == IDS
        assert (await source_at(it.url, pages).probe(http)).rows == 25


async def test_a_link_to_a_trusted_origin_is_followed(http: Http) -> None:
    """Behind a proxy, a server writes links with its inner scheme or host, and no import of it could go on."""

    def answers(request: Request) -> Reply:
        is_first = not request.query
        onward = f"http://localhost:{urlsplit(it.url).port}/?p=2" if is_first else None
        return Reply({"items": RECORDS[:10] if is_first else RECORDS[10:], "next": onward})

    page = 'records = "$.items"\npage = { cursor = "link", next = "$.next" }'
    async with api(answers) as it:
        with pytest.raises(BadReply, match=r"add it to source\.trusted"):
            await source_at(it.url, page).fetch(ALL, None, 10, http)
        trusted = f'trusted = ["http://localhost:{urlsplit(it.url).port}"]'
        assert await ids_of(source_at(it.url, page, trusted), http) == IDS


# -- filters, statuses ------------------------------------------------------------------------------------------------


async def test_an_interval_is_one_parameter(http: Http) -> None:
    """OGC APIs take both ends of a time in one parameter, with two dots for an open end."""
    window = """
    filters = { window = { param = "datetime", interval = "{from}/{to}", format = "iso", path = "at" } }
    page = { cursor = "none" }
    """
    low, high = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
    inside, after = {"id": 1, "at": "2026-01-05T00:00:00Z"}, {"id": 2, "at": high}
    async with api(lambda request: Reply([inside, after])) as it:
        source = source_at(it.url, window)
        page: Page = await source.fetch(make_shard("things", "w", {"window": [low, high]}), None, 10, http)
        await source.fetch(make_shard("things", "w", {"window": [low, None]}), None, 10, http)
    assert [request.query["datetime"] for request in it.asked] == [f"{low}/{high}", f"{low}/.."]
    assert page.records == [inside], "the other end belongs to the next window"
    assert source.caps.bounds["window"] == (True, True)


@pytest.mark.parametrize(
    ("action", "error"), [("retry", SourceBusy), ("park", TerminalError), ("fail", SourceRefused), ("end", None)]
)
async def test_a_status_means_what_the_spec_says(http: Http, action: str, error: type[Exception] | None) -> None:
    """Some sources say 409 for "come again" or 204 for "nothing more", and no table of statuses fits all."""
    async with api(lambda request: Reply(b"", 409)) as it:
        source = source_at(it.url, f'statuses = {{ 409 = "{action}" }}')
        if error is None:
            assert (await source.fetch(ALL, None, 10, http)).is_end
            return
        with pytest.raises(error):
            await source.fetch(ALL, None, 10, http)


# -- credentials ------------------------------------------------------------------------------------------------------


async def test_basic_authentication_sends_user_and_password(http: Http) -> None:
    """The header is an encoding of both, which nobody should have to write into a variable."""
    async with api(lambda request: Reply([])) as it:
        source = source_at(it.url, "", 'auth = { user = "me", env = "PASSWORD" }', PASSWORD="s3cr3t: ä"[:7])
        await source.fetch(ALL, None, 10, http)
    assert it.asked[0].headers["authorization"] == "Basic " + base64.b64encode(b"me:s3cr3t:").decode()


async def test_a_secret_may_be_in_a_file(http: Http, tmp_path: Path) -> None:
    """Orchestrators mount secrets as files, and a variable is visible in the list of processes."""
    (tmp_path / "key").write_text("s3cr3t\n")
    auth = f'auth = {{ header = "X-Key", file = "{tmp_path}/key" }}'
    async with api(lambda request: Reply([])) as it:
        await source_at(it.url, "", auth).fetch(ALL, None, 10, http)
        assert it.asked[0].headers["x-key"] == "s3cr3t"
        (tmp_path / "key").unlink()
        with pytest.raises(UsageError, match=r"source\.auth\.file"):
            source_at(it.url, "", auth)


FORM = {"grant_type": "client_credentials", "client_id": "me", "client_secret": "s3cr3t", "scope": "r"}


async def test_a_token_is_requested_once_and_again_after_a_refusal(http: Http) -> None:
    """A token expires in the middle of an import, and a request for every page would be a second import."""
    count = 0

    def answers(request: Request) -> Reply:
        nonlocal count
        if request.path == "/token":
            count += 1
            form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
            assert form == FORM
            return Reply({"access_token": f"token-{count}", "expires_in": 3600})
        is_valid = request.headers["authorization"] == f"Bearer token-{max(count, least)}"
        return Reply([]) if is_valid else Reply("no", 401)

    least = 1
    async with api(answers) as it:
        auth = f'auth = {{ token_url = "{it.url}/token", client_id = "me", scope = "r", env = "SECRET" }}'
        source = source_at(it.url, "", auth, SECRET="s3cr3t")
        for _ in range(3):
            await source.fetch(ALL, None, 10, http)
        assert count == 1
        least = 2  # the first token does not work any more
        await source.fetch(ALL, None, 10, http)
        assert count == 2
        assert "token-2" not in source._redactor("echo token-2")
        least = 9
        with pytest.raises(SourceRefused):
            await source.fetch(ALL, None, 10, http)


# -- mistakes ---------------------------------------------------------------------------------------------------------

MISTAKES = {
    "a path without a body": ('page = { cursor = "token", param = "$.a", next = "n" }', "", "resource.page.param"),
    "a body without POST": ("body = { a = 1 }", "", "resource.body"),
    "a path into a list": ('method = "POST"\nparams = { "$.a[0]" = 1 }', "", "path of names"),
    "an unknown action": ('statuses = { 404 = "ignore" }', "", "resource.statuses.404: must be one of end"),
    "no status": ('statuses = { gone = "end" }', "", "resource.statuses.gone"),
    "an interval of one end": ('filters = { window = { param = "d", interval = "{from}" } }', "", "{from} and {to}"),
    "two places of a secret": ("", 'auth = { header = "K", env = "A", file = "b" }', "either env or file"),
    "no place of a secret": ("", 'auth = { header = "K" }', "source.auth.env: is missing"),
    "a client without an id": ("", 'auth = { token_url = "https://x.example/", env = "A" }', "token_url and client_id"),
    "a trusted path": ("", 'trusted = ["https://x.example/a"]', "source.trusted[0]"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_before_the_first_request(mistake: str) -> None:
    """A field that is silently ignored would be found in the rows, weeks later."""
    resource, source, expected = MISTAKES[mistake]
    with pytest.raises(BadSpec) as caught:
        read_spec(spec_text("https://api.example", resource, source), "import.toml")
    assert expected in str(caught.value)
