"""Slow clients of every kind are disconnected after a time and do not delay other requests."""

import asyncio
import gc
import json
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.api.running_service import Served
from tests.attacks.raw_connections import SECONDS, RawConnection, connect_raw, port_of, request, wait_until_closed

from leaseway.api.connections import READ_BYTES_MIN, HttpConnection
from leaseway.api.live import delivery

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n" + b" " * 65_536 + b"\r\n"
SOON = 0.05
"""A short timeout in place of many seconds."""


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """The store does not matter here: the attacks end before it."""
    return f"sqlite:///{tmp_path / 'work.db'}"


async def test_hundreds_of_slow_clients_do_not_delay_others(served: Served) -> None:
    """Each slow client holds a connection and nothing else: no thread, no transaction, no place in a queue."""
    beginnings = (
        b"",
        HEAD,
        HEAD + b"X-Slow: abc",
        request("POST", "/v1/jobs", "Content-Length: 100"),
        CHUNKED + b"5\r\n{",
    )
    async with AsyncExitStack() as stack:
        for number in range(250):
            line = await stack.enter_async_context(connect_raw(served))
            await line.say(beginnings[number % len(beginnings)])
        answers = [
            await served.client.get("/healthz"),
            await served.client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}}),
            await served.client.get("/v1/jobs"),
        ]
    assert [answer.status_code for answer in answers] == [200, 202, 200]
    assert len(answers[-1].json()["items"]) == 1


async def drip(line: RawConnection, drop: bytes) -> None:
    """Send a little from time to time, as long as the connection is open."""
    try:
        while not line.writer.transport.is_closing():
            line.writer.write(drop)
            await asyncio.sleep(SOON / 5)
    except ConnectionError:
        pass


@pytest.mark.parametrize(
    ("first", "drop"),
    [
        pytest.param(b"", b"", id="silence"),
        pytest.param(b"", b"\r\n", id="blank lines"),
        pytest.param(HEAD, b"X-Slow: abc\r\n", id="headers"),
        pytest.param(HEAD + b"X-Slow: ", b"a", id="one header"),
        pytest.param(HEAD + b"\r\n", b"\r\n", id="blank lines after an answer"),
        pytest.param(HEAD + b"\r\n" + HEAD, b"X-Slow: abc\r\n", id="headers after an answer"),
        pytest.param(request("POST", "/v1/jobs", "Content-Length: 100000"), b" ", id="a body"),
        pytest.param(CHUNKED, b"1\r\n \r\n", id="chunks"),
        pytest.param(CHUNKED, CHUNK, id="chunks without end"),
        pytest.param(CHUNKED, b"1;", id="a chunk that does not begin"),
        pytest.param(CHUNKED + b"2\r\n{}\r\n0\r\n", b"X-Slow: abc\r\n", id="trailers"),
        pytest.param(request("GET", "/healthz", "Content-Length: 100000"), b" ", id="a body that nobody asked for"),
        pytest.param(request("POST", "/v1/jobs/x/cancel", "Content-Length: 100000"), b" ", id="one that is not read"),
        pytest.param(
            request("POST", "/v1/jobs", "Content-Length: 100000", host="evil.example"), b" ", id="after a refusal"
        ),
        pytest.param(request("POST", "/v1/jobs", "Content-Length: 300000"), b" ", id="what is too large"),
    ],
)
async def test_a_client_that_sends_slowly_is_disconnected(
    served: Served, monkeypatch: pytest.MonkeyPatch, first: bytes, drop: bytes
) -> None:
    """By default the server waits forever: enough slow clients would use up all connections."""
    for bound in ("connections.HEADER_SECONDS", "connections.BODY_SECONDS", "request_body.BODY_SECONDS_MAX"):
        monkeypatch.setattr(f"leaseway.api.{bound}", SOON)
    async with connect_raw(served) as line, asyncio.TaskGroup() as group:
        await line.say(first)
        dripping = group.create_task(drip(line, drop))
        assert await line.is_cut()
        dripping.cancel()


def upgrade(method: str = "GET", *headers: str, body: bytes = b"") -> bytes:
    wanted = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {NONCE}")
    return request(method, "/v1/live", *wanted, *headers, body=body)


