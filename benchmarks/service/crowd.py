"""A thousand WebSocket subscribers, in a process of their own that does as little as possible.

    python -m benchmarks.service.crowd HOST PORT KEY COUNT

Prints a line when all have received the first frame, waits for a line on stdin, and prints how much was received
meanwhile.
"""

import asyncio
import json
import sys

from benchmarks.processes import ready

AT_ONCE = 25
START_SECONDS_MAX = 120
HANDSHAKE = (
    "GET /v1/live HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{key}\r\n"
)
HEAD_END = b"\r\n\r\n"
PING, PONG = 0x89, b"\x8a\x80\0\0\0\0"


class Listener(asyncio.Protocol):
    """Counts bytes. Many frames arrive in one read, so a ping is recognized only if it arrives alone, which it does
    when nothing else is sent; a subscriber that receives frames is not pinged.
    """

    def __init__(self, handshake: bytes) -> None:
        self._handshake = handshake
        self.heard = 0
        self.is_lost = False
        self.first = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._handshake)

    def data_received(self, data: bytes) -> None:
        if not self.heard and not data.startswith(b"HTTP/1.1 101"):
            self.first.set_exception(RuntimeError(f"answered {data[:600]!r}"))
        self.heard += len(data)
        if data[0] == PING and len(data) < 128:
            self._transport.write(PONG)
        elif not self.first.done() and not data.endswith(HEAD_END):
            self.first.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        if not self.first.done():
            self.first.set_exception(error or ConnectionError("the service has closed the line"))


async def crowd(host: str, port: int, key: str, count: int) -> None:
    told = f"Authorization: Bearer {key}\r\n" if key else ""
    handshake = HANDSHAKE.format(host=host, port=port, key=told).encode()
    listeners: list[Listener] = []
    async with asyncio.timeout(START_SECONDS_MAX):
        for number in range(count):
            _, listener = await asyncio.get_running_loop().create_connection(lambda: Listener(handshake), host, port)
            listeners.append(listener)
            if number % AT_ONCE == AT_ONCE - 1:
                await listener.first
        await asyncio.gather(*(each.first for each in listeners))
    before = [each.heard for each in listeners]
    await asyncio.to_thread(ready)
    heard = sum(each.heard for each in listeners) - sum(before)
    reached = sum(each.heard > was for each, was in zip(listeners, before, strict=True))
    print(json.dumps({"bytes": heard, "lost": sum(each.is_lost for each in listeners), "reached": reached}), flush=True)


if __name__ == "__main__":
    asyncio.run(crowd(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
