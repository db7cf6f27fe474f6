"""What is closed is gone: no thread, no loop and no connection is left of it. Programs run for years."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from leaseway import App, signals
from leaseway.domain.errors import StoreRefused
from leaseway.signals import run_to_the_end

SOON_SECONDS = 30.0
"""Longer than anything here takes, on any machine."""


async def loop_here() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def threads_named(name: str) -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == name}


@pytest.fixture
def plain_app(tmp_path: Path) -> App:
    """Used by code that has no loop."""
    return App(f"sqlite:///{tmp_path}/work.db")


def test_closing_ends_the_loop_that_plain_callers_waited_for(plain_app: App) -> None:
    """It was a thread, a loop and three descriptors for each app that was ever closed."""
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
    """Or he would wait for ever: nobody runs the loop any more in which his answer is made. And closing does not wait
    for him, who may want to know of a job that is never done."""
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
    """Whoever tries again and again until a folder is there would collect threads, or connections."""
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
    """As stores and sinks keep them: closed at the latest with the loop."""
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
    """A web server's first two requests open it together, and one of them is cancelled."""
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
    """The sink of an import is used by the worker's loop, and by nobody who could close it there."""
    assert ended_after_work(hangs=False) == ["closed"]


def test_a_connection_that_does_not_close_does_not_keep_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment would wait for a process that never exits."""
    monkeypatch.setattr(signals, "STUBBORN_SECONDS", 0.01)
    assert ended_after_work(hangs=True) == []
