"""Notifications: fast when they arrive, few under load, and never required."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.stores.postgres_support import SOON_SECONDS, connected, opened, seen_now, until, until_gone, value

from leaseway.domain.errors import UnknownOutcome
from leaseway.stores.postgres import notify
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.job_store_contract.fixtures import ContractWorker, done, id_of, ids_in, new_job, retry
from leaseway.testing.postgres import PostgresServer

LONG_SECONDS = 600.0
"""Longer than any test: a wait that ends earlier was ended by a notification."""

LISTENING = """
SELECT pid FROM pg_stat_activity WHERE application_name = 'leaseway' AND query ILIKE 'LISTEN "leaseway.' || $1 || '"%'
"""


async def listeners(connection: Any, store: PostgresStore, number: int = 1) -> list[int]:
    """The server processes that listen for this store, once there are `number` of them."""

    async def enough() -> list[int]:
        found = [pid for (pid,) in await seen_now(connection, LISTENING, store.address.schema)]
        return found if len(found) >= number else []

    return await until(enough)


async def hears(store: PostgresStore, is_so: bool = True) -> None:
    """Wait until the store knows whether it listens: the server's answer passes through the loop."""

    async def knows() -> bool:
        return store.database.listener._listening[asyncio.get_running_loop()].is_open is is_so

    await until(knows)


class Pair:
    """A store that waits, and another one that creates work."""

    def __init__(self, server: PostgresServer, waiter: PostgresStore, other: PostgresStore) -> None:
        self.server = server
        self.waiter = waiter
        self.other = other

    async def waiting(self) -> "asyncio.Future[bool]":
        """A wait that is known to listen."""
        waiting = asyncio.ensure_future(self.waiter.notifications.wait(LONG_SECONDS))
        await asyncio.sleep(0)  # let it run to its first await
        await hears(self.waiter)
        return waiting

    async def is_woken(self, waiting: "asyncio.Future[bool]") -> bool:
        async with asyncio.timeout(SOON_SECONDS):
            return await waiting


@pytest.fixture
async def pair(server: PostgresServer) -> AsyncIterator[Pair]:
    async with opened(server) as waiter, opened(server, waiter.address.schema) as other:
        yield Pair(server, waiter, other)


# -- many processes ---------------------------------------------------------------------------------------------------


def test_of_many_listening_processes_few_wake_at_once() -> None:
    """Fifty claims at once take as long as fifty jobs, and the first job waits for all of them."""
    for listeners in (10, 50, 1_000):
        delays = sorted(notify.wake_delay_seconds(listeners, (n + 0.5) / listeners) for n in range(listeners))
        assert sum(delay == 0 for delay in delays) <= 2
        assert 0 < max(delays) <= notify.LAST_SECONDS
        assert sum(delay < delays[-1] / 2 for delay in delays) <= 0.6 * listeners
    assert [notify.wake_delay_seconds(2, chance / 10) for chance in range(10)] == [0.0] * 10


