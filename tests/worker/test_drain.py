"""Closing releases every thread, event loop and connection, because programs run for years."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from leaseway import App, signals
from leaseway.domain.errors import StoreRefused
from leaseway.signals import run_to_the_end

SOON_SECONDS = 30.0
"""Longer than any test here takes on any machine."""


async def loop_here() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def threads_named(name: str) -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == name}


@pytest.fixture
def plain_app(tmp_path: Path) -> App:
    """An app that is used by code without an event loop."""
    return App(f"sqlite:///{tmp_path}/work.db")


def test_closing_ends_the_loop_that_plain_callers_waited_for(plain_app: App) -> None:
    """Each closed app left behind a thread, an event loop and three file descriptors."""
    before = threads_named("leaseway-sync")
    loop = plain_app.sync(loop_here())
    assert threads_named("leaseway-sync") - before
    plain_app.close_sync()
    assert loop.is_closed()
    assert threads_named("leaseway-sync") <= before


def test_an_app_that_was_closed_can_be_used_again(plain_app: App) -> None:
    """Programs close an app between phases; the next use must open a fresh store."""

    @plain_app.job
    async def hi() -> None: ...

    for _ in range(3):
        hi.submit_sync()
        plain_app.close_sync()
    jobs = plain_app.sync(ready(plain_app))
    plain_app.close_sync()
    assert jobs == 3


async def ready(app: App) -> int:
    return sum(lane.ready for lane in await (await app.store()).reads.lanes())


def test_who_waits_in_another_thread_gets_his_answer_though_the_app_is_closed(plain_app: App) -> None:
    """Otherwise the caller would wait forever, because the event loop that produces its answer has stopped. Closing
    must not wait for the caller either, whose job may never finish.
    """
    begun, may_end = threading.Event(), asyncio.Event()
    answers: list[asyncio.AbstractEventLoop] = []

    async def slow() -> asyncio.AbstractEventLoop:
        begun.set()
        await may_end.wait()
        return asyncio.get_running_loop()

    before = threads_named("leaseway-sync")
    loop = plain_app.sync(loop_here())
    (portal,) = threads_named("leaseway-sync") - before
    waiting = threading.Thread(target=lambda: answers.append(plain_app.sync(slow())))
    waiting.start()
    assert begun.wait(SOON_SECONDS)
    plain_app.close_sync()
    assert waiting.is_alive()
    loop.call_soon_threadsafe(may_end.set)
    waiting.join(SOON_SECONDS)
    assert answers == [loop]
    portal.join(SOON_SECONDS)
    assert loop.is_closed()


async def test_a_store_that_could_not_be_opened_is_closed(tmp_path: Path) -> None:
    """A program that retries until a directory exists would accumulate threads or connections."""
    before = threads_named("leaseway-write")
    app = App(f"sqlite:///{tmp_path}/missing/work.db")
    for _ in range(2):
        with pytest.raises(StoreRefused, match="does not exist"):
            await app.store()
    assert threads_named("leaseway-write") <= before
    (tmp_path / "missing").mkdir()
    assert await ready(app) == 0
    await app.close()


async def connection(ended: list[str], hangs: bool) -> AsyncIterator[None]:
    """A connection as stores and sinks keep it, closed at the latest with the event loop."""
    try:
        yield
    finally:
        if hangs:
            await asyncio.Event().wait()
        ended.append("closed")


def ended_after_work(hangs: bool) -> list[str]:
    ended: list[str] = []
    kept = connection(ended, hangs)

    async def work() -> None:
        await anext(kept)

    run_to_the_end(work())
    return ended


async def test_who_gives_up_opening_does_not_close_it_for_the_others(tmp_path: Path) -> None:
    """The first two requests of a web server open the store together, and one of them is cancelled."""
    for number in range(20):
        app = App(f"sqlite:///{tmp_path}/work{number}.db")
        first, second = (asyncio.ensure_future(app.store()) for _ in range(2))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        store = await second
        assert await store.reads.lanes() == []
        await app.close()


def test_a_worker_closes_what_its_handlers_left_open() -> None:
    """Only the worker's event loop uses the sink of an import, so only the worker can close it."""
    assert ended_after_work(hangs=False) == ["closed"]


def test_a_connection_that_does_not_close_does_not_keep_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment would wait for a process that never exits."""
    monkeypatch.setattr(signals, "STUBBORN_SECONDS", 0.01)
    assert ended_after_work(hangs=True) == []
