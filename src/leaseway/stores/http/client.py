"""One call ─► one request ─► one reply.

The client repeats a request only if the service refused it because of a rate limit, after the time that the service
names. In all other cases the caller decides about that.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable
from functools import cache
from ipaddress import ip_address
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

import httpx2
import msgspec
from msgspec import Struct

from leaseway.domain.errors import (
    BadValue,
    IdConflict,
    KeyConflict,
    LeasewayError,
    QuotaExceeded,
    Stale,
    StoreBusy,
    StoreFull,
    StoreRefused,
    TransientError,
    UnknownBudget,
    UnknownLimit,
    UnknownOutcome,
    UsageError,
)
from leaseway.domain.identity import parse_key_text
from leaseway.domain.redact import redact_url
from leaseway.stores.event_loops import PerLoop
from leaseway.stores.http.messages import Value
from leaseway.stores.http.protocol import WAIT_PATH, WAIT_SECONDS_MAX, Verb

UNSENT = (
    httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError, httpx2.UnsupportedProtocol,
    httpx2.LocalProtocolError,
)  # fmt: skip
"""Errors that occur before a request was sent."""
BY_CODE: dict[str, type[LeasewayError]] = {
    "key_conflict": KeyConflict,
    "id_conflict": IdConflict,
    "stale": Stale,
    "unknown_limit": UnknownLimit,
    "unknown_budget": UnknownBudget,
    "refused": UsageError,
    "busy": StoreBusy,
    "full": StoreFull,
    "unavailable": TransientError,
    "unknown_outcome": UnknownOutcome,
}
"""Exceptions by the code of the problem."""
REFUSED = {401, 403, 404, 405, 415, 421}
"""The service refuses the client or does not know the route: repeating the call does not help."""
OVERSIZE = 413
TOO_MANY = 429
RATE_LIMITED = "rate_limited"
"""The code of a request that was refused before the service looked at it."""
CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"
TEXT_MAX = 300


# -- the address ------------------------------------------------------------------------------------------------------

KEY_VARIABLE = "LEASEWAY_KEY"
INSECURE_VARIABLE = "LEASEWAY_INSECURE"
KEY_FORM = re.compile(r"[\x21-\x7e]{1,8192}")
"""An API key, or a JWT of an issuer that the service trusts."""


class Address(NamedTuple):
    url: str
    """Without a trailing slash."""
    key: str | None
    is_local: bool
    """On the loopback interface."""

    def __repr__(self) -> str:
        """Without the key, which must not appear in logs."""
        return f"Address({self.url!r})"


def parse_address(url: str, key: str | None = None) -> Address:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise StoreRefused(f"{redact_url(url)!r} is not the URL of a service ({error})") from error
    if not host or parts.query or parts.fragment:
        raise StoreRefused(f"{redact_url(url)!r} is not the URL of a service; example: https://leaseway.example")
    if parts.username is not None or parts.password is not None:
        raise StoreRefused(f"the key must not be part of the URL; pass key= to App, or set {KEY_VARIABLE}")
    is_local = is_loopback(host)
    if parts.scheme == "http" and not is_local and os.environ.get(INSECURE_VARIABLE) != "1":
        raise StoreRefused(
            f"{redact_url(url)} would send the key and jobs unencrypted; use https://, or in a trusted network "
            f"set {INSECURE_VARIABLE}=1"
        )
    return Address(url.rstrip("/"), checked(key or os.environ.get(KEY_VARIABLE) or None), is_local)


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def checked(key: str | None) -> str | None:
    if key is not None and (not KEY_FORM.fullmatch(key) or (key.startswith("lw_") and parse_key_text(key) is None)):
        raise StoreRefused("this is not an API key; keys look like lw_… (leaseway keys create prints one)")
    return key


# -- errors -----------------------------------------------------------------------------------------------------------


class ProblemDetails(Struct):
    """The fields of an RFC 9457 problem that the client uses."""

    code: str
    detail: str = ""
    errors: list[dict[str, Any]] = []


def translate_transport_error(error: Exception, address: Address) -> LeasewayError:
    """The request or its reply was lost."""
    if CERTIFICATE in str(error):
        return StoreRefused(f"{address.url} has no certificate that this machine trusts; check its issuer ({error})")
    said = f"{type(error).__name__}: {error}"[:TEXT_MAX]
    if isinstance(error, UNSENT):
        return TransientError(f"{address.url} cannot be reached ({said})")
    return UnknownOutcome(f"the reply of {address.url} was lost ({said})")


def translate_problem(status: int, body: bytes, address: Address) -> LeasewayError:
    """The service, or a proxy before it, returned an error."""
    told = parse_problem(body)
    if told is None:
        return translate_foreign_answer(status, address)
    if told.code == "invalid" and told.errors:
        return bad_value(told)
    if status in REFUSED:
        return StoreRefused(f"{address.url} refuses: {told.detail}{advice_for(status)}")
    if told.code == "quota_exceeded":
        return QuotaExceeded(told.detail)
    if status == OVERSIZE:
        return BadValue("the call", told.detail)
    if status == TOO_MANY:
        return StoreBusy(f"{address.url}: {told.detail}")
    known = BY_CODE.get(told.code)
    if known is not None:
        return known(told.detail)
    if status < 500:
        return UsageError(f"{address.url}: {told.detail}")
    # The service failed while it worked, before or after it wrote.
    return UnknownOutcome(f"{address.url}: {told.detail}")


def translate_foreign_answer(status: int, address: Address) -> LeasewayError:
    """The reply is not a problem document: it comes from a proxy or another kind of server."""
    if status >= 500 or status in (408, TOO_MANY):
        return UnknownOutcome(f"{address.url} answered {status} without a problem document of a leaseway service")
    return StoreRefused(f"{address.url} answered {status}: it is not a leaseway service, or has another version")


def parse_problem(body: bytes) -> ProblemDetails | None:
    try:
        return msgspec.json.decode(body, type=ProblemDetails)
    except msgspec.DecodeError:
        return None


def bad_value(told: ProblemDetails) -> BadValue:
    """The detail consists of the field, a colon and the problem."""
    problem = str(told.errors[0].get("detail", ""))
    return BadValue(told.detail.removesuffix(f": {problem}"), problem)


def advice_for(status: int) -> str:
    return f"; pass key= to App, or set {KEY_VARIABLE}" if status == 401 else ""


A = TypeVar("A")
B = TypeVar("B")

CONNECT_SECONDS_MAX = 5.0
CALL_SECONDS_MAX = 30.0
CONNECTIONS_MAX = 20
KEEP_ALIVE_SECONDS = 20.0
"""Shorter than the service keeps an idle connection: the outcome of a request that meets its end would be unknown."""
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
        reply = await self._send("POST", verb.url, CALL_SECONDS_MAX, content=encode_body(verb, body))
        return self._read(reply, verb.reply)

    async def get(self, path: str, kind: type[A]) -> A:
        """A document of the service's public API."""
        return self._read(await self._send("GET", path, CALL_SECONDS_MAX), kind)

    async def wait(self, seconds: float) -> bool:
        """Wait until the service sends a notification."""
        asked = min(max(seconds, 0.0), WAIT_SECONDS_MAX)
        reply = await self._send("GET", WAIT_PATH, asked + CALL_SECONDS_MAX, params={"seconds": asked})
        said: Value[bool] = self._read(reply, Value[bool])
        return said.value

    async def _send(self, method: str, path: str, seconds: float, **options: Any) -> httpx2.Response:
        if self._origin is not None and (origin := self._origin()) is not None:
            options["headers"] = {"traceparent": origin}
        deadline = asyncio.get_running_loop().time() + seconds
        while True:  # until the service accepts the request, refuses it for another reason, or the deadline is near
            reply = await self._send_once(method, path, seconds, options)
            if reply.status_code == httpx2.codes.OK:
                return reply
            wait_seconds = rate_limit_seconds(reply)
            if wait_seconds is None or asyncio.get_running_loop().time() + wait_seconds > deadline:
                raise translate_problem(reply.status_code, reply.content, self.address)
            await asyncio.sleep(wait_seconds)  # noqa: TID251 - the deadline is in real time as well

    async def _send_once(self, method: str, path: str, seconds: float, options: dict[str, Any]) -> httpx2.Response:
        client = await self._clients.here()
        try:
            async with asyncio.timeout(seconds):
                return await client.request(method, path, **options)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:  # a TimeoutError is an OSError
            raise translate_transport_error(error, self.address) from error

    def _read(self, reply: httpx2.Response, kind: type[A]) -> A:
        try:
            answer: A = make_decoder(cast(Any, kind)).decode(reply.content)
        except msgspec.DecodeError as error:
            raise translate_problem(httpx2.codes.BAD_GATEWAY, b"", self.address) from error
        return answer

    async def close(self) -> None:
        await self._clients.close()


def rate_limit_seconds(reply: httpx2.Response) -> float | None:
    """When to send a request again that exceeded a rate limit. None: the reply says something else."""
    told = parse_problem(reply.content) if reply.status_code == TOO_MANY else None
    given = reply.headers.get("retry-after", "")
    return float(given) if told is not None and told.code == RATE_LIMITED and given.isdigit() else None


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


def encode_body(verb: Verb[Any, Any], body: object) -> bytes:
    try:
        raw = _encoder.encode(body)
    except UnicodeEncodeError as error:
        raise BadValue("the call", "contains a lone surrogate, which is not a character") from error
    except OverflowError as error:
        raise BadValue("the call", f"has a number that is too large ({error})") from error
    if len(raw) > verb.bytes_max:
        raise BadValue("the call", f"is {len(raw):,} bytes; {verb.bytes_max:,} are allowed. Send it in parts")
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
