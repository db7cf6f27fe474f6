"""Behind a pooler in transaction mode, no state may be left in a session."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.stores.postgres_support import connected, new_name, opened, seen_now, until, value

from leaseway import App
from leaseway.domain.errors import StoreRefused
from leaseway.domain.explain.closures import closed_by_session
from leaseway.domain.explain.reasons import explain
from leaseway.domain.health import Finding
from leaseway.domain.job import Submitted
from leaseway.ports.store import require_inspection
from leaseway.stores.postgres.connection import Connections
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.job_store_contract.fixtures import (
    ContractWorker,
    counts,
    done,
    failed,
    id_of,
    keyed_job,
    new_job,
    retry,
)
from leaseway.testing.postgres import PostgresServer

STARTUP, SSL_REQUEST, CANCEL = 196_608, 80_877_103, 80_877_102


class Pooler:
    """A pooler that gives every transaction another session.

    It forwards whole messages; a client that leaves state in its session does not find it again.
    """

    def __init__(self, port: int, sessions: int = 2) -> None:
        self._port = port
        self._sessions = sessions
        self._backends: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._greeting = b""
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        """To clients and to sessions."""
        self._is_closed = False
        self.transactions = 0

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> "Pooler":
        for _ in range(self._sessions):
            self._backends.put_nowait(await self._connect())
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        self._is_closed = True
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        for writer in self._writers.copy():
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Record the connection at once and not when its task first runs, so that a cancelled one is closed."""
        self._writers.add(writer)
        if self._is_closed:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.add(writer)
        body = STARTUP.to_bytes(4, "big") + b"user\0postgres\0database\0postgres\0application_name\0pooler\0\0"
        writer.write((len(body) + 4).to_bytes(4, "big") + body)
        self._greeting = b""
        while True:
            kind, message = await read(reader)
            self._greeting += message
            if kind == b"Z":
                return reader, writer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                if await self._greet(reader, writer):
                    while await self._transaction(reader, writer):
                        self.transactions += 1
        finally:
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        while True:
            size = int.from_bytes(await reader.readexactly(4), "big")
            body = await reader.readexactly(size - 4)
            version = int.from_bytes(body[:4], "big")
            if version == STARTUP:
                writer.write(self._greeting)
                return True
            if version == CANCEL:
                return False
            writer.write(b"N")

    async def _transaction(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """From the first message until the session is idle."""
        kind, message = await read(reader)
        if kind == b"X":
            return False
        backend, to_backend = await self._backends.get()
        answering = asyncio.ensure_future(until_idle(backend, writer))
        try:
            while True:
                to_backend.write(message)
                asking = asyncio.ensure_future(read(reader))
                try:
                    await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
                    if answering.done():
                        # The client sends nothing more until it has read the answer.
                        return True
                    _, message = asking.result()
                finally:
                    asking.cancel()
                    await asyncio.gather(asking, return_exceptions=True)
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            self._backends.put_nowait((backend, to_backend))


async def read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)


