"""Lost connections, statement timeouts, an exhausted pool: nothing is half-written."""

import asyncio
import contextlib
import gc
from typing import Any

import pytest
from tests.stores.postgres_support import (
    connected,
    error_of,
    new_role,
    opened,
    until,
    until_gone,
    value,
    waiting_for_a_lock,
)

from leaseway.domain.errors import StoreBusy, TransientError, UnknownOutcome
from leaseway.domain.job import Submitted
from leaseway.stores.postgres import connection as connection_module
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.job_store_contract.fixtures import (
    ContractWorker,
    counts,
    done,
    id_of,
    ids_in,
    job_of,
    keyed_job,
    new_job,
)
from leaseway.testing.postgres import PostgresServer


async def ended_in_the_middle(server: PostgresServer, locked: str, call: Any) -> Any:
    """Terminate the backend of a call while it waits for a lock, and return the error of the call."""
    async with connected(server) as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute(locked)
        waiting = asyncio.ensure_future(call)
        (pid,) = await waiting_for_a_lock(other)
        await value(server, "SELECT pg_terminate_backend($1)", pid)
        error = await error_of(waiting)
        await transaction.rollback()
        return error


async def test_a_submission_whose_connection_dies_is_unknown_and_can_be_repeated(server: PostgresServer) -> None:
    """It may have been stored: a repetition must return the first answer and make no second job."""
    async with opened(server) as store:
        schema = store.address.schema
        for job in (new_job(1), keyed_job(2)):
            error = await ended_in_the_middle(server, f"LOCK TABLE {schema}.jobs", store.jobs.submit([job]))
            assert isinstance(error, UnknownOutcome)
            assert "the call may be repeated" in str(error)
            assert await store.reads.job(job.id) is None
            assert await store.jobs.submit([job]) == [Submitted(job.id)]
            assert await store.jobs.submit([job]) == [Submitted(job.id)]
        assert await counts(store) == {"ready": 2}


async def test_an_exchange_whose_connection_dies_writes_nothing_and_can_be_repeated(server: PostgresServer) -> None:
    """Settling and claiming are one transaction: neither may happen without the other."""
    async with opened(server) as store:
        worker = ContractWorker(store)
        await store.jobs.submit([new_job(1), new_job(2)])
        (lease,) = await worker.claim()
        wants = worker.wants()
        lock = f"LOCK TABLE {store.address.schema}.history"
        error = await ended_in_the_middle(server, lock, worker.exchange(done(lease), wants=wants))
        assert isinstance(error, UnknownOutcome)
        assert await counts(store) == {"ready": 1, "leased": 1}
        for _ in range(2):
            answer = await worker.exchange(done(lease), wants=wants, repeat=True)
            assert [lease.id for lease in answer.leases] == [id_of(2)]
            assert answer.lost == ()
        assert await counts(store) == {"leased": 1, "done": 1}


async def test_a_read_whose_connection_dies_is_repeated(server: PostgresServer) -> None:
    """It changes nothing, so the caller does not need to know."""
    async with opened(server) as store:
        await store.jobs.submit([new_job(1)])
        async with connected(server) as other:
            transaction = other.transaction()
            await transaction.start()
            await other.execute(f"LOCK TABLE {store.address.schema}.payloads")
            asking = asyncio.ensure_future(store.reads.job(id_of(1)))
            (pid,) = await waiting_for_a_lock(other)
            await value(server, "SELECT pg_terminate_backend($1)", pid)
            await until_gone(other, pid)
            await waiting_for_a_lock(other)
            await transaction.rollback()
            assert (await asking) is not None


async def test_a_read_that_fails_twice_is_transient(server: PostgresServer) -> None:
    """`UnknownOutcome` would suggest that something may have been written."""
    async with opened(server) as store, connected(server) as other:
        async with other.transaction():
            await other.execute(f"LOCK TABLE {store.address.schema}.payloads")
            asking = asyncio.ensure_future(store.reads.job(id_of(1)))
            for _ in range(2):
                (pid,) = await waiting_for_a_lock(other)
                await value(server, "SELECT pg_terminate_backend($1)", pid)
                await until_gone(other, pid)
            error = await error_of(asking)
        assert type(error) is TransientError


