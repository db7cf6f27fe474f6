"""A provider that costs as little as possible: `python -m benchmarks.calls.provider` prints its URL and serves until
its input ends.

Each request has no body, and each reply is the same small JSON document.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BODY = b'{"lat": 46.948, "lon": 7.447, "name": "Bern", "country": "CH"}'
REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
HEAD_END = b"\r\n\r\n"


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *heads, self._received = (self._received + data).split(HEAD_END)
        if heads:
            self._transport.write(REPLY * len(heads))


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1_000)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


@contextmanager
def running_provider() -> Iterator[str]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-m", "benchmarks.calls.provider"], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield process.stdout.readline().decode().strip()
        process.stdin.close()


if __name__ == "__main__":
    asyncio.run(serve())
