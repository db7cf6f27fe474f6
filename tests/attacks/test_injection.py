"""Text that tries to become a header, a path on the disk, a position in the list of another tenant, or a log line."""

import base64
import sqlite3
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.api.keys import bearer, key_for, operator_of
from tests.api.running_service import Served, run_service
from tests.attacks.raw_connections import request, send_raw
from tests.attacks.routes import PARAMETER, served_routes

from leaseway import App
from leaseway.api.routes.dashboard import ASSETS

SPLIT = "a%0d%0aX-Injected:%20yes%0d%0a%0d%0a"
BAD_CURSOR = (400, "bad_cursor")
OURS_TO_KEEP = "not-to-be-repeated"  # with letters that a random id cannot contain, because ids are hexadecimal


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'work.db'}"


# -- headers -----------------------------------------------------------------------------------------------------------


async def test_no_path_or_query_becomes_a_header(served: Served) -> None:
    """Whatever the request contains, it cannot add a header to the response."""
    asked = {(way.method, way.to(SPLIT)) for way in served_routes(served.api) if PARAMETER.search(way.path)}
    asked |= {("GET", f"/v1/{path}={SPLIT}") for path in ("jobs?kind", "jobs?cursor", "jobs?tenant", "lanes?tenant")}
    asked |= {("GET", f"/{SPLIT}"), ("POST", f"/v1/jobs/{SPLIT}/cancel"), ("GET", f"/assets/{SPLIT}/x")}
    for method, path in asked:
        answer = await send_raw(served, request(method, path, *(["Content-Length: 0"] if method != "GET" else [])))
        assert "x-injected" not in answer.names, (method, path)
        assert answer.status in (400, 404, 405, 409, 411, 412, 422), (method, path, answer.status)


async def test_no_header_comes_back_as_another(served: Served) -> None:
    """A request id is returned only if it is harmless; no other header is returned."""
    for value in ("a b", "a;b", "\x7f", "a\xe4", '"', "<b>", "x" * 65, "a\tb", "", "..%0d%0aX-Injected: yes"):
        others = (f"{name}: {OURS_TO_KEEP}" for name in ("X-Echo", "Cookie", "User-Agent"))
        raw = request("GET", "/v1/jobs", f"X-Request-Id: {value}", *others)
        answer = await send_raw(served, raw)
        if answer.status == 400:  # rejected by the parser
            continue
        (given,) = [found for name, found in answer.headers if name == "x-request-id"]
        assert given != value
        assert given.isalnum()
        assert OURS_TO_KEEP not in str(answer.headers) + answer.body.decode()


async def test_no_name_becomes_a_header_or_a_second_line(served: Served) -> None:
    """The URL of a new job or limit is a response header, so a name must not break out of it."""
    for name in ("a\r\nX-Injected: yes", "a\nb", "\u2028", "a\x85b", "\x00"):
        made = await served.client.post("/v1/jobs", json={"kind": name})
        put = await served.client.put(f"/v1/limits/{quote(name)}", json={"concurrency": 1})
        for answer in (made, put):
            assert answer.status_code in (400, 404, 422)
            assert "x-injected" not in answer.headers


