"""TCP connection ─► [connection] ─► middleware: bounds on what a client may send, and a deadline for every state.

A client that sends too much or too slowly, or does not read the response, is disconnected; uvicorn itself waits without
limit, except between two requests.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from leaseway.api.errors import Problem, problem_bytes

HEADER_SECONDS = 15.0
"""From the first byte of a request, or from connecting, to the end of its headers."""
HEADER_BYTES_MAX = 32 * 1024
BODY_SECONDS = 40.0
"""Longer than `request_body.BODY_SECONDS_MAX`, which sends the client an error. Some routes do not read their body."""
READ_SECONDS = 20.0
READ_BYTES_MIN = 16 * 1024
"""A client that reads less of a response in this time is disconnected."""
HANDSHAKE_SECONDS = 15.0
"""For authentication and everything else that precedes the acceptance of a WebSocket."""
FRAMES_MAX, FRAMES_SECONDS = 100, 15.0
"""Frames of a WebSocket: pings, which are answered, parts of messages and messages, of which the live stream accepts
fewer."""
CONNECTIONS_MAX = 4_000
DESCRIPTORS_RESERVED = 256
"""For the store, files, and connections that were accepted and are about to be refused."""
ADDRESS_SHARE = 0.5
"""One address may have this part of all connections. Clients on this machine, such as a proxy, may have all."""


class ConnectionBounds:
    """How many connections there may be, and how many each address has."""

    def __init__(self, connections_max: int) -> None:
        self.connections_max = connections_max
        self.address_max = max(int(connections_max * ADDRESS_SHARE), 1)
        self._count = 0
        self._by_address: Counter[str] = Counter()

    def add(self, address: str) -> bool:
        """Whether the connection may stay. If not, it must be closed and is not counted."""
        is_near = address.startswith(LOOPBACK)
        if self._count >= self.connections_max or (not is_near and self._by_address[address] >= self.address_max):
            return False
        self._count += 1
        self._by_address[address] += 1
        return True

    def remove(self, address: str) -> None:
        self._count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


LOOPBACK = ("127.", "::1", "::ffff:127.")


def derive_connections_max() -> int:
    """As many as the descriptors of this process permit. Without a free descriptor, accepting fails again and again,
    and the store cannot open its files."""
    try:
        import resource  # not on every system
    except ImportError:
        return CONNECTIONS_MAX
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + DESCRIPTORS_RESERVED
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(min(CONNECTIONS_MAX, soft - DESCRIPTORS_RESERVED), 1)


class HttpConnection(HttpToolsProtocol):
    """One connection. A client that sends slowly or without end, or does not read the response, is disconnected."""

    _receive_deadline: asyncio.TimerHandle | None = None
    """For the headers or the rest of a body."""
    _send_deadline: asyncio.TimerHandle | None = None
    """For the client to read what was sent."""
    _abort_timer: asyncio.TimerHandle | None = None
    _is_in_headers = False
    _is_in_body = False
    _is_websocket = False
    _is_refused = False
    """What follows a refused request cannot be told from its body and is ignored."""
    _has_begun = False
    """Whether a request began in the data that is parsed now."""
    _parsed_bytes = 0
    _header_bytes = 0
    bounds = ConnectionBounds(CONNECTIONS_MAX)
    """Of the server; `Server` sets them."""
    _uncount: Callable[[], None] = staticmethod(lambda: None)
    """Called when the connection has ended."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = str((transport.get_extra_info("peername") or LOOPBACK)[0])
        if self.bounds.add(address):
            self._uncount = partial(self.bounds.remove, address)
            self._expect_within(HEADER_SECONDS)
        else:
            detail = "the service, or your address, has reached its limit of connections"
            self._refuse(Problem(503, "unavailable", detail, headers={"Retry-After": "1"}))

    def connection_lost(self, exc: Exception | None) -> None:
        self._uncount()
        self._stop_expecting()
        self._stop_watching()
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._has_begun = False
        super().data_received(data)
        if self._is_in_headers:
            # The parser reports a header when it is complete, which may never happen. A request that began in this
            # data may follow many others, and is counted from the next data on.
            self._header_bytes += 0 if self._has_begun else len(data)
            self._refuse_beyond(self._header_bytes)
        elif self._receive_deadline is None and not self._is_websocket:
            if self._is_in_body:
                self._expect_within(BODY_SECONDS)
            elif self.cycle is None or self.cycle.response_complete:
                # Blank lines before a request: they have ended uvicorn's keep-alive timeout.
                self._expect_within(HEADER_SECONDS)

    def handle_websocket_upgrade(self) -> None:
        if self._is_refused:
            return
        self._is_websocket = True
        super().handle_websocket_upgrade()
        taken_over = self.transport.get_protocol()
        if isinstance(taken_over, WebSocketConnection):
            taken_over.uncount = self._uncount

    # -- callbacks of the parser -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_headers, self._has_begun, self._parsed_bytes, self._header_bytes = True, True, 0, 0
        if self._receive_deadline is None:
            self._expect_within(HEADER_SECONDS)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_headers:
            super().on_header(name, value)
        # Otherwise it is a trailer of a chunked body. As a header it would pass all checks, which have been made.
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._stop_expecting()
        self._is_in_headers = False
        self._refuse_unsupported()
        self._is_in_body = True
        if not self._is_refused and not self.transport.is_closing():
            self.scope["leaseway.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None and not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_expecting()
        self._is_in_body = False
        if self.cycle is not None and not self._is_refused:
            super().on_message_complete()

    # -- receiving ---------------------------------------------------------------------------------------------------

    def _count(self, size: int) -> None:
        self._parsed_bytes += size
        self._refuse_beyond(self._parsed_bytes)

    def _refuse_beyond(self, size: int) -> None:
        if size > HEADER_BYTES_MAX:
            detail = f"path, query and headers must have at most {HEADER_BYTES_MAX:,} bytes together"
            self._refuse(Problem(431, "header_too_large", detail))

    def _refuse_unsupported(self) -> None:
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings not in ([], [b"chunked"]):
            self._refuse(Problem(400, "not_http", "Transfer-Encoding: only chunked is supported"))
        if self.parser.should_upgrade() and self._should_upgrade():
            has_body = codings or any(name == b"content-length" and value != b"0" for name, value in self.headers)
            if has_body or self.parser.get_method() != b"GET" or self._has_unanswered():
                self._refuse(Problem(400, "not_http", "the request for a WebSocket must be a GET without a body"))

    def _refuse(self, problem: Problem) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        if self._has_unanswered():
            # The client would take this response for that to an earlier request. It sees the connection end instead.
            self._stop_expecting()
            self.cycle.keep_alive = False
            return
        if not (self._is_in_body and self.cycle.response_started):
            self.transport.write(problem_bytes(problem))
        self._close()

    def _has_unanswered(self) -> bool:
        """Whether there are requests without a response before the one that is received now."""
        if self._is_in_body:
            return bool(self.pipeline)
        return self.cycle is not None and not self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem(400, "not_http", "this is not a valid HTTP request; nothing was changed"))

    def _expect_within(self, seconds: float) -> None:
        if not self.transport.is_closing():
            self._receive_deadline = self.loop.call_later(seconds, self._end_receiving, seconds)

    def _end_receiving(self, seconds: float) -> None:
        self._stop_expecting()
        if self.flow.read_paused:
            # The server has not read what the client sent: it is busy with requests that were sent before.
            self._expect_within(seconds)
        else:
            self._close()

    def _stop_expecting(self) -> None:
        if self._receive_deadline is not None:
            self._receive_deadline.cancel()
            self._receive_deadline = None

    # -- sending -----------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def _watch_reading(self) -> None:
        size = self.transport.get_write_buffer_size()
        self._send_deadline = self.loop.call_later(READ_SECONDS, self._check_reading, size)

    def _check_reading(self, before: int) -> None:
        """A slow client is accepted as long as it reads."""
        if before - self.transport.get_write_buffer_size() < READ_BYTES_MIN:
            self.transport.abort()
        else:
            self._watch_reading()

    def _stop_watching(self) -> None:
        if self._send_deadline is not None:
            self._send_deadline.cancel()
            self._send_deadline = None

    def _close(self) -> None:
        """Closing waits until the client has read everything, which may never happen; so it is aborted after a time."""
        self._stop_expecting()
        if not self.transport.is_closing():
            self.transport.close()
            self._abort_timer = self.loop.call_later(READ_SECONDS, self.transport.abort)


