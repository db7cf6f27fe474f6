"""The decisions of autoscalers, one record per pool. `leaseway.testing.pools_contract` proves every store."""

from typing import NamedTuple, Protocol

from leaseway.domain.ids import Instant

POOLS_MAX = 1_000
FORGET_AFTER_US = 86_400_000_000
"""A record that was not written for this long is deleted when a new pool is written."""


class PoolRecord(NamedTuple):
    pool: str
    version: str
    """Chosen by the writer, different for each write."""
    text: str
    written_at: Instant


class PoolBoard(Protocol):
    """Supervisors of one pool agree here without a leader. No promise about jobs depends on it.

    A store may lose the records when its server crashes. The next write of each supervisor restores them.
    """

    async def read(self, pool: str) -> PoolRecord | None: ...

    async def write(self, pool: str, seen: str | None, version: str, text: str) -> bool:
        """Replace the record if its version is `seen`; None: create it. A repeated write has the same answer.

        False: another process has written, or there are `POOLS_MAX` records already. Nothing was written.
        """
        ...

    async def all(self) -> list[PoolRecord]:
        """Return all records, by pool. At most `POOLS_MAX`."""
        ...
