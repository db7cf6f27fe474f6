"""JWT ─► caller. A JWT has at most the rights of a tenant: operators and workers use API keys, which can be revoked.

Tokens are checked against the configuration of the service: the issuer, the audience, and the algorithm of the issuer's
key. Of the token's header only `alg`, `kid` and `typ` are read.
"""

from typing import Any

import jwt

from leaseway.api.auth.jwks import Jwks
from leaseway.api.errors import invalid_credential
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
        if tenant == ANY_TENANT:
            raise BadValue(self._tenant_claim, "must name one tenant")
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
