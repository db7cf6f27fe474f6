"""The middleware in front of every route: host names, origins, headers, and responses to unexpected errors."""

import asyncio
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.datastructures import Headers
from tests.api.running_service import Served, run_service

from leaseway import App
from leaseway.api.app import build_app, refuse_unscoped
from leaseway.api.auth.origin_checks import OriginChecks, host_name
from leaseway.api.errors import Problem
from leaseway.api.settings import ServiceSettings
from leaseway.domain.errors import UsageError

FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "strange"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1.evil.example"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.example"},
]


@pytest.fixture
async def small(tmp_path: Any) -> Any:
    async with run_service(App(f"sqlite:///{tmp_path / 'work.db'}")) as served:
        yield served


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1", ""]
)
async def test_a_name_that_somebody_pointed_at_us_is_refused(small: Served, host: str) -> None:
    """DNS rebinding: a foreign page could otherwise read a service on the visitor's own machine through the page's own
    host name.
    """
    for method, path in (("GET", "/v1/jobs"), ("GET", "/healthz"), ("POST", "/v1/jobs"), ("GET", "/")):
        answer = await small.client.request(method, path, headers={"Host": host})
        assert (answer.status_code, answer.json()["code"]) == (421, "wrong_host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8420", "[::1]:8420"])
async def test_the_loopback_has_its_names(small: Served, host: str) -> None:
    """A local user must reach the service under every usual name of the machine."""
    assert (await small.client.get("/healthz", headers={"Host": host})).status_code == 200


def test_a_host_that_is_more_than_a_name_is_none() -> None:
    """A lenient parser would accept an attacker's host that contains an allowed name."""
    for text in ("localhost@evil.example", "localhost/evil", "localhost:80:90", "[::1", "localhost:x", "a b", ""):
        assert host_name(text) == ""


def test_addresses_are_taken_only_where_others_than_ourselves_may_come() -> None:
    """Probes use an IP address as the host, which is safe because DNS cannot rebind an address."""
    open_to_all = OriginChecks(ServiceSettings(host="0.0.0.0", hosts=("jobs.example.org",)))
    for host in ("10.1.2.3:8420", "jobs.example.org", "JOBS.example.org:443"):
        open_to_all.check_host(Headers({"host": host}))
    for hosts, name in ((open_to_all, "evil.example"), (OriginChecks(ServiceSettings()), "10.1.2.3")):
        with pytest.raises(Problem):
            hosts.check_host(Headers({"host": name}))


def test_two_hosts_are_none() -> None:
    """A proxy and the service could each use a different one of the two names."""
    raw = [(b"host", b"localhost"), (b"host", b"evil.example")]
    with pytest.raises(Problem, match="not a host name of this service"):
        OriginChecks(ServiceSettings()).check_host(Headers(raw=raw))


async def test_pages_of_others_change_nothing(small: Served) -> None:
    """Every method is covered, including unknown ones, because a list of forbidden methods would miss one."""
    for headers in FOREIGN:
        for method in ("POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND", "FROB"):
            answer = await small.client.request(method, "/v1/jobs", headers=headers, content=b'{"kind": "x"}')
            assert answer.status_code in (403, 400), method  # 400: the parser does not know the method
    assert (await small.client.get("/v1/jobs")).json()["items"] == []


async def test_our_own_page_and_programs_may_change(small: Served) -> None:
    """Protection against foreign pages must not block the dashboard or scripts."""
    own = small.url
    for headers in ({}, {"Sec-Fetch-Site": "same-origin", "Origin": own}, {"Sec-Fetch-Site": "none"}, {"Origin": own}):
        answer = await small.client.post("/v1/jobs", json={"kind": "x"}, headers=headers)
        assert answer.status_code == 202, headers
    bearer = {"Authorization": "Bearer x", "Sec-Fetch-Site": "cross-site"}
    assert (await small.client.post("/v1/jobs", json={"kind": "x"}, headers=bearer)).status_code == 202


async def test_every_answer_has_the_headers_that_keep_browsers_from_harm(small: Served) -> None:
    """One response without these headers, such as an error page, is enough for an attack."""
    answers = [
        await small.client.get("/v1/jobs"),
        await small.client.get("/nothing"),
        await small.client.get("/v1/jobs", headers={"Host": "evil.example"}),
        await small.client.request("BREW", "/v1/jobs", headers={"Origin": small.url}),
    ]
    for answer in [each for each in answers if each.status_code != 400]:
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers
    assert answers[0].headers["cache-control"] == "no-store"


