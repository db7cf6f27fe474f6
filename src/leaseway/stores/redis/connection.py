"""Connections, deadlines and scripts. A command that writes is never repeated."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, NamedTuple

from redis import exceptions as driver
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from leaseway.domain.errors import StoreBusy, TransientError
from leaseway.stores.loop_clients import PerLoop
from leaseway.stores.redis.address import Address
from leaseway.stores.redis.errors import translate_error

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
