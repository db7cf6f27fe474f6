"""Hostile bodies, sent byte by byte to every route that reads a body."""

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.api.running_service import Served, run_service
from tests.attacks.raw_connections import connect_raw, request, send_raw
from tests.attacks.routes import routes_with_bodies

from leaseway import App

JSON = {"Content-Type": "application/json"}
BOMB = gzip.compress(b" " * 50_000_000, 9)
HOSTILE: dict[str, tuple[bytes, dict[str, str], int, str]] = {
    "deep lists": (b"[" * 100_000, JSON, 400, "too_deep"),
    "deep objects": (b'{"a":' * 3_000, JSON, 400, "too_deep"),
    "deep in the middle": (b'{"a": [' + b"[" * 70 + b"]" * 70 + b"]}", JSON, 400, "too_deep"),
    "a key twice": (b'{"kind": "add", "kind": "broken"}', JSON, 400, "not_json"),
    "a key twice, written differently": (b'{"kind": "add", "\\u006bind": "broken"}', JSON, 400, "not_json"),
    "NaN": (b'{"a": NaN}', JSON, 400, "not_json"),
    "Infinity": (b'{"a": [-Infinity]}', JSON, 400, "not_json"),
    "NUL": (b'{"a": "\\u0000"}', JSON, 400, "nul"),
    "NUL in a name": (b'{"\\u0000": 1}', JSON, 400, "nul"),
    "NUL as it is": (b'{"a": "\x00"}', JSON, 400, "nul"),
    "half a character": (b'{"kind": "broken", "arguments": {"text": "\\ud800"}}', JSON, 400, "not_json"),
    "a number without end": (b'{"a": ' + b"9" * 100_000 + b"}", JSON, 400, "not_json"),
    "no UTF-8": (b'{"a": "\xe4"}', {"Content-Type": "application/json; charset=latin-1"}, 400, "not_json"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), {"Content-Type": "application/json; charset=utf-16"}, 400, "nul"),
    "UTF-7": (b"+AHsAIgBh-", JSON, 400, "not_json"),
    "a form": (b"kind=add", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "not_json"),
    "text": (b'{"kind": "add"}', {"Content-Type": "text/plain"}, 415, "not_json"),
    "two types": (b'{"kind": "add"}', {"Content-Type": "text/plain, application/json"}, 415, "not_json"),
    "YAML": (b"!!python/object/apply:os.system [id]", {"Content-Type": "application/yaml"}, 415, "not_json"),
    "pickle": (b"\x80\x04\x95", {"Content-Type": "application/octet-stream"}, 415, "not_json"),
    "a bomb": (BOMB, {**JSON, "Content-Encoding": "gzip"}, 415, "encoded"),
    "a bomb in another wrapping": (b"\x28\xb5", {**JSON, "Content-Encoding": "zstd"}, 415, "encoded"),
    "nothing": (b"", JSON, 400, "not_json"),
    "two texts": (b"{} {}", JSON, 400, "not_json"),
}


async def sent(served: Served, path: str, name: str, method: str = "POST") -> str:
    body, headers, _, _ = HOSTILE[name]
    answer = await served.client.request(method, path, content=body, headers=headers)
    assert answer.headers["content-type"] == "application/problem+json"
    return f"{answer.status_code} {answer.json()['code']}"


def expected(name: str) -> str:
    return f"{HOSTILE[name][2]} {HOSTILE[name][3]}"


async def test_a_hostile_body_is_refused_with_a_reason_and_stores_nothing(served: Served) -> None:
    """A body that is refused after its job was stored would still run."""
    found = {name: await sent(served, "/v1/jobs", name) for name in HOSTILE}
    assert found == {name: expected(name) for name in HOSTILE}
    assert (await served.client.get("/v1/jobs")).json()["items"] == []


async def test_every_route_that_reads_a_body_reads_it_strictly(tmp_path: Path) -> None:
    """A route with its own parser would be the weak one."""
    names = ("deep objects", "a key twice", "NUL", "a form", "a bomb")
    async with run_service(App(f"sqlite:///{tmp_path / 'work.db'}")) as served:
        ways = routes_with_bodies(served.api)
        assert len(ways) > 40
        holes = [
            (*way, name, found)
            for way in ways
            for name in names
            if (found := await sent(served, way.to(), name, way.method)) != expected(name)
            # The resource in the path does not exist, so the body is not read.
            and not (found == "404 not_found" and "{" in way.path)
            # A log-in has very small bodies.
            and not (found == "413 too_large" and way.path == "/v1/session")
        ]
    assert holes == []


async def chunks() -> AsyncIterator[bytes]:
    for _ in range(5):
        yield b" " * 65_536


