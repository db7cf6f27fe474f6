"""Several event loops use one store: notifications to waiters in any of them, and one client for each of them.

The loops are the worker's, the lease-renewal thread's and that of blocking callers.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from leaseway.domain.ids import SECOND_US


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

    def expire_forecasts(self) -> None:
        """Something changed that may lead to work later. No waiter is woken."""
        self.count += 1

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


class IdleForecast:
    """The answer of a poll: for how long there is nothing to do, unless a notification arrives."""

    def __init__(self, notifications: int) -> None:
        self._notifications = notifications
        self._polled_at = time.monotonic()
        self.answer_us: int | None = None

    def is_valid(self, notifications: int, seconds: float) -> bool:
        """`seconds`: how long an answer is trusted."""
        age = time.monotonic() - self._polled_at
        return notifications == self._notifications and age < seconds and self.wait_us() != 0

    def wait_us(self) -> int | None:
        if self.answer_us is None:
            return None
        return max(self.answer_us - int((time.monotonic() - self._polled_at) * SECOND_US), 0)

    def is_news_to(self, before: "IdleForecast | None") -> bool:
        """Whether there is work now that no notification has announced since the poll before."""
        if before is None or before._notifications != self._notifications:
            return False
        return self.answer_us == 0 and before.answer_us != 0


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


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
