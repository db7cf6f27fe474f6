"""A bell inside one process: whoever waits hears it, whatever loop and thread he waits in."""

import asyncio
import contextlib
from collections.abc import Iterator


class Bell:
    def __init__(self) -> None:
        self.rings = 0
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def ring(self) -> None:
        self.rings += 1
        here = loop_here()
        for event, loop in self._waiting.copy().items():
            if loop is here:
                event.set()  # without the detour over a pipe that wakes a loop from outside
            else:
                with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                    loop.call_soon_threadsafe(event.set)

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    @contextlib.contextmanager
    def heard(self) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._waiting[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            del self._waiting[event]


def loop_here() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