async def test_every_route_has_a_bound_for_what_it_reads(tmp_path: Path) -> None:
    """The bound must apply to the announced length and to the received bytes."""
    async with run_service(App(f"sqlite:///{tmp_path / 'work.db'}")) as served:
        for way in routes_with_bodies(served.api):
            announced = await send_raw(served, request(way.method, way.to(), "Content-Length: 99999999999"))
            if announced.status == 404 and "{" in way.path:
                continue
            assert (announced.status, json.loads(announced.body)["code"]) == (413, "too_large"), way
            if "/v1/work/" not in way.path and not way.path.endswith("/bulk"):
                # Some of them do not announce a length.
                coming = await served.client.request(way.method, way.to(), content=chunks())
                assert (coming.status_code, coming.json()["code"]) == (413, "too_large"), way


async def test_very_many_keys_take_linear_time(served: Served) -> None:
    """The last key is a duplicate. Comparing each key with all others would take minutes and block all other
    requests.
    """
    names = b",".join(b'"%d":1' % number for number in range(200_000))
    body = b'{"items": [{' + names + b',"199999":1}]}'
    answer = await served.client.post("/v1/jobs/bulk", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (400, "not_json")
    assert "199999" in answer.json()["detail"]


EXTREME: list[dict[str, Any]] = [
    {"priority": 2**63}, {"priority": -(2**63) - 1}, {"priority": 1e308}, {"attempts": 2**31}, {"attempts": 10**30},
    {"delay_seconds": 1e308}, {"delay_seconds": -1e308}, {"delay_seconds": 5e-324}, {"timeout_seconds": 1e300},
    {"run_at": "9999-12-31T23:59:59Z"}, {"run_at": "0001-01-01T00:00:00Z"}, {"run_at": "0000-00-00T00:00:00Z"},
    {"run_at": "2026-01-01T00:00:00"}, {"queue": "x" * 100_000}, {"queue": "a\nb"}, {"queue": "\u202e"}, {"key": ""},
    {"kind": "add\r\nX: y"}, {"kind": "../../etc/passwd"}, {"kind": "__import__('os')"}, {"kind": ""},
    {"arguments": {"a": 10**4_000}}, {"arguments": {"a": 2**63}}, {"arguments": {"a": 1, "": 1}},
    {"arguments": {"a": 1, "__class__": "os"}}, {"arguments": {"a": True}}, {"arguments": []}, {"arguments": None},
]  # fmt: skip


async def test_values_at_the_edge_of_what_can_be_stored_break_nothing(served: Served) -> None:
    """Each value must be accepted or refused without a server error, and accepted values must be readable again."""
    for extreme in EXTREME:
        body = {"kind": "add", "arguments": {"a": 1}} | extreme
        answer = await served.client.post("/v1/jobs", json=body)
        assert answer.status_code in (202, 400, 422), (extreme, answer.text)
    shown = await served.client.get("/v1/jobs", params={"limit": 200})
    assert shown.status_code == 200
    for job in shown.json()["items"]:
        assert (await served.client.get(f"/v1/jobs/{job['id']}")).status_code == 200


async def test_text_of_every_kind_comes_back_as_it_was(served: Served) -> None:
    """Text is never interpreted on its way, as markup, SQL or a format string."""
    texts = [
        "<script>alert(1)</script>",
        "'; DROP TABLE jobs; --",
        "%s%n{0}",
        "\u202eabc",
        "🂡\U0010ffff",
        "\ufeff",
        "\x1b[2J",
    ]
    for text in texts:
        answer = await served.client.post("/v1/jobs", json={"kind": "broken", "arguments": {"text": text}})
        assert answer.status_code == 202, answer.text
        job = await served.client.get(answer.headers["location"])
        assert job.json()["payload"] == {"text": text}
        assert job.headers["content-type"] == "application/json"


SMUGGLING = {
    "a length and chunks": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length that is a list": b"Content-Length: 2, 3\r\n\r\n{}",
    "a negative length": b"Content-Length: -1\r\n\r\n",
    "a length beyond any number": b"Content-Length: " + b"9" * 400 + b"\r\n\r\n",
    "an unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a chunk of negative size": b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
    "a chunk beyond any size": b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    "a space before the colon": b"Content-Length : 2\r\n\r\n{}",
    "a folded line": b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a bare line feed": b"X: y\nTransfer-Encoding: chunked\n\n0\r\n\r\n",
}


async def test_a_request_with_an_ambiguous_end_is_refused(served: Served) -> None:
    """A proxy may see another end of the request. What follows must not become a second request of another client."""
    body = b'{"kind": "add", "arguments": {"a": 1}}'
    hidden = request("POST", "/v1/jobs", "Content-Type: application/json", body=body)
    for name, doubtful in SMUGGLING.items():
        async with connect_raw(served) as line:
            await line.say(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n" + doubtful + hidden)
            assert 400 <= (await line.answer()).status < 500, name
            assert await line.is_cut(), name
    assert (await served.client.get("/v1/jobs")).json()["items"] == []


async def test_a_compressed_body_is_not_decompressed(served: Served) -> None:
    """A few kilobytes can unpack to gigabytes and use up the memory."""
    answer = await served.client.post("/v1/jobs", content=BOMB, headers={**JSON, "Content-Encoding": "gzip, gzip"})
    assert (answer.status_code, answer.json()["code"]) == (415, "encoded")
