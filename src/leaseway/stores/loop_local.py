"""A client for each event loop: its connections belong to one, and a store is used from several, the worker's, the
keeper's, that of plain callers."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

C = TypeVar("C")


class Own(NamedTuple, Generic[C]):
    """What one loop has."""

    client: C
    until_the_end: AsyncGenerator[None, None]


class PerLoop(Generic[C]):
    """`make` a client when a loop first asks, and `end` it when somebody closes this, at the latest with its loop."""

    def __init__(self, make: Callable[[], C], end: Callable[[C], Awaitable[object]]) -> None:
        self._make = make
        self._end = end
        self._own: WeakKeyDictionary[asyncio.AbstractEventLoop, Own[C]] = WeakKeyDictionary()

    async def here(self) -> C:
        loop = asyncio.get_running_loop()
        own = self._own.get(loop)
        if own is None:
            client = self._make()
            own = self._own[loop] = Own(client, self._closed_with_the_loop(client))
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
                asyncio.run_coroutine_threadsafe(ended(own), loop)
        self._own.clear()


async def ended(own: Own[C]) -> None:
    await own.until_the_end.aclose()
