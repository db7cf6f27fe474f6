"""The public keys of whoever issues JWTs: fetched when needed, never more often than every half minute.

Whoever sends tokens with made-up key ids would otherwise make us ask the issuer as often as he likes. The address is
the one we were started with: what a token says about where its key is (jku, x5u, jwk) is not read at all.
"""

import asyncio
import ipaddress
import logging
import ssl
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import jwt
import msgspec

from leaseway.api.errors import Problem
from leaseway.domain.errors import BadValue, UsageError
from leaseway.ports.clock import Clock

log = logging.getLogger("leaseway.api")

FRESH_SECONDS = 600.0
"""A key that the issuer has withdrawn is good for so long."""
KEEP_SECONDS = 3_600.0
"""And so long if the issuer cannot be reached."""
RETRY_SECONDS = 30.0
FETCH_SECONDS_MAX = 5.0
BYTES_MAX = 256 * 1024
KEYS_MAX = 100

ALGORITHM_OF = {
    ("EC", "P-256"): "ES256",
    ("EC", "P-384"): "ES384",
    ("EC", "P-521"): "ES512",
    ("OKP", "Ed25519"): "EdDSA",
}
"""What a key is for that does not say it itself."""
RSA_ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})


class Jwks:
    """Of one process and its loop."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = checked(url)
        self._clock = clock
        self._keys: tuple[jwt.PyJWK, ...] = ()
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._turn = asyncio.Lock()

    async def find(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        """The one key of this id and for this algorithm. The algorithm is the key's: a token cannot choose it."""
        if self._age() > FRESH_SECONDS and not (self._keys and self._turn.locked()):
            await self._fetch()
        if not self._knows(kid):
            await self._fetch()
        if self._age() > KEEP_SECONDS:
            raise Problem(
                503, "issuer_unreachable", "the keys of the token's issuer cannot be fetched now; try again later",
                headers={"Retry-After": f"{RETRY_SECONDS:.0f}"},
            )  # fmt: skip
        found = [key for key in self._keys if kid in (None, key.key_id) and key.algorithm_name == algorithm]
        return found[0] if len(found) == 1 else None

    def _age(self) -> float:
        return float("inf") if self._fetched_at is None else self._clock.monotonic() - self._fetched_at

    def _knows(self, kid: str | None) -> bool:
        return any(kid in (None, key.key_id) for key in self._keys)

    async def _fetch(self) -> None:
        async with self._turn:  # who comes second finds what the first has brought
            now = self._clock.monotonic()
            if self._tried_at is not None and now - self._tried_at < RETRY_SECONDS:
                return
            self._tried_at = now
            try:
                self._keys = usable(await fetched(self._url))
                self._fetched_at = now
            except Exception as error:  # noqa: BLE001 - whatever the issuer does, those with a key are served
                log.warning("%s: cannot fetch the issuer's keys: %r", self._url, error)


def checked(url: str) -> str:
    """Keys that came in the clear could be anybody's."""
    parts = urlsplit(url)
    is_fine = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    if not is_fine or not parts.hostname:
        raise BadValue("jwks_url", f"must begin with https:// (is {url!r}); http:// is for the loopback only")
    try:
        import httpx2  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError("JWTs need an HTTP client; install it with: pip install 'leaseway[serve]'") from None
    return url


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@cache
def trusted() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


async def fetched(url: str) -> bytes:
    import httpx2

    # On the loopback nothing is encrypted, and reading all certificates would hold up everybody for a moment.
    verify = trusted() if url.startswith("https:") else False
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    async with (
        asyncio.timeout(FETCH_SECONDS_MAX),
        httpx2.AsyncClient(follow_redirects=False, timeout=FETCH_SECONDS_MAX, verify=verify) as client,
        client.stream("GET", url, headers=headers) as reply,
    ):
        if reply.status_code != 200 or reply.headers.get("content-encoding", "identity") != "identity":
            raise ValueError(f"answered {reply.status_code}, {reply.headers.get('content-encoding', 'identity')}")
        body = b""
        async for chunk in reply.aiter_raw():
            body += chunk
            if len(body) > BYTES_MAX:
                raise ValueError(f"more than {BYTES_MAX:,} bytes")
        return body


def usable(body: bytes) -> tuple[jwt.PyJWK, ...]:
    """Keys that we do not understand are for others."""
    given = msgspec.json.decode(body, type=dict[str, Any]).get("keys")
    if not isinstance(given, list):
        raise ValueError("no list of keys")
    found = (key_of(each) for each in given[:KEYS_MAX] if isinstance(each, dict))
    return tuple(key for key in found if key is not None)


def key_of(given: dict[str, Any]) -> jwt.PyJWK | None:
    """Public keys for signatures only: a shared secret that is published is none."""
    algorithm = algorithm_of(given)
    if (
        algorithm is None
        or given.get("use", "sig") != "sig"
        or "d" in given
        or not isinstance(given.get("kid", ""), str)
    ):
        return None
    if "verify" not in (given.get("key_ops") or ["verify"]):
        return None
    try:
        return jwt.PyJWK(given, algorithm)
    except jwt.PyJWTError:
        return None


def algorithm_of(given: dict[str, Any]) -> str | None:
    kty, said = given.get("kty"), given.get("alg")
    if kty == "RSA":
        return said if said in RSA_ALGORITHMS else "RS256" if said is None else None
    if not isinstance(kty, str) or not isinstance(given.get("crv"), str):
        return None
    fitting = ALGORITHM_OF.get((kty, given["crv"]))
    return fitting if said in (None, fitting) else None
