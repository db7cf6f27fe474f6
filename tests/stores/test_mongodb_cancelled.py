"""Calls that are cancelled while the driver looks for a member, and connections that it opens too early."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pymongo.lock import _async_cond_wait, _async_create_condition, _async_create_lock
from tests.stores.conftest import empty

from leaseway.domain.errors import TransientError
from leaseway.stores.mongodb.store import MongoStore
from leaseway.testing.job_store_contract.fixtures import counts, new_job
from leaseway.testing.mongodb import MongoServer, mongodb_server

STEPS_MAX = 1_000
CALLS = 300


@pytest.fixture
async def store(mongodb: MongoServer) -> AsyncIterator[MongoStore]:
    store = MongoStore(mongodb.url)
    await store.open()
    await empty(store)
    yield store
    await store.close()


async def test_a_call_that_is_cancelled_when_its_wait_is_over_leaves_the_lock_to_others() -> None:
    """The driver waits half a second for a change of the replica set, again and again. A call that was cancelled
    between two of these waits left a lock that nobody owned, so no later call of the process ended.
    """
    lock: Any = _async_create_lock()
    changed = _async_create_condition(lock)

    async def look_for_a_member() -> None:
        async with lock:
            await _async_cond_wait(changed, 0.001)

    call = asyncio.create_task(look_for_a_member())
    while not changed._waiters:  # noqa: ASYNC110 - the driver has no event for it
        await asyncio.sleep(0)
    async with lock:
        while not lock._waiters:  # noqa: ASYNC110 - until its time is over, and it wants the lock back
            await asyncio.sleep(0.001)
        call.cancel()
        for _ in range(STEPS_MAX):
            await asyncio.sleep(0)
        assert not call.done(), "it has released the lock of another call"
    with pytest.raises(asyncio.CancelledError):
        await call
    for _ in range(STEPS_MAX):
        await asyncio.sleep(0)
    assert not lock.locked()


async def test_a_connection_that_was_opened_before_the_member_had_a_role_is_replaced(store: MongoStore) -> None:
    """After a power cut a member answers before it is a secondary or the primary. The driver then believes for the life
    of this connection that the server has no sessions. A worker ended with an error about a wrong URL.
    """
    await store.jobs.submit([new_job(1)])
    assert close_to_sessions(await store.database.connections.database()) > 0
    await store.jobs.submit([new_job(2)])
    assert await counts(store) == {"ready": 2}


def close_to_sessions(database: Any) -> int:
    """As if every open connection had met a member without a role. Returns how many there are."""
    servers = database.client._topology._servers.values()
    connections = [each for server in servers for each in server.pool.conns]
    for each in connections:
        each.supports_sessions = False
    return len(connections)


@pytest.mark.slow
async def test_calls_that_are_cancelled_during_an_election_do_not_stop_later_ones() -> None:
    """Every call of a worker has a deadline, and there is no primary meanwhile. The worker hung until it was killed."""
    with mongodb_server() as server:
        store = MongoStore(server.url)
        await store.open()
        server.command({"replSetStepDown": 3, "force": True})
        await asyncio.gather(*(cut_off(store, number) for number in range(CALLS)))
        while not await submits(store):  # noqa: ASYNC110 - until there is a primary
            await asyncio.sleep(0.1)
        await store.close()


async def cut_off(store: MongoStore, number: int) -> None:
    with contextlib.suppress(TimeoutError, TransientError):
        async with asyncio.timeout(0.1 + 2 * number / CALLS):
            await store.jobs.submit([new_job(100 + number)])


async def submits(store: MongoStore) -> bool:
    with contextlib.suppress(TransientError):
        return bool(await store.jobs.submit([new_job(1)]))
    return False
