"""Makes a MongoDB server fail at the commands that a test names, and counts what it has done."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from leaseway.testing.mongodb import MongoServer

ROOT = Path(__file__).parents[1]
BREAKABLE = ("--setParameter", "enableTestCommands=1")
"""Options of a server that can be told to fail."""
LOST_COMMIT = {
    "failCommands": ["commitTransaction"],
    "writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"},
}
"""The commit happens, but its reply does not say so."""


@contextmanager
def failing(server: MongoServer, data: dict[str, Any], times: int | None = None) -> Iterator[None]:
    """The next `times` commands fail as `data` says; None: all of them until the end of the block."""
    mode: Any = "alwaysOn" if times is None else {"times": times}
    server.command({"configureFailPoint": "failCommand", "mode": mode, "data": data})
    try:
        yield
    finally:
        server.command({"configureFailPoint": "failCommand", "mode": "off"})


def commits(server: MongoServer) -> int:
    """How many transactions the server has committed."""
    return int(server.command({"serverStatus": 1})["transactions"]["totalCommitted"])


def commands(server: MongoServer, name: str) -> int:
    """How many commands of this name the server has executed."""
    return int(server.command({"serverStatus": 1})["metrics"]["commands"][name]["total"])


LEAVER = """
import asyncio, os, signal, sys
from leaseway.stores.mongodb.connection import Connections

async def leave(url, collection):
    async def work(transaction):
        await transaction.database[collection].update_many({}, {"$set": {"left": 1}}, session=transaction.session)
        os.kill(os.getpid(), signal.SIGKILL)

    await Connections(url).transaction(work)

asyncio.run(leave(*sys.argv[1:]))
"""


def leave_a_transaction(url: str, collection: str) -> None:
    """A process is killed in the middle of a transaction that has changed all documents of a collection."""
    ended = subprocess.run([sys.executable, "-c", LEAVER, url, collection], check=False, cwd=ROOT)
    assert ended.returncode == -signal.SIGKILL


class SwallowingProxy:
    """Forwards connections to a server, until a client sends a command whose reply is to be lost.

    That command arrives at the server and is executed; its reply is dropped, and the connection is closed.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._swallows: bytes | None = None
        self.swallowed = 0
        self.url = ""

    def swallow(self, command: str) -> None:
        """The reply to the next such command."""
        self._swallows = command.encode()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["SwallowingProxy"]:
        listening = await asyncio.start_server(self._connected, "127.0.0.1")
        async with listening:
            port = listening.sockets[0].getsockname()[1]
            self.url = f"mongodb://127.0.0.1:{port}/leaseway?directConnection=true"
            yield self

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            async with asyncio.TaskGroup() as both:
                replies = both.create_task(self._forward(answers, writer))
                while chunk := await reader.read(65_536):
                    is_doomed = self._swallows is not None and self._swallows in chunk
                    if is_doomed:
                        replies.cancel()
                        await asyncio.wait([replies])
                    requests.write(chunk)
                    if is_doomed:
                        await self._lose_reply(answers)
                        break
                replies.cancel()
        except (ConnectionError, ExceptionGroup):
            pass  # a client or the server has closed its end
        finally:
            writer.close()
            requests.close()

    async def _lose_reply(self, answers: asyncio.StreamReader) -> None:
        self._swallows = None
        await answers.read(1)  # it was executed
        self.swallowed += 1

    async def _forward(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await answers.read(65_536):
            writer.write(chunk)
        writer.close()
