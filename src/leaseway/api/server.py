"""TCP connection ─► [server] ─► middleware: uvicorn with bounds on connections and a graceful shutdown."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from leaseway.api.connections import ConnectionBounds, HttpConnection, WebSocketConnection, derive_connections_max

BACKLOG = 2_048
ACCEPTED_AT_ONCE = 16
"""asyncio accepts this many connections in each iteration of its loop, and a refused one is closed about five
iterations after it was accepted. So `DESCRIPTORS_RESERVED` has to be several times as large."""
KEEP_ALIVE_SECONDS = 30
FRAME_BYTES_MAX = 64 * 1024
PING_SECONDS = 20.0
"""A subscriber that does not answer a ping within this time is disconnected."""
GRACE_SECONDS = 10
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Server(uvicorn.Server):
    """The server of `leaseway serve`. Signals shut it down gracefully."""

    def __init__(
        self, api: FastAPI, *, lifespan: bool = True, started: Callable[[], None] = lambda: None, **settings: Any
    ) -> None:
        known: dict[str, Any] = {
            "http": type("Connection", (HttpConnection,), {"bounds": ConnectionBounds(derive_connections_max())}),
            "backlog": ACCEPTED_AT_ONCE, "lifespan": "on" if lifespan else "off", "log_config": None,
            "access_log": False, "server_header": False, "proxy_headers": False,
            "timeout_keep_alive": KEEP_ALIVE_SECONDS, "timeout_graceful_shutdown": GRACE_SECONDS,
            "ws": WebSocketConnection, "ws_max_size": FRAME_BYTES_MAX,
            "ws_ping_interval": PING_SECONDS, "ws_ping_timeout": PING_SECONDS,
            # At lower levels uvicorn logs the URLs of WebSockets, which contain tickets.
            "log_level": "warning",
            # Compression needs a window per connection: hundreds of megabytes for a thousand subscribers.
            "ws_per_message_deflate": False, **settings,
        }  # fmt: skip
        super().__init__(uvicorn.Config(api, **known))
        self._service = api.state.service
        self._on_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """`started` is called after the signal handlers are installed, so the server may be stopped from then on."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)  # how many connections the system keeps until they are accepted
        self._on_started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike uvicorn, does not raise the signals again at the end: a requested shutdown is a success."""
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
        """A second signal shuts down without waiting for requests."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.stopping.set()
        await super().shutdown(sockets)


def bind_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0: any free port. OSError: the port is in use or not permitted."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With an explicit protocol, asyncio sets TCP_NODELAY; without it, responses wait 40 ms for an acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def socket_url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
