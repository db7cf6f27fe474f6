"""The watchman: one process looks for all, so that many idle ones cost little, and no job is overlooked for long."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest
from tests.stores.postgres_support import SOON_SECONDS, new_name, opened, until, until_gone, value
from tests.stores.postgres_support import connected as connected_to

from leaseway.domain.exchange import Gate
from leaseway.domain.ids import SECOND_US
from leaseway.stores.postgres import notify
from leaseway.stores.postgres.jobs import FORECASTS_MAX, PostgresJobs, Question
from leaseway.stores.postgres.notify import Forecast
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.contract.actors import Worker, new_job
from leaseway.testing.postgres import PostgresServer

QUEUES = ("default",)


def beliefs_in(store: PostgresStore) -> dict[Question, Forecast]:
    return cast(PostgresJobs, store.jobs)._forecasts


async def listening(store: PostgresStore) -> PostgresStore:
    """Wait until it hears hints."""

    async def is_open() -> bool:
        ear = store.database.listener.connection()
        return ear is not None and ear.is_open

    await until(is_open)
    return store


@pytest.fixture
async def pair(server: PostgresServer) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """The watchman and somebody else, both of them idle."""
    async with opened(server) as watchman, opened(server, watchman.address.schema) as other:
        for store in (watchman, other):
            await listening(store)
            assert await store.jobs.wait_us(QUEUES) is None
        yield watchman, other


async def submit_unannounced(server: PostgresServer, store: PostgresStore) -> None:
    """As a caller does in a transaction of his own."""
    await value(server, f"SELECT {store.address.schema}.submit_job('count')")


async def test_a_hint_that_one_hears_oneself_is_not_passed_on_for_ever(server: PostgresServer) -> None:
    """Whoever rings also hears his own ringing: if he rang again for that, he would never stop."""
    async with opened(server) as store:
        await listening(store)
        await store.jobs.submit([new_job(1)])
        (telling,) = store.database.notifier._sending.values()
        async with asyncio.timeout(SOON_SECONDS):
            await telling


async def test_hints_of_two_who_listen_do_not_answer_each_other(
    server: PostgresServer, pair: tuple[PostgresStore, PostgresStore]
) -> None:
    """One submission in each of two processes, and then silence."""
    await asyncio.gather(*(store.jobs.submit([new_job(number)]) for number, store in enumerate(pair)))
    tasks = [task for store in pair for task in store.database.notifier._sending.values()]
    async with asyncio.timeout(SOON_SECONDS):
        await asyncio.gather(*tasks)


async def test_whoever_has_lost_his_ear_believes_nothing(
    server: PostgresServer, pair: tuple[PostgresStore, PostgresStore]
) -> None:
    """He hears no hints: only what he sees himself counts."""
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


async def test_what_happened_while_nobody_listened_is_seen_at_once(server: PostgresServer) -> None:
    """A belief of the time before the ear was open is worth nothing."""
    async with opened(server) as store, opened(server, store.address.schema) as submitter:
        assert await store.jobs.wait_us(QUEUES) is None
        await submit_unannounced(server, submitter)
        await listening(store)
        assert await store.jobs.wait_us(QUEUES) == 0


async def test_the_watchman_tells_the_others_what_nobody_announced(
    server: PostgresServer, pair: tuple[PostgresStore, PostgresStore]
) -> None:
    """The others believe that there is nothing to do; he looks every time, and rings."""
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


async def test_the_watchman_is_one_of_those_who_listen(pair: tuple[PostgresStore, PostgresStore]) -> None:
    ears = [store.database.listener.connection() for store in pair]
    assert [ear is not None and ear.is_poller for ear in ears] == [True, False]


async def test_another_one_takes_over_when_the_watchman_is_gone(
    server: PostgresServer, pair: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """His lock ends with his connection, however he died."""
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


async def test_a_watchman_who_does_not_look_is_not_waited_for_longer_than_a_belief(
    server: PostgresServer, pair: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All his slots are busy, or his process is frozen: the others look by themselves, a little less often."""
    _, other = pair
    await submit_unannounced(server, other)
    assert await other.jobs.wait_us(QUEUES) is None
    monkeypatch.setattr(notify, "FORECAST_SECONDS", 0.0)
    assert await other.jobs.wait_us(QUEUES) == 0


async def test_a_belief_is_about_the_queues_that_were_asked_for(
    server: PostgresServer, pair: tuple[PostgresStore, PostgresStore]
) -> None:
    _, other = pair
    await submit_unannounced(server, other)
    assert await other.jobs.wait_us(("default", "more")) == 0


async def test_a_belief_is_about_the_gates_that_were_closed(pair: tuple[PostgresStore, PostgresStore]) -> None:
    """There was nothing to do as long as a gate was closed: nobody says so of the moment when it opens."""
    _, other = pair
    maps = Gate("maps", "default")
    await other.jobs.submit([new_job(1, needs="maps")])
    assert await other.jobs.wait_us(QUEUES, [maps]) is None
    assert await other.jobs.wait_us(QUEUES) == 0
    for number in range(2 * FORECASTS_MAX):
        assert await other.jobs.wait_us(QUEUES, [maps, Gate(f"limit-{number}", "default")]) is None
    assert len(beliefs_in(other)) == FORECASTS_MAX, "every set of closed gates would be remembered for ever"


async def test_a_belief_knows_how_time_goes_by(server: PostgresServer) -> None:
    """Something is planned: the wait becomes shorter, and when it is over, there is nothing to believe any more."""
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


async def test_behind_a_pooler_nobody_believes_anything(server: PostgresServer) -> None:
    """No hints reach: every look is a look."""
    async with opened(server, pooler="transaction") as store:
        assert await store.jobs.wait_us(QUEUES) is None
        await submit_unannounced(server, store)
        assert await store.jobs.wait_us(QUEUES) == 0


async def test_schemas_have_watchmen_of_their_own(server: PostgresServer) -> None:
    """The lock is by schema; otherwise one product would have no watchman because another one has."""
    async with opened(server, new_name()) as one, opened(server, new_name()) as two:
        for store in (one, two):
            await listening(store)
            await store.jobs.wait_us(QUEUES)
            ear = store.database.listener.connection()
            assert ear is not None
            assert ear.is_poller


async def test_a_belief_ends_with_a_claim_of_ones_own(
    server: PostgresServer, pair: tuple[PostgresStore, PostgresStore]
) -> None:
    """A worker that claims gets what is there, whatever it believed."""
    _, other = pair
    await submit_unannounced(server, other)
    assert await other.jobs.wait_us(QUEUES) is None
    assert len(await Worker(other).claim()) == 1
