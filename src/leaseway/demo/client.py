"""Calls the provider over kept connections. Knows no address but loopback."""

import asyncio

from leaseway.demo.provider import HEAD_END, HOST

CALL_SECONDS_MAX = 10.0

Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ProviderError(Exception):
    """The provider answered with something else than 200."""


class Client:
    def __init__(self, port: int, worker: str) -> None:
        self._port = port
        self._worker = worker
        self._idle: list[Pipe] = []

    async def charge(self, order: int, key: str) -> bytes:
        """Charge an order. With a key that was used before, the provider only repeats its answer."""
        head = f"POST /charge/{order} HTTP/1.1\r\nHost: {HOST}\r\nIdempotency-Key: {key}\r\nX-Worker: {self._worker}"
        async with asyncio.timeout(CALL_SECONDS_MAX):
            pipe = self._idle.pop() if self._idle else await asyncio.open_connection(HOST, self._port)
            try:
                answer = await exchanged(pipe, head.encode() + HEAD_END)
            except BaseException:
                pipe[1].close()  # the answer may still come: nobody else may read it
                raise
            self._idle.append(pipe)
        return answer


async def exchanged(pipe: Pipe, request: bytes) -> bytes:
    reader, writer = pipe
    writer.write(request)
    head = await reader.readuntil(HEAD_END)
    status, *headers = head.decode("latin-1").lower().split("\r\n")
    length = next(int(line.partition(":")[2]) for line in headers if line.startswith("content-length:"))
    body = await reader.readexactly(length)
    if status.split(" ")[1] != "200":
        raise ProviderError(f"{status}: {body.decode('utf-8', 'replace')}")
    return body
