"""The designated poller: one process polls for all, so that idle processes are cheap and no job waits long."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest
from tests.stores.postgres_support import SOON_SECONDS, new_name, opened, until, until_gone, value
from tests.stores.postgres_support import connected as connected_to

from leaseway.domain.exchange import Gate
from leaseway.domain.ids import SECOND_US
from leaseway.stores.event_loops import IdleForecast
from leaseway.stores.postgres import notify
from leaseway.stores.postgres.jobs import FORECASTS_MAX, PostgresJobs, Question
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.job_store_contract.fixtures import ContractWorker, new_job
from leaseway.testing.postgres import PostgresServer

QUEUES = ("default",)


def beliefs_in(store: PostgresStore) -> dict[Question, IdleForecast]:
    return cast(PostgresJobs, store.jobs)._forecasts


async def listening(store: PostgresStore) -> PostgresStore:
    """Wait until the store receives notifications."""

    async def is_open() -> bool:
        ear = store.database.listener.connection()
        return ear is not None and ear.is_open

    await until(is_open)
    return store


@pytest.fixture
async def pair(server: PostgresServer) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """The designated poller and another process, both idle."""
    async with opened(server) as watchman, opened(server, watchman.address.schema) as other:
        for store in (watchman, other):
            await listening(store)
            assert await store.jobs.wait_us(QUEUES) is None
        yield watchman, other


async def submit_unannounced(server: PostgresServer, store: PostgresStore) -> None:
    """Submit as a caller does in a transaction of its own."""
    await value(server, f"SELECT {store.address.schema}.submit_job('count', notify => false)")


async def test_a_process_does_not_answer_its_own_notification(server: PostgresServer) -> None:
    """It would notify itself for ever."""
    async with opened(server) as store:
        await listening(store)
        await store.jobs.submit([new_job(1)])
        (telling,) = store.database.notifier._sending.values()
        async with asyncio.timeout(SOON_SECONDS):
            await telling


async def test_two_processes_do_not_answer_each_others_notifications(
    server: PostgresServer, pair: tuple[PostgresStore, PostgresStore]
) -> None:
    """After one submission in each of two processes, there must be silence."""
    await asyncio.gather(*(store.jobs.submit([new_job(number)]) for number, store in enumerate(pair)))
    tasks = [task for store in pair for task in store.database.notifier._sending.values()]
    async with asyncio.timeout(SOON_SECONDS):
        await asyncio.gather(*tasks)


async def test_without_a_listening_connection_every_wait_polls(
    server: PostgresServer, pair: tuple[PostgresStore, PostgresStore]
) -> None:
    """A process that receives no notifications must not trust its last poll."""
    _, other = pair
    ear = other.database.listener.connection()
    assert ear is not None
    assert ear._connection is not None
    pid = ear._connection.get_server_pid()
    async with connected_to(server) as connection:
        await connection.execute("SELECT pg_terminate_backend($1)", pid)
        await until_gone(connection, pid)

    async def is_lost() -> bool:
        return not ear.is_open

    await until(is_lost)
    await submit_unannounced(server, other)
    assert await other.jobs.wait_us(QUEUES) == 0


async def test_work_from_before_listening_is_found_at_once(server: PostgresServer) -> None:
    """A forecast from before the connection was opened is not valid."""
    async with opened(server) as store, opened(server, store.address.schema) as submitter:
        assert await store.jobs.wait_us(QUEUES) is None
        await submit_unannounced(server, submitter)
        await listening(store)
        assert await store.jobs.wait_us(QUEUES) == 0


async def test_the_poller_announces_work_that_was_not_announced(
    server: PostgresServer, pair: tuple[PostgresStore, PostgresStore]
) -> None:
    """The others trust their last poll; the poller polls every time and notifies them."""
    watchman, other = pair
    waiting = asyncio.ensure_future(other.notifications.wait(600))
    await submit_unannounced(server, watchman)
    assert await other.jobs.wait_us(QUEUES) is None, (
        "he has seen nothing new, and asks nobody: that is what makes idling cheap"
    )
    assert await watchman.jobs.wait_us(QUEUES) == 0
    async with asyncio.timeout(SOON_SECONDS):
        assert await waiting
    assert await other.jobs.wait_us(QUEUES) == 0


async def test_there_is_exactly_one_poller(pair: tuple[PostgresStore, PostgresStore]) -> None:
    """Two pollers would double the load; without one, unannounced work would wait."""
    ears = [store.database.listener.connection() for store in pair]
    assert [ear is not None and ear.is_poller for ear in ears] == [True, False]


async def test_another_process_takes_over_when_the_poller_is_gone(
    server: PostgresServer, pair: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock ends with its connection, however the process ended."""
    monkeypatch.setattr(notify, "POLLER_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(notify, "FORECAST_SECONDS", 0.0)
    watchman, other = pair
    ear = other.database.listener.connection()
    assert ear is not None
    await other.jobs.wait_us(QUEUES)
    assert not ear.is_poller
    await watchman.close()

    async def took_over() -> bool:
        await other.jobs.wait_us(QUEUES)
        return ear.is_poller

    await until(took_over)


async def test_a_poller_that_does_not_poll_delays_work_by_one_forecast_at_most(
    server: PostgresServer, pair: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all its slots are busy or its process is frozen, the others poll themselves, less often."""
    _, other = pair
    await submit_unannounced(server, other)
    assert await other.jobs.wait_us(QUEUES) is None
    monkeypatch.setattr(notify, "FORECAST_SECONDS", 0.0)
    assert await other.jobs.wait_us(QUEUES) == 0


async def test_a_forecast_covers_only_its_queues(
    server: PostgresServer, pair: tuple[PostgresStore, PostgresStore]
) -> None:
    """Another queue may have work."""
    _, other = pair
    await submit_unannounced(server, other)
    assert await other.jobs.wait_us(("default", "more")) == 0


async def test_a_forecast_covers_only_its_closed_gates(pair: tuple[PostgresStore, PostgresStore]) -> None:
    """There was nothing to do while a gate was closed; no notification tells when it opens."""
    _, other = pair
    maps = Gate("maps", "default")
    await other.jobs.submit([new_job(1, needs="maps")])
    assert await other.jobs.wait_us(QUEUES, [maps]) is None
    assert await other.jobs.wait_us(QUEUES) == 0
    for number in range(2 * FORECASTS_MAX):
        assert await other.jobs.wait_us(QUEUES, [maps, Gate(f"limit-{number}", "default")]) is None
    assert len(beliefs_in(other)) == FORECASTS_MAX, "every set of closed gates would be remembered for ever"


async def test_a_forecast_becomes_shorter_with_time(server: PostgresServer) -> None:
    """When the time of a scheduled job has come, the forecast is not valid any more."""
    async with opened(server) as first, opened(server, first.address.schema) as store:
        for one in (first, store):
            await listening(one)
            await one.jobs.wait_us(QUEUES)
        await store.jobs.submit([new_job(1, delay_us=60 * SECOND_US)])
        waits = [await store.jobs.wait_us(QUEUES) for _ in range(3)]
        assert all(wait is not None and 0 < wait <= 60 * SECOND_US for wait in waits)
        assert waits == sorted(waits, key=lambda wait: -(wait or 0))
        sql = f"UPDATE {store.address.schema}.jobs SET run_at = 0, state = 'scheduled'"
        await value(server, sql)
        belief = beliefs_in(store)[QUEUES, ()]
        belief.answer_us = 0
        assert await store.jobs.wait_us(QUEUES) == 0


async def test_behind_a_pooler_every_wait_polls(server: PostgresServer) -> None:
    """No notifications arrive there."""
    async with opened(server, pooler="transaction") as store:
        assert await store.jobs.wait_us(QUEUES) is None
        await submit_unannounced(server, store)
        assert await store.jobs.wait_us(QUEUES) == 0


async def test_every_schema_has_its_own_poller(server: PostgresServer) -> None:
    """With one lock for all schemas, only one product would have a poller."""
    async with opened(server, new_name()) as one, opened(server, new_name()) as two:
        for store in (one, two):
            await listening(store)
            await store.jobs.wait_us(QUEUES)
            ear = store.database.listener.connection()
            assert ear is not None
            assert ear.is_poller


async def test_a_claim_ignores_forecasts(server: PostgresServer, pair: tuple[PostgresStore, PostgresStore]) -> None:
    """A worker that claims must get the jobs that are there."""
    _, other = pair
    await submit_unannounced(server, other)
    assert await other.jobs.wait_us(QUEUES) is None
    assert len(await ContractWorker(other).claim()) == 1
