"""JWT ─► caller. A JWT has at most the rights of a tenant: operators and workers use API keys, which can be revoked.

Tokens are checked against the configuration of the service: the issuer, the audience, and the algorithm of the issuer's
key. Of the token's header only `alg`, `kid` and `typ` are read; its references to keys (jku, x5u, jwk) are ignored.
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

from leaseway.api.errors import Problem, invalid_credential
from leaseway.api.settings import ServiceSettings
from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.identity import ANY_TENANT, OPERATOR_TENANT, ROLE_SCOPES, Caller, Role, Scope
from leaseway.domain.ids import SECOND_US
from leaseway.domain.validators import check_name
from leaseway.ports.clock import Clock

log = logging.getLogger("leaseway.api")

FRESH_SECONDS = 600.0
"""A key that the issuer has withdrawn is accepted for at most this time."""
KEEP_SECONDS = 3_600.0
"""The same while the issuer cannot be reached."""
RETRY_SECONDS = 30.0
FETCH_SECONDS_MAX = 5.0
BYTES_MAX = 256 * 1024
KEYS_MAX = 100

CURVE_ALGORITHMS = {
    ("EC", "P-256"): "ES256",
    ("EC", "P-384"): "ES384",
    ("EC", "P-521"): "ES512",
    ("OKP", "Ed25519"): "EdDSA",
}
"""The algorithm of a key, by type and curve."""
RSA_ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})


class Jwks:
    """The public keys of the issuer, for one process and its event loop: fetched on demand, at most every half minute.

    Without that bound, tokens with invented key ids could make the service send any number of requests to the issuer.
    The URL comes from the configuration.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = check_url(url)
        self._clock = clock
        self._keys: tuple[jwt.PyJWK, ...] = ()
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._lock = asyncio.Lock()

    async def find(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        """The key with this id and algorithm. The algorithm belongs to the key: a token cannot choose it."""
        if self._age() > FRESH_SECONDS and not (self._keys and self._lock.locked()):
            await self._fetch()
        if not self._knows(kid):
            await self._fetch()
        if self._age() > KEEP_SECONDS:
            raise Problem(
                503, "issuer_unreachable", "the keys of the token issuer cannot be fetched; try again later",
                headers={"Retry-After": f"{RETRY_SECONDS:.0f}"},
            )  # fmt: skip
        found = [key for key in self._keys if kid in (None, key.key_id) and key.algorithm_name == algorithm]
        return found[0] if len(found) == 1 else None

    def _age(self) -> float:
        return float("inf") if self._fetched_at is None else self._clock.monotonic() - self._fetched_at

    def _knows(self, kid: str | None) -> bool:
        return any(kid in (None, key.key_id) for key in self._keys)

    async def _fetch(self) -> None:
        async with self._lock:  # a second request finds the keys that the first has fetched
            now = self._clock.monotonic()
            if self._tried_at is not None and now - self._tried_at < RETRY_SECONDS:
                return
            self._tried_at = now
            try:
                self._keys = parse_keys(await fetch(self._url))
                self._fetched_at = now
            except Exception as error:  # noqa: BLE001 - a broken issuer must not affect requests with API keys
                log.warning("%s: cannot fetch the keys of the JWT issuer: %r", self._url, error)


def check_url(url: str) -> str:
    """Keys that are fetched without encryption could be forged."""
    parts = urlsplit(url)
    is_fine = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    if not is_fine or not parts.hostname:
        raise BadValue(
            "jwks_url", f"must start with https:// (is {url!r}); http:// is allowed for the loopback address only"
        )
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
def tls_context() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


async def fetch(url: str) -> bytes:
    import httpx2

    # The loopback needs no TLS, and loading all certificates would block the event loop for a moment.
    verify = tls_context() if url.startswith("https:") else False
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    async with (
        asyncio.timeout(FETCH_SECONDS_MAX),
        httpx2.AsyncClient(follow_redirects=False, timeout=FETCH_SECONDS_MAX, verify=verify) as client,
        client.stream("GET", url, headers=headers) as reply,
    ):
        if reply.status_code != 200 or reply.headers.get("content-encoding", "identity") != "identity":
            raise ValueError(f"response {reply.status_code}, {reply.headers.get('content-encoding', 'identity')}")
        body = b""
        async for chunk in reply.aiter_raw():
            body += chunk
            if len(body) > BYTES_MAX:
                raise ValueError(f"more than {BYTES_MAX:,} bytes")
        return body


def parse_keys(body: bytes) -> tuple[jwt.PyJWK, ...]:
    """Unsupported keys are skipped."""
    given = msgspec.json.decode(body, type=dict[str, Any]).get("keys")
    if not isinstance(given, list):
        raise ValueError("no list of keys")
    found = (parse_key(each) for each in given[:KEYS_MAX] if isinstance(each, dict))
    return tuple(key for key in found if key is not None)


def parse_key(given: dict[str, Any]) -> jwt.PyJWK | None:
    """Only public keys for signatures. A private or symmetric key that is published is rejected."""
    algorithm = key_algorithm(given)
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


def key_algorithm(given: dict[str, Any]) -> str | None:
    kty, given_algorithm = given.get("kty"), given.get("alg")
    if kty == "RSA":
        return given_algorithm if given_algorithm in RSA_ALGORITHMS else "RS256" if given_algorithm is None else None
    if not isinstance(kty, str) or not isinstance(given.get("crv"), str):
        return None
    expected = CURVE_ALGORITHMS.get((kty, given["crv"]))
    return expected if given_algorithm in (None, expected) else None


LENGTH_MAX = 8_192
LEEWAY_SECONDS = 60
TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
REQUIRED = ["exp", "iss", "aud", "sub"]
KNOWN_SCOPES = {scope.value: scope for scope in ROLE_SCOPES[Role.TENANT]}


class JwtVerifier:
    def __init__(self, issuer: str, audience: str, jwks: Jwks, tenant_claim: str = "tenant") -> None:
        self._issuer = issuer
        self._audience = audience
        self._jwks = jwks
        self._tenant_claim = tenant_claim

    async def caller(self, text: str) -> Caller:
        """The caller that the token names, or Problem 401 without the reason."""
        try:
            kid, algorithm = read_header(text)
        except Exception as error:
            raise invalid_credential() from error
        key = await self._jwks.find(kid, algorithm)
        if key is None:
            raise invalid_credential()
        try:
            return self._caller(self._claims(text, key))
        except Exception as error:
            raise invalid_credential() from error

    def _claims(self, text: str, key: jwt.PyJWK) -> dict[str, Any]:
        claims: dict[str, Any] = jwt.decode(
            text,
            key=key.key,
            algorithms=[key.algorithm_name],
            issuer=self._issuer,
            audience=self._audience,
            leeway=LEEWAY_SECONDS,
            options={"require": REQUIRED, "enforce_minimum_key_length": True},
        )
        return claims

    def _caller(self, claims: dict[str, Any]) -> Caller:
        tenant = check_name(self._tenant_claim, claims.get(self._tenant_claim))
        if tenant in (ANY_TENANT, OPERATOR_TENANT):
            raise BadValue(self._tenant_claim, "must name one tenant, and not the operator's")
        return Caller(
            name=check_name("sub", claims["sub"]),
            tenant=tenant,
            role=Role.TENANT,
            scopes=parse_scopes(claims),
            until=(int(claims["exp"]) + LEEWAY_SECONDS) * SECOND_US,
        )


def read_header(text: str) -> tuple[str | None, str]:
    if len(text) > LENGTH_MAX:
        raise ValueError("too long")
    header = jwt.get_unverified_header(text)
    kid, algorithm, kind = header.get("kid"), header["alg"], header.get("typ", "JWT")
    if "crit" in header or not isinstance(algorithm, str) or str(kind).lower() not in TYPES:
        raise ValueError("unsupported token")
    return kid, algorithm


def parse_scopes(claims: dict[str, Any]) -> frozenset[Scope]:
    """RFC 8693 separates scopes with spaces; some issuers send a list. Without the claim there are no scopes."""
    given = claims.get("scope", "")
    names = given.split(" ") if isinstance(given, str) else given
    return frozenset(KNOWN_SCOPES[name] for name in names if name in KNOWN_SCOPES)


def jwt_verifier(settings: ServiceSettings, clock: Clock) -> JwtVerifier | None:
    """None: the service accepts API keys only."""
    issuer, audience, url = settings.issuer, settings.audience, settings.jwks_url
    if not (issuer or audience or url):
        return None
    if not (issuer and audience and url):
        raise BadValue("jwt", "needs an issuer, an audience and a jwks_url")
    return JwtVerifier(issuer, audience, Jwks(url, clock), settings.tenant_claim)
