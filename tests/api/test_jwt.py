"""JWTs: a token that the issuer signed for this service is accepted, and every mutation of it is refused."""

import asyncio
import base64
import json
import warnings
from collections.abc import AsyncIterator
from datetime import datetime, tzinfo
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.api.issuer import (
    AUDIENCE,
    EC_KEY,
    ED_KEY,
    ISSUER,
    NOW,
    OTHER_RSA_KEY,
    RSA_KEY,
    Issuer,
    claims,
    issuing,
    jwk,
    pem,
    reply,
    token,
)
from tests.api.keys import key_for
from tests.api.running_service import run_service

from leaseway import App
from leaseway.api.auth import jwt as jwks_module
from leaseway.api.auth.jwt import (
    BYTES_MAX,
    FRESH_SECONDS,
    KEEP_SECONDS,
    LENGTH_MAX,
    RETRY_SECONDS,
    Jwks,
    JwtVerifier,
    jwt_verifier,
    parse_keys,
)
from leaseway.api.errors import Problem
from leaseway.api.settings import ServiceSettings
from leaseway.domain.errors import BadValue
from leaseway.domain.identity import ROLE_SCOPES, Caller, Role, Scope
from leaseway.domain.ids import SECOND_US
from leaseway.testing.clock import FakeClock


class Moved(FakeClock):
    def monotonic(self) -> float:
        return self.now_us() / SECOND_US

    def wall_us(self) -> int:
        return self.now_us()

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)


class Then(datetime):
    """A fixed time at which the tokens of this file are issued, because some of them are valid for seconds only."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "Then":
        return cls.fromtimestamp(NOW, tz)


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same time, however long the previous tests took."""
    monkeypatch.setattr("jwt.api_jwt.datetime", Then)


@pytest.fixture
def clock() -> Moved:
    return Moved()


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with issuing() as issuer:
        yield issuer


@pytest.fixture
def jwts(issuer: Issuer, clock: Moved) -> JwtVerifier:
    return JwtVerifier(ISSUER, AUDIENCE, Jwks(issuer.url, clock))


async def status_of(jwts: JwtVerifier, text: str) -> int:
    try:
        await jwts.caller(text)
    except Problem as problem:
        return problem.status
    return 200


