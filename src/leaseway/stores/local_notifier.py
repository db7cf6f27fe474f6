"""A bell inside one process: whoever waits hears it, whatever loop and thread he waits in."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary


class LocalNotifier:
    def __init__(self) -> None:
        self.rings = 0
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def ring(self) -> None:
        self.rings += 1
        here = running_loop()
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


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


C = TypeVar("C")


class LoopClient(NamedTuple, Generic[C]):
    """What one loop has."""

    client: C
    until_the_end: AsyncGenerator[None, None]


class PerLoop(Generic[C]):
    """`make` a client when a loop first asks, and `end` it when somebody closes this, at the latest with its loop."""

    def __init__(self, make: Callable[[], C], end: Callable[[C], Awaitable[object]]) -> None:
        self._make = make
        self._end = end
        self._own: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopClient[C]] = WeakKeyDictionary()

    async def here(self) -> C:
        loop = asyncio.get_running_loop()
        own = self._own.get(loop)
        if own is None:
            client = self._make()
            own = self._own[loop] = LoopClient(client, self._closed_with_the_loop(client))
            await anext(own.until_the_end)
        return own.client

    async def _closed_with_the_loop(self, client: C) -> AsyncGenerator[None, None]:
        """asyncio ends the async generators of a loop before it closes it: the one moment in which connections that
        nobody closed can still be closed."""
        try:
            yield
        finally:
            await self._end(client)

    async def close(self) -> None:
        """Those of other loops are told, and not waited for: whoever runs there may be busy."""
        here = asyncio.get_running_loop()
        for loop, own in list(self._own.items()):
            if loop is here:
                await own.until_the_end.aclose()
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(close_client(own), loop)
        self._own.clear()


async def close_client(own: LoopClient[C]) -> None:
    await own.until_the_end.aclose()