NONCE = "dGhlIHNhbXBsZSBub25jZQ=="
STATES = {
    "connected": b"",
    "half a header": HEAD,
    "no body": request("POST", "/v1/jobs", "Content-Length: 12"),
    "half a body": request("POST", "/v1/jobs", "Content-Length: 12") + b"{",
    "answered": HEAD + b"\r\n",
    "upgrade, body announced": upgrade("GET", "Content-Length: 12"),
    "upgrade, body sent": upgrade("GET", body=b'{"kind":"x"}'),
    "upgrade, chunked": upgrade("GET", "Transfer-Encoding: chunked"),
    "upgrade by POST": upgrade("POST"),
    "upgrade by POST, body announced": upgrade("POST", "Content-Length: 12"),
    "upgrade by POST, body sent": upgrade("POST", body=b'{"kind":"x"}'),
    "upgrade after a request": HEAD + b"\r\n" + upgrade("POST", "Content-Length: 12"),
    "upgrade without a key": request("GET", "/v1/live", "Upgrade: websocket", "Connection: Upgrade"),
    "upgrade to another protocol": request("GET", "/healthz", "Upgrade: h2c", "Connection: Upgrade"),
    "upgrade to another protocol, no body": request(
        "POST", "/v1/jobs", "Upgrade: h2c", "Connection: Upgrade", "Content-Length: 12"
    ),
    "WebSocket, accepted": upgrade(),
    "WebSocket, closed by the client": upgrade() + b"\x88\x80\0\0\0\0",
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service whose deadlines are short."""
    seconds = ("HEADER_SECONDS", "BODY_SECONDS", "READ_SECONDS", "HANDSHAKE_SECONDS")
    for bound in (*(f"connections.{name}" for name in seconds), "request_body.BODY_SECONDS_MAX", "server.PING_SECONDS"):
        monkeypatch.setattr(f"leaseway.api.{bound}", SOON)
    monkeypatch.setattr("leaseway.api.server.KEEP_ALIVE_SECONDS", SOON)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("state", STATES)
async def test_every_state_of_a_connection_has_a_deadline(served: Served, state: str) -> None:
    """A client without a credential must not keep connections open: four thousand of them lock everybody out."""
    async with connect_raw(served) as line:
        await line.say(STATES[state])
        assert await line.is_cut()
    assert count_open(served) == 0


@pytest.mark.usefixtures("impatient")
async def test_a_websocket_that_is_not_accepted_has_a_deadline(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not answer would otherwise keep every connection that waits for its authentication."""

    async def wait(*_: object) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(delivery, "authenticate", wait)
    async with connect_raw(served) as line:
        await line.say(upgrade())
        assert await line.is_cut()


def count_open(served: Served) -> int:
    """Connections of the service, as it counts them itself."""
    # Not isinstance: other tests leave weak proxies behind, which raise an error.
    bounds = {each.bounds for each in gc.get_objects() if type(each) is type and issubclass(each, HttpConnection)}
    return sum(each._count for each in bounds)


@pytest.mark.parametrize("state", [name for name in STATES if name.startswith(("upgrade, ", "upgrade by"))])
async def test_a_websocket_begins_with_a_get_without_a_body(served: Served, state: str) -> None:
    """Neither parser answers another request: the one of HTTP waits for the one of WebSockets."""
    async with connect_raw(served) as line:
        await line.say(STATES[state])
        answer = await line.answer()
        assert (answer.status, json.loads(answer.body)["code"]) == (400, "not_http")
        assert await line.is_cut()


async def test_an_empty_body_does_not_prevent_a_websocket(served: Served) -> None:
    """Some devices announce a length of 0."""
    async with connect_raw(served) as line:
        await line.say(upgrade("GET", "Content-Length: 0"))
        assert (await line.answer()).status == 101


async def test_a_coding_that_is_not_understood_is_refused(served: Served) -> None:
    """The body would be read as it is, compressed, where a proxy that understands the coding reads another one."""
    for coding in ("gzip, chunked", "gzip,chunked", "chunked, chunked", "identity, chunked"):
        async with connect_raw(served) as line:
            await line.say(request("POST", "/v1/jobs", f"Transfer-Encoding: {coding}") + b"2\r\n{}\r\n0\r\n\r\n")
            assert (await line.answer()).status == 400, coding
            assert await line.is_cut()


async def test_a_header_without_end_is_not_collected(served: Served) -> None:
    """The parser reports a header when it is complete, so its bytes must be counted elsewhere."""
    async with connect_raw(served) as line:
        await line.say(HEAD + b"X-Long: ")
        with pytest.raises(ConnectionError):
            await flood(line, b"x" * 100_000)


async def flood(line: RawConnection, drop: bytes) -> None:
    """Send more than the buffers of the system hold, for a short time."""
    for _ in range(400):
        await line.say(drop)


async def test_a_body_without_end_is_not_collected(served: Served) -> None:
    """A chunked body has no declared length, so it must be cut off before it fills the memory."""
    async with connect_raw(served) as line, asyncio.TaskGroup() as group:
        await line.say(CHUNKED)
        flooding = group.create_task(drip(line, CHUNK))
        assert (await line.answer()).status == 413
        flooding.cancel()


async def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    """The limits apply to each request: a client that pipelines requests does nothing wrong."""
    body = b'{"kind": "add", "arguments": {"a": 1}}'
    async with connect_raw(served) as line:
        for _ in range(3):
            await line.say(request("POST", "/v1/jobs", "Content-Type: application/json", body=body) * 20)
            answers = [await line.answer() for _ in range(20)]
            assert {answer.status for answer in answers} == {202}


async def test_many_pipelined_requests_are_answered(served: Served) -> None:
    """Data that begins and ends within headers is not one large header: it may contain a thousand requests."""
    count = 3_000
    async with connect_raw(served) as line, asyncio.TaskGroup() as group:
        sending = group.create_task(line.say(request("GET", "/healthz", "X-Some: header") * count))
        assert {(await line.answer()).status for _ in range(count)} == {200}
        await sending


async def test_a_client_that_the_server_does_not_read_is_not_slow(served: Served) -> None:
    """While pipelined requests are answered, the server reads nothing, however long it takes. The deadline is called
    directly in place of waiting.
    """
    job = (await served.client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}})).json()["id"]
    async with connect_raw(served) as line:
        waiting = request("GET", f"/v1/jobs/{job}/result?wait_seconds=20")  # no worker runs it
        await line.say(waiting + request("GET", "/healthz") + HEAD)
        async with asyncio.timeout(SECONDS):
            while (unread := find_connection(lambda each: each.flow.read_paused)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        unread._end_receiving(SECONDS)
        assert not unread.transport.is_closing()


async def test_a_refused_request_leaves_earlier_ones_their_responses(served: Served) -> None:
    """A client that pipelines takes the first response for that to its first request, which may have stored a job."""
    body = b'{"kind": "add", "arguments": {"a": 1}}'
    first = request("POST", "/v1/jobs", "Content-Type: application/json", body=body)
    large = HEAD + b"X: " + b"x" * 40_000 + b"\r\n\r\n"
    for wrong in (b"nonsense\r\n\r\n", large, upgrade("POST", body=body), upgrade()):
        async with connect_raw(served) as line:
            await line.say(first + wrong)
            assert (await line.answer()).status == 202
            assert await line.is_cut()
    assert len((await served.client.get("/v1/jobs")).json()["items"]) == 4


# -- clients that do not read -----------------------------------------------------------------------------------------


def unread(served: Served) -> socket.socket:
    """With buffers so small that a page of the dashboard does not fit."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    line.connect(("127.0.0.1", port_of(served.url)))
    return line


async def test_a_client_that_does_not_read_is_disconnected(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What exceeds the buffers of the system stays in the process, with a request that cannot finish."""
    monkeypatch.setattr("leaseway.api.connections.READ_SECONDS", SOON)
    with unread(served) as line:
        await asyncio.to_thread(line.sendall, request("GET", "/v1/openapi.json") * 300)
        await asyncio.to_thread(wait_until_closed, line)
    assert (await served.client.get("/healthz")).status_code == 200
    assert served.api.state.requests.in_progress == 0


async def test_a_client_that_reads_slowly_stays_connected(served: Served) -> None:
    """A slow connection is not an attack as long as the client reads. The check is called directly in place of
    waiting.
    """
    with unread(served) as line:
        await asyncio.to_thread(line.sendall, request("GET", "/v1/openapi.json") * 300)
        async with asyncio.timeout(SECONDS):
            while (paused := find_connection(lambda each: each.flow.write_paused)) is None:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.01)
        left = paused.transport.get_write_buffer_size()
        paused._check_reading(left + READ_BYTES_MIN)
        assert not paused.transport.is_closing()
        paused._check_reading(left + READ_BYTES_MIN - 1)
        assert paused.transport.is_closing()


def find_connection(is_wanted: Callable[[HttpConnection], bool]) -> HttpConnection | None:
    lines = [
        each for each in gc.get_objects() if issubclass(type(each), HttpConnection)
    ]  # a proxy of another test may have ended by now
    return next((each for each in lines if each.flow is not None and is_wanted(each)), None)
