"""Which job a key stands for, in memory."""

from collections.abc import Callable
from threading import RLock
from typing import Protocol

from leaseway.domain.ids import Instant, JobId
from leaseway.stores.memory.rows import Key


class Keeping(Protocol):
    """The store of which this is a part."""

    _lock: RLock
    _now: Callable[[], Instant]
    _keys: dict[tuple[str, str], Key]


class MemoryKeyed:
    async def keyed(self: Keeping, tenant: str, key: str) -> JobId | None:
        with self._lock:
            known = self._keys.get((tenant, key))
            return known.job if known is not None and known.expires_at > self._now() else None
