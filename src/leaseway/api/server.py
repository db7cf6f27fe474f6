"""The service as a running server: uvicorn, with bounds on what a client may make it hold, and an end that lets
requests finish."""

import asyncio
import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from leaseway.api.errors import Problem, line_of


class SocketLine(WebSocketsSansIOProtocol):
    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        # The application begins with the next turn of the loop, and finds it there.
        if hasattr(self, "scope"):
            self.scope["leaseway.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            # Who is refused has had his answer. uvicorn would take it for a failure, and anybody could fill the log.
            self.handshake_complete = True


HEADER_SECONDS = 15.0
"""From the first byte of a request, or from connecting, to the end of its headers."""
HEADER_BYTES_MAX = 32 * 1024
BODY_SECONDS = 40.0
"""Somewhat more than a route waits, which tells the client so. Not every route reads the body that it was sent."""
TAKE_SECONDS = 20.0
TAKE_BYTES_MIN = 16 * 1024
"""A client that has taken less of an answer in that time does not want it."""
KEEP_ALIVE_SECONDS = 30
CONNECTIONS_MAX = 4_000
FRAME_BYTES_MAX = 64 * 1024
GRACE_SECONDS = 10
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Line(HttpToolsProtocol):
    """One connection. Whoever sends slowly or without end, or does not take what he asked for, is cut off.

    uvicorn itself waits for ever, except between two requests.
    """

    _deadline: asyncio.TimerHandle | None = None
    """Of what is being sent to us: a head, or the rest of a body."""
    _taking: asyncio.TimerHandle | None = None
    """Of what is being sent by us."""
    _ending: asyncio.TimerHandle | None = None
    _is_in_head = False
    _is_in_body = False
    _is_websocket = False
    _header_bytes = 0
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._within(HEADER_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        self._taken()
        if self._ending is not None:
            self._ending.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head = self._is_in_head
        super().data_received(data)
        if self._is_in_head:
            # The parser tells of a header when it has the whole of it, which may never be.
            self._head_bytes += len(data) if was_in_head else 0
            self._refuse_beyond(self._head_bytes)
        elif self._deadline is None and not self._is_websocket:
            if self._is_in_body:
                self._within(BODY_SECONDS)
            elif self.cycle is None or self.cycle.response_complete:
                # Blank lines before a request: they are none, and they have ended the time for doing nothing.
                self._within(HEADER_SECONDS)

    def handle_websocket_upgrade(self) -> None:
        self._is_websocket = True  # from here on, another protocol has the connection
        super().handle_websocket_upgrade()

    # -- what the parser tells ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._header_bytes, self._head_bytes = True, 0, 0
        if self._deadline is None:
            self._within(HEADER_SECONDS)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._in_time()
        self._is_in_head, self._is_in_body = False, True
        if len(self.connections) > CONNECTIONS_MAX:
            detail = f"there are {CONNECTIONS_MAX:,} connections, and no room for more"
            self._refuse(Problem(503, "unavailable", detail, headers={"Retry-After": "1"}))
        if not self.transport.is_closing():
            self.scope["leaseway.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_time()
        self._is_in_body = False
        if self.cycle is not None:
            super().on_message_complete()

    # -- what is sent to us ------------------------------------------------------------------------------------------

    def _count(self, size: int) -> None:
        self._header_bytes += size
        self._refuse_beyond(self._header_bytes)

    def _refuse_beyond(self, size: int) -> None:
        if size > HEADER_BYTES_MAX:
            detail = f"path, query and headers must have at most {HEADER_BYTES_MAX:,} bytes together"
            self._refuse(Problem(431, "header_too_large", detail))

    def _refuse(self, problem: Problem) -> None:
        if not self.transport.is_closing():
            self.transport.write(line_of(problem))
            self._close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem(400, "not_http", "this is no HTTP request that could be read; nothing was done"))

    def _within(self, seconds: float) -> None:
        if not self.transport.is_closing():
            self._deadline = self.loop.call_later(seconds, self._close)

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # -- what is sent by us ------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        self._taken()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def _watch(self) -> None:
        self._taking = self.loop.call_later(TAKE_SECONDS, self._go_on, self.transport.get_write_buffer_size())

    def _go_on(self, before: int) -> None:
        """Slow is fine, as long as it gets less."""
        if before - self.transport.get_write_buffer_size() < TAKE_BYTES_MIN:
            self.transport.abort()
        else:
            self._watch()

    def _taken(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _close(self) -> None:
        """A close waits until everything is taken, which may never be."""
        self._in_time()
        if not self.transport.is_closing():
            self.transport.close()
            self._ending = self.loop.call_later(TAKE_SECONDS, self.transport.abort)


class Server(uvicorn.Server):
    """`leaseway serve`, and the same for tests. Signals end it in order, and it answers for itself what the end was."""

    def __init__(
        self, api: FastAPI, *, lifespan: bool = True, started: Callable[[], None] = lambda: None, **settings: Any
    ) -> None:
        known: dict[str, Any] = {
            "http": Line, "lifespan": "on" if lifespan else "off", "log_config": None, "access_log": False,
            "server_header": False, "proxy_headers": False,
            "timeout_keep_alive": KEEP_ALIVE_SECONDS, "timeout_graceful_shutdown": GRACE_SECONDS,
            "ws": SocketLine, "ws_max_size": FRAME_BYTES_MAX,
            # At other levels it writes the addresses of WebSockets, and with them their tickets.
            "log_level": "warning",
            # Packing keeps a window for each line: a thousand listeners would cost some hundred megabytes.
            "ws_per_message_deflate": False, **settings,
        }  # fmt: skip
        super().__init__(uvicorn.Config(api, **known))
        self._service = api.state.service
        self._tell_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Whoever hears that it has started may stop it at once: signals are heard by now."""
        await super().startup(sockets)
        self._tell_started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Without raising them again at the end: a stop that was asked for is a success."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The second one does not wait for anybody."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.stopping.set()
        await super().shutdown(sockets)


def set_aside_what_is_loaded() -> None:
    """Once, before the first request. Else the collector walks about once a second through all that was ever imported,
    which takes 50 ms in which nobody is answered, and finds nothing: modules and routes live as long as the process."""
    gc.collect()
    gc.freeze()


def bound_to(host: str, port: int) -> socket.socket:
    """A socket that listens there; 0: at any free port. OSError: somebody else does, or nobody may."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its full name: only then does asyncio send at once, and does not wait 40 ms for a client's acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2_048)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
