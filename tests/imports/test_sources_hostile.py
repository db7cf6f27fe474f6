"""Sources that loop, send wrong data, respond slowly or send huge replies: a shard ends with all its rows or with a
reason, and the source gets no more requests than necessary.
"""

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.imports.apps import import_app
from tests.sqlite_files import open_sqlite

from leaseway import aiohttp_transport
from leaseway.imports.domain.partition import make_shard
from leaseway.imports.domain.run_state import RunState, ShardRow, ShardState
from leaseway.imports.run.assembly import ImportParts, load_import
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.start import start_planned
from leaseway.imports.sources.paging import KeysetPager
from leaseway.imports.spec.model import KeysetPaging
from leaseway.system import wall_clock_us

SPEC = """
version = 1
[source]
name = "evil"
base_url = "{url}"
{auth}
[resource]
path = "/things"
records = "$.items"
key = "id"
page = {page}
[sink]
url = "sqlite:///{folder}/data.db"
table = "things"
"""
LINK = '{ cursor = "link", next = "$.next", limit = 10 }'
OFFSET = '{ cursor = "offset", limit = 10 }'
KEYSET = '{ cursor = "keyset", param = "after", start = 0, limit = 10 }'
TIMEOUT_SECONDS = 20


class Reply(NamedTuple):
    body: Any = None
    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed

    def sent(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        headers = {"content-type": "application/json", "connection": "close", **self.headers}
        lines = [f"{name}: {value}" for name, value in headers.items()]
        return (
            "\r\n".join([f"HTTP/1.1 {self.status} X", *lines, f"content-length: {len(body)}", "", ""]).encode() + body
        )


Answers = Callable[[dict[str, str]], Reply]


class Provider:
    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.asked: list[dict[str, str]] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        query = {name: values[0] for name, values in parse_qs(urlsplit(head.split()[1]).query).items()}
        self.asked.append(query)
        writer.write(self._answers(query).sent())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def provider(answers: Answers) -> AsyncIterator[Provider]:
    it = Provider(answers)
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    it.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield it


class Outcome(NamedTuple):
    state: RunState
    row: ShardRow
    ids: list[str]


async def imported(it: Provider, folder: Path, page: str, auth: str = "", **options: Any) -> Outcome:
    """Import with one worker, until no job is left."""
    path = folder / "evil.toml"
    path.write_text(SPEC.format(url=it.url, page=page, folder=folder, auth=auth), "utf-8")
    parts = load_import(path)
    await parts.sink.open()
    try:
        return await worked(parts, folder, **options)
    finally:
        await parts.sink.close()


async def worked(parts: ImportParts, folder: Path, **options: Any) -> Outcome:
    app, handle = import_app(parts, f"sqlite:///{folder}/jobs.db")
    async with app, asyncio.timeout(TIMEOUT_SECONDS):
        await start_planned(parts, handle, "run", [make_shard("evil", "all", {})], wall_clock_us(), **options)
        await app.run_worker(queues=[parts.queue], until_empty=True)
        state = await finish_run(parts, "run")
    (row,) = await parts.sink.shards.find_all("run")
    with open_sqlite(folder / "data.db") as file:
        ids = [id_ for (id_,) in file.execute("SELECT external_id FROM things ORDER BY rowid")]
    return Outcome(state, row, ids)


def things(*ids: Any) -> list[dict[str, Any]]:
    return [{"id": id_} for id_ in ids]


async def test_links_that_lead_around_without_a_record_are_parked(tmp_path: Path) -> None:
    """Empty pages may be correct as long as each leads to a new one; in a circle they would continue for a hundred
    thousand requests.
    """

    def answers(query: dict[str, str]) -> Reply:
        number = int(query.get("page", "0"))
        return Reply({"items": things(1, 2) if number == 0 else [], "next": f"/things?page={number % 3 + 1}"})

    async with provider(answers) as it:
        outcome = await imported(it, tmp_path, LINK)
    assert (outcome.state, outcome.row.state) == (RunState.PARTIAL, ShardState.PARKED)
    assert outcome.row.guards == {"repeated_page": 1}
    assert len(it.asked) < 10
    assert outcome.ids == ["1", "2"]


async def test_empty_pages_that_lead_on_are_followed(tmp_path: Path) -> None:
    """A filter that matches nothing in a part of a table gives an empty page with a link to the next one."""

    def answers(query: dict[str, str]) -> Reply:
        number = int(query.get("page", "0"))
        items = things(number) if number in (0, 30) else []
        return Reply({"items": items, "next": f"/things?page={number + 1}" if number < 30 else None})

    async with provider(answers) as it:
        outcome = await imported(it, tmp_path, LINK)
    assert (outcome.state, outcome.ids) == (RunState.COMPLETE, ["0", "30"])


async def test_a_run_with_a_budget_waits_as_long_as_the_provider_asks(tmp_path: Path) -> None:
    """Where each request is paid for, an immediate retry after a refusal wastes money."""
    closed_until = 0.0
    too_early = 0

    def answers(query: dict[str, str]) -> Reply:
        nonlocal closed_until, too_early
        now = asyncio.get_running_loop().time()
        if not closed_until:
            closed_until = now + 0.9
            return Reply({}, 429, {"retry-after": "1"})
        if now < closed_until:
            too_early += 1
            return Reply({}, 429, {"retry-after": "1"})
        return Reply({"items": things(1), "next": None})

    async with provider(answers) as it:
        outcome = await imported(it, tmp_path, LINK, requests_max=50)
    assert (outcome.state, outcome.ids) == (RunState.COMPLETE, ["1"])
    assert too_early == 0
    assert outcome.row.guards == {"throttled": 1}


async def test_a_small_reply_that_unpacks_to_gigabytes_is_asked_for_in_smaller_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the reply would exhaust the memory of one worker after another, fifty times."""
    monkeypatch.setattr(aiohttp_transport, "REPLY_BYTES_MAX", 1_000_000)
    bomb = gzip.compress(b'{"items": []' + b" " * 100_000_000 + b"}", 9)
    assert len(bomb) < 200_000

    def answers(query: dict[str, str]) -> Reply:
        if int(query["limit"]) > 40:
            return Reply(bomb, headers={"content-encoding": "gzip"})
        return Reply({"items": things(1), "next": None})

    async with provider(answers) as it:
        page = LINK.replace("limit = 10", 'limit = 80, limit_param = "limit", limit_min = 10')
        tracemalloc.start()
        outcome = await imported(it, tmp_path, page)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (outcome.state, outcome.ids) == (RunState.COMPLETE, ["1"])
    assert outcome.row.guards == {"heavy_page": 1}
    assert peak_bytes < 50_000_000


@pytest.mark.parametrize("key", [2**63, 2**64, "9" * 25])
async def test_a_key_that_no_column_holds_is_a_key_as_any_other(tmp_path: Path, key: Any) -> None:
    """Providers use ids above 64 bits, and an overflow would stop the whole shard."""

    def answers(query: dict[str, str]) -> Reply:
        found = [each for each in things(1, 2, key) if int(each["id"]) > int(query["after"])]
        return Reply({"items": found[:10]})

    async with provider(answers) as it:
        outcome = await imported(it, tmp_path, KEYSET)
    assert (outcome.state, outcome.ids) == (RunState.COMPLETE, ["1", "2", str(key)])


def test_a_key_with_more_digits_than_a_number_may_have_is_no_key() -> None:
    """Python refuses to parse such a number, and its page would fail for ever; instead the row is bad, because its key
    is too long.
    """
    pager = KeysetPager(KeysetPaging(param="after", start=0), "id")
    assert pager.record_key({"id": "9" * 5_000}) is None
    assert pager.record_key({"id": "0042"}) == 42


async def test_a_redirection_tells_nobody_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A redirect repeats the whole URL, and its error is stored, logged and shown."""
    monkeypatch.setenv("EVIL_KEY", "s3cret")

    def answers(query: dict[str, str]) -> Reply:
        return Reply({}, 301, {"location": f"http://elsewhere/things?key={query['key']}"})

    async with provider(answers) as it:
        outcome = await imported(it, tmp_path, LINK, auth='auth = { param = "key", env = "EVIL_KEY" }')
    assert (outcome.state, it.asked[0]["key"]) == (RunState.PARTIAL, "s3cret")
    assert "redirects to http://elsewhere/things;" in str(outcome.row.why)
    assert "s3cret" not in str(outcome.row.why)
