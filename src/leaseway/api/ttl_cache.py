"""A TTL cache that loads each key at most once concurrently.

Missing keys are cached separately and for a shorter time, so that requests for invented names cannot evict real
entries.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from leaseway.ports.clock import Clock
from leaseway.stores.tenant_share import calls_for

T = TypeVar("T")


class CacheEntry(NamedTuple, Generic[T]):
    value: T | None
    loaded_at: float
    load_seconds: float


class TtlCache(Generic[T]):
    """For one process and its event loop."""

    def __init__(
        self,
        load: Callable[[str], Awaitable[T | None]],
        clock: Clock,
        *,
        ttl_seconds: float,
        negative_ttl_seconds: float,
        max_entries: int,
        load_share_max: float = 1.0,
    ) -> None:
        """`load_share_max`: the part of the time that loading a value may take. A value that takes long to load is used
        for longer."""
        self._load = load
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._negative_ttl_seconds = negative_ttl_seconds
        self._max_entries = max_entries
        self._load_share_max = load_share_max
        self._present: dict[str, CacheEntry[T]] = {}
        self._missing: dict[str, CacheEntry[T]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._invalidations = 0

    async def get(self, name: str) -> T | None:
        entry = self._fresh(name)
        if entry is None:
            lock = self._locks.setdefault(name, asyncio.Lock())
            async with lock:  # a second reader finds the entry of the first
                entry = self._fresh(name) or await self._fill(name)
        return entry.value

    def invalidate(self, name: str) -> None:
        """Drop an entry that this process has changed."""
        self._present.pop(name, None)
        self._missing.pop(name, None)
        self._invalidations += 1

    def _fresh(self, name: str) -> CacheEntry[T] | None:
        entry = self._present.get(name)
        if entry is not None:
            ttl_seconds = max(self._ttl_seconds, entry.load_seconds / self._load_share_max)
            return entry if self._clock.monotonic() - entry.loaded_at < ttl_seconds else None
        entry = self._missing.get(name)
        if entry is not None and self._clock.monotonic() - entry.loaded_at < self._negative_ttl_seconds:
            return entry
        return None

    async def _fill(self, name: str) -> CacheEntry[T]:
        # The age counts from before the load, because the value may be as old as that.
        loaded_at, invalidations = self._clock.monotonic(), self._invalidations
        with calls_for(None):  # others wait for this value, too
            value = await self._load(name)
        entry = CacheEntry(value, loaded_at, self._clock.monotonic() - loaded_at)
        self._present.pop(name, None)
        self._missing.pop(name, None)
        if invalidations == self._invalidations:  # otherwise the value may predate an invalidation
            entries = self._missing if entry.value is None else self._present
            entries[name] = entry
            if len(entries) > self._max_entries:
                del entries[next(iter(entries))]
        return entry
