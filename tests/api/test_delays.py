"""Nothing waits for anything but its own work."""

import asyncio
import socket

from leaseway.api.server import bind_socket


async def test_an_answer_does_not_wait_for_the_clients_acknowledgement() -> None:
    """Head and body of an answer are sent one after the other. The system would keep the second back until the client
    has acknowledged the first, which clients put off for 40 ms."""
    found = asyncio.get_running_loop().create_future()

    def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listening = bind_socket("127.0.0.1", 0)
    async with await asyncio.start_server(accepted, sock=listening):
        _, writer = await asyncio.open_connection(*listening.getsockname())
        assert await found
        writer.close()
        await writer.wait_closed()
