"""A spec that can never work is refused by the plan, with the field to change and after at most three requests."""

from pathlib import Path

import pytest
from tests.imports.test_sources_hostile import Reply, provider

from leaseway.cli.commands.imports.plan import Prospect, prospect
from leaseway.domain.errors import UsageError
from leaseway.imports.run.assembly import load_import

SPEC = """
version = 1
[source]
name = "shop"
base_url = "URL"
auth = { header = "X-Key", env = "SHOP_KEY" }
[resource]
path = "/orders"
records = "$.data"
key = "id"
stamp = { field = "changed" }
[resource.page]
cursor = "offset"
limit_param = "limit"
limit = 10
total = "$.total"
[resource.columns]
size = { path = "size", type = "integer" }
[sink]
url = "sqlite:///FOLDER/data.db"
table = "orders"
"""
KEY = "good-key"
ORDERS = [
    {"id": number, "changed": f"2026-01-{number:02}T00:00:00Z", "size": number, "who": {"name": "x"}, "word": "a few"}
    for number in range(1, 28)
]


def answers(query: dict[str, str]) -> Reply:
    start, limit = int(query.get("offset", 0)), int(query.get("limit", 10))
    page = ORDERS[start : start + limit]
    page = page[::-1] if query.get("sort") == "desc" else page
    return Reply({"data": page, "total": len(ORDERS), "word": "many", "next": "ftp://elsewhere/", "none": None})


async def planned(folder: Path, text: str, key: str = KEY, reply: Reply | None = None) -> tuple[Prospect, int]:
    """The plan, and how many requests it needed."""
    async with provider(lambda query: reply or answers(query)) as it:
        path = folder / "shop.toml"
        path.write_text(text.replace("URL", it.url).replace("FOLDER", str(folder)), "utf-8")
        try:
            found = await prospect(load_import(path, {"SHOP_KEY": key}), None, None)
        except UsageError as error:
            found = Prospect(None, None, [str(error)])
        return found, len(it.asked)


async def test_a_good_spec_shows_its_first_rows(tmp_path: Path) -> None:
    """A plan that refuses good specs would be skipped, and three rows show what no check can know."""
    found, requests = await planned(tmp_path, SPEC)
    assert (found.refusals, list(found.tried.warnings)) == ([], [])
    assert [(row.external_id, row.values["size"]) for row in found.tried.rows] == [("1", 1), ("2", 2), ("3", 3)]
    assert requests <= 2


PAGE = SPEC[SPEC.index("[resource.page]") : SPEC.index("[resource.columns]")]
KEYSET = '[resource.page]\ncursor = "keyset"\nparam = "after"\nlimit = 10\nlimit_param = "limit"\n'
MISTAKES = {
    "an unknown field": ('path = "/orders"', 'path = "/orders"\nretries = 3', "unknown key 'retries'"),
    "a misspelt cursor": ('cursor = "offset"', 'cursor = "ofset"', "resource.page.cursor: must be one of"),
    "no key": ('key = "id"\n', "", "resource.key: is missing"),
    "records elsewhere": ('records = "$.data"', 'records = "$.items"', "resource.records: $.items must lead to a list"),
    "records that are no list": ('records = "$.data"', 'records = "$.word"', "resource.records: $.word must lead to"),
    "records that are no objects": ('records = "$.data"', 'records = "$.data[*].id"', "resource.records: no record"),
    "a key of another name": ('key = "id"', 'key = "uuid"', "resource.key: no record of a page has 'uuid'"),
    "a key that is an object": ('key = "id"', 'key = "who"', "its key must be text or an integer"),
    "a stamp of another name": ('"changed" }', '"updated" }', "bad_stamp"),
    "a stamp that is no time": ('"changed" }', '"word" }', "is not a timestamp"),
    "a stamp in another format": ('"changed" }', '"changed", format = "epoch" }', "is not a timestamp"),
    "a column of another type": ('"size", type', '"word", type', "size: must be an integer (is 'a few')"),
    "a total that is text": ('"$.total"', '"$.word"', "resource.page: $.word must be a count"),
    "a total elsewhere": ('"$.total"', '"$.meta.total"', "resource.page: $.meta.total must lead to a count"),
    "a key that is not sorted": (PAGE, KEYSET + 'fixed = { sort = "desc" }\n', "resource.key: record"),
    "a link to another host": (PAGE, '[resource.page]\ncursor = "link"\nnext = "$.next"\n', "leads to another server"),
    "a token that is a table": (
        PAGE,
        '[resource.page]\ncursor = "token"\nparam = "t"\nnext = "$.data[0].who"\n',
        "the token of the next page must be text or a number",
    ),
    "no paging, and a full page": (
        PAGE,
        '[resource.page]\ncursor = "none"\nlimit_param = "limit"\nlimit = 10\n',
        "resource.page: a full",
    ),
    "a partition without its filter": (
        'key = "id"',
        'key = "id"\npartition = { by = "window", start = "2026-01-01", step = "7d" }',
        "filters.window",
    ),
    "an upper id elsewhere": (
        'key = "id"',
        'key = "id"\nfilters = { id = { lower = "a", upper = "b" } }\n'
        'partition = { by = "id_range", size = 10, upper = "/orders#$.word" }',
        "resource.partition.upper: /orders#$.word must lead to an integer",
    ),
    "a sink in no folder": ("FOLDER/data.db", "FOLDER/nowhere/data.db", "sink.url: there is no folder"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_in_a_spec_is_named(tmp_path: Path, mistake: str) -> None:
    """Otherwise thousands of requests are sent before somebody reads the log."""
    old, new, expected = MISTAKES[mistake]
    assert SPEC.count(old) == 1
    found, requests = await planned(tmp_path, SPEC.replace(old, new))
    assert expected in "\n".join(found.refusals)
    assert requests <= 3


REPLIES = {
    "a wrong path": (Reply({"detail": "Not found"}, 404), "check source.base_url, resource.path"),
    "a wrong key": (Reply({"detail": "Forbidden"}, 403), "check source.auth"),
    "a moved source": (Reply(b"", 301, {"location": "https://other.example/"}), "set source.base_url to it"),
    "a page for browsers": (Reply(b"<html></html>", 200, {"content-type": "text/html"}), "answers HTML"),
    "an ignored page size": (Reply({"data": ORDERS, "total": 27}), "resource.page.limit_param"),
}


@pytest.mark.parametrize("mistake", REPLIES)
async def test_a_reply_that_shows_a_mistake_is_explained(tmp_path: Path, mistake: str) -> None:
    """These replies are the same for every request, so repeating them helps nobody."""
    reply, expected = REPLIES[mistake]
    text = SPEC.replace('cursor = "offset"', 'cursor = "page"') if "ignored" in mistake else SPEC
    found, requests = await planned(tmp_path, text, reply=reply)
    assert expected in "\n".join(found.refusals)
    assert requests <= 3


async def test_a_path_that_no_record_has_is_a_warning(tmp_path: Path) -> None:
    """It may be a typing error, or a field that the source leaves out where it is empty."""
    found, _ = await planned(tmp_path, SPEC.replace('{ path = "size"', '{ path = "sise"'))
    assert found.refusals == []
    assert "resource.columns.size.path: no record of the first page has 'sise'" in str(found.tried.warnings)


async def test_a_missing_secret_is_named_without_a_request(tmp_path: Path) -> None:
    """A request with an empty key may count as an attack."""
    found, requests = await planned(tmp_path, SPEC, key="")
    assert "source.auth.env" in "\n".join(found.refusals)
    assert requests == 0
