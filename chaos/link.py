"""One client's connection through the proxy, and its connection to the server."""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol

from chaos.wire import Traffic

ANSWER_SECONDS_MAX = 5.0
"""A connection whose reply is to be swallowed is cut after this time even if no reply arrives."""
NO_LINGER = struct.pack("ii", 1, 0)
"""A socket that is closed with this option sends RST and discards its data."""


class Trap:
    """Waits for one statement to lose its reply; cuts the connection this long after the reply. The proxies of several
    servers may share a trap: the first one whose client executes the statement springs it.
    """

    def __init__(self, text: str, cut_seconds: float) -> None:
        self.text = text.lower().encode()
        self.cut_seconds = cut_seconds
        self.is_sprung = False


class Weather(Protocol):
    """What links need from their proxy."""

    is_holding: bool
    delay_seconds: float

    def opened(self, link: "Link") -> None: ...

    def closed(self, link: "Link") -> None: ...

    def lost_an_answer(self) -> None: ...

    def trap_for(self, statement: bytes) -> Trap | None: ...

    def new_traffic(self) -> Traffic: ...


class Pipe:
    """One direction: a queue of the data that must not be forwarded yet."""

    def __init__(self, weather: Weather) -> None:
        self._weather = weather
        self._queue: deque[tuple[float, bytes]] = deque()
        self._sink: asyncio.Transport | None = None
        self._is_ended = self._is_deaf = False

    def reach(self, sink: asyncio.Transport) -> None:
        self._sink = sink
        self.flush()

    def feed(self, chunk: bytes) -> None:
        if chunk and not self._is_deaf:
            self._queue.append((asyncio.get_running_loop().time() + self._weather.delay_seconds, chunk))
            self.flush()

    def end(self) -> None:
        """No more data will arrive. The receiver learns of it after all earlier data."""
        self._is_ended = True
        self.flush()

    def deafen(self) -> None:
        """The receiver has gone."""
        self._is_deaf, self._sink = True, None
        self._queue.clear()

    def flush(self) -> None:
        if self._sink is None or self._weather.is_holding:
            return
        loop = asyncio.get_running_loop()
        while self._queue and self._queue[0][0] <= loop.time():
            self._sink.write(self._queue.popleft()[1])
        if self._queue:
            loop.call_at(self._queue[0][0], self.flush)
        elif self._is_ended:
            self._sink.close()


class End(asyncio.Protocol):
    """One of the two sockets of a link: `out` takes what it receives, `into` is what is sent to it."""

    def __init__(self, out: Pipe, into: Pipe, hear: Callable[[bytes], bytes], changed: Callable[[], None]) -> None:
        self._out = out
        self._into = into
        self._hear = hear
        self._changed = changed
        self._transport: asyncio.Transport | None = None
        self.is_gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self.is_gone:
            transport.abort()
            return
        self._into.reach(transport)
        self._changed()

    def data_received(self, chunk: bytes) -> None:
        self._out.feed(self._hear(chunk))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_gone = True
        self._into.deafen()
        self._out.end()
        self._changed()

    def cut(self) -> None:
        self.is_gone = True
        if self._transport is not None and not self._transport.is_closing():
            raw: socket.socket = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            self._transport.abort()


class Link:
    def __init__(self, weather: Weather, upstream_port: int) -> None:
        self._weather = weather
        self._upstream_port = upstream_port
        self._traffic = weather.new_traffic()
        self._connecting: asyncio.Task[None] | None = None
        self._is_swallowing = self._has_swallowed = self._is_forgotten = False
        self._trap: Trap | None = None
        self._up, self._down = Pipe(weather), Pipe(weather)
        self.client = End(self._up, self._down, self._asked, self._client_changed)
        self._server = End(self._down, self._up, self._answered, self._server_changed)

    def flush(self) -> None:
        """Forward what may be forwarded; also connect to the server, for clients that came while it was on hold."""
        if self._connecting is None and not self._weather.is_holding and not self.client.is_gone:
            # The link is the parent of this task: cutting ends it.
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        self._up.flush()
        self._down.flush()

    def forget(self) -> None:
        """Nothing is forwarded any more, in either direction."""
        self._is_forgotten = True
        self._up.deafen()
        self._down.deafen()

    def swallow(self, seconds: float) -> None:
        """Replies are lost from now on, and after this time the connection is cut."""
        self._is_swallowing = True
        self._cut_after(seconds)

    def cut(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        self.client.cut()
        self._server.cut()
        self._weather.closed(self)

    def _client_changed(self) -> None:
        if not self.client.is_gone:
            self._weather.opened(self)
            self.flush()
        elif self._connecting is None or self._server.is_gone:
            self._weather.closed(self)
        elif self._is_forgotten:
            self.cut()  # otherwise the server would run out of sessions, which is another fault

    def _server_changed(self) -> None:
        if self._server.is_gone and self.client.is_gone:
            self._weather.closed(self)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self._server, "127.0.0.1", self._upstream_port)
        except OSError:  # no server listens there
            self.cut()

    def _asked(self, chunk: bytes) -> bytes:
        for statement in self._traffic.requests(chunk):
            trap = None if self._is_swallowing else self._weather.trap_for(statement)
            if trap is not None:
                self._trap = trap
                self.swallow(ANSWER_SECONDS_MAX)
        return chunk

    def _answered(self, chunk: bytes) -> bytes:
        if not self._is_swallowing:
            return self._traffic.replies(chunk)
        if not self._has_swallowed:
            self._has_swallowed = True
            self._weather.lost_an_answer()
            if self._trap is not None:
                self._cut_after(self._trap.cut_seconds)
        return b""

    def _cut_after(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.cut)
