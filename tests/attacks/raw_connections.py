"""Connections with full control over every byte: client libraries would correct what an attacker sends on purpose."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from tests.api.running_service import Served

SECONDS = 30.0
"""Nothing is measured by it: it only ends a test that would wait forever."""
DROP_SECONDS = 0.01


class RawConnection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def answer(self) -> "RawResponse":
        """The next response. Of a stream without a length, only the headers."""
        async with asyncio.timeout(SECONDS):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")[:-2]
            headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines[1:])]
            length = int(dict(headers).get("content-length", 0))
            return RawResponse(int(lines[0].split(" ")[1]), headers, await self.reader.readexactly(length))

    async def is_cut(self) -> bool:
        """Wait until the other side has closed the connection, whatever it sent before."""
        async with asyncio.timeout(SECONDS):
            try:
                while await self.reader.read(65_536):
                    pass
            except ConnectionError:
                pass
        return True


class RawResponse(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.headers}


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@asynccontextmanager
async def connect_raw(served: Served) -> AsyncIterator[RawConnection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(served.url))
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()


async def send_raw(served: Served, raw: bytes) -> RawResponse:
    async with connect_raw(served) as line:
        await line.say(raw)
        return await line.answer()


def request(method: str, path: str, *headers: str, body: bytes = b"", host: str = "localhost") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def wait_until_closed(line: socket.socket) -> None:
    """Wait for the close without reading, because a client that reads is not a stalled client. Data sent to a closed
    connection is answered with a reset.
    """
    for _ in range(round(SECONDS / DROP_SECONDS)):
        try:
            line.sendall(b"\r\n")
        except ConnectionError:
            return
        time.sleep(DROP_SECONDS)
    raise AssertionError("the other side keeps it open")