def unsigned(header: dict[str, Any], payload: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(payload).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


# -- mutations --------------------------------------------------------------------------------------------------------


def forged_with_the_public_key(secret: bytes, alg: str = "HS256") -> str:
    """PyJWT refuses to make such a token, so it is made by hand."""
    import hashlib
    import hmac

    head, body, _ = unsigned({"alg": alg, "kid": "rsa", "typ": "JWT"}, claims()).split(".")
    mac = hmac.digest(secret, f"{head}.{body}".encode(), {"HS256": hashlib.sha256, "HS512": hashlib.sha512}[alg])
    return f"{head}.{body}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def cut(text: str, part: int, value: str) -> str:
    parts = text.split(".")
    parts[part] = value
    return ".".join(parts)


def resigned_payload(**given: Any) -> str:
    """Changed claims under the signature of the original claims."""
    return cut(token(), 1, unsigned({}, claims(**given)).split(".")[1])


WRONG = {
    "alg none": unsigned({"alg": "none", "kid": "rsa"}, claims()),
    "alg None": unsigned({"alg": "None", "kid": "rsa"}, claims()),
    "alg empty": unsigned({"alg": "", "kid": "rsa"}, claims()),
    "alg missing": unsigned({"kid": "rsa"}, claims()),
    "alg a list": unsigned({"alg": ["RS256"], "kid": "rsa"}, claims()),
    "none with the true signature": cut(token(), 0, unsigned({"alg": "none", "kid": "rsa"}, {}).split(".")[0]),
    "public key as a shared secret": forged_with_the_public_key(pem(RSA_KEY)),
    "public key as a shared secret, stripped": forged_with_the_public_key(pem(RSA_KEY).strip()),
    "the published key as a shared secret": forged_with_the_public_key(json.dumps(jwk(RSA_KEY, "rsa")).encode()),
    "HS512": forged_with_the_public_key(pem(RSA_KEY), "HS512"),
    "empty shared secret": forged_with_the_public_key(b""),
    "another algorithm than the key's": token(alg="RS512"),
    "PSS with a key for PKCS": token(alg="PS256"),
    "kid of a key of another kind": token(kid="ec"),
    "the EC key under the id of the RSA key": token(EC_KEY, "rsa", "ES256"),
    "the key of somebody else": token(OTHER_RSA_KEY),
    "kid that is a path": token(kid="../../../dev/null"),
    "kid that is SQL": token(kid="' UNION SELECT 'secret"),
    "kid empty": token(kid=""),
    "kid null": cut(token(), 0, unsigned({"alg": "RS256", "kid": None}, {}).split(".")[0]),
    "kid a number": unsigned({"alg": "RS256", "kid": 1}, claims()),
    "kid a list": unsigned({"alg": "RS256", "kid": ["rsa"]}, claims()),
    "no kid where there are several keys": token(EC_KEY, None, "ES256")[:-4] + "AAAA",
    "key in the header": token(OTHER_RSA_KEY, "rsa", header={"jwk": jwk(OTHER_RSA_KEY, "rsa")}),
    "critical extension": token(header={"crit": ["exp"], "exp": 1}),
    "payload outside": token(header={"crit": ["b64"], "b64": True}),
    "type of another use": token(header={"typ": "logout+jwt"}),
    "wrong audience": token(aud="somebody-else"),
    "audience missing": token(aud=None),
    "audience empty": token(aud=[]),
    "audience a part of ours": token(aud=AUDIENCE[:-1]),
    "audience with more": token(aud=AUDIENCE + "x"),
    "wrong issuer": token(iss="https://issuer.example.attacker.com"),
    "issuer with a slash": token(iss=ISSUER + "/"),
    "issuer missing": token(iss=None),
    "expired": token(exp=NOW - 61),
    "never expires": token(exp=None),
    "expiry that is no number": token(exp="soon"),
    "expiry without end": unsigned({"alg": "RS256", "kid": "rsa"}, claims(exp=float("inf"))),
    "not yet": token(nbf=NOW + 120),
    "issued in the future": token(iat=NOW + 120),
    "no subject": token(sub=None),
    "signature too short": cut(token(), 2, "AAAA"),
    "no tenant": token(tenant=None),
    "tenant empty": token(tenant=""),
    "tenant a list": token(tenant=["acme"]),
    "tenant of all": token(tenant="*"),
    "tenant with a line break": token(tenant="acme\nother"),
    "tenant too long": token(tenant="a" * 201),
    "scope a number": token(scope=7),
    "scope a list of lists": token(scope=[["jobs:read"]]),
    "other claims under the signature": resigned_payload(tenant="other"),
    "signature missing": token().rsplit(".", 1)[0] + ".",
    "signature of another token": cut(token(), 2, token(sub="x").split(".")[2]),
    "header deep": unsigned({"alg": "RS256"}, {}).replace("eyJ", base64.b64encode(b'{"a":' + b"[" * 3_000).decode()),
    "two parts": token().rsplit(".", 1)[0],
    "encrypted": token() + ".x.y",
    "too long": token(junk="x" * LENGTH_MAX),
    "not text": "\u0000.\u0000.\u0000",
    "empty parts": "..",
}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in WRONG.items()])
async def test_no_mutation_is_believed(jwts: JwtVerifier, text: str) -> None:
    """Each of these mutations has bypassed authentication in some product. The response must be the same for all, and
    never a 500.
    """
    assert await status_of(jwts, token()) == 200
    with pytest.raises(Problem) as caught:
        await jwts.caller(text)
    assert (caught.value.status, caught.value.code) == (401, "not_authenticated")


async def test_what_the_token_says_about_its_keys_is_not_read(jwts: JwtVerifier, issuer: Issuer) -> None:
    """Otherwise the author of a token could choose the key server and the key that verifies it."""
    async with issuing() as attacker:
        attacker.keys = [jwk(OTHER_RSA_KEY, "rsa")]
        for header in ({"jku": attacker.url}, {"x5u": attacker.url}, {"jku": attacker.url, "kid": "new"}):
            assert await status_of(jwts, token(OTHER_RSA_KEY, header=header)) == 401
        assert attacker.requests == 0
    assert issuer.requests == 1