class WebSocketConnection(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket connection, with deadlines, a bound on frames, and a way for the application to abort it."""

    uncount: Callable[[], None] = staticmethod(lambda: None)
    """Called when the connection has ended."""
    _deadline: asyncio.TimerHandle | None = None
    _frames = 0
    _counted_from = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HANDSHAKE_SECONDS, self._check_state)

    def connection_lost(self, exc: Exception | None) -> None:
        self.uncount()
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _check_state(self) -> None:
        """Runs from time to time. Once accepted, a client that does not answer pings is disconnected by uvicorn, and
        one that does not read by the application; but closing waits until the client has read everything."""
        if not self.handshake_complete or self.transport.is_closing():
            self.transport.abort()
        else:
            self._deadline = self.loop.call_later(READ_SECONDS, self._check_state)

    def handle_events(self) -> None:
        if self.loop.time() - self._counted_from > FRAMES_SECONDS:
            self._counted_from, self._frames = self.loop.time(), 0
        self._frames += len(self.conn.events)
        if self._frames <= FRAMES_MAX:
            super().handle_events()
        elif not self.transport.is_closing():
            self.conn.fail(1008, "too many frames")
            if self.conn.close_sent is None:  # it was not accepted yet
                self.transport.abort()
            else:
                self.handle_parser_exception()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        # The application starts with the next iteration of the event loop, so it finds the entry.
        if hasattr(self, "scope"):
            self.scope["leaseway.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            # A refused client has received its response. uvicorn would log it as a failure, so that any client could
            # fill the log.
            self.handshake_complete = True
