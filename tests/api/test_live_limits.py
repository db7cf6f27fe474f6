"""Live updates: every resource has a bound, and a client that exceeds it is refused or dropped without harm to
others.
"""

import asyncio
import socket as sockets
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.api.keys import bearer, key_for
from tests.api.live_clients import TRANSPORTS, LiveClient, by_socket, by_stream, change_settings, socket, socket_frames
from tests.api.running_service import Served, run_service
from websockets.exceptions import ConnectionClosed

from leaseway import App
from leaseway.api.live.change_log import Observation, PollResult


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """One store is enough: the code under test runs before any store access."""
    return f"sqlite:///{tmp_path / 'work.db'}"


@pytest.fixture(params=list(TRANSPORTS))
def way(request: pytest.FixtureRequest) -> Any:
    return TRANSPORTS[request.param]


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1", "http://localhost:1", "null"])
async def test_a_page_of_another_site_cannot_listen(served: Served, origin: str) -> None:
    """Browsers let any page open a WebSocket to any host with that host's cookies, so only the service can
    refuse it.
    """
    with pytest.raises(Exception, match="403"):
        async with by_socket(served.url, {"Origin": origin}):
            pass
    async with by_socket(served.url, {"Origin": served.url}) as watcher:
        await watcher.frame()


# -- bounds ---------------------------------------------------------------------------------------------------------


async def test_who_is_revoked_is_thrown_out(served_with_keys: Served) -> None:
    """A stream outlasts the check of its key, so a revoked credential must also end its streams."""
    served = served_with_keys
    change_settings(served, recheck_seconds=0.01, heartbeat_seconds=0.01)
    acme = await key_for(served, "acme")
    made = await served.client.post("/v1/tickets", headers=bearer(acme))
    async with (
        socket(served.url, bearer(acme)) as by_key,
        socket(served.url, ticket=made.json()["ticket"]) as by_ticket,
    ):
        await by_key.recv()
        await by_ticket.recv()
        await served.service.world.store.keys.revoke(acme.key.id)
        assert served.service.authenticator is not None
        served.service.authenticator.invalidate_key(acme.key.id)
        for line in (by_key, by_ticket):
            with pytest.raises(ConnectionClosed) as closed:
                await LiveClient(socket_frames(line)).until(lambda _: False)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4401


async def test_a_credential_that_expires_takes_its_stream_along(served_with_keys: Served) -> None:
    """A stream must not outlive the credential that opened it."""
    served = served_with_keys
    change_settings(served, heartbeat_seconds=0.05, recheck_seconds=1_000)
    acme = await key_for(served, "acme", life_us=1_500_000)
    async with socket(served.url, bearer(acme)) as line:
        with pytest.raises(ConnectionClosed) as closed:
            await LiveClient(socket_frames(line)).until(lambda _: False)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.reason == "expired"


async def test_silence_is_told_from_death_by_a_heartbeat(served: Served, way: Any) -> None:
    """Without a heartbeat, neither side would notice a dead peer, and proxies would close the connection."""
    change_settings(served, heartbeat_seconds=0.05)
    async with way(served.url, wait_seconds=1) as watcher:
        await watcher.frame()
        while (await watcher.frame())["events"]:
            pass
        assert watcher.seq is not None


@pytest.mark.parametrize("by", [by_socket, by_stream])
async def test_who_comes_back_while_nothing_happens_hears_something_at_once(served: Served, by: Any) -> None:
    """Without an immediate frame, a browser cannot tell a working connection from a blocked one and falls back to a
    slower transport.
    """
    change_settings(served, heartbeat_seconds=3_600)
    seq = (await served.client.get("/v1/events")).json()["seq"]
    async with by(served.url, after=seq) as again:
        assert await again.frame() == {"seq": seq, "events": []}


