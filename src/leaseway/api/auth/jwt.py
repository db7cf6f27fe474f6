"""A JWT ─► a caller. What it may is cut to what a tenant may: operators and workers have keys, which can be revoked.

Everything is checked against what we were started with: the issuer, the audience, and the algorithm that belongs to the
issuer's key. Of the header only `alg`, `kid` and `typ` are read.
"""

from typing import Any

import jwt

from leaseway.api.auth.jwks import Jwks
from leaseway.api.errors import refused
from leaseway.api.settings import ServiceSettings
from leaseway.domain.api_key import ANY_TENANT
from leaseway.domain.errors import BadValue
from leaseway.domain.identity import ROLE_SCOPES, Caller, Role, Scope
from leaseway.domain.ids import SECOND_US
from leaseway.domain.validators import check_name
from leaseway.ports.clock import Clock

LENGTH_MAX = 8_192
LEEWAY_SECONDS = 60
TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
REQUIRED = ["exp", "iss", "aud", "sub"]
KNOWN_SCOPES = {scope.value: scope for scope in ROLE_SCOPES[Role.TENANT]}


class Jwts:
    def __init__(self, issuer: str, audience: str, jwks: Jwks, tenant_claim: str = "tenant") -> None:
        self._issuer = issuer
        self._audience = audience
        self._jwks = jwks
        self._tenant_claim = tenant_claim

    async def caller(self, text: str) -> Caller:
        """Who was named by the issuer, or a refusal that does not say why."""
        try:
            kid, algorithm = header_of(text)
        except Exception as error:
            raise refused() from error
        key = await self._jwks.find(kid, algorithm)
        if key is None:
            raise refused()
        try:
            return self._caller(self._claims(text, key))
        except Exception as error:
            raise refused() from error

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
        if tenant == ANY_TENANT:
            raise BadValue(self._tenant_claim, "must name one tenant")
        return Caller(
            name=check_name("sub", claims["sub"]),
            tenant=tenant,
            role=Role.TENANT,
            scopes=scopes_in(claims),
            until=(int(claims["exp"]) + LEEWAY_SECONDS) * SECOND_US,
        )


def header_of(text: str) -> tuple[str | None, str]:
    if len(text) > LENGTH_MAX:
        raise ValueError("too long")
    header = jwt.get_unverified_header(text)
    kid, algorithm, kind = header.get("kid"), header["alg"], header.get("typ", "JWT")
    if "crit" in header or not isinstance(algorithm, str) or str(kind).lower() not in TYPES:
        raise ValueError("not a token that we understand")
    return kid, algorithm


def scopes_in(claims: dict[str, Any]) -> frozenset[Scope]:
    """As RFC 8693 has it, a text with spaces; some issuers send a list. Without it, nothing is allowed."""
    given = claims.get("scope", "")
    names = given.split(" ") if isinstance(given, str) else given
    return frozenset(KNOWN_SCOPES[name] for name in names if name in KNOWN_SCOPES)


def jwts_of(settings: ServiceSettings, clock: Clock) -> Jwts | None:
    """None: the service takes keys only."""
    issuer, audience, url = settings.issuer, settings.audience, settings.jwks_url
    if not (issuer or audience or url):
        return None
    if not (issuer and audience and url):
        raise BadValue("jwt", "needs an issuer, an audience and a jwks_url, all three")
    return Jwts(issuer, audience, Jwks(url, clock), settings.tenant_claim)
