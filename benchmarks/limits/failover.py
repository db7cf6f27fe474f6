"""A fixed address in front of a server that changes, as a proxy in front of a primary and its replica."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from leaseway.testing.valkey import ValkeyServer, valkey_server

HOST = "127.0.0.1"
CHUNK_BYTES = 65_536


class Proxy:
    """Forwards bytes, in a thread of its own. After `switch` all connections go to the other server."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self._target = port
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def switch(self, port: int) -> None:
        self._loop.call_soon_threadsafe(self._switched, port)

    def _switched(self, port: int) -> None:
        self._target = port
        for writer in list(self._open):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with suppress(OSError):
                server_reader, server_writer = await asyncio.open_connection(HOST, self._target)
                try:
                    await asyncio.gather(passed(reader, server_writer), passed(server_reader, writer))
                finally:
                    server_writer.close()
        finally:
            self._open.discard(writer)
            writer.close()

    async def _started(self) -> asyncio.Server:
        server = await asyncio.start_server(self._connected, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _ended(self, server: asyncio.Server) -> None:
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    @contextmanager
    def running(self) -> Iterator["Proxy"]:
        server = self._loop.run_until_complete(self._started())
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._ended(server), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()


async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side closes; then the other one is closed."""
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    finally:
        writer.close()


class Pair:
    """A primary, its replica, and the address of the current primary."""

    def __init__(self, primary: ValkeyServer, replica: ValkeyServer, proxy: Proxy) -> None:
        self._primary, self._replica, self._proxy = primary, replica, proxy
        self.url = proxy.url

    def part(self) -> None:
        """From now on the replica receives nothing any more."""
        self._replica.promote()

    def fail_over(self) -> None:
        self._primary.kill()
        self._proxy.switch(self._replica.port)


@contextmanager
def pair() -> Iterator[Pair]:
    with valkey_server() as primary, valkey_server() as replica, Proxy(primary.port).running() as proxy:
        replica.follow(primary)
        yield Pair(primary, replica, proxy)
