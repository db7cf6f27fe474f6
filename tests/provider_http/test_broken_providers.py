"""Servers that violate the protocol must cause an HTTP error in bounded time, and the admission must be returned."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.provider_http.fake_admission import Half, Place

from leaseway.deadlines import NEVER
from leaseway.domain.http import HttpReply, HttpRequest, ReplyLost, ReplyTimeout, ReplyUnreadable
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus
from leaseway.ports.provider_requests import Delivery
from leaseway.testing.provider import Provider
from leaseway.worker import provider_http as flow
from leaseway.worker.provider_http import TRIES_MAX, FunctionTransport, HttpEnvironment, RequestAttempt

HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
BROKEN = {
    "garbage": b"\x00\xff\x16\x03 not a reply \r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nRetry-Aft",
    "half a body": HALF,
    "half a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhalf",
    "a bad length": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "an endless head": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1_000_000,
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_reply_is_an_error_and_a_get_is_repeated(it: Provider, place: Place, raw: bytes) -> None:
    """A GET may be repeated whatever happened to the first, but not forever."""
    it.garble(raw)
    assert (await place.http().get(it.url)).status_code == 200
    it.garble(raw, times=TRIES_MAX)
    with pytest.raises(ReplyLost):
        await place.http().get(it.url)
    assert len(it.arrivals) == 2 + TRIES_MAX
    assert place.door.fates == [Delivery.UNKNOWN, Delivery.ANSWERED] + [Delivery.UNKNOWN] * TRIES_MAX


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_reply_to_a_post_is_not_asked_for_again(it: Provider, place: Place, raw: bytes) -> None:
    """The request was probably executed."""
    it.garble(raw, times=2)
    with pytest.raises(ReplyLost):
        await place.http().post(it.url)
    assert len(it.arrivals) == 1
    assert place.door.fates == [Delivery.UNKNOWN]


async def test_a_reply_that_stops_in_the_middle_does_not_hang(it: Provider, place: Place) -> None:
    """The connection stays open and nothing arrives, so only the client's own deadline ends it."""
    it.garble(HALF, cuts=False)
    with pytest.raises(ReplyTimeout):
        await place.http().get(it.url, timeout=0.5)
    assert place.door.fates == [Delivery.UNKNOWN]


async def test_a_body_that_cannot_be_unpacked_is_not_asked_for_again(it: Provider, place: Place) -> None:
    """The response would be the same again."""
    it.answer(200, {"Content-Encoding": "gzip"}, b"not gzip", times=2)
    with pytest.raises(ReplyUnreadable):
        await place.http().get(it.url)
    assert len(it.arrivals) == 1
    assert place.door.fates == [Delivery.UNKNOWN]


async def test_headers_in_no_known_alphabet_do_not_fail_the_call(it: Provider, place: Place) -> None:
    """The response counts, whatever encoding its headers use."""
    it.garble(b"HTTP/1.1 429 \xff\r\nRetry-After: \xe4\xff\xfe\r\nRateLimit: \xc3\x28\r\nContent-Length: 0\r\n\r\n")
    assert (await place.http().get(it.url)).status_code == 200
    # A second try may meet the connection that the provider has closed, and is repeated.
    assert [each for each in place.door.heard if not each.is_fault] == [
        RateLimitStatus(throttled=True), RateLimitStatus()
    ]  # fmt: skip


@asynccontextmanager
async def dripping() -> AsyncIterator[str]:
    """A server that sends one byte of a body after another until the client disconnects."""
    is_over = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.005)
        is_over.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    # The client has disconnected, and the server notices it.
    await is_over.wait()
    server.close()


async def test_a_reply_that_drips_ends_at_our_deadline(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte arrives in time but the response never ends: with read timeouts alone, the call would stay in flight
    for days.
    """
    monkeypatch.setattr(flow, "CONNECT_SECONDS", 0.0)
    async with asyncio.timeout(30), dripping() as url:
        request = HttpRequest("GET", url)
        result = await RequestAttempt(
            HttpEnvironment(place.wire, place.naps, Half()), place.door, request, reply_seconds=0.2
        ).run()
    assert isinstance(result.error, ReplyTimeout)
    assert place.door.fates == [Delivery.UNKNOWN]


async def test_a_transport_that_never_says_a_word_ends_at_our_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every transport implements timeouts or reports when a request is sent."""

    async def never(request: HttpRequest) -> HttpReply:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(flow, "CONNECT_SECONDS", 0.0)
    place = Place(FunctionTransport(never))
    request = HttpRequest("GET", "http://x/")
    async with asyncio.timeout(30):
        result = await RequestAttempt(
            HttpEnvironment(place.wire, place.naps, Half()), place.door, request, reply_seconds=0.05
        ).run()
    assert isinstance(result.error, ReplyTimeout)
    assert place.door.fates == [Delivery.UNKNOWN]
    await place.wire.close()


async def test_waiting_for_tokens_is_not_the_providers_time(it: Provider, place: Place) -> None:
    """The wait for a limit may be longer than any response may take."""
    request = HttpRequest("GET", it.url)
    trip = RequestAttempt(HttpEnvironment(place.wire, place.naps, Half()), place.door, request, reply_seconds=60)
    place.door.checks = [True, False, True]
    armed: list[bool] = []
    place.door.when_asked = lambda: armed.append(trip._deadline is not None and trip._deadline.when < NEVER)
    result = await trip.run()
    assert result.reply is not None
    assert armed == [False, False]


async def test_a_caller_who_waits_longer_is_not_cut_off_earlier(
    it: Provider, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that allows an hour for the first byte must not be stopped by the default deadline."""
    monkeypatch.setattr(flow, "REPLY_SECONDS", 0.02)
    it.delay(0.2)
    assert (await place.http().get(it.url, timeout=60)).status_code == 200