async def test_no_path_forges_a_log_line(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A decoded path may contain a line break: the reader of a log must not mistake what follows for another
    log line.
    """
    async with run_service(App(sqlite_url), auth=True) as served:
        key = await key_for(served)
        database = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
        database.executescript("ALTER TABLE api_keys RENAME TO gone")
        database.close()
        broken = await served.client.get("/v1/%0aERROR%20all%20is%20lost%1b%5b2J", headers=bearer(key))
        assert broken.status_code == 500
    lines = [record.getMessage() for record in caplog.records if "all is lost" in record.getMessage()]
    assert lines
    assert not [line for line in lines if "\n" in line or "\x1b" in line]


# -- the disk ----------------------------------------------------------------------------------------------------------

OUTSIDE = (
    "../../../../../../etc/passwd", "..%2f..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "..%5c..%5c..%5cetc%5cpasswd", "/etc/passwd", "%2fetc%2fpasswd", "....//....//etc/passwd", "..%252f..%252fetc",
    "index.html%00.js", "../api/pages.py", "..%2fapi%2fpages.py", "%c0%ae%c0%ae/%c0%ae%c0%ae/etc/passwd", "", ".", "..",
)  # fmt: skip


async def test_no_path_leads_out_of_the_dashboard(sqlite_url: str) -> None:
    """A path traversal would expose configuration and keys."""
    async with run_service(App(sqlite_url)) as served:
        places = [f"/assets/{ASSETS.version}/", "/assets/", "/assets/../", "/", "//", "/v1/"]
        for path in [place + path for place in places for path in OUTSIDE]:
            answer = await send_raw(served, request("GET", path))
            assert b"root:" not in answer.body, path
            assert b"ASSETS" not in answer.body, path
            assert answer.status in (400, 404, 405) or path.strip("/.") in ("", "assets"), path


# -- cursors -----------------------------------------------------------------------------------------------------------

LISTS = ("jobs", "keys", "limits", "budgets", "tenants")


async def filled(served: Served, headers: dict[str, str]) -> None:
    for number in range(3):
        await served.client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": number}}, headers=headers)
        await served.client.post("/v1/keys", json={"tenant": "acme"}, headers=headers)
        await served.client.put(f"/v1/limits/l{number}", json={"concurrency": 1}, headers=headers)
        await served.client.put(f"/v1/budgets/b{number}", json={"unit": "usd", "limit": 1}, headers=headers)
        await served.client.put(f"/v1/tenants/t{number}", json={"weight": 2}, headers=headers)


async def said(served: Served, what: str, cursor: str, headers: dict[str, str]) -> tuple[int, str]:
    answer = await served.client.get(f"/v1/{what}", params={"cursor": cursor}, headers=headers)
    return answer.status_code, answer.json().get("code", "")


async def test_a_cursor_is_for_its_list_and_its_caller(served_with_keys: Served) -> None:
    """A cursor contains a position in a list that another caller may not see."""
    served = served_with_keys
    mine, other = bearer(await operator_of(served)), bearer(await operator_of(served))
    await filled(served, mine)
    cursors = {}
    for what in LISTS:
        page = await served.client.get(f"/v1/{what}", params={"limit": 1}, headers=mine)
        cursors[what] = page.json()["next"]
        assert cursors[what], what
    for what, cursor in cursors.items():
        assert (await said(served, what, cursor, mine))[0] == 200
        for elsewhere in set(LISTS) - {what}:
            assert await said(served, elsewhere, cursor, mine) == BAD_CURSOR, (what, elsewhere)
    # Only for jobs, because there each caller sees another list.
    assert await said(served, "jobs", cursors["jobs"], other) == BAD_CURSOR


async def test_the_cursor_of_another_tenant_is_refused(served_with_keys: Served) -> None:
    """A stolen cursor must not reveal positions in another tenant's list."""
    served = served_with_keys
    acme, other = bearer(await key_for(served)), bearer(await key_for(served, "other"))
    for _ in range(3):
        await served.client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}}, headers=acme)
    cursor = (await served.client.get("/v1/jobs", params={"limit": 1}, headers=acme)).json()["next"]
    assert await said(served, "jobs", cursor, other) == BAD_CURSOR
    assert (await said(served, "jobs", cursor, acme))[0] == 200


async def test_no_bit_of_a_cursor_can_be_changed(sqlite_url: str) -> None:
    """A cursor that can be edited lets a caller choose what the store is asked."""
    async with run_service(App(sqlite_url)) as served:
        for _ in range(3):
            await served.client.post("/v1/jobs", json={"kind": "x"})
        cursor = (await served.client.get("/v1/jobs", params={"limit": 1})).json()["next"]
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        flipped = [
            base64.urlsafe_b64encode(raw[:place] + bytes([raw[place] ^ (1 << place % 8)]) + raw[place + 1 :]).decode()
            for place in range(len(raw))
        ]
        others = [cursor[:-1], cursor + "AAAA", cursor.lower(), cursor * 2, "'; DROP TABLE jobs; --", "\x00", "0" * 64]
        for text in (*(each.rstrip("=") for each in flipped), *others):
            assert await said(served, "jobs", text, {}) == BAD_CURSOR, text
