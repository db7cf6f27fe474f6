"""`import init` writes a spec that `import plan` accepts, whatever the API's paging."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.imports.cli_fixtures import Desk, at_desk

from leaseway.imports.spec.guess_spec import ApiReply, column_name, guess_spec
from leaseway.imports.spec.openapi_sample import sample_reply
from leaseway.imports.spec.reader import Spec, read_spec
from leaseway.testing.fake_open_charge_map import Listing, fake_api

ORDERS = [
    {"orderId": number, "name": "same", "updatedAt": "2026-01-01T00:00:00Z", "paid": number % 2 == 0, "sum": number / 4}
    for number in range(1, 251)
]
STYLES = {
    "offset": ("offset=0&limit=50", "offset"),
    "page": ("page=1&per_page=50", "page"),
    "link": ("limit=50", "link"),
    "token": ("limit=50", "token"),
    "keyset": ("after=0&limit=50", "keyset"),
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return at_desk(tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("style", STYLES)
async def test_the_plan_accepts_what_was_guessed(desk: Desk, style: str) -> None:
    """A first spec that has to be corrected before anything works teaches the wrong things."""
    query, cursor = STYLES[style]
    async with fake_api(0, listings={"orders": Listing(ORDERS, key="orderId")}) as it:
        text = (await asyncio.to_thread(desk.ok, "init", f"{it.url}/{style}/orders?{query}")).out
        desk.spec.write_text(text, "utf-8")
        told = (await asyncio.to_thread(desk.ok, "plan", "things.toml", "--json")).json
    spec = read_spec(text, "guessed")
    assert (spec.resource.page.kind, spec.resource.key, spec.resource.page.limit) == (cursor, "orderId", 50)
    assert spec.resource.stamp is not None
    assert spec.resource.stamp.field == "updatedAt"
    assert {name: column.type.value for name, column in spec.resource.columns.items()} == {
        "order_id": "integer", "name": "text", "updated_at_": "timestamp", "paid": "boolean", "sum": "real",
    }  # fmt: skip
    assert [row["key"] for row in told["first_rows"]] == ["1", "2", "3"]
    assert told["warnings"] == []


def guessed(body: Any, url: str = "https://api.example/orders", **headers: str) -> Spec:
    return read_spec(guess_spec(ApiReply(url, body, headers), "orders"), "guessed")


def test_the_records_are_the_longest_list() -> None:
    """Replies contain other lists, too: links, facets, messages."""
    body = {"links": [{"rel": "self", "href": "/"}] * 9, "tags": [{"a": 1}], "data": {"rows": [{"id": 1}, {"id": 2}]}}
    assert guessed(body).resource.records == "$.data.rows"


def test_a_reply_without_records_is_refused(desk: Desk, tmp_path: Path) -> None:
    """A spec without records would be a guess about nothing."""
    (tmp_path / "answer.json").write_text('{"status": "ok"}')
    told = desk.run("init", str(tmp_path / "answer.json"))
    assert told.code == 2
    assert "contains no list of objects" in told.err


def test_a_parameter_that_is_no_paging_is_kept() -> None:
    """The URL may select a part of the source, and a spec without it would import everything."""
    found = guessed([{"id": 1}], "https://api.example/orders?state=open&offset=0")
    assert found.resource.params == {"state": "open"}


@pytest.mark.parametrize(
    ("name", "column"), [("updatedAt", "updated_at"), ("1st", "c_1st"), ("Größe", "gr_e"), ("é", "c_")]
)
def test_any_field_name_becomes_a_column_name(name: str, column: str) -> None:
    """A spec with an invalid column name is refused as a whole."""
    assert column_name(name) == column


OPENAPI = {
    "openapi": "3.1.0",
    "servers": [{"url": "/v1"}],
    "paths": {
        "/orders": {
            "get": {
                "parameters": [{"name": "page_token", "in": "query"}, {"$ref": "#/components/parameters/Limit"}],
                "responses": {
                    "200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Page"}}}}
                },
            }
        },
        "/orders/{id}": {"get": {"responses": {"200": {"content": {}}}}},
        "/health": {"get": {"responses": {"200": {"content": {"application/json": {"schema": {"type": "string"}}}}}}},
    },
    "components": {
        "parameters": {"Limit": {"name": "page_size", "in": "query"}},
        "schemas": {
            "Page": {
                "type": "object",
                "properties": {
                    "orders": {"type": "array", "items": {"$ref": "#/components/schemas/Order"}},
                    "next_page_token": {"type": ["string", "null"]},
                },
            },
            "Order": {
                "allOf": [
                    {"properties": {"uuid": {"type": "string"}, "parent": {"$ref": "#/components/schemas/Order"}}},
                    {"properties": {"changed": {"type": "string", "format": "date-time"}, "sum": {"type": "number"}}},
                ]
            },
        },
    },
}


def test_an_openapi_document_describes_a_spec() -> None:
    """Such a document says more than one reply, and needs no key."""
    reply = sample_reply(OPENAPI, None, "https://api.example/openapi.json")
    spec = read_spec(guess_spec(reply, "orders"), "guessed")
    page = spec.resource.page
    assert (spec.source.base_url, spec.resource.path) == ("https://api.example", "/v1/orders")
    assert (spec.resource.records, spec.resource.key) == ("$.orders", "uuid")
    assert (page.kind, getattr(page, "param", ""), page.limit_param) == ("token", "page_token", "page_size")
    assert [(name, each.type.value) for name, each in spec.resource.columns.items()] == [
        ("uuid", "text"), ("changed", "timestamp"), ("sum", "real"),
    ]  # fmt: skip


def test_several_paths_are_listed_to_choose_from(desk: Desk, tmp_path: Path) -> None:
    """A document has dozens of paths, and the first one is rarely the wanted one."""
    paths = {**OPENAPI["paths"], "/bills": OPENAPI["paths"]["/orders"]}  # type: ignore[dict-item, index]
    (tmp_path / "openapi.json").write_text(json.dumps({**OPENAPI, "paths": paths}))
    told = desk.run("init", "openapi.json")
    assert (told.code, "there are: /orders, /bills" in told.err) == (2, True)
    assert 'path = "/v1/bills"' in desk.ok("init", "openapi.json", "--path", "/bills").out
