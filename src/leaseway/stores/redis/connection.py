"""Addresses, connections, deadlines, scripts and the translation of errors. A command that writes is never repeated.

    redis://user:password@host:port/0?prefix=leaseway&pool=10, or rediss://, unix://, valkey:// and valkeys://

The address is passed to redis-py without `prefix` and `pool`, which are leaseway's own.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis import exceptions as driver
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from leaseway.domain.errors import (
    BadValue,
    LeasewayError,
    StoreBusy,
    StoreFull,
    StoreRefused,
    TerminalError,
    TransientError,
)
from leaseway.domain.redact import redact_url
from leaseway.stores.event_loops import PerLoop

PREFIX = "leaseway"
POOL = 10
POOL_MAX = 1_000
SCHEMES = {"redis": "redis", "rediss": "rediss", "unix": "unix", "valkey": "redis", "valkeys": "rediss"}
DRIVER_WORDS = re.compile(r"ssl_[a-z_]+|db|password|username")
"""Query parameters that are passed to the driver. Others, such as its retries, are set by leaseway."""


class Address(NamedTuple):
    url: str
    """For the driver, without leaseway's own parameters."""
    shown: str
    """For messages, without the password."""
    prefix: str = PREFIX
    pool: int = POOL
    """The maximum number of connections per event loop."""

    def key(self, *parts: str) -> str:
        """All keys share one hash slot, because a script may only use keys of one server."""
        return ":".join((f"{{{self.prefix}}}", *parts))


def parse_address(url: str) -> Address:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:  # its text may contain a part of the password
        raise StoreRefused(
            f"{redact_url(url)}: is not an address: the port must be a number, and in a password / ? # @ are "
            "written %2F %3F %23 %40"
        ) from error
    if parts.scheme not in SCHEMES:
        raise StoreRefused(
            f"{redact_url(url)}: is not the URL of a Redis server; supported schemes: {', '.join(SCHEMES)}"
        )
    if parts.scheme != "unix" and not re.fullmatch(r"/?\d*", parts.path):
        raise StoreRefused(f"{redact_url(url)}: {parts.path} must be the number of a database, such as /0")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = check_prefix(given.pop("prefix", PREFIX))
    pool = parse_pool(given.pop("pool", str(POOL)))
    for word in given:
        if not DRIVER_WORDS.fullmatch(word):
            raise BadValue(word, "is no word of this address; there are prefix, pool, db, username, password, ssl_…")
    driver_url = urlunsplit(parts._replace(scheme=SCHEMES[parts.scheme], query=urlencode(given)))
    return Address(driver_url, redact_url(driver_url), prefix, pool)


