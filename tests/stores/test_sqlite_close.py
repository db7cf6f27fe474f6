"""Closing a SQLite file while other threads use it.

sqlite3 crashes the process if a connection is closed while another thread executes a statement. Programs do close at
such a moment: `app.work()` closes the app at its end, and a submission that finds the store closing closes it as well.
"""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from leaseway.stores.sqlite.connection import Connection

SECONDS_MAX = 10.0


class Pause:
    """A statement's place in the middle of a transaction: it waits there until the test lets it go on."""

    def __init__(self) -> None:
        self._is_reached = threading.Event()
        self._may_go_on = threading.Event()

    def __call__(self, connection: sqlite3.Connection) -> int:
        self._is_reached.set()
        assert self._may_go_on.wait(SECONDS_MAX)
        return int(connection.execute("SELECT 1").fetchone()[0])

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._is_reached.wait, SECONDS_MAX)

    def go_on(self) -> None:
        self._may_go_on.set()


async def opened(folder: Path) -> Connection:
    connection = Connection(str(folder / "work.db"), lambda: 0.5)
    await connection.open()
    return connection


@pytest.mark.parametrize("verb", ["write", "read", "write_blocking"])
async def test_a_second_close_does_not_end_a_call_in_progress(tmp_path: Path, verb: str) -> None:
    """The first close waits for the call; a second one must not close the connection that the call uses."""
    connection, pause = await opened(tmp_path), Pause()
    if verb == "write_blocking":
        call = asyncio.create_task(asyncio.to_thread(connection.write_blocking, pause))
    else:
        call = asyncio.create_task(getattr(connection, verb)(pause))
    await pause.reached()
    first = asyncio.create_task(connection.close())
    await asyncio.sleep(0)
    async with asyncio.timeout(SECONDS_MAX):
        await connection.close()
        pause.go_on()
        assert await call == 1
        await first


@pytest.mark.parametrize("verb", ["write", "read"])
async def test_a_store_that_is_opened_while_it_closes_keeps_its_new_connection(tmp_path: Path, verb: str) -> None:
    """The close that ends later must not close the connection of the store that was opened again."""
    connection, old, new = await opened(tmp_path), Pause(), Pause()
    ending = asyncio.create_task(connection.read(old))
    await old.reached()
    closing = asyncio.create_task(connection.close())
    await asyncio.sleep(0)
    async with asyncio.timeout(SECONDS_MAX):
        await connection.open()
        call = asyncio.create_task(getattr(connection, verb)(new))
        await new.reached()
        old.go_on()
        assert await ending == 1
        await closing
        new.go_on()
        assert await call == 1
        await connection.close()


@pytest.mark.parametrize("inline", [False, True])
def test_the_file_is_closed_when_close_returns(tmp_path: Path, inline: bool) -> None:
    """A program that closes the store to move or copy the file must find everything in the one file."""

    async def use() -> None:
        connection = Connection(str(tmp_path / "work.db"), lambda: 0.5, inline=inline)
        await connection.open()
        await connection.write(lambda connection: connection.execute("CREATE TABLE things (id)").fetchall())
        await connection.read(lambda connection: connection.execute("SELECT 1").fetchone())
        await connection.close()

    asyncio.run(use())
    assert [file.name for file in tmp_path.iterdir()] == ["work.db"]