# -- accepted tokens ------------------------------------------------------------------------------------------------


async def test_a_token_names_a_tenant_and_what_he_may(jwts: JwtVerifier) -> None:
    """The scopes must never exceed those of the tenant role, whatever the issuer wrote."""
    assert await jwts.caller(token()) == Caller(
        name="user-1",
        tenant="acme",
        role=Role.TENANT,
        scopes=frozenset({Scope.JOBS_READ, Scope.JOBS_WRITE}),
        until=(NOW + 660) * SECOND_US,
    )
    listed = await jwts.caller(token(scope=["imports:read", "work", "admin", "operate"]))
    assert listed.scopes == {Scope.IMPORTS_READ}
    assert (await jwts.caller(token(scope=None))).scopes == frozenset()
    assert (await jwts.caller(token(scope=" ".join(Scope)))).scopes == ROLE_SCOPES[Role.TENANT]


async def test_no_token_is_of_the_operators_tenant(jwts: JwtVerifier) -> None:
    """Imports belong to the operator; an issuer whose users choose their tenant would let them in."""
    for tenant in ("default", "*"):
        with pytest.raises(Problem) as refused:
            await jwts.caller(token(tenant=tenant))
        assert refused.value.status == 401


@pytest.mark.parametrize(
    "text",
    [
        token(),
        token(EC_KEY, "ec", "ES256"),
        token(ED_KEY, "ed", "EdDSA"),
        token(aud=["somebody-else", AUDIENCE]),
        token(header={"typ": "at+jwt"}),
        token(exp=NOW - 30),
        token(nbf=NOW + 30),
        token(EC_KEY, None, "ES256"),
    ],
)
async def test_a_true_token_is_believed(jwts: JwtVerifier, text: str) -> None:
    """Valid tokens must work with every key type, with clocks that differ by a minute, and without a `kid` if only one
    key fits.
    """
    assert await status_of(jwts, text) == 200


async def test_the_tenant_is_in_the_claim_that_we_were_told(issuer: Issuer, clock: Moved) -> None:
    """A tenant from another claim could be chosen by the user of the token."""
    jwts = JwtVerifier(ISSUER, AUDIENCE, Jwks(issuer.url, clock), "org")
    assert await status_of(jwts, token()) == 401
    assert (await jwts.caller(token(org="globex", tenant="acme"))).tenant == "globex"


# -- the issuer's keys ------------------------------------------------------------------------------------------------


async def test_a_storm_of_unknown_key_ids_asks_the_issuer_once(jwts: JwtVerifier, issuer: Issuer, clock: Moved) -> None:
    """Otherwise any client could make the service flood the issuer with requests."""
    storm = [token(OTHER_RSA_KEY, f"made up {n}") for n in range(100)]
    assert await asyncio.gather(*(status_of(jwts, text) for text in storm)) == [401] * 100
    assert issuer.requests == 1
    clock.advance(RETRY_SECONDS)
    assert await asyncio.gather(*(status_of(jwts, text) for text in storm)) == [401] * 100
    assert issuer.requests == 2
    assert await status_of(jwts, token()) == 200


async def test_a_new_key_of_the_issuer_is_found(jwts: JwtVerifier, issuer: Issuer, clock: Moved) -> None:
    """Issuers rotate keys without notice. Requests that arrive while the keys are fetched must wait for them."""
    assert await status_of(jwts, token()) == 200
    issuer.keys.append(jwk(OTHER_RSA_KEY, "new"))
    assert await status_of(jwts, token(OTHER_RSA_KEY, "new")) == 401
    clock.advance(RETRY_SECONDS)
    texts = [token(OTHER_RSA_KEY, "new", sub=f"user {n}") for n in range(20)]
    assert await asyncio.gather(*(status_of(jwts, text) for text in texts)) == [200] * 20
    assert issuer.requests == 2


