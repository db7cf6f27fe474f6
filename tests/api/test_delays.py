"""Responses without artificial delays."""

import asyncio
import socket

from leaseway.api.server import bind_socket


async def test_an_answer_does_not_wait_for_the_clients_acknowledgement() -> None:
    """Headers and body of a response are sent separately. With Nagle's algorithm, the system would hold the body back
    until the client acknowledges the headers, and clients delay acknowledgements by 40 ms.
    """
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
