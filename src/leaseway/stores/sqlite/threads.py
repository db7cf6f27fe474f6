"""A thread that SQLite may keep waiting, and the way into it from any event loop.

Calls that arrive while the thread is busy are served together. For the writer that means one commit, and one wait
for the disk, for all of them.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from leaseway.domain.errors import TerminalError

TOGETHER_MAX = 100

Answer = tuple[Any, BaseException | None]
Serve = Callable[[Sequence[Any]], list[Answer]]


class CallThread:
    """Serves calls in their order. A daemon, so that a forgotten store does not keep a program alive."""

    def __init__(self, name: str, serve: Serve) -> None:
        self._serve = serve
        self._serving = threading.Lock()
        self._calls: SimpleQueue[tuple[Any, asyncio.Future[Any] | None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, what: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._is_stopped:
                raise TerminalError("the store was closed meanwhile")
            self._calls.put((what, future))
        return await future

    def call_now(self, what: Any) -> Any:
        """The same from code that has no event loop: served in the caller's own thread, without a change of threads."""
        with self._serving:
            if self._is_stopped:  # under the lock: whoever closes the connection waits for it
                raise TerminalError("the store was closed meanwhile")
            ((answer, error),) = self._serve([what])
        if error is not None:
            raise error
        return answer

    async def stop(self) -> None:
        """End after everything that was called before."""
        with self._lock:
            self._is_stopped = True
            self._calls.put((None, None))
        await asyncio.get_running_loop().run_in_executor(None, self._ended)

    def _ended(self) -> None:
        self._thread.join()
        with self._serving:  # nobody is inside, and nobody comes in any more
            pass

    def _run(self) -> None:
        while True:  # until it is stopped
            waiting = self._taken()
            calls = [(what, future) for what, future in waiting if future is not None]
            if calls:
                with self._serving:
                    answers = self._serve([what for what, _ in calls])
                for (_, future), answer in zip(calls, answers, strict=True):
                    deliver(future, answer)
            if len(calls) < len(waiting):
                return

    def _taken(self) -> list[tuple[Any, asyncio.Future[Any] | None]]:
        """The call that came first, and those that came while we were busy."""
        taken = [self._calls.get()]
        while len(taken) < TOGETHER_MAX and not self._calls.empty():
            taken.append(self._calls.get())
        return taken


def deliver(future: asyncio.Future[Any], answer: Answer) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
        future.get_loop().call_soon_threadsafe(resolve, future, *answer)


def resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return  # nobody waits any more; what was written stays written
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