async def test_a_key_that_the_issuer_has_withdrawn_is_not_good_for_long(
    jwts: JwtVerifier, issuer: Issuer, clock: Moved
) -> None:
    """An issuer withdraws a key after a leak, so tokens signed with it must soon be refused."""
    assert await status_of(jwts, token()) == 200
    issuer.keys = [jwk(OTHER_RSA_KEY, "new")]
    clock.advance(FRESH_SECONDS + 1)
    assert await status_of(jwts, token()) == 401


async def test_an_issuer_that_is_away_does_not_lock_everybody_out_at_once(
    jwts: JwtVerifier, issuer: Issuer, clock: Moved
) -> None:
    """Cached keys are used for an hour; after that, the service must report that it cannot verify tokens."""
    assert await status_of(jwts, token()) == 200
    issuer.answers = lambda: reply(b"", "500 Oops")
    clock.advance(FRESH_SECONDS + 1)
    assert await status_of(jwts, token()) == 200
    assert await status_of(jwts, token()) == 200
    assert issuer.requests == 2
    clock.advance(KEEP_SECONDS)
    assert await status_of(jwts, token()) == 503
    issuer.answers = issuer.jwks
    clock.advance(RETRY_SECONDS)
    assert await status_of(jwts, token()) == 200


KEYS = json.dumps({"keys": [jwk(RSA_KEY, "rsa")]}).encode()
HUGE = b'{"keys": [' + b" " * BYTES_MAX + b"]}"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(reply(b"", "302 Found", "Location: /other\r\n"), id="redirect"),
        pytest.param(reply(KEYS, "404 Not Found"), id="keys in an error"),
        pytest.param(reply(HUGE), id="huge"),
        pytest.param(reply(b"\x1f\x8b", headers="Content-Encoding: gzip\r\n"), id="packed"),
        pytest.param(reply(b"<html>"), id="no JSON"),
        pytest.param(reply(b"[]"), id="a list"),
        pytest.param(reply(b'{"keys": 1}'), id="no list"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", id="cut off"),
    ],
)
async def test_an_issuer_that_answers_nonsense_is_not_believed(
    jwts: JwtVerifier, issuer: Issuer, answer: bytes
) -> None:
    """A wrong answer must neither let tokens in nor reject them for good."""
    issuer.answers = lambda: answer
    assert await status_of(jwts, token()) == 503
    assert issuer.requests == 1


