"""Notifications between processes by a change stream. They are hints: without them, workers poll."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.mongodb_faults import commands
from tests.stores.conftest import empty

from leaseway.domain.ids import WorkerId
from leaseway.domain.workers import Heartbeat
from leaseway.stores.mongodb import notify
from leaseway.stores.mongodb.store import MongoStore
from leaseway.testing.job_store_contract.fixtures import HOUR_US, new_job
from leaseway.testing.mongodb import MongoServer


@pytest.fixture
async def pair(mongodb: MongoServer) -> AsyncIterator[tuple[MongoStore, MongoStore]]:
    """Two stores that share nothing but the database, as two processes do."""
    stores = (MongoStore(mongodb.url), MongoStore(mongodb.url))
    for store in stores:
        await store.open()
    await empty(stores[0])
    yield stores
    for store in stores:
        await store.close()


async def follow(store: MongoStore, pair: tuple[MongoStore, MongoStore]) -> None:
    """Return once the stream delivers. What happens before it is open is not delivered."""
    for number in range(1_000, 2_000):
        waiting = asyncio.create_task(store.notifications.wait(0.2))
        await pair[1].jobs.submit([new_job(number)])
        if await waiting:
            return
    raise AssertionError("no change was delivered")


async def test_a_job_that_another_process_submits_wakes_a_worker(pair: tuple[MongoStore, MongoStore]) -> None:
    """Otherwise every job waits for the next poll."""
    await follow(pair[0], pair)
    waiting = asyncio.create_task(pair[0].notifications.wait(30))
    await asyncio.sleep(0)
    await pair[1].jobs.submit([new_job(1)])
    assert await waiting


async def test_a_job_for_later_wakes_nobody(pair: tuple[MongoStore, MongoStore]) -> None:
    """A worker that is woken for nothing asks the store for nothing."""
    await follow(pair[0], pair)
    waiting = asyncio.create_task(pair[0].notifications.wait(0.5))
    await asyncio.sleep(0)
    await pair[1].jobs.submit([new_job(1, delay_us=HOUR_US)])
    assert not await waiting


async def until_followed(store: MongoStore, pair: tuple[MongoStore, MongoStore]) -> None:
    await follow(store, pair)
    async with asyncio.timeout(30):
        while not store.database.is_followed:
            await store.notifications.wait(0.05)


async def test_idle_workers_ask_rarely_while_the_stream_is_open(
    pair: tuple[MongoStore, MongoStore], mongodb: MongoServer
) -> None:
    """Fifty idle workers that ask every second would keep the server busy."""
    await until_followed(pair[0], pair)
    await empty(pair[1])
    pair[0].database.local.expire_forecasts()

    async def asked() -> int:
        before = commands(mongodb, "aggregate")
        for _ in range(5):
            assert await pair[0].jobs.wait_us(("default",)) is None
        return commands(mongodb, "aggregate") - before

    assert await asked() == 1
    pair[0].database.is_followed = False
    assert await asked() == 5


async def test_a_heartbeat_is_one_command(pair: tuple[MongoStore, MongoStore], mongodb: MongoServer) -> None:
    """Every worker sends one every five seconds, also when it has nothing to do."""
    workers = pair[0].workers
    assert workers is not None
    beat = Heartbeat(worker=WorkerId("w"), host="h", version="1", queues=("default",), slots=1, used=0, uptime_us=0)
    first = await workers.beat(beat)
    before = {name: commands(mongodb, name) for name in ("aggregate", "findAndModify", "find")}
    second = await workers.beat(beat)
    assert {name: commands(mongodb, name) - count for name, count in before.items()} == {
        "aggregate": 0, "findAndModify": 1, "find": 0,
    }  # fmt: skip
    (listed,) = await workers.all()
    assert first.now <= second.now == listed.seen_at, "the server's own time"
    assert listed.beat == beat


async def test_a_forecast_ends_with_a_job_of_another_process(pair: tuple[MongoStore, MongoStore]) -> None:
    """A job for later wakes no worker, but its time may come before the forecast ends."""
    await until_followed(pair[0], pair)
    await empty(pair[1])
    pair[0].database.local.expire_forecasts()
    assert await pair[0].jobs.wait_us(("default",)) is None
    seen = pair[0].database.local.count
    await pair[1].jobs.submit([new_job(1, delay_us=HOUR_US)])
    async with asyncio.timeout(30):
        while pair[0].database.local.count == seen:
            await pair[0].notifications.wait(0.05)
    assert 0 < (await pair[0].jobs.wait_us(("default",)) or 0) <= HOUR_US


async def test_its_own_changes_wake_a_process_once(pair: tuple[MongoStore, MongoStore]) -> None:
    """The stream would repeat what the process has told its workers already."""
    await follow(pair[0], pair)
    await pair[0].jobs.submit([new_job(1)])
    assert not await pair[0].notifications.wait(0.5)


async def test_a_stream_that_is_refused_is_tried_again_later_and_stops_nobody(
    pair: tuple[MongoStore, MongoStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may lack the right to watch. Its workers poll."""
    monkeypatch.setattr(notify, "LANE_CHANGES", "$cmd")
    assert not await pair[0].notifications.wait(0.05)
    waiting = asyncio.create_task(pair[0].notifications.wait(30))
    await asyncio.sleep(0)
    await pair[0].jobs.submit([new_job(1)])
    assert await waiting, "changes of this process need no stream"
