"""SIGTERM and SIGINT: the first drains, the second hurries, the third leaves."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from leaseway.flows.worker import Worker

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LEASES_LEFT = 4
"""The exit code when leases were not handed back."""
PATIENCE_SECONDS = 12.0
"""What a worker may take beyond its grace period to stop its handlers and to hand everything back."""


@contextmanager
def drained_by_signals(worker: Worker, grace_seconds: float, scope: asyncio.Timeout) -> Iterator[None]:
    """While the body runs. `scope` ends it if the worker does not end by itself."""
    # Not loop.add_signal_handler: while a handler blocks the loop, nobody would hear the third signal.
    loop = asyncio.get_running_loop()
    received = 0

    def drain(grace: float) -> None:
        worker.drain(grace)
        scope.reschedule(min(scope.when() or float("inf"), loop.time() + grace + PATIENCE_SECONDS))

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received > 2:
            os._exit(LEASES_LEFT)
        loop.call_soon_threadsafe(drain, grace_seconds if received == 1 else 0.0)

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
