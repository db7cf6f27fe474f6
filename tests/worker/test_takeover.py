"""One worker leaves, and another one, which waits for a notification, takes over its jobs."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.api.store_urls import empty_store
from tests.worker.observe import SOON_SECONDS, eventually

from leaseway import App
from leaseway.ports.store import Store
from leaseway.stores.mongodb import notify as mongodb_notify
from leaseway.stores.mongodb.store import MongoStore
from leaseway.stores.postgres import notify
from leaseway.stores.postgres.store import PostgresStore
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.worker import poll

POLL_SECONDS = 10 * SOON_SECONDS
"""No poll finds the job while the test runs."""


async def is_listening(store: Store) -> bool:
    """Whether a worker waits, and would hear what another process writes from now on."""
    match store:
        case SqliteStore():
            return store.database.notifier.is_awaited
        case PostgresStore():
            connection = store.database.listener.connection()
            return store.database.local.is_awaited and connection is not None and connection.is_open
        case MongoStore():
            return store.database.local.is_awaited and store.database.is_followed
    raise AssertionError(store)


@pytest.mark.parametrize("store", ["sqlite", "postgres", "mongodb"])
async def test_the_jobs_of_a_worker_that_leaves_are_taken_over_at_once(
    store: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that leaves releases its jobs and closes its store. If the notification were lost when the store closes,
    each deployment would stop these jobs until the next poll of another worker."""
    monkeypatch.setattr(poll, "jitter", lambda seconds, chance: POLL_SECONDS)
    # PostgreSQL: the notification that announces the release still waits to be sent when the store closes.
    monkeypatch.setattr(notify, "COALESCE_SECONDS", POLL_SECONDS)
    monkeypatch.setattr(mongodb_notify, "AWAIT_MS_MAX", 100)  # the stream is known to be open after its first answer
    url = await empty_store(store, request, tmp_path)
    begun, taken = asyncio.Event(), asyncio.Event()

    async def work_until_stopped() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def take_over() -> None:
        taken.set()

    async with App(url) as leaving, App(url) as staying, asyncio.TaskGroup() as group:
        visit = leaving.job(name="visit", lease=POLL_SECONDS)(work_until_stopped)
        staying.job(name="visit", lease=POLL_SECONDS)(take_over)
        await visit.submit()
        first, second = worker_of(leaving), worker_of(staying)
        left = group.create_task(leaving.run_worker(first))
        async with asyncio.timeout(SOON_SECONDS):
            await begun.wait()
        group.create_task(staying.run_worker(second))
        waiting = await staying.store()
        await eventually(lambda: is_listening(waiting))
        async with asyncio.timeout(SOON_SECONDS):
            first.drain()
            await left
            await leaving.close()
            await taken.wait()
        second.drain()


def worker_of(app: App) -> Any:
    return app.worker(grace=0, concurrency=1)
