"""ctx.http ─► [connection ─► request ─► reply] with aiohttp.

docs/decisions/0021-http-engine.md has the measurements. Three properties of aiohttp must not reach users:

- It repeats idempotent requests on its own if a kept connection was closed. A repetition would have no permit, so a
  second connection for the same request is refused.
- It bounds neither the time for sending a body nor the size of a whole decompressed one. Both are bounded here.
- Its errors contain the whole URL, which may contain a secret. They are not chained.
"""

import ssl
import zlib
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from functools import cached_property
from typing import Any
from urllib.request import getproxies, proxy_bypass

import aiohttp
import truststore

from leaseway.deadlines import Deadline, Deadlines
from leaseway.domain.errors import BadValue
from leaseway.domain.http import (
    ConnectFailed,
    HttpError,
    HttpReply,
    HttpRequest,
    ProxyRefused,
    ReplyLost,
    ReplyTimeout,
    ReplyUnreadable,
)
from leaseway.domain.limits.rate_limit_headers import TooLarge
from leaseway.ports.provider_requests import AboutToSend

CONNECT_SECONDS = 5.0
CONNECT_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS)
"""The rest is bounded here: see `Sending`."""
KEEP_ALIVE_SECONDS = 5.0
"""How long an idle connection is kept. Some servers close them after this time."""
REPLY_BYTES_MAX = 256 * 1_048_576
"""After decompression: a megabyte on the wire may become gigabytes."""
HEADER_BYTES_MAX = 65_536
"""Of one header."""
PART_BYTES = 65_536
"""Larger bodies are sent in parts, so that a provider that stops reading is noticed."""
TEXT_MAX = 300


class Sending:
    """One request on its way."""

    def __init__(self, about_to_send: AboutToSend, silence: Deadline, seconds: float) -> None:
        self.about_to_send = about_to_send
        self.is_sent = False
        self._silence = silence
        self._seconds = seconds

    def proceed(self) -> None:
        """Something was sent or has arrived. The provider may be silent for as long again."""
        self._silence.restart(self._seconds)


SENDING: ContextVar[Sending] = ContextVar("leaseway_sending")


class CheckingConnector(aiohttp.TCPConnector):
    """Asks, between connecting and sending, whether the request may still be sent."""

    async def connect(self, req: Any, traces: Any, timeout: Any) -> aiohttp.connector.Connection:  # noqa: ASYNC109
        sending = SENDING.get()
        if sending.is_sent:
            raise aiohttp.ServerDisconnectedError
        connection = await super().connect(req, traces, timeout)
        try:
            await sending.about_to_send()
        except BaseException:
            connection.close()
            raise
        sending.is_sent = True
        sending.proceed()
        return connection


class AiohttpTransport:
    """One per worker. `verify`: whether certificates are checked; `proxy`: instead of those of the environment."""

    def __init__(self, *, verify: bool = True, proxy: str | None = None) -> None:
        self._verify = verify
        self._proxy = proxy
        self._session: aiohttp.ClientSession | None = None
        self._deadlines = Deadlines()

    async def send(self, request: HttpRequest, about_to_send: AboutToSend) -> HttpReply:
        silence = self._deadlines.unset()
        sending = Sending(about_to_send, silence, request.timeout_seconds)
        token = SENDING.set(sending)
        try:
            with silence:
                return await self._send(request, sending)
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            if isinstance(error, HttpError):
                raise
            raise translate_error(error, request, sending.is_sent) from None
        finally:
            SENDING.reset(token)

    async def _send(self, request: HttpRequest, sending: Sending) -> HttpReply:
        if len(request.content) > PART_BYTES:
            length = ("Content-Length", str(len(request.content)))
            response = await self._begin(request, send_in_parts(request.content, sending), length)
        else:
            response = await self._begin(request, request.content or None)
        try:
            content = await read_body(response, request, sending)
        finally:
            response.close()  # closes the connection unless the whole body was read
        return HttpReply(response.status, headers=response.headers.items(), content=content, request=request)

    async def _begin(self, request: HttpRequest, body: Any, *more: tuple[str, str]) -> aiohttp.ClientResponse:
        """Send the request and read the head of the reply."""
        return await self._opened().request(
            request.method,
            request.url,
            headers=(*request.headers.pairs, *more),
            data=body,
            allow_redirects=False,
            timeout=CONNECT_TIMEOUT,
            proxy=self._proxy_for(request),
            ssl=self._tls if request.url[:6].lower() == "https:" else True,
        )

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                # Limits and the worker's slots bound the number of requests.
                connector=CheckingConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
                # One session serves all tenants: a cookie of one tenant must not be sent for another.
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
                max_line_size=HEADER_BYTES_MAX,
                max_field_size=HEADER_BYTES_MAX,
            )
        return self._session

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        if self._verify:
            return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    @cached_property
    def _proxies(self) -> dict[str, str]:
        """By scheme, as the environment names them."""
        return getproxies()

    def _proxy_for(self, request: HttpRequest) -> str | None:
        if self._proxy is not None or not self._proxies:
            return self._proxy
        proxy = self._proxies.get(request.url.partition(":")[0].lower(), self._proxies.get("all"))
        return None if proxy is None or proxy_bypass(request.host) else proxy

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