async def test_connections_that_died_while_idle_cause_no_error(server: PostgresServer) -> None:
    """After a restart of the server or of a firewall, all connections of the pool are dead."""
    async with opened(server) as store:
        await asyncio.gather(*(store.jobs.submit([new_job(number)]) for number in range(5)))
        await store.notifications.wait(0)
        sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'leaseway'"
        assert await value(server, sql) >= 1
        await until_closed(store)
        assert await store.jobs.submit([new_job(9)]) == [Submitted(id_of(9))]
        assert len(await ids_in(store)) == 6


async def until_closed(store: PostgresStore) -> None:
    """Wait until the loop has noticed that the server closed the connection."""

    async def are_closed() -> bool:
        return all(connection.is_closed() for connection, _ in store.connections._pool()._idle)

    await until(are_closed)


async def test_a_statement_that_the_server_times_out_writes_nothing(server: PostgresServer) -> None:
    """A statement timeout is not a lost connection: the outcome is known."""
    role = await new_role(server, "ALTER ROLE {0} SUPERUSER", "ALTER ROLE {0} SET statement_timeout = '100ms'")
    async with opened(server) as owner, opened(server, owner.address.schema, role) as store:
        async with connected(server) as other, other.transaction():
            await other.execute(f"LOCK TABLE {owner.address.schema}.lane_changes")
            # A single job would be stored together with its notification, which makes the outcome unknown.
            error = await error_of(store.jobs.submit([new_job(1), new_job(2)]))
            doubt = await error_of(store.jobs.submit([new_job(1)]))
        assert isinstance(error, StoreBusy)
        assert "timed out" in str(error)
        assert isinstance(doubt, UnknownOutcome)
        assert await ids_in(owner) == []
        assert await store.jobs.submit([new_job(1)]) == [Submitted(id_of(1))]


async def test_a_call_without_answer_times_out_and_its_connection_is_not_reused(server: PostgresServer) -> None:
    """Behind a broken firewall nothing comes back, not even an error."""
    async with opened(server, pool="1") as store:
        before = await pid_of(store)
        with pytest.raises(UnknownOutcome, match=r"no answer within 0.05 s; the call may be repeated"):
            await store.connections.call("SELECT pg_sleep(30)", seconds=0.05)
        assert await pid_of(store) != before


async def test_the_connection_of_a_cancelled_call_is_not_reused(server: PostgresServer) -> None:
    """Its answer may still arrive, and the next caller would read it."""
    async with opened(server, pool="1") as store, connected(server) as other:
        before = await pid_of(store)
        async with other.transaction():
            await other.execute(f"LOCK TABLE {store.address.schema}.lane_changes")
            submitting = asyncio.ensure_future(store.jobs.submit([new_job(1)]))
            await waiting_for_a_lock(other)
            submitting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await submitting
        assert await pid_of(store) != before
        assert await store.reads.job(id_of(2)) is None


async def pid_of(store: PostgresStore) -> int:
    ((pid,),) = await store.connections.call("SELECT pg_backend_pid()")
    assert isinstance(pid, int)
    return pid


