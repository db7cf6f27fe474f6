"""A worker as the one thing that its process does: signals end it, and nothing that hangs keeps it.

SIGTERM and SIGINT: the first drains, the second hurries, the third leaves.
"""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

from leaseway.worker.loop import Worker

T = TypeVar("T")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LEASES_LEFT = 4
"""The exit code when leases were not handed back."""
STUBBORN_SECONDS = 1.0
"""How long tasks that a handler left behind may take to notice that it is over."""
INSIST_SECONDS = 4.0
"""And what its event loop may take beyond that, before it counts as blocked."""
PATIENCE_SECONDS = 12.0
"""What a worker may take beyond its grace period to stop its handlers and to hand everything back."""


@contextlib.contextmanager
def drained_by_signals(worker: Worker, scope: asyncio.Timeout) -> Iterator[None]:
    """While the body runs. `scope` ends it if the worker does not end by itself."""
    # Not loop.add_signal_handler: while a handler blocks the loop, nobody would hear the third signal.
    loop = asyncio.get_running_loop()
    received = 0
    is_over = threading.Event()

    def insist(seconds: float) -> None:
        """A handler may block the loop, so that nobody hears what is said there."""
        if not is_over.wait(seconds):
            os._exit(LEASES_LEFT)

    def drain(grace: float) -> None:
        if is_over.is_set() or scope.expired():  # a late signal finds nothing to drain
            return
        worker.drain(grace)
        scope.reschedule(min(scope.when() or float("inf"), loop.time() + grace + PATIENCE_SECONDS))

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received > 2:
            os._exit(LEASES_LEFT)
        if received == 1:
            patience = worker.grace_seconds + PATIENCE_SECONDS + INSIST_SECONDS
            threading.Thread(target=insist, args=[patience], name="leaseway-insist", daemon=True).start()
        loop.call_soon_threadsafe(drain, worker.grace_seconds if received == 1 else 0.0)

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield
    finally:
        is_over.set()
        for number, handler in before.items():
            signal.signal(number, handler)


def run_to_the_end(working: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, but a handler that ignores its cancellation does not keep us."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(working)
    finally:
        loop.run_until_complete(end_tasks())
        loop.run_until_complete(end_generators())
        if asyncio.all_tasks(loop):
            loop.set_exception_handler(lambda *_: None)  # it would complain of tasks that we leave on purpose
        else:
            loop.close()


async def end_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=STUBBORN_SECONDS)


async def end_generators() -> None:
    """With those that the handlers left go the connections of this loop that nobody else closes, as those of a sink."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STUBBORN_SECONDS):
            await asyncio.get_running_loop().shutdown_asyncgens()