async def test_a_request_id_is_taken_if_it_is_harmless(small: Served) -> None:
    """The id is written to logs, so an arbitrary one could forge log lines."""

    async def id_for(text: str) -> str:
        return str((await small.client.get("/healthz", headers={"X-Request-Id": text})).headers["x-request-id"])

    assert await id_for("abc-1.2_3") == "abc-1.2_3"
    for text in ("a b", "x" * 65, "<script>", "a,b"):
        assert await id_for(text) not in (text, "")
    problem = await small.client.get("/v1/jobs/none", headers={"X-Request-Id": "abc"})
    assert problem.json()["request_id"] == problem.headers["x-request-id"] == "abc"


async def test_what_breaks_says_nothing_of_our_insides(small: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Exception texts contain passwords and paths, and the operator still needs them in the log."""

    class Broken:
        @property
        def inspection(self) -> None:
            raise RuntimeError("password=hunter2")

    small.service.world = small.service.world._replace(store=Broken())  # type: ignore[arg-type]
    answer = await small.client.get("/v1/jobs", headers={"X-Request-Id": "find-me"})
    assert answer.status_code == 500
    assert "hunter2" not in answer.text
    assert "find-me" in caplog.text
    assert "hunter2" in caplog.text


async def test_before_it_is_open_nobody_is_let_in_as_if_there_were_no_door(tmp_path: Any) -> None:
    """A server that skips the application's startup must not treat every caller as an operator."""
    api = build_app(App(f"sqlite:///{tmp_path / 'work.db'}"), ServiceSettings(auth=True))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(api), base_url="http://localhost") as client:
        assert (await client.get("/v1/jobs")).status_code == 401


async def test_requests_are_logged_for_those_who_want_it(small: Served, caplog: pytest.LogCaptureFixture) -> None:
    """An operator needs the tenant and the route of a request, and query strings can hold secrets."""
    caplog.set_level("INFO", "leaseway.access")
    await small.client.get("/v1/jobs?cursor=secret", headers={"X-Request-Id": "find-me"})
    (facts,) = [record.__dict__["fields"] for record in caplog.records if record.name == "leaseway.access"]
    assert facts.pop("seconds") > 0
    assert facts == {
        "request_id": "find-me", "method": "GET", "route": "/v1/jobs", "path": "/v1/jobs", "status": 400,
        "tenant": "default", "caller": "local",
    }  # fmt: skip


async def test_a_method_that_is_not_there_names_those_that_are(small: Served) -> None:
    """HTTP requires the Allow header, and a client developer needs it."""
    answer = await small.client.patch("/v1/jobs", headers={"Origin": small.url})
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")


def test_a_route_that_says_nothing_of_its_scope_does_not_start() -> None:
    """A new route without a scope would be open to every caller."""
    api = FastAPI(openapi_url=None)

    @api.get("/secret")
    async def secret() -> None: ...

    with pytest.raises(UsageError, match="/secret declares no scope"):
        refuse_unscoped(api)


async def test_headers_without_end_are_cut_off(small: Served) -> None:
    """The HTTP parser has no limit of its own, so endless headers would fill the memory."""
    host, port = "127.0.0.1", int(small.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
    line = b"X-Long: " + b"x" * 4_000 + b"\r\n"
    for _ in range(20):
        writer.write(line)
    writer.write(b"\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 431")
    writer.close()


async def test_who_sends_his_headers_slowly_does_not_keep_a_connection(
    small: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow clients could otherwise occupy all connections at almost no cost."""
    monkeypatch.setattr("leaseway.api.connections.HEADER_SECONDS", 0.05)
    port = int(small.url.rpartition(":")[2])
    for first in (b"", b"GET /healthz HTTP/1.1\r\nHost: loc"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(first)
        assert await reader.read() == b""
        writer.close()


async def test_who_sends_his_body_slowly_is_told_so(small: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow body occupies a request, and an honest client must learn why it ended."""
    monkeypatch.setattr("leaseway.api.request_body.BODY_SECONDS_MAX", 0.05)
    port = int(small.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
    assert (await reader.readline()).startswith(b"HTTP/1.1 408")
    writer.close()
