"""Connections of which every byte is chosen: what a client's library would mend, an attacker does not."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from tests.api.serving import Served

SECONDS = 30.0
"""Nothing is measured by it: it only ends a test that would wait for ever."""
DROP_SECONDS = 0.01


class Line(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def answer(self) -> "Answer":
        """The next one. Of a stream without a length, only the head."""
        async with asyncio.timeout(SECONDS):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")[:-2]
            headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines[1:])]
            length = int(dict(headers).get("content-length", 0))
            return Answer(int(lines[0].split(" ")[1]), headers, await self.reader.readexactly(length))

    async def is_cut(self) -> bool:
        """Waits until the other side has closed it, whatever it may have said before."""
        async with asyncio.timeout(SECONDS):
            try:
                while await self.reader.read(65_536):
                    pass
            except ConnectionError:
                pass
        return True


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.headers}


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@asynccontextmanager
async def line_to(served: Served) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(served.url))
    try:
        yield Line(reader, writer)
    finally:
        writer.transport.abort()


async def answer_to(served: Served, raw: bytes) -> Answer:
    async with line_to(served) as line:
        await line.say(raw)
        return await line.answer()


def request(method: str, path: str, *headers: str, body: bytes = b"", host: str = "localhost") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def until_cut(line: socket.socket) -> None:
    """Without taking anything from it: who reads would no longer be one that does not. What is sent to somebody who has
    closed is answered by a reset."""
    for _ in range(round(SECONDS / DROP_SECONDS)):
        try:
            line.sendall(b"\r\n")
        except ConnectionError:
            return
        time.sleep(DROP_SECONDS)
    raise AssertionError("the other side keeps it open")
