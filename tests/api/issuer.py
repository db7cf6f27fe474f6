"""A JWT issuer: a real HTTP server on the loopback interface that publishes public keys and exposes its private keys to
tests.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER = "https://issuer.example"
AUDIENCE = "leaseway"
RSA_KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
OTHER_RSA_KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
NOW = int(time.time())


def jwk(key: Any, kid: str | None, *, is_private: bool = False, **more: Any) -> dict[str, Any]:
    kinds = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    algorithm: Any = next((kinds[kind] for kind in kinds if isinstance(key, kind)), OKPAlgorithm)
    public = json.loads(algorithm.to_jwk(key if is_private else key.public_key()))
    public.pop("key_ops", None)
    return {**public, **({} if kid is None else {"kid": kid}), **more}


def pem(key: Any) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    found: bytes = key.public_key().public_bytes(serialization.Encoding.PEM, form)
    return found


def claims(**given: Any) -> dict[str, Any]:
    fine = {
        "iss": ISSUER, "aud": AUDIENCE, "sub": "user-1", "tenant": "acme", "exp": NOW + 600, "iat": NOW,
        "scope": "openid jobs:read jobs:write operate admin work",
    }  # fmt: skip
    return {name: value for name, value in (fine | given).items() if value is not None}


def token(key: Any = RSA_KEY, kid: str | None = "rsa", alg: str = "RS256", header: Any = None, **given: Any) -> str:
    headers = {**({} if kid is None else {"kid": kid}), **(header or {})}
    return jwt.encode(claims(**given), key, algorithm=alg, headers=headers)


class Issuer:
    def __init__(self) -> None:
        self.keys: list[Any] = [jwk(RSA_KEY, "rsa"), jwk(EC_KEY, "ec", alg="ES256"), jwk(ED_KEY, "ed")]
        self.requests = 0
        self.url = ""
        self.answers: Callable[[], bytes] = self.jwks
        self.waits: asyncio.Event | None = None
        """If set, responses are delayed until this event is set."""
        self.asked = asyncio.Event()
        self.serving: set[asyncio.Task[None]] = set()
        self.drips = False
        """Sends one byte now and then and never finishes the response."""

    def jwks(self) -> bytes:
        return reply(json.dumps({"keys": self.keys}).encode())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        try:
            await self._answer(reader, writer)
        finally:
            writer.close()
            self.serving.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        if self.waits is not None:
            self.asked.set()
            await self.waits.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" if self.drips else self.answers())
        while self.drips and not writer.transport.is_closing():
            await asyncio.sleep(0.01)
            writer.write(b" ")


def reply(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{headers}\r\n"
    return head.encode() + body


@asynccontextmanager
async def issuing() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    server = await asyncio.start_server(issuer.serve, "127.0.0.1", 0)
    async with server:
        issuer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/jwks.json"
        try:
            yield issuer
        finally:
            for task in issuer.serving:
                task.cancel()
            await asyncio.gather(*issuer.serving, return_exceptions=True)