async def until_idle(backend: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        kind, message = await read(backend)
        writer.write(message)
        if (kind, message[5:]) == (b"Z", b"I"):
            return


@pytest.fixture
async def pooler(server: PostgresServer) -> AsyncIterator[Pooler]:
    async with Pooler(server.port) as pooler:
        yield pooler


def through(via: Pooler, schema: str, **words: str) -> str:
    more = "".join(f"&{name}={value}" for name, value in words.items())
    return f"postgresql://postgres@127.0.0.1:{via.port}/postgres?schema={schema}{more}"


@pytest.fixture
async def store(pooler: Pooler) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(through(pooler, new_name(), pooler="transaction"))
    await store.open()
    yield store
    await store.close()


async def test_without_the_option_the_error_suggests_it(pooler: Pooler) -> None:
    """This also proves the pooler of these tests: with sessions, the store misses its prepared statements."""
    store = PostgresStore(through(pooler, new_name()))

    async def use() -> None:
        await store.open()
        for number in range(5):
            await store.jobs.submit([new_job(number)])

    with pytest.raises(StoreRefused, match=r"prepared statement .* does not exist; .* add \?pooler=transaction"):
        await use()
    await store.close()


async def test_every_verb_works_with_another_session_per_transaction(store: PostgresStore) -> None:
    """Settings, prepared statements and locks of a session are lost."""
    worker = ContractWorker(store)
    assert await store.jobs.submit([new_job(1)]) == [Submitted(id_of(1))]
    assert await store.jobs.submit([keyed_job(2), new_job(3), new_job(4)])
    leases = await worker.claim(4)
    assert len(leases) == 4
    answer = await worker.exchange(
        done(leases[0]), failed(leases[1]), retry(leases[2]), done(leases[3]), wants=worker.wants()
    )
    assert [lease.id for lease in answer.leases] == [id_of(3)]
    twice = await worker.exchange(done(answer.leases[0]), done(answer.leases[0]))
    assert twice.lost == ()
    assert await counts(store) == {"done": 3, "failed": 1}
    assert await store.operations.prune(0, 10) == 4
    assert [finding.check for finding in await require_inspection(store).health() if finding.level == "problem"] == []


async def test_many_clients_share_few_sessions(store: PostgresStore, pooler: Pooler) -> None:
    """That is the purpose of a pooler; no answer may go to the wrong client."""
    # With a key, each submission is a transaction of its own; without, they would be coalesced.
    await asyncio.gather(*(store.jobs.submit([keyed_job(number, key=f"k{number}")]) for number in range(60)))
    claims = await asyncio.gather(*(ContractWorker(store, f"w{n}").claim(10) for n in range(8)))
    ids = [lease.id for claim in claims for lease in claim]
    assert len(ids) == len(set(ids)) == 60
    assert pooler.transactions > 60


async def test_an_app_drains_its_jobs_by_polling(pooler: Pooler) -> None:
    """There are no notifications behind a pooler."""
    app, ran = App(through(pooler, new_name(), pooler="transaction")), list[int]()

    @app.job
    async def count(n: int) -> None:
        ran.append(n)

    async with app:
        await count.submit_many([{"n": n} for n in range(100)])
        await app.run_worker(until_empty=True)
    assert sorted(ran) == list(range(100))


async def test_no_state_is_left_in_a_session(server: PostgresServer) -> None:
    """The next client of the session must not find prepared statements, LISTEN or settings."""
    async with opened(server, pooler="transaction", pool="1") as store:
        await store.jobs.submit([new_job(number) for number in range(5)])
        await store.jobs.submit([new_job(9)])
        await ContractWorker(store).settle(*map(done, await ContractWorker(store).claim(5)))
        assert not await store.notifications.wait(0.001)
        async with store.connections.borrow() as connection:
            assert [
                row["statement"] for row in await connection.fetch("SELECT statement FROM pg_prepared_statements")
            ] == []
            assert await connection.fetchval("SELECT count(*) FROM pg_listening_channels()") == 0
            assert await connection.fetchval("SHOW application_name") == ""
            held = await seen_now(
                connection, "SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
            )
            assert held == []


async def test_resume_points_in_shared_sessions_lose_no_job(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resume points are settings of a session, which behind a pooler belongs to changing clients."""
    async with opened(server, pooler="transaction", pool="1") as store:
        await store.jobs.submit([new_job(number) for number in range(10_500)])
        claimed: list[Any] = []
        while leases := await ContractWorker(store).claim(3_000):
            claimed += [lease.id for lease in leases]
        assert len(claimed) == len(set(claimed)) == 10_500


async def test_behind_a_pooler_no_connection_listens(server: PostgresServer) -> None:
    """LISTEN would stay in a session that belongs to other clients."""
    async with opened(server, pooler="transaction") as store:
        assert not await store.notifications.wait(0.01)
        assert store.database.listener._listening == {}
        sql = "SELECT count(*) FROM pg_stat_activity WHERE query ILIKE $1"
        assert await value(server, sql, f'LISTEN "leaseway.{store.address.schema}"%') == 0


async def test_a_submission_wakes_workers_of_its_own_process(server: PostgresServer) -> None:
    """That needs no server."""
    async with opened(server, pooler="transaction") as store:
        waiting = asyncio.ensure_future(store.notifications.wait(600))
        await asyncio.sleep(0)
        await store.jobs.submit([new_job(1)])
        async with asyncio.timeout(30):
            assert await waiting


async def test_a_client_that_stops_before_its_commit_keeps_no_job(
    pooler: Pooler, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen worker, or one whose network is gone, would keep jobs locked that have no lease, so that no expiry frees
    them; and nothing would say so."""
    execute, is_stopped = asyncpg.Connection.execute, asyncio.Event()

    async def stop_before_commit(connection: Any, query: str, *arguments: Any, **options: Any) -> Any:
        if query == "COMMIT":
            is_stopped.set()
            await asyncio.Event().wait()
        return await execute(connection, query, *arguments, **options)

    schema = new_name()
    async with opened(server, schema) as other:
        await other.jobs.submit([new_job(1)])
        store = PostgresStore(through(pooler, schema, pooler="transaction"))
        monkeypatch.setattr(asyncpg.Connection, "execute", stop_before_commit)
        # A stopped process does not time out, either.
        monkeypatch.setattr(Connections.call, "__kwdefaults__", {"seconds": 600.0})
        stopped = asyncio.ensure_future(ContractWorker(store, "stopped").claim(1))
        await is_stopped.wait()
        try:
            leases = await until(lambda: ContractWorker(other, "other").claim(1))
            assert [lease.id for lease in leases] == [id_of(1)]
        finally:
            stopped.cancel()
            await asyncio.gather(stopped, return_exceptions=True)
            monkeypatch.undo()
            await store.close()


async def test_doctor_and_why_name_the_session_that_locked_a_job(server: PostgresServer) -> None:
    """The job looks ready and the counters are right, so an operator would look for a missing worker."""
    async with opened(server) as store, connected(server) as stopped:
        await store.jobs.submit([new_job(1), new_job(2)])
        assert await store.reads.locked_by(id_of(1)) is None
        assert [finding.level for finding in await transactions_findings(store)] == ["ok"]
        transaction = stopped.transaction()
        await transaction.start()
        await stopped.execute(f"UPDATE {store.address.quoted}.jobs SET progress = '1' WHERE id = $1", id_of(1))
        session = await until(lambda: store.reads.locked_by(id_of(1)))
        assert session == f"{stopped.get_server_pid()} (postgres)"
        assert await store.reads.locked_by(id_of(2)) is None
        (finding,) = await until(lambda: problems_in(store))
        assert f"session {stopped.get_server_pid()} (postgres) has been idle inside a transaction" in finding.text
        assert f"pg_terminate_backend({stopped.get_server_pid()})" in (finding.advice or "")
        job = await store.reads.job(id_of(1))
        assert job is not None
        reason = explain(job, None, await store.reads.now(), closed_by_session(session))
        assert reason.code == "session"
        assert session in reason.text
        await transaction.rollback()
        assert await store.reads.locked_by(id_of(1)) is None


async def transactions_findings(store: PostgresStore) -> list[Finding]:
    return [each for each in await require_inspection(store).health() if each.check == "transactions"]


async def problems_in(store: PostgresStore) -> list[Finding]:
    return [each for each in await transactions_findings(store) if each.level == "problem"]