async def test_an_issuer_that_does_not_answer_is_not_waited_for(
    jwts: JwtVerifier, issuer: Issuer, clock: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some seconds the service must go on with its cached keys."""
    assert await status_of(jwts, token()) == 200
    issuer.waits = asyncio.Event()
    monkeypatch.setattr(jwks_module, "FETCH_SECONDS_MAX", 0.1)
    clock.advance(FRESH_SECONDS + 1)
    assert await status_of(jwts, token()) == 200
    assert issuer.requests == 2
    issuer.waits.set()


async def test_an_issuer_that_answers_drop_by_drop_is_not_waited_for(
    jwts: JwtVerifier, issuer: Issuer, clock: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte arrives in time but the response never ends, so a timeout per read is not enough."""
    assert await status_of(jwts, token()) == 200
    issuer.drips = True
    monkeypatch.setattr(jwks_module, "FETCH_SECONDS_MAX", 0.2)
    clock.advance(FRESH_SECONDS + 1)
    assert await status_of(jwts, token()) == 200


async def test_while_one_request_waits_for_fresh_keys_the_others_go_on(
    jwts: JwtVerifier, issuer: Issuer, clock: Moved
) -> None:
    """A slow issuer must not stop all requests of the service."""
    assert await status_of(jwts, token()) == 200
    issuer.waits = asyncio.Event()
    clock.advance(FRESH_SECONDS + 1)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(status_of(jwts, token()))
        await issuer.asked.wait()
        assert await status_of(jwts, token()) == 200
        assert not first.done()  # it cannot be done: the issuer waits for the test
        issuer.waits.set()
    assert first.result() == 200


def test_keys_that_are_not_for_us_are_passed_over() -> None:
    """A published shared secret is the worst case: every reader of the list could sign tokens with it."""
    secret = base64.urlsafe_b64encode(b"s" * 32).decode()
    fine = [
        jwk(RSA_KEY, "rsa"),
        jwk(EC_KEY, "ec"),
        jwk(RSA_KEY, "pss", alg="PS256"),
        jwk(RSA_KEY, "v", key_ops=["verify"]),
    ]
    others = [
        {"kty": "oct", "k": secret, "kid": "rsa"},
        {"kty": "oct", "k": secret, "alg": "HS256"},
        jwk(RSA_KEY, "a", use="enc"),
        jwk(RSA_KEY, "b", alg="RSA-OAEP"),
        jwk(RSA_KEY, "c", alg="HS256"),
        jwk(RSA_KEY, "d", alg="none"),
        jwk(RSA_KEY, "e", alg="ES256"),
        jwk(EC_KEY, "f", alg="ES512"),
        jwk(EC_KEY, "g", crv="P-999"),
        jwk(RSA_KEY, "h", key_ops=["encrypt"]),
        jwk(RSA_KEY, "i") | {"kid": 7},
        jwk(RSA_KEY, "j") | {"n": 5},
        jwk(RSA_KEY, "k", is_private=True),
        {"kty": ["RSA"]},
        {"kty": "EC", "crv": ["P-256"]},
        {},
        "rsa",
        None,
    ]
    found = parse_keys(json.dumps({"keys": [*others, *fine]}).encode())
    assert [(key.key_id, key.algorithm_name) for key in found] == [
        ("rsa", "RS256"), ("ec", "ES256"), ("pss", "PS256"), ("v", "RS256"),
    ]  # fmt: skip
    assert len(parse_keys(json.dumps({"keys": [jwk(EC_KEY, str(n)) for n in range(150)]}).encode())) == 100


async def test_a_key_that_is_too_small_opens_nothing(jwts: JwtVerifier, issuer: Issuer) -> None:
    """Keys of 1,024 bits can be broken."""
    small = rsa.generate_private_key(public_exponent=65_537, key_size=1_024)
    issuer.keys = [jwk(small, "small")]
    with pytest.warns(pyjwt.InsecureKeyLengthWarning):
        text = token(small, "small")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in production, where a warning does not stop anything
        assert await status_of(jwts, text) == 401


# -- settings ---------------------------------------------------------------------------------------------------------


def test_half_of_the_settings_is_a_mistake(clock: Moved) -> None:
    """Without an audience check, a token that was issued for another service would be accepted here."""
    assert jwt_verifier(ServiceSettings(), clock) is None
    whole: dict[str, Any] = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": "https://issuer.example/jwks.json"}
    assert jwt_verifier(ServiceSettings(**whole), clock) is not None
    for missing in whole:
        with pytest.raises(BadValue, match="needs an issuer, an audience and a jwks_url"):
            jwt_verifier(ServiceSettings(**{name: value for name, value in whole.items() if name != missing}), clock)


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.example/jwks.json",
        "http://169.254.169.254/latest",
        "http://127.0.0.1.attacker.com/",
        "http://localhost.attacker.com/",
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "https://",
        "",
    ],
)
def test_keys_are_never_fetched_in_the_clear(clock: Moved, url: str) -> None:
    """An attacker on the network could replace the keys and sign any token."""
    with pytest.raises(BadValue, match="jwks_url"):
        Jwks(url, clock)


# -- through the service ----------------------------------------------------------------------------------------------


async def test_tokens_and_keys_open_the_same_doors(app: App) -> None:
    """Both kinds of credentials must give access to the same routes, and only to data of their own tenant."""
    async with (
        issuing() as issuer,
        run_service(app, auth=True, issuer=ISSUER, audience=AUDIENCE, jwks_url=issuer.url) as served,
    ):
        key = await key_for(served)
        async with served.with_key(token()) as by_token, served.with_key(key.text) as by_key:
            submitted = await by_token.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}})
            assert submitted.status_code == 202
            assert (await by_key.get(submitted.headers["location"])).status_code == 200
        async with served.with_key(token(tenant="other")) as other, served.with_key(token(exp=NOW - 100)) as late:
            assert (await other.get(submitted.headers["location"])).status_code == 404
            assert (await other.get("/v1/keys")).status_code == 403
            assert (await late.get(submitted.headers["location"])).status_code == 401