def check_prefix(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", name):
        raise BadValue("prefix", f"must be 1 to 64 letters, digits or _ . : - (is {name!r})")
    return name


def parse_pool(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= POOL_MAX:
        raise BadValue("pool", f"must be a number of connections in 1 … {POOL_MAX:,} (is {text!r})")
    return int(text)


REFUSED = {
    "NOAUTH": "give user and password in the address",
    "WRONGPASS": "check user and password",
    "NOPERM": "allow it: ACL SETUSER … ~{prefix}* +@connection +@read +@write +@scripting +info +time",
    "MOVED": "a cluster is not supported; name the address of a single primary",
    "CROSSSLOT": "a cluster is not supported; name the address of a single primary",
}
BUSY = {
    "LOADING": "the server is starting",
    "BUSY": "a script runs for too long there",
    "READONLY": "the server became a replica; perhaps another one is the primary now",
    "MASTERDOWN": "the server is a replica without a primary",
    "NOREPLICAS": "the server misses its replicas",
    "MISCONF": "the server cannot save to its disk",
    "TRYAGAIN": "the server moves keys",
    "CLUSTERDOWN": "the cluster is down",
}
KINDS = {
    driver.AuthenticationError: "WRONGPASS",
    driver.NoPermissionError: "NOPERM",
    driver.BusyLoadingError: "LOADING",
    driver.ReadOnlyError: "READONLY",
    driver.OutOfMemoryError: "OOM",
}
"""Errors whose code the driver removes from their text."""


def translate_error(error: Exception, address: Address) -> LeasewayError:
    """Translate an error. A lost reply is not an `UnknownOutcome`: repeating the call would acquire permits again."""
    where, code = address.shown, error_code(error)
    if code == "OOM":
        return StoreFull(f"{where}: the server has reached maxmemory; nothing was written. Raise maxmemory")
    if code in REFUSED:
        return StoreRefused(f"{where}: {describe_error(error)}; {REFUSED[code].replace('prefix', address.prefix)}")
    if code in BUSY:
        return StoreBusy(f"{where}: {describe_error(error)}; {BUSY[code]}. Nothing was written, try again")
    if isinstance(error, driver.ResponseError):
        return TerminalError(f"{where}: {describe_error(error)}")
    if isinstance(error, (driver.TimeoutError, TimeoutError)):
        return TransientError(f"{where}: no reply in time; permits that the call may have acquired count as used")
    if isinstance(error, (driver.ConnectionError, OSError)):
        return TransientError(f"{where}: {describe_error(error)}; check that the server runs, and host and port")
    return StoreRefused(f"{where}: cannot be used as an address ({describe_error(error)})")


def error_code(error: Exception) -> str:
    for kind, code in KINDS.items():
        if isinstance(error, kind):
            return code
    return str(error).partition(" ")[0] if isinstance(error, driver.ResponseError) else ""


def describe_error(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


CONNECT_SECONDS_MAX = 5.0
CALL_SECONDS_MAX = 3.0
WAIT_SECONDS_MAX = 5.0
DRIVER_ERRORS = (driver.RedisError, OSError, ValueError)

LUA = files("leaseway.stores.redis") / "lua"
CORE = "buckets"


class Script(NamedTuple):
    text: str
    sha: str


@cache
def scripts() -> Mapping[str, Script]:
    """The scripts by file name, each preceded by the shared functions."""
    texts = {file.name.removesuffix(".lua"): file.read_text("utf-8") for file in LUA.iterdir()}
    core = texts.pop(CORE)
    return {verb: script(core + text) for verb, text in texts.items()}


def script(text: str) -> Script:
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


class Connections:
    def __init__(self, address: Address) -> None:
        self.address = address
        self._clients: PerLoop[Any] = PerLoop(lambda: make_client(address), lambda client: client.aclose())

    async def run(self, script: Script, keys: Sequence[str], request: bytes) -> Any:
        """Run a script once. A server that does not know its hash has not run it, and receives its text."""
        try:
            return await self._send("EVALSHA", script.sha, len(keys), *keys, request)
        except driver.NoScriptError:
            pass
        return await self.call("EVAL", script.text, len(keys), *keys, request)

    async def call(self, *command: Any) -> Any:
        try:
            return await self._send(*command)
        except driver.NoScriptError as error:
            raise translate_error(error, self.address) from error

    async def look(self, *command: Any) -> Any:
        """Send a command that only reads; it is repeated once if the reply is lost."""
        try:
            return await self.call(*command)
        except StoreBusy:
            raise
        except TransientError:
            return await self.call(*command)

    async def _send(self, *command: Any) -> Any:
        try:
            client = await self._clients.here()
            async with asyncio.timeout(CONNECT_SECONDS_MAX + CALL_SECONDS_MAX):
                return await client.execute_command(*command)
        except driver.NoScriptError:
            raise
        except DRIVER_ERRORS as error:  # a TimeoutError is an OSError
            raise translate_error(error, self.address) from error

    async def close(self) -> None:
        await self._clients.close()


def make_client(address: Address) -> Any:
    """A client for one event loop."""
    pool = BlockingConnectionPool.from_url(
        address.url,
        max_connections=address.pool,
        timeout=WAIT_SECONDS_MAX,
        socket_connect_timeout=CONNECT_SECONDS_MAX,
        # Every call has its own deadline. The driver's timeout would swallow cancellations on Python 3.11.
        socket_timeout=None,
        retry=Retry(NoBackoff(), 0),
        client_name="leaseway",
        protocol=2,
    )
    return Redis.from_pool(pool)
