"""Where jobs came from, in memory: the rule that the other stores follow."""

from collections.abc import Mapping, Sequence
from threading import RLock
from typing import Protocol

from leaseway.domain.exchange import HeldLease
from leaseway.domain.ids import JobId
from leaseway.stores.memory.rows import Row


class Keeping(Protocol):
    """The store of which this is a part."""

    _lock: RLock
    _rows: dict[JobId, Row]


class MemoryTraces:
    async def traces(self: Keeping, leases: Sequence[HeldLease]) -> Mapping[JobId, str]:
        with self._lock:
            held = [row for each in leases if (row := self._rows.get(each.id)) is not None and row.token == each.token]
            return {row.id: row.new.trace for row in held if row.new.trace is not None}