async def test_only_so_many_may_listen(served_with_keys: Served) -> None:
    """Each subscriber occupies a connection: all tenants together must not exhaust the process, and no tenant may take
    more than half of what the others leave, so that two of them cannot lock out a third.
    """
    served = served_with_keys
    change_settings(served, tenant_subscribers_max=2, subscribers_max=4)
    acme, other, third = [await key_for(served, tenant) for tenant in ("acme", "other", "third")]
    async with by_socket(served.url, bearer(acme)), by_socket(served.url, bearer(acme)):
        answer = await served.client.get("/v1/events", headers=bearer(acme))
        assert (answer.status_code, answer.json()["code"]) == (429, "too_many_subscribers")
        async with by_socket(served.url, bearer(other)) as watcher:
            await watcher.frame()
            answer = await served.client.get("/v1/events", headers=bearer(other))
            assert (answer.status_code, "limit of 1 " in answer.json()["detail"]) == (429, True)
            async with by_socket(served.url, bearer(third)) as last:
                await last.frame()
                answer = await served.client.get("/v1/events", headers=bearer(third))
                assert answer.status_code == 503
        assert "retry-after" in answer.headers
    assert (await served.client.get("/v1/events", headers=bearer(acme))).status_code == 200


async def test_followed_jobs_of_one_tenant_leave_room_for_those_of_another(served_with_keys: Served) -> None:
    """One tenant that follows two thousand jobs must neither lock out the others nor delay their updates."""
    served = served_with_keys
    change_settings(served, tenant_followed_max=4, followed_per_poll=2)
    acme, other = await key_for(served, "acme"), await key_for(served, "other")
    many = [f"{number:026}" for number in range(4)]
    async with (
        by_socket(served.url, bearer(acme), follow=many) as first,
        by_socket(served.url, bearer(other), follow="z" * 26) as second,
    ):
        await first.frame()
        await second.frame()
        answer = await served.client.get("/v1/events", params={"follow": "y" * 26}, headers=bearer(acme))
        assert (answer.status_code, "this tenant follows up to 4 jobs" in answer.json()["detail"]) == (429, True)
        polls = [served.service.live.poller._next_followed() for _ in range(4)]
        assert all("z" * 26 in polled for polled in polls)
        assert {id_ for polled in polls for id_ in polled} == {*many, "z" * 26}


async def test_a_stream_of_events_is_not_held_back_by_proxies(served: Served) -> None:
    """Some proxies buffer or cache responses unless the headers forbid it."""
    async with served.client.stream("GET", "/v1/events", headers={"Accept": "text/event-stream"}) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["cache-control"] == "no-store, no-transform"


async def test_who_says_nonsense_is_shown_the_door(served: Served) -> None:
    """A subscriber may only send ids of jobs to follow, in limited number and rate. Anything else is a broken or
    hostile client.
    """
    for words in ("{", '{"follow": 1}', '{"follow": ["x"]}', '{"other": []}', b"\x00", '{"follow": ["' + "a" * 70_000):
        async with socket(served.url) as line:
            await line.send(words)
            with pytest.raises(ConnectionClosed) as closed:
                await LiveClient(socket_frames(line)).until(lambda _: False)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code in (1008, 1009)


async def test_who_talks_without_end_is_shown_the_door(served: Served) -> None:
    """Each message costs processing time."""
    change_settings(served, messages_max=5)
    async with socket(served.url) as line:
        for _ in range(6):
            await line.send('{"follow": []}')
        with pytest.raises(ConnectionClosed):
            await LiveClient(socket_frames(line)).until(lambda _: False)


MASK = b"\0\0\0\0"
UNCOUNTED = {
    "pings": (b"", b"\x89\xfd" + MASK + b"p" * 125),
    "empty parts of a message": (b"\x01\x80" + MASK, b"\x00\x80" + MASK),
}


@pytest.mark.parametrize("kind", UNCOUNTED)
async def test_frames_that_are_not_messages_are_bounded(served: Served, kind: str) -> None:
    """Each ping is answered: one client that never read the answers made the service grow by 230 MB. The parts of a
    message without end are kept as well.
    """
    first, frame = UNCOUNTED[kind]
    with standing_still(served.url, ASKING["socket"]) as line:
        line.settimeout(10)  # less than the time between heartbeats
        await asyncio.to_thread(line.recv, 12)
        await asyncio.to_thread(line.sendall, first)
        await asyncio.to_thread(send_until_closed, line, frame * 1_000)