async def send_in_parts(content: bytes, sending: Sending) -> AsyncIterator[bytes]:
    """Each part must be on its way before the timeout; aiohttp waits until the connection takes more."""
    for start in range(0, len(content), PART_BYTES):
        sending.proceed()
        yield content[start : start + PART_BYTES]
    sending.proceed()


# -- reading ----------------------------------------------------------------------------------------------------------

DEFLATE = "deflate"
COMPRESSED = ("gzip", "x-gzip", DEFLATE)
"""Other codings were not asked for. A body that has one is left as it is."""
GZIP_BITS = 16 + zlib.MAX_WBITS


async def read_body(response: aiohttp.ClientResponse, request: HttpRequest, sending: Sending) -> bytes:
    """The whole body, decompressed, up to the allowed size."""
    coding, size_bytes = response.headers.get("Content-Encoding", "").lower(), response.content_length
    is_allowed = coding not in COMPRESSED and size_bytes is not None and size_bytes <= REPLY_BYTES_MAX
    if is_allowed and response.content.is_eof():  # it arrived with the headers
        return response.content.read_nowait()
    body, inflater = bytearray(), Inflater(coding) if coding in COMPRESSED else None
    sending.proceed()
    try:
        async for part in response.content.iter_any():
            sending.proceed()
            for each in (part,) if inflater is None else inflater.parts(part):
                body += each
                if len(body) > REPLY_BYTES_MAX:
                    raise TooLarge(f"{shown(request)}: the reply has more than {REPLY_BYTES_MAX:,} bytes")
        if inflater is not None:
            inflater.end()
    except zlib.error as error:
        raise ReplyUnreadable(f"{shown(request)}: the body cannot be decompressed from {coding} ({error})") from error
    return bytes(body)


class Inflater:
    """Decompresses a body in parts of bounded size."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._inflate: Any = None
        """None: nothing has arrived."""

    def parts(self, data: bytes) -> Iterator[bytes]:
        if self._inflate is None and data:
            self._inflate = self._begin(data)
        is_full = True
        while data or is_full:  # the last call may have left output behind, although all input is consumed
            if self._inflate.eof:  # gzip allows further members; zeros are padding
                data = data.lstrip(b"\0") if self._coding != DEFLATE else b""
                if not data:
                    return
                self._inflate = zlib.decompressobj(GZIP_BITS)
            part = self._inflate.decompress(data, PART_BYTES)
            data, is_full = self._inflate.unconsumed_tail or self._inflate.unused_data, len(part) == PART_BYTES
            yield part

    def _begin(self, data: bytes) -> Any:
        """Some servers send deflate without the header of zlib."""
        if self._coding != DEFLATE:
            return zlib.decompressobj(GZIP_BITS)
        try:
            zlib.decompressobj().decompress(data, 1)
        except zlib.error:
            return zlib.decompressobj(-zlib.MAX_WBITS)
        return zlib.decompressobj()

    def end(self) -> None:
        if self._inflate is not None and not self._inflate.eof:
            raise zlib.error("it ends in the middle")


# -- errors -----------------------------------------------------------------------------------------------------------


def shown(request: HttpRequest) -> str:
    """Without path and query, which may contain a secret."""
    return f"{request.method} {request.host}"


def translate_error(error: Exception, request: HttpRequest, is_sent: bool) -> Exception:
    where = shown(request)
    match error:
        case aiohttp.InvalidURL():
            return BadValue("url", "is not a URL that can be requested")
        case aiohttp.ClientHttpProxyError(status=status):
            return ProxyRefused(f"{where}: the proxy answers {status}")
        case TimeoutError() if is_sent:
            return ReplyTimeout(f"{where}: no data for {request.timeout_seconds:g} s")
        case TimeoutError():
            return ConnectFailed(f"{where}: no connection within {CONNECT_SECONDS:g} s")
        case _ if is_sent:
            return ReplyLost(f"{where}: {describe(error)}")
    return ConnectFailed(f"{where}: {describe(error)}")


def describe(error: Exception) -> str:
    """The text of the error, without the URL that errors of replies contain."""
    text = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
    return f"{type(error).__name__}: {text}"[:TEXT_MAX]
