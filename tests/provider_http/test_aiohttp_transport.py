"""What the HTTP library below ctx.http does on its own must not reach users: repetitions, endless sending, unbounded
bodies, and URLs in errors.
"""

import asyncio
import gzip
import ssl
import traceback
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from tests.provider_http.fake_admission import Place
from tests.worker.observe import eventually

from leaseway import aiohttp_transport
from leaseway.aiohttp_transport import PART_BYTES, AiohttpTransport
from leaseway.domain.http import ConnectFailed, HttpError, ReplyLost, ReplyTimeout, ReplyUnreadable
from leaseway.domain.limits.rate_limit_headers import TooLarge
from leaseway.ports.provider_requests import Delivery
from leaseway.testing.provider import Provider

TEXT = b"the same again " * 20_000
SECRET = "s3cr3t"


# -- nothing is repeated ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_reading", [True, False])
async def test_a_request_on_a_kept_connection_is_not_repeated_without_a_permit(
    it: Provider, place: Place, after_reading: bool
) -> None:
    """The library repeats a GET if a kept connection is closed. The provider would count a request that no limit and no
    budget has admitted.
    """
    await place.http().get(it.url)
    it.cut(after_reading=after_reading)
    with pytest.raises(ReplyLost):
        await place.http().get(it.url, retry=False)
    assert place.door.fates == [Delivery.ANSWERED, Delivery.UNKNOWN]
    assert len(it.arrivals) == (2 if after_reading else 1)


# -- sending is bounded -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def deaf() -> AsyncIterator[str]:
    """A server that accepts connections and reads nothing."""
    is_over = asyncio.Event()

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await is_over.wait()
        writer.transport.abort()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    is_over.set()
    server.close()


async def test_a_provider_that_stops_reading_is_noticed(place: Place) -> None:
    """A large body fills the buffers of the connection. Without a bound, the call would stay in flight for minutes."""
    async with asyncio.timeout(30), deaf() as url:
        with pytest.raises(ReplyTimeout):
            await place.http().post(url, content=b"x" * 50_000_000, timeout=0.5)
    assert place.door.fates == [Delivery.UNKNOWN]


async def test_a_large_body_arrives_whole_and_with_its_length(it: Provider, place: Place) -> None:
    """It is sent in parts, and providers refuse bodies without a length."""
    body = "ab" * PART_BYTES
    reply = await place.http().put(it.url, content=body)
    assert reply.json()["body"] == body
    assert it.arrivals[0].headers["content-length"] == str(len(body))


# -- bodies are bounded and decompressed ------------------------------------------------------------------------------


def raw_deflate(text: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflater.compress(text) + deflater.flush()


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(TEXT)),
        ("GZip", gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:])),
        ("gzip", gzip.compress(TEXT) + b"\0" * 100),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", raw_deflate(TEXT)),
        ("identity", TEXT),
        ("br", TEXT),
    ],
)
async def test_bodies_are_decompressed(it: Provider, place: Place, coding: str, body: bytes) -> None:
    """Of the codings that servers use, gzip may have several members and padding, and deflate may lack its header."""
    it.answer(200, {"Content-Encoding": coding}, body)
    assert (await place.http().get(it.url)).content == TEXT


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_compressed_reply_without_a_body_is_a_reply(it: Provider, place: Place, coding: str) -> None:
    """The reply to HEAD has the headers of a body that is not sent."""
    it.answer(200, {"Content-Encoding": coding})
    assert (await place.http().get(it.url)).content == b""


