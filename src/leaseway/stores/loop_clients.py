"""One client per event loop, for drivers whose connections belong to a loop."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

C = TypeVar("C")


class LoopClient(NamedTuple, Generic[C]):
    """The client of one event loop."""

    client: C
    until_the_end: AsyncGenerator[None, None]


class PerLoop(Generic[C]):
    """One client per event loop, made by `make` at first use and closed by `end` with this object or with its loop.

    Connections belong to an event loop, and a store is used from several: the worker's, the lease-renewal thread's and
    that of blocking callers.
    """

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
        """asyncio ends async generators before it closes a loop: the last moment at which connections can be closed."""
        try:
            yield
        finally:
            await self._end(client)

    async def close(self) -> None:
        """Close all clients. Those of other loops are closed in the background, because their loops may be busy."""
        here = asyncio.get_running_loop()
        for loop, own in list(self._own.items()):
            if loop is here:
                await own.until_the_end.aclose()
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(close_client(own), loop)
        self._own.clear()


async def close_client(own: LoopClient[C]) -> None:
    await own.until_the_end.aclose()
