"""The proxy must do what it claims, or no fault of the campaign is real."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from chaos.proxy import Proxy

from leaseway.testing.postgres import PostgresServer, postgres_server

pytestmark = pytest.mark.slow

Connection = psycopg.AsyncConnection[tuple[int]]
COUNT = "SELECT count(*) FROM marks"
SOON_SECONDS = 30.0
"""Longer than any step here takes, on any machine."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE marks (n int)")
        yield server


@pytest.fixture
async def proxy(server: PostgresServer) -> AsyncIterator[Proxy]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("TRUNCATE marks")
    async with Proxy(server.port) as proxy:
        yield proxy


async def through(proxy: Proxy) -> Connection:
    url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"
    return await psycopg.AsyncConnection.connect(url, autocommit=True)


async def marks(connection: Connection) -> int:
    row = await (await connection.execute(COUNT)).fetchone()
    assert row is not None
    return row[0]


def marks_of(server: PostgresServer) -> int:
    with psycopg.connect(server.url) as connection:
        row = connection.execute(COUNT).fetchone()
        assert row is not None
        return int(row[0])


async def test_bytes_are_forwarded(proxy: Proxy) -> None:
    """A proxy that changes bytes would test itself instead of the store."""
    connection = await through(proxy)
    await connection.execute("INSERT INTO marks VALUES (1)")
    assert await marks(connection) == 1
    await connection.close()


@pytest.mark.parametrize("is_prepared", [False, True])
async def test_a_trap_executes_the_statement_and_loses_its_answer(
    proxy: Proxy, server: PostgresServer, is_prepared: bool
) -> None:
    """A client cannot tell this fault from a statement that never arrived. A prepared statement is named only the first
    time; afterwards the trap must recognise its number.
    """
    connection = await through(proxy)
    for n in range(3):
        await connection.execute("INSERT INTO marks VALUES (%s)", [n], prepare=is_prepared)
    trap = proxy.trap("insert into MARKS", 0.01)
    assert await marks(connection) == 3, "another statement fell into the trap"
    with pytest.raises(psycopg.OperationalError):
        await connection.execute("INSERT INTO marks VALUES (%s)", [9], prepare=is_prepared)
    assert trap.is_sprung
    assert marks_of(server) == 4
    assert proxy.answers_lost == 1
    again = await through(proxy)
    assert await marks(again) == 4, "the trap caught a second time"
    await again.close()


async def test_swallowing_loses_answers_of_open_connections_only(proxy: Proxy, server: PostgresServer) -> None:
    """New connections must work, or the fault would be an outage instead of lost replies."""
    connection = await through(proxy)
    proxy.swallow(0.2)
    with pytest.raises(psycopg.OperationalError):
        await connection.execute("INSERT INTO marks VALUES (1)")
    assert marks_of(server) == 1
    other = await through(proxy)
    assert await marks(other) == 1
    await other.close()


async def test_what_is_held_arrives_when_it_is_released(proxy: Proxy) -> None:
    """A delayed request that never arrives would be a lost one."""
    connection = await through(proxy)
    proxy.hold()
    call = asyncio.ensure_future(marks(connection))
    newcomer = asyncio.ensure_future(through(proxy))
    await asyncio.wait([call, newcomer], timeout=0.3)
    assert not call.done()
    assert not newcomer.done()
    proxy.release()
    assert await call == 0
    assert await marks(await newcomer) == 0
    await connection.close()
    await (await newcomer).close()


async def test_what_was_sent_into_a_hole_arrives_though_its_sender_has_gone(
    proxy: Proxy, server: PostgresServer
) -> None:
    """A request may reach the server long after its repetition did: the worst case of a network."""
    connection = await through(proxy)
    proxy.hold()
    call = asyncio.ensure_future(connection.execute("INSERT INTO marks VALUES (1)"))
    async with asyncio.timeout(SOON_SECONDS):
        while not any(link._up._queue for link in proxy._links):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    await connection.close()
    with pytest.raises(psycopg.Error):
        await call
    assert marks_of(server) == 0
    proxy.release()
    async with asyncio.timeout(SOON_SECONDS):
        while marks_of(server) == 0:  # noqa: ASYNC110 - the server is not ours to be told by
            await asyncio.sleep(0.02)


async def test_everything_takes_a_while(proxy: Proxy) -> None:
    """A latency that is not applied would test nothing."""
    connection = await through(proxy)
    proxy.delay(0.15)
    loop = asyncio.get_running_loop()
    sent_at = loop.time()
    assert await marks(connection) == 0
    assert loop.time() - sent_at >= 0.3, "there and back"
    proxy.delay(0)
    await connection.close()


async def test_a_reset_ends_every_connection(proxy: Proxy) -> None:
    """A connection that survives the reset would hide missing error handling."""
    connections = [await through(proxy) for _ in range(3)]
    assert proxy.reset() == 3
    for connection in connections:
        with pytest.raises(psycopg.OperationalError):
            await marks(connection)
    connection = await through(proxy)
    assert await marks(connection) == 0
    await connection.close()


async def test_connections_that_end_are_forgotten(proxy: Proxy) -> None:
    """A proxy that kept them would count them as affected, and grow all night."""
    for _ in range(3):
        await (await through(proxy)).close()
    async with asyncio.timeout(SOON_SECONDS):
        while proxy.reset():  # noqa: ASYNC110 - the kernel is not ours to be told by
            await asyncio.sleep(0.01)


async def test_a_server_that_is_gone_is_noticed_and_found_again(proxy: Proxy, server: PostgresServer) -> None:
    """The proxy must not keep clients waiting after the server has restarted."""
    connection = await through(proxy)
    await asyncio.to_thread(server.crash)
    with pytest.raises(psycopg.OperationalError):
        await marks(connection)
    with pytest.raises(psycopg.OperationalError):
        await through(proxy)
    await asyncio.to_thread(server.start)
    again = await through(proxy)
    assert await marks(again) == 0
    await again.close()
