"""Runs a worker as the only task of its process, ended by signals.

SIGTERM or SIGINT: the first one drains the worker, the second ends the grace period, the third exits at once. A handler
that hangs cannot keep the process alive.
"""

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

from leaseway.system import garbage_collected_rarely
from leaseway.worker.loop import Worker

T = TypeVar("T")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LEASES_LEFT = 4
"""The exit code if leases were not released."""
STUBBORN_SECONDS = 1.0
"""How long tasks that a handler left behind may take to end."""
INSIST_SECONDS = 4.0
"""How much longer the event loop may take before it counts as blocked."""
PATIENCE_SECONDS = 12.0
"""How long a worker may take after its grace period to stop its handlers and to release all leases."""
FLEET_SOCKET = "LEASEWAY_FLEET_SOCKET"
"""The environment variable with a socket to the fleet that has started this worker."""


@contextlib.contextmanager
def drained_by_signals(worker: Worker, scope: asyncio.Timeout) -> Iterator[None]:
    """Handle signals while the body runs. `scope` cancels the body if the worker does not end in time."""
    # loop.add_signal_handler would not react to the third signal while a handler blocks the loop.
    loop = asyncio.get_running_loop()
    received = 0
    is_over = threading.Event()

    def insist(seconds: float) -> None:
        """Exit from a thread if a handler blocks the event loop."""
        if not is_over.wait(seconds):
            os._exit(LEASES_LEFT)

    def drain(grace: float) -> None:
        if is_over.is_set() or scope.expired():  # the worker has ended already
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
        with garbage_collected_rarely():
            yield
    finally:
        is_over.set()
        for number, handler in before.items():
            signal.signal(number, handler)


def join_fleet() -> None:
    """Tell the fleet that this worker is ready, and drain when the fleet has gone. Without a fleet, nothing happens."""
    number = os.environ.pop(FLEET_SOCKET, None)  # programs that handlers start are not workers of the fleet
    if number is None:
        return
    fleet = socket.socket(fileno=int(number))
    fleet.set_inheritable(False)

    def drain_with_fleet() -> None:
        with contextlib.suppress(OSError):
            fleet.recv(1)
        os.kill(os.getpid(), signal.SIGTERM)

    with contextlib.suppress(OSError):
        fleet.send(b"1")
    threading.Thread(target=drain_with_fleet, name="leaseway-fleet", daemon=True).start()


def run_to_the_end(working: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, but it does not wait for a handler that ignores its cancellation."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(working)
    finally:
        loop.run_until_complete(end_tasks())
        loop.run_until_complete(end_generators())
        if asyncio.all_tasks(loop):
            loop.set_exception_handler(lambda *_: None)  # it would log the tasks that are left on purpose
        else:
            loop.close()


async def end_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=STUBBORN_SECONDS)


async def end_generators() -> None:
    """Close async generators that handlers left open. This also closes connections that they hold, such as a sink's."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STUBBORN_SECONDS):
            await asyncio.get_running_loop().shutdown_asyncgens()