async def test_every_listening_process_is_woken_in_the_end(
    server: PostgresServer, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any of them may be the only one that serves the queue, or the only one with a free slot."""
    monkeypatch.setattr(notify, "FIRST", -1.0)
    async with opened(server, pair.waiter.address.schema) as third:
        waits = [pair.waiting(), Pair(server, third, pair.other).waiting()]
        waiting = [await wait for wait in waits]
        for store in (pair.waiter, third):
            store.database.listener._listening[asyncio.get_running_loop()].listeners = 50
        await pair.other.jobs.submit([new_job(1)])
        assert [await pair.is_woken(each) for each in waiting] == [True, True]


async def test_listening_processes_are_counted(server: PostgresServer, pair: Pair) -> None:
    """Their number decides how far apart they wake."""
    waits = [await pair.waiting(), await Pair(server, pair.other, pair.waiter).waiting()]
    async with opened(server, pair.waiter.address.schema) as third:
        waits.append(await Pair(server, third, pair.other).waiting())
        assert third.database.listener._listening[asyncio.get_running_loop()].listeners == 3
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


# -- lost -------------------------------------------------------------------------------------------------------------


async def test_a_lost_listening_connection_is_opened_again(
    server: PostgresServer, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server restarts or a firewall drops the connection: the next wait listens again."""
    monkeypatch.setattr(notify, "RETRY_SECONDS", 0.0)
    waiting = await pair.waiting()
    async with connected(server) as connection:
        (pid,) = await listeners(connection, pair.waiter)
        await connection.execute("SELECT pg_terminate_backend($1)", pid)
        await hears(pair.waiter, False)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until_gone(connection, pid)
        again = asyncio.ensure_future(pair.waiter.notifications.wait(LONG_SECONDS))
        (other_pid,) = await listeners(connection, pair.waiter)
        assert other_pid != pid
        await hears(pair.waiter)
        await pair.other.jobs.submit([new_job(1)])
        assert await pair.is_woken(again)


async def test_without_a_listening_connection_a_wait_lasts_its_full_time(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without notifications a worker polls, and does not try to connect at every poll."""
    async with opened(server) as store:
        tries = 0

        async def refuse() -> Any:
            nonlocal tries
            tries += 1
            raise OSError("no")

        monkeypatch.setattr(store.connections, "connect", refuse)
        for _ in range(5):
            assert not await store.notifications.wait(0.001)
        assert tries == 1


async def test_a_notification_that_cannot_be_sent_is_ignored(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is stored; a poll will find it."""
    async with opened(server) as store:
        await value(server, f"DROP FUNCTION {store.address.schema}.notify_workers()")
        await store.jobs.submit([new_job(1)])
        await store.jobs.submit([new_job(2)])
        assert len(await ContractWorker(store).claim(9)) == 2


@pytest.mark.parametrize("fault", ["RAISE 'no'", "PERFORM pg_sleep(600)"])
async def test_a_job_is_stored_even_if_its_notification_fails(server: PostgresServer, fault: str) -> None:
    """In an idle process both are one call: an error must not claim that the job was not stored."""
    async with opened(server) as store:
        body = f"AS $$ BEGIN {fault}; END $$"
        schema = store.address.schema
        await value(
            server, f"CREATE OR REPLACE FUNCTION {schema}.send_notification() RETURNS void LANGUAGE plpgsql {body}"
        )
        async with store.connections.borrow() as connection:  # the connection that the submission will borrow
            await connection.execute("SET statement_timeout = 200")
        await store.jobs.submit([new_job(1)])
        assert len(await ContractWorker(store).claim(9)) == 1


async def test_a_statement_cancelled_after_the_commit_has_an_unknown_outcome(
    server: PostgresServer,
) -> None:
    """A caller that believes in a failure would submit the job again under another id."""
    async with opened(server) as store:
        verb = f"{store.address.schema}.submit_one_and_notify"
        text = await value(server, "SELECT pg_get_functiondef($1::text::regproc)", verb)
        await value(server, text.replace("COMMIT;", "COMMIT; PERFORM pg_sleep(600);", 1))
        async with store.connections.borrow() as connection:  # the connection that the submission will borrow
            await connection.execute("SET statement_timeout = 200")
        with pytest.raises(UnknownOutcome):
            await store.jobs.submit([new_job(1)])
        assert await ids_in(store) == [id_of(1)]


@pytest.mark.parametrize("code", ["55P03", "54000", "53100"])
async def test_a_notification_that_cannot_be_committed_makes_the_outcome_unknown(
    server: PostgresServer, code: str
) -> None:
    """NOTIFY allocates its space at commit. The job is stored by then; reporting a failure would duplicate it."""
    async with opened(server) as store, connected(server) as other:
        await other.execute(f"""
        SET search_path TO {store.address.schema};
        CREATE TABLE trap (x integer);
        CREATE FUNCTION spring() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}', MESSAGE = 'no'; END $$;
        CREATE CONSTRAINT TRIGGER late AFTER INSERT ON trap DEFERRABLE INITIALLY DEFERRED
          FOR EACH ROW EXECUTE FUNCTION spring();
        CREATE OR REPLACE FUNCTION send_notification() RETURNS void LANGUAGE sql AS
          'INSERT INTO {store.address.schema}.trap VALUES (1)';
        """)
        with pytest.raises(UnknownOutcome):
            await store.jobs.submit([new_job(1)])
        assert await ids_in(store) == [id_of(1)]


async def test_work_created_during_a_notification_is_announced_as_well(
    server: PostgresServer, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job may have been stored after the other processes were notified."""
    monkeypatch.setattr(notify, "COALESCE_SECONDS", 0.0)
    waiting = await pair.waiting()
    notifier = pair.other.database.notifier
    with notifier.notify_in_call() as tells:
        assert tells
    notifier.notify()  # in the same iteration of the loop, before any new task has run
    assert await pair.is_woken(waiting)


# -- heard ------------------------------------------------------------------------------------------------------------


async def test_a_submission_wakes_workers_of_other_processes(pair: Pair) -> None:
    """A job starts within milliseconds instead of a poll interval."""
    for number in range(3):
        waiting = await pair.waiting()
        assert not waiting.done()
        await pair.other.jobs.submit([new_job(number)])
        assert await pair.is_woken(waiting)


async def test_in_an_idle_process_the_notification_is_part_of_the_submission(
    server: PostgresServer, pair: Pair
) -> None:
    """A separate notification would cost another round trip before the worker hears of the job."""
    waiting = await pair.waiting()
    await value(server, f"DROP FUNCTION {pair.other.address.schema}.notify_workers()")
    await pair.other.jobs.submit([new_job(1)])
    assert await pair.is_woken(waiting)


async def test_retries_and_children_wake_workers_as_well(pair: Pair) -> None:
    """A retry, a retried dead letter and a child are work, too."""
    await pair.other.jobs.submit([new_job(1)])
    worker = ContractWorker(pair.other)
    lease = await worker.claim_one()
    waiting = await pair.waiting()
    await worker.settle(retry(lease))
    assert await pair.is_woken(waiting)
    lease = await worker.claim_one()
    waiting = await pair.waiting()
    await worker.settle(done(lease, children=(new_job(2),)))
    assert await pair.is_woken(waiting)


@pytest.mark.parametrize("held_back", ["LOCAL_FIRST_SECONDS", "COALESCE_SECONDS"])
async def test_a_store_that_closes_announces_the_work_that_it_leaves(
    pair: Pair, held_back: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that leaves releases its jobs and closes its store at once. If the notification that waits to be sent
    were dropped, other workers would find these jobs at their next poll, seconds later."""
    await pair.other.jobs.submit([new_job(1)])
    worker = ContractWorker(pair.other)
    lease = await worker.claim_one()
    monkeypatch.setattr(notify, held_back, LONG_SECONDS)
    own = asyncio.ensure_future(pair.other.notifications.wait(LONG_SECONDS))  # another worker of the same process
    await asyncio.sleep(0)
    pair.other.database.notifier.notify()
    await own
    waiting = await pair.waiting()
    await worker.settle(retry(lease))
    await pair.other.close()
    assert await pair.is_woken(waiting)


async def test_all_waits_of_a_loop_share_one_listening_connection(server: PostgresServer, pair: Pair) -> None:
    """A hundred handlers that wait for their children must not open a hundred connections."""
    first = await pair.waiting()
    all_of_them = [first, *(asyncio.ensure_future(pair.waiter.notifications.wait(LONG_SECONDS)) for _ in range(20))]
    async with connected(server) as connection:
        assert len(await listeners(connection, pair.waiter)) == 1
    await pair.other.jobs.submit([new_job(1)])
    assert all([await pair.is_woken(waiting) for waiting in all_of_them])


async def test_stores_of_other_schemas_are_not_woken(server: PostgresServer, pair: Pair) -> None:
    """Two products in one database must not wake each other."""
    waiting = await pair.waiting()
    async with opened(server) as stranger:
        await stranger.jobs.submit([new_job(1)])
        await value(server, f"SELECT {stranger.address.schema}.notify_workers()")
    assert not waiting.done()
    await pair.other.jobs.submit([new_job(1)])
    assert await pair.is_woken(waiting)


async def test_a_wait_without_notification_ends_in_time(pair: Pair) -> None:
    """A worker polls at the end of its wait."""
    assert not await pair.waiter.notifications.wait(0.01)
    assert not await pair.waiter.notifications.wait(0)


# -- few --------------------------------------------------------------------------------------------------------------


async def test_a_burst_of_submissions_sends_few_notifications(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NOTIFY in each of a thousand transactions made submitting 72 % slower."""
    monkeypatch.setattr(notify, "COALESCE_SECONDS", 0.2)
    heard = 0

    def hear(*_: object) -> None:
        nonlocal heard
        heard += 1

    async with opened(server) as store, connected(server) as connection:
        await connection.add_listener(f"leaseway.{store.address.schema}", hear)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for batch in range(10):
            await asyncio.gather(*(store.jobs.submit([new_job(100 * batch + n)]) for n in range(30)))
        took = loop.time() - began
        async with asyncio.timeout(SOON_SECONDS):
            while heard == 0:
                await connection.fetchval("SELECT 1")
        await asyncio.sleep(0)
        assert 1 <= heard <= 2 + took / 0.2


async def test_the_last_job_of_a_burst_is_announced(server: PostgresServer, pair: Pair) -> None:
    """A job that is submitted while a notification is being sent needs another one."""
    for number in range(10):
        await pair.other.jobs.submit([new_job(number)])
    waiting = await pair.waiting()
    await pair.other.jobs.submit([new_job(99)])
    assert await pair.is_woken(waiting)


async def test_a_process_ignores_its_own_notifications(server: PostgresServer, pair: Pair) -> None:
    """Its workers have been woken already; waking them again costs a statement each."""
    told: list[object] = []
    waiting = await pair.waiting()
    count = pair.waiter.database.local.count
    async with connected(server) as connection:
        await connection.add_listener(f"leaseway.{pair.waiter.address.schema}", lambda *_: told.append(1))
        await pair.waiter.jobs.submit([new_job(1)])
        assert await pair.is_woken(waiting)
        async with asyncio.timeout(SOON_SECONDS):
            while not told:
                await connection.fetchval("SELECT 1")
    waiting = await pair.waiting()
    await pair.other.jobs.submit([new_job(2)])  # its notification arrives after the own one: the server keeps the order
    assert await pair.is_woken(waiting)
    assert pair.waiter.database.local.count == count + 2


async def test_claims_and_results_send_no_notification(server: PostgresServer) -> None:
    """They create no work. Every finished job would wake every worker."""
    heard: list[object] = []
    async with opened(server) as store, connected(server) as connection:
        await connection.add_listener(f"leaseway.{store.address.schema}", lambda *_: heard.append(1))
        await store.jobs.submit([new_job(number) for number in range(5)])
        async with asyncio.timeout(SOON_SECONDS):
            while not heard:
                await connection.fetchval("SELECT 1")
        heard.clear()
        worker = ContractWorker(store)
        leases = await worker.claim(5)
        await worker.exchange(*map(done, leases), wants=worker.wants(5))
        await store.operations.prune(0, 10)
        await connection.fetchval("SELECT 1")
        assert heard == []
        assert await store.reads.job(id_of(1)) is None
