"""TCP connection ─► [bounds] ─► middleware: how long and how much a client may send, and how slowly it may read.

uvicorn itself waits without limit, except between two requests.
"""

import asyncio
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
CONNECTIONS_MAX = 4_000


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
    _parsed_bytes = 0
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_within(HEADER_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        self._stop_watching()
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_headers = self._is_in_headers
        super().data_received(data)
        if self._is_in_headers:
            # The parser reports a header when it is complete, which may never happen.
            self._header_bytes += len(data) if was_in_headers else 0
            self._refuse_beyond(self._header_bytes)
        elif self._receive_deadline is None and not self._is_websocket:
            if self._is_in_body:
                self._expect_within(BODY_SECONDS)
            elif self.cycle is None or self.cycle.response_complete:
                # Blank lines before a request: they have ended uvicorn's keep-alive timeout.
                self._expect_within(HEADER_SECONDS)

    def handle_websocket_upgrade(self) -> None:
        self._is_websocket = True  # another protocol takes over the connection
        super().handle_websocket_upgrade()

    # -- callbacks of the parser -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_headers, self._parsed_bytes, self._header_bytes = True, 0, 0
        if self._receive_deadline is None:
            self._expect_within(HEADER_SECONDS)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._stop_expecting()
        self._is_in_headers, self._is_in_body = False, True
        if len(self.connections) > CONNECTIONS_MAX:
            detail = f"the service has reached its limit of {CONNECTIONS_MAX:,} connections"
            self._refuse(Problem(503, "unavailable", detail, headers={"Retry-After": "1"}))
        if not self.transport.is_closing():
            self.scope["leaseway.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_expecting()
        self._is_in_body = False
        if self.cycle is not None:
            super().on_message_complete()

    # -- receiving ---------------------------------------------------------------------------------------------------

    def _count(self, size: int) -> None:
        self._parsed_bytes += size
        self._refuse_beyond(self._parsed_bytes)

    def _refuse_beyond(self, size: int) -> None:
        if size > HEADER_BYTES_MAX:
            detail = f"path, query and headers must have at most {HEADER_BYTES_MAX:,} bytes together"
            self._refuse(Problem(431, "header_too_large", detail))

    def _refuse(self, problem: Problem) -> None:
        if not self.transport.is_closing():
            self.transport.write(problem_bytes(problem))
            self._close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem(400, "not_http", "this is not a valid HTTP request; nothing was changed"))

    def _expect_within(self, seconds: float) -> None:
        if not self.transport.is_closing():
            self._receive_deadline = self.loop.call_later(seconds, self._close)

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
    """uvicorn's WebSocket connection, which the application can also abort."""

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