@pytest.mark.parametrize("body", [gzip.compress(TEXT)[:-20], gzip.compress(TEXT) + b"more"])
async def test_a_body_that_is_cut_or_damaged_is_no_reply(it: Provider, place: Place, body: bytes) -> None:
    """Half of the rows would be taken for all of them."""
    it.answer(200, {"Content-Encoding": "gzip"}, body)
    with pytest.raises(ReplyUnreadable):
        await place.http().get(it.url)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Content-Encoding": "gzip"}, gzip.compress(b"\0" * 10_000_000)),
        ({"Content-Encoding": "deflate"}, zlib.compress(b"\0" * 10_000_000)),
        ({}, b"\0" * 2_000_000),
        ({"Transfer-Encoding": "chunked", "Content-Length": ""}, b""),
    ],
)
async def test_a_body_that_is_too_large_is_refused_in_time(
    it: Provider, place: Place, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], body: bytes
) -> None:
    """Ten kilobytes on the wire may become gigabytes in memory."""
    monkeypatch.setattr(aiohttp_transport, "REPLY_BYTES_MAX", 1_000_000)
    if "Transfer-Encoding" in headers:
        chunks = b"".join(b"10000\r\n" + b"\0" * 0x10000 + b"\r\n" for _ in range(20))
        it.garble(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    else:
        it.answer(200, headers, body)
    with pytest.raises(TooLarge, match=r"GET 127\.0\.0\.1: the reply has more than 1,000,000 bytes"):
        await place.http().get(it.url)
    assert place.door.fates == [Delivery.UNKNOWN]


# -- errors name no secret --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["hang", "cut", "garble", "refused"])
async def test_errors_do_not_contain_the_url(it: Provider, place: Place, unused_tcp_port: int, fault: str) -> None:
    """Many providers take the key as a parameter, and errors are stored, logged and shown."""
    url = f"http://127.0.0.1:{unused_tcp_port}" if fault == "refused" else it.url
    if fault == "hang":
        it.hang()
    elif fault == "cut":
        it.cut(after_reading=True)
    elif fault == "garble":
        it.garble(b"nonsense\r\n\r\n")
    with pytest.raises(HttpError, match=r"GET 127\.0\.0\.1: ") as caught:
        await place.http().get(f"{url}/{SECRET}", params={"key": SECRET}, timeout=0.5, retry=False)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


# -- proxies ----------------------------------------------------------------------------------------------------------


async def test_the_proxy_of_the_environment_is_used(
    it: Provider, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In many companies nothing else leads to the Internet. NO_PROXY names the exceptions."""
    monkeypatch.setenv("http_proxy", it.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert (await place.http().get("http://provider.example/a")).status_code == 200
    assert [arrival.path for arrival in it.arrivals] == ["http://provider.example/a"]
    assert (await place.http().get(f"{it.url}/b")).status_code == 200
    assert it.arrivals[1].path == "/b"


async def test_credentials_of_a_proxy_are_sent_to_it(it: Provider) -> None:
    """Without them, every request through such a proxy would be refused."""
    place = Place(AiohttpTransport(proxy=it.url.replace("http://", "http://ada:pa%40ss@")))
    await place.http().get("http://provider.example/")
    assert it.arrivals[0].headers["proxy-authorization"] == "Basic YWRhOnBhQHNz"
    await place.wire.close()


# -- certificates -----------------------------------------------------------------------------------------------------


def write_certificate(file: Path) -> Path:
    """A certificate of its own authority, for localhost, with its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(made.public_bytes(Encoding.PEM) + private)
    return file


@asynccontextmanager
async def served_with(certificate: Path) -> AsyncIterator[str]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}"


async def test_only_certificates_that_the_machine_trusts_are_accepted(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone on the way could read the keys of the provider. Nothing was sent, so nothing is charged."""
    certificate = write_certificate(tmp_path / "server.pem")
    async with asyncio.timeout(60), served_with(certificate) as url:
        with pytest.raises(ConnectFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await place.http().get(url, retry=False)
        assert place.door.fates == [Delivery.NOT_SENT]
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        trusting = Place()
        assert (await trusting.http().get(url)).status_code == 204
        with pytest.raises(ConnectFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await trusting.http().get(url.replace("localhost", "127.0.0.1"), retry=False)
        await trusting.wire.close()


# -- silence ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def answering_in_parts(before_part: Callable[[], Awaitable[None]]) -> AsyncIterator[str]:
    """A server that sends four bytes, one after another, each after it has awaited `before_part`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
        for _ in range(4):
            await before_part()
            writer.write(b"x")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_each_part_of_a_reply_gives_the_provider_its_time_again() -> None:
    """A large reply takes longer than the provider may stay silent."""
    place, seen = Place(wire := AiohttpTransport()), set[float]()

    async def has_moved() -> bool:
        return next(iter(wire._deadlines._open)).when not in seen

    async def until_the_deadline_has_moved() -> None:
        await eventually(has_moved)
        seen.add(next(iter(wire._deadlines._open)).when)

    async with answering_in_parts(until_the_deadline_has_moved) as url:
        assert (await place.http().get(url, timeout=60)).content == b"xxxx"
    assert len(seen) == 4
    assert not wire._deadlines._open
    await wire.close()
