"""One call ─► one request ─► one reply. The client never repeats a request: the caller decides about that."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import httpx2
import msgspec

from leaseway.domain.errors import BadValue, StoreRefused, TransientError
from leaseway.stores.http.address import Address
from leaseway.stores.http.errors import translate_problem, translate_transport_error
from leaseway.stores.http.protocol import WAIT_PATH, WAIT_SECONDS_MAX, Verb
from leaseway.stores.http.responses import Value
from leaseway.stores.local_notifier import PerLoop

A = TypeVar("A")
B = TypeVar("B")

CONNECT_SECONDS_MAX = 5.0
CALL_SECONDS_MAX = 30.0
CONNECTIONS_MAX = 20
KEEP_ALIVE_SECONDS = 20.0
"""Shorter than the service keeps an idle connection: the outcome of a request that meets its end would be unknown."""
BODY_BYTES_MAX = 64 * 1024 * 1024
"""The largest body that the service accepts."""
NAME = "leaseway"

_encoder = msgspec.json.Encoder()


@cache
def make_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


class ServiceClient:
    def __init__(self, address: Address, origin: Callable[[], str | None] | None = None) -> None:
        self.address = address
        self._origin = origin
        """The current trace context, as a `traceparent` header; None without tracing."""
        self._clients = PerLoop(lambda: make_client(address), httpx2.AsyncClient.aclose)

    async def ask(self, verb: Verb[B, A], body: B) -> A:
        reply = await self._send("POST", verb.url, CALL_SECONDS_MAX, content=encode_body(body))
        return self._read(reply, verb.reply)

    async def wait(self, seconds: float) -> bool:
        """Wait until the service sends a notification."""
        asked = min(max(seconds, 0.0), WAIT_SECONDS_MAX)
        reply = await self._send("GET", WAIT_PATH, asked + CALL_SECONDS_MAX, params={"seconds": asked})
        said: Value[bool] = self._read(reply, Value[bool])
        return said.value

    async def _send(self, method: str, path: str, seconds: float, **options: Any) -> httpx2.Response:
        client = await self._clients.here()
        if self._origin is not None and (origin := self._origin()) is not None:
            options["headers"] = {"traceparent": origin}
        try:
            async with asyncio.timeout(seconds):
                reply = await client.request(method, path, **options)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:  # a TimeoutError is an OSError
            raise translate_transport_error(error, self.address) from error
        if reply.status_code != httpx2.codes.OK:
            raise translate_problem(reply.status_code, reply.content, self.address)
        return reply

    def _read(self, reply: httpx2.Response, kind: type[A]) -> A:
        try:
            answer: A = make_decoder(cast(Any, kind)).decode(reply.content)
        except msgspec.DecodeError as error:
            raise translate_problem(httpx2.codes.BAD_GATEWAY, b"", self.address) from error
        return answer

    async def close(self) -> None:
        await self._clients.close()


def make_client(address: Address) -> httpx2.AsyncClient:
    """A client for one event loop."""
    headers = {"User-Agent": NAME, "Accept": "application/json", "Content-Type": "application/json"}
    if address.key is not None:
        headers["Authorization"] = f"Bearer {address.key}"
    return httpx2.AsyncClient(
        base_url=address.url,
        headers=headers,
        # Every call has its own deadline.
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS_MAX, pool=CONNECT_SECONDS_MAX),
        limits=httpx2.Limits(max_connections=CONNECTIONS_MAX, keepalive_expiry=KEEP_ALIVE_SECONDS),
        verify=address.url.startswith("https:"),  # creating a TLS context takes time that plain HTTP can save
        trust_env=not address.is_local,
    )


def encode_body(body: object) -> bytes:
    try:
        raw = _encoder.encode(body)
    except UnicodeEncodeError as error:
        raise BadValue("the call", "contains a lone surrogate, which is not a character") from error
    except OverflowError as error:
        raise BadValue("the call", f"has a number that is too large ({error})") from error
    if len(raw) > BODY_BYTES_MAX:
        raise BadValue("the call", f"is {len(raw):,} bytes; {BODY_BYTES_MAX:,} are allowed. Send it in parts")
    return raw


async def wait_for_notification(line: ServiceClient, seconds: float) -> bool:
    """True after a notification. Without one, wait the full time; so do clients that may not receive any."""
    until = asyncio.get_running_loop().time() + seconds
    try:
        return await line.wait(seconds)
    except (TransientError, StoreRefused):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await asyncio.Event().wait()
        return False
