"""Notifications within one process, to waiters in any of its event loops."""

import asyncio
import contextlib
from collections.abc import Iterator


class LocalNotifier:
    def __init__(self) -> None:
        self.count = 0
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def notify(self) -> None:
        self.count += 1
        here = running_loop()
        for event, loop in self._waiting.copy().items():
            if loop is here:
                event.set()  # the same loop needs no wake-up through its pipe
            else:
                with contextlib.suppress(RuntimeError):  # the loop was closed
                    loop.call_soon_threadsafe(event.set)

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._waiting[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            del self._waiting[event]


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
