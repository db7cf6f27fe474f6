"""Threads for handlers that are plain functions.

concurrent.futures waits for its threads when Python exits. A handler that hangs must not keep a drained worker
alive, so these threads are daemons.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

Call = tuple[asyncio.Future[Any], Callable[[], Any]]


class HandlerThreads:
    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()
        self.busy = 0
        """Calls that have not returned, abandoned ones included."""

    async def run(self, call: Callable[[], Any]) -> Any:
        """The result of the call. Cancelling stops the waiting; the call itself cannot be stopped."""
        future = asyncio.get_running_loop().create_future()
        self.busy += 1
        with self._lock:
            self._idle -= 1
            if self._idle < 0:
                self._idle += 1
                threading.Thread(target=self._serve, name="leaseway-plain", daemon=True).start()
        self._calls.put((future, partial(copy_context().run, call)))
        return await future

    def _serve(self) -> None:
        while True:  # for the life of the process; as many threads as plain jobs ever ran at once
            future, call = self._calls.get()
            loop = future.get_loop()
            try:
                result, error = call(), None
            except BaseException as raised:  # noqa: BLE001 - it travels on through the future
                result, error = None, raised
            with self._lock:
                self._idle += 1
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
                loop.call_soon_threadsafe(self._return, future, result, error)

    def _return(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self.busy -= 1
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):  # a future refuses to carry it
            future.set_exception(RuntimeError("the handler raised StopIteration"))
        else:
            future.set_exception(error)
