"""What the store said, believed for a moment: bounded in number and in age, and asked for once at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from leaseway.ports.clock import Clock

T = TypeVar("T")


class Kept(NamedTuple, Generic[T]):
    value: T | None
    at: float


class Remembered(Generic[T]):
    """Of one process and its loop. What is not there is believed for a shorter time, and in a place of its own: who
    makes up names cannot push out what others use."""

    def __init__(
        self,
        ask: Callable[[str], Awaitable[T | None]],
        clock: Clock,
        *,
        seconds: float,
        absent_seconds: float,
        most: int,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._seconds = seconds
        self._absent_seconds = absent_seconds
        self._most = most
        self._present: dict[str, Kept[T]] = {}
        self._absent: dict[str, Kept[T]] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._changes = 0

    async def get(self, name: str) -> T | None:
        kept = self._believed(name)
        if kept is None:
            turn = self._turns.setdefault(name, asyncio.Lock())
            async with turn:  # who comes second finds the answer of the first
                kept = self._believed(name) or await self._look(name)
        return kept.value

    def forget(self, name: str) -> None:
        """It has changed, and this process knows."""
        self._present.pop(name, None)
        self._absent.pop(name, None)
        self._changes += 1

    def _believed(self, name: str) -> Kept[T] | None:
        kept = self._present.get(name)
        if kept is not None:
            return kept if self._clock.monotonic() - kept.at < self._seconds else None
        kept = self._absent.get(name)
        if kept is not None and self._clock.monotonic() - kept.at < self._absent_seconds:
            return kept
        return None

    async def _look(self, name: str) -> Kept[T]:
        # From before the question: the answer may be as old as that.
        at, changes = self._clock.monotonic(), self._changes
        kept = Kept(await self._ask(name), at)
        self._present.pop(name, None)
        self._absent.pop(name, None)
        if changes == self._changes:  # else it may be what somebody has just told us to forget
            place = self._absent if kept.value is None else self._present
            place[name] = kept
            if len(place) > self._most:
                del place[next(iter(place))]
        return kept