def send_until_closed(line: sockets.socket, data: bytes) -> None:
    with suppress(ConnectionError):
        for _ in range(200):  # up to 26 MB
            line.sendall(data)
        while line.recv(65_536):
            pass


async def test_the_usual_pings_are_answered(served: Served) -> None:
    """Clients and proxies send some to find out whether the connection still works."""
    async with socket(served.url) as line:
        for _ in range(20):
            await (await line.ping())


# -- shutdown -------------------------------------------------------------------------------------------------------


async def test_a_service_that_stops_sends_its_listeners_elsewhere(app: App) -> None:
    """A shutdown must not wait for endless streams; clients reconnect on their own."""
    async with run_service(app) as served, socket(served.url) as line, by_stream(served.url) as stream:
        watcher = LiveClient(socket_frames(line))
        await watcher.frame()
        await stream.frame()
        served.service.stopping.set()
        with pytest.raises(ConnectionClosed) as closed:
            await watcher.until(lambda _: False)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code in (1012, 1013)
        with pytest.raises(StopAsyncIteration):
            await stream.until(lambda _: False)


async def test_nobody_looks_when_nobody_listens(served: Served) -> None:
    """A store without subscribers must not pay for live updates."""
    change_settings(served, linger_seconds=0.0)
    async with by_socket(served.url) as watcher:
        await watcher.frame()
    looking = served.service.live.poller._task
    assert looking is not None
    await asyncio.wait_for(looking, 60)


# -- slow subscribers -----------------------------------------------------------------------------------------------


ASKING = {
    "socket": "GET /v1/live HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    "stream": "GET /v1/events HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n",
}


@pytest.mark.parametrize("asking", list(ASKING))
async def test_who_does_not_read_is_dropped_and_the_others_go_on(served: Served, asking: str) -> None:
    """One stalled reader must not fill the memory, keep its slot or delay other subscribers."""
    change_settings(served, send_seconds=0.2)
    poller = served.service.live.poller
    async with by_socket(served.url) as quick:
        await quick.frame()
        with standing_still(served.url, ASKING[asking]) as line:
            while poller.count() < 2:  # noqa: ASYNC110 - nobody tells when somebody has come
                await asyncio.sleep(0.01)
            number = 0
            while poller.count() == 2:  # ends when the subscriber is dropped; otherwise the test's timeout ends it
                number += 1
                shout(served, f"{number} " + "x" * 60_000)
                await quick.until(lambda seen, number=number: heard(seen) == number)  # type: ignore[misc]
            assert poller.count() == 1
            assert await asyncio.to_thread(was_cut, line)
        shout(served, "0 the end")
        await quick.until(lambda seen: heard(seen) == 0)


def standing_still(url: str, asking: str) -> sockets.socket:
    host = url.removeprefix("http://")
    name, _, port = host.partition(":")
    line = sockets.socket()
    line.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4_096)
    line.connect((name, int(port)))
    line.sendall(asking.format(host=host).encode())
    return line


def shout(served: Served, text: str) -> None:
    """Send something large to all subscribers."""
    poller = served.service.live.poller
    poller.log.record(PollResult(poller.log.seq + 1, [Observation("import", "large", None, {"text": text})]))
    for subscriber in list(poller._subscribers):
        subscriber.wake(poller.log)


def heard(watcher: LiveClient) -> int:
    texts = [event["import"]["text"] for event in watcher.events if event["kind"] == "import"]
    watcher.events.clear()
    return int(texts[-1].partition(" ")[0]) if texts else -1


def was_cut(line: sockets.socket) -> bool:
    """The connection ends in the middle of a frame: unsent data is discarded."""
    line.settimeout(20)
    last = b""
    while part := line.recv(65_536):
        last = part
    return last.endswith(b"x")
