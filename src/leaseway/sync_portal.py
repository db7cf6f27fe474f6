"""Async calls from code that is not async: an event loop in a thread."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from leaseway.domain.errors import UsageError

T = TypeVar("T")

WOULD_BLOCK = "this would block the event loop that is running here; await the call without _sync instead"


class SyncPortal:
    """An event loop in a thread, for callers that have none."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(
            loop_factory=asyncio.new_event_loop
        )  # does not touch the event loop of this thread
        self._loop = self._runner.get_loop()
        self._is_closing = asyncio.Event()
        self._calls: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="leaseway-sync", daemon=True)
        self._thread.start()

    def begin(self, call: Coroutine[Any, Any, T]) -> "Future[T]":
        answer = asyncio.run_coroutine_threadsafe(call, self._loop)
        self._calls.add(answer)
        answer.add_done_callback(self._calls.discard)
        return answer

    def close(self) -> None:
        """Call it after the last `begin`. Calls of other threads still get their answers; this call does not wait for
        them."""
        self._loop.call_soon_threadsafe(self._is_closing.set)
        if all(call.done() for call in self._calls.copy()):
            self._thread.join()

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._until_closed())

    async def _until_closed(self) -> None:
        await self._is_closing.wait()
        for call in self._calls.copy():
            await asyncio.wait([asyncio.wrap_future(call)])


def refuse_running_loop(message: str = WOULD_BLOCK) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(message)
