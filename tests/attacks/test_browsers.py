"""What a page of another site can make a browser do: send cookies, use any method, and use any host name that resolves
to the service.
"""

from collections.abc import AsyncIterator
from itertools import cycle
from typing import NamedTuple

import httpx2
import pytest
from tests.api.keys import operator_of
from tests.api.running_service import Served, client_of
from tests.attacks.raw_connections import request, send_raw
from tests.attacks.routes import AttackedRoute, served_routes, unsafe_routes, websocket_paths
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

FOREIGN_ORIGINS = (
    {"Origin": "https://evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
)
REBOUND = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "localhost@evil.example", "10.0.0.1", "")
OTHER_METHODS = ("PATCH", "TRACE", "PROPFIND", "MKCOL", "LINK", "REPORT", "PURGE")


class Browser(NamedTuple):
    """A browser with a session."""

    client: httpx2.AsyncClient
    csrf_token: str

    async def sends(self, way: AttackedRoute, **headers: str) -> tuple[int, str]:
        body: dict[str, str] | None = None if way.method in ("GET", "DELETE") else {}
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.client.request(way.method, way.to(), json=body, headers=given)
        return answer.status_code, answer.json().get("code", "") if answer.status_code >= 400 else ""


@pytest.fixture
async def browser(served_with_keys: Served) -> AsyncIterator[Browser]:
    made = await operator_of(served_with_keys)
    async with client_of(served_with_keys.url) as client:
        yield Browser(client, (await client.post("/v1/session", json={"key": made.text})).json()["csrf_token"])


async def test_a_cookie_alone_changes_nothing_anywhere(served_with_keys: Served, browser: Browser) -> None:
    """This covers every unsafe route, including future ones, and unknown methods."""
    unsafe = unsafe_routes(served_with_keys.api)
    made_up = [
        AttackedRoute(method, path) for method in OTHER_METHODS for path in ("/v1/jobs", "/v1/session", "/", "/metrics")
    ]
    holes = [(*way, answer) for way in [*unsafe, *made_up] if (answer := await browser.sends(way)) != (403, "csrf")]
    assert holes == []
    for token in ("", "0" * 64, "x" * 10_000, browser.csrf_token[:-1], browser.csrf_token.upper()):
        assert await browser.sends(AttackedRoute("POST", "/v1/jobs"), X_CSRF_Token=token) == (403, "csrf")


async def test_the_csrf_token_of_another_session_is_refused(served_with_keys: Served, browser: Browser) -> None:
    """An attacker with an account has a CSRF token of its own."""
    mallory = await operator_of(served_with_keys)
    token = (await served_with_keys.client.post("/v1/session", json={"key": mallory.text})).json()["csrf_token"]
    assert await browser.sends(AttackedRoute("POST", "/v1/jobs"), X_CSRF_Token=token) == (403, "csrf")
    assert await browser.sends(AttackedRoute("POST", "/v1/jobs"), X_CSRF_Token=browser.csrf_token) == (422, "invalid")


async def test_a_foreign_page_changes_nothing_even_with_the_token(served_with_keys: Served, browser: Browser) -> None:
    """A leaked CSRF token alone must not allow changes from another site."""
    holes = [
        (*way, origin, answer)
        for way, origin in zip(unsafe_routes(served_with_keys.api), cycle(FOREIGN_ORIGINS), strict=False)
        if (answer := await browser.sends(way, X_CSRF_Token=browser.csrf_token, **origin)) != (403, "foreign_origin")
    ]
    assert holes == []


async def test_without_authentication_a_foreign_page_changes_nothing_either(served: Served) -> None:
    """Without authentication, the page reaches the service on the visitor's own machine, and needs no cookie."""
    browser = Browser(served.client, "")
    holes = [
        (*way, origin, answer)
        for way, origin in zip(unsafe_routes(served.api), cycle(FOREIGN_ORIGINS), strict=False)
        if (answer := await browser.sends(way, **origin)) != (403, "foreign_origin")
    ]
    assert holes == []


async def test_no_answer_lets_a_foreign_page_read_it(served: Served) -> None:
    """A preflight request is not granted either."""
    for way in served_routes(served.api):
        if way.method == "GET" and "/v1/work/" not in way.path:
            answer = await send_raw(served, request("GET", way.to(), "Origin: https://evil.example"))
            asked = "Access-Control-Request-Method: DELETE"
            before = await send_raw(served, request("OPTIONS", way.to(), "Origin: https://evil.example", asked))
            assert not [name for name in answer.names | before.names if name.startswith("access-control")], way
            assert ("cross-origin-resource-policy", "same-origin") in answer.headers


# -- DNS rebinding ----------------------------------------------------------------------------------------------------


async def test_a_foreign_host_name_is_refused(served: Served) -> None:
    """Otherwise a page under that host name could read and change everything."""
    for way in {(way.method, way.to()) for way in served_routes(served.api) if way.method != "HEAD"}:
        answer = await send_raw(served, request(*way, host=REBOUND[0]))
        assert answer.status == 421, way
    for host in REBOUND:
        for method, path in (("GET", "/"), ("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("OPTIONS", "/v1/jobs")):
            assert (await send_raw(served, request(method, path, host=host))).status == 421, host


async def test_forwarding_headers_are_ignored(served: Served) -> None:
    """The headers of proxies can be forged by any client."""
    evil = ("X-Forwarded-Host: localhost", "Forwarded: host=localhost", "X-Original-Host: localhost")
    assert (await send_raw(served, request("GET", "/healthz", *evil, host="evil.example"))).status == 421
    fine = await send_raw(served, request("GET", "/healthz", "X-Forwarded-Host: evil.example"))
    assert (fine.status, "evil" in str(fine.headers)) == (200, False)
    for raw in (
        b"GET /healthz HTTP/1.0\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    ):
        assert (await send_raw(served, raw)).status in (400, 421)


async def test_a_websocket_under_a_foreign_name_is_refused(served: Served) -> None:
    """The check must use the Origin and the Host, also when both agree."""
    assert websocket_paths(served.api)
    for path in websocket_paths(served.api):
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example", "Origin": "http://evil.example"}):
            with pytest.raises(InvalidStatus, match="403"):
                await opened(served, path, headers)


async def opened(served: Served, path: str, headers: dict[str, str]) -> None:
    """A raw connection, because the client library sets the Host header itself."""
    url = f"ws://{headers.pop('Host', served.url.removeprefix('http://'))}{path}"
    host, _, port = served.url.removeprefix("http://").partition(":")
    async with connect(url, additional_headers=headers, proxy=None, host=host, port=int(port)):
        pass