async def test_an_exhausted_pool_raises_an_error_that_says_how_to_enlarge_it(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting without end would look like a hanging program."""
    monkeypatch.setattr(connection_module, "WAIT_SECONDS_MAX", 0.05)
    async with opened(server, pool="2") as store:
        async with store.connections.borrow(), store.connections.borrow():
            error = await error_of(store.jobs.submit([new_job(1)]))
            assert isinstance(error, StoreBusy)
            assert "all 2 connections of this event loop were in use for 0.05 s" in str(error)
            assert "?pool=4" in str(error)
        assert await store.jobs.submit([new_job(1)]) == [Submitted(id_of(1))]


async def test_a_cancelled_wait_for_a_connection_does_not_shrink_the_pool(server: PostgresServer) -> None:
    """A slot lost with every cancelled caller would empty the pool in the end."""
    async with opened(server, pool="1") as store:
        async with store.connections.borrow():
            callers = [asyncio.ensure_future(store.jobs.submit([new_job(number)])) for number in range(5)]
            await asyncio.sleep(0)
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
        assert await store.jobs.submit([new_job(9)]) == [Submitted(id_of(9))]


async def test_a_server_without_free_connections_is_busy(server: PostgresServer) -> None:
    """It may have room a moment later, so workers must retry and not stop."""
    role = await new_role(server, "ALTER ROLE {0} CONNECTION LIMIT 1")
    async with opened(server) as owner:
        schema = owner.address.schema
        await value(server, f"SELECT {schema}.grant_worker($1)", role)
        async with connected(server, role), contextlib.AsyncExitStack() as stack:
            store = PostgresStore(owner.address.dsn.replace("postgres@", f"{role}@") + f"?schema={schema}")
            stack.push_async_callback(store.close)
            error = await error_of(store.open())
        assert isinstance(error, StoreBusy)
        assert "no free connection" in str(error)


async def test_closing_a_store_during_a_call_leaves_no_session(server: PostgresServer) -> None:
    """The server would keep the session until the process ends."""
    async with opened(server) as store, connected(server) as other:
        async with other.transaction():
            await other.execute(f"LOCK TABLE {store.address.schema}.lane_changes")
            submitting = asyncio.ensure_future(store.jobs.submit([new_job(1)]))
            (pid,) = await waiting_for_a_lock(other)
            await store.close()
        await asyncio.gather(submitting, return_exceptions=True)
        await until_gone(other, pid)
    gc.collect()


async def test_a_transaction_of_several_statements_is_all_or_nothing(server: PostgresServer) -> None:
    """An exchange that settles a job twice uses several statements and must not stop halfway."""
    async with opened(server) as store:
        worker = ContractWorker(store)
        await store.jobs.submit([new_job(1)])
        lease = await worker.claim_one()
        lock = f"LOCK TABLE {store.address.schema}.lanes IN ACCESS EXCLUSIVE MODE"
        call = worker.exchange(done(lease), done(lease), wants=worker.wants())
        error = await ended_in_the_middle(server, lock, call)
        assert isinstance(error, UnknownOutcome)
        assert (await job_of(store)).state == "leased"
        assert (await worker.exchange(done(lease), done(lease))).lost == ()
        assert await counts(store) == {"done": 1}


async def test_after_a_timeout_the_idle_connections_are_closed(server: PostgresServer) -> None:
    """If the network lost one connection, it lost all of them; each would cost another timeout."""
    async with opened(server) as store:
        call = store.connections.call
        answers = await asyncio.gather(*(call("SELECT pg_backend_pid() FROM pg_sleep(0.1)") for _ in range(3)))
        pids = {pid for ((pid,),) in answers}
        assert len(pids) == 3
        with pytest.raises(UnknownOutcome):
            await call("SELECT pg_sleep(60)", seconds=0.05)
        ((fresh,),) = await call("SELECT pg_backend_pid()")
        assert fresh not in pids


async def test_connections_needed_only_for_a_peak_are_closed_after_a_while(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server has a hundred connections for all workers, and each worker has peaks."""
    monkeypatch.setattr(connection_module, "UNUSED_SECONDS_MAX", 0.2)
    async with opened(server) as store, connected(server) as other:
        call = store.connections.call
        answers = await asyncio.gather(*(call("SELECT pg_backend_pid() FROM pg_sleep(0.1)") for _ in range(5)))
        crowd = {pid for ((pid,),) in answers}
        assert len(crowd) == 5

        async def one_is_left() -> bool:
            there = await other.fetch("SELECT pid FROM pg_stat_activity WHERE pid = ANY ($1)", crowd)
            return len(there) == 1

        await until(one_is_left)
        assert await pid_of(store) in crowd, "the last one stays"
