"""The history of the work, as rows that merge. `leaseway.testing.history_contract` proves every store."""

from collections.abc import Sequence
from typing import Protocol

from leaseway.domain.history.rows import HISTORY_PAGE, HistoryLevel, HistoryRow
from leaseway.domain.ids import Instant


class HistoryStore(Protocol):
    """For people: no promise about jobs depends on it."""

    async def record(self, rows: Sequence[HistoryRow]) -> None:
        """Store rows. Rows whose id is stored are left out, so a call may be repeated after a lost reply."""
        ...

    async def rows(
        self,
        level: HistoryLevel,
        since: Instant,
        until: Instant,
        *,
        tenant: str | None = None,
        after: str = "",
        limit: int = HISTORY_PAGE,
    ) -> list[HistoryRow]:
        """Return the rows of periods that begin in this time, oldest first, of one tenant or of all, at most `limit`.
        `after`: continue behind the row with this id, whose period begins at `since`."""
        ...

    async def replace(self, ids: Sequence[str], rows: Sequence[HistoryRow]) -> None:
        """Delete the rows with these ids and record others, in one transaction."""
        ...

    async def prune(self, level: HistoryLevel, before: Instant, limit: int) -> int:
        """Delete rows of periods that began before this time, at most `limit`, and return their number."""
        ...
