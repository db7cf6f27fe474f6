"""A WebSocket's line, as uvicorn has it, that can also be cut at once."""

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request


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
