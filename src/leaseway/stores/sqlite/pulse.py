"""How the store is doing, asked of one SQLite file."""

from collections.abc import Callable
from typing import Protocol

from leaseway.domain.ids import Instant
from leaseway.domain.inspection import ENDED_MAX, OWNERS_MAX, EndedCount, LaneWait, LeaseOwner
from leaseway.stores.sqlite.rows import STATES, Row


class Asking(Protocol):
    """The store of which this is a part."""

    now_us: Callable[[], Instant]

    async def _read(self, verb: str, **values: object) -> list[Row]: ...


class SqlitePulse:
    async def owners(self: Asking) -> list[LeaseOwner]:
        found = await self._read("owner_list", now=self.now_us(), most=OWNERS_MAX)
        return [
            LeaseOwner(name=name, leased=leased, late=late, heard_at=heard_at, until=until)
            for name, leased, late, heard_at, until in found
        ]

    async def waiting(self: Asking) -> list[LaneWait]:
        found = await self._read("waiting_list")
        return [LaneWait(queue=queue, tenant=tenant, needs=needs, since=since) for queue, tenant, needs, since in found]

    async def ended(self: Asking, after: Instant) -> tuple[Instant, list[EndedCount]]:
        found = await self._read("ended_list", after=after, most=ENDED_MAX)
        counts = [
            EndedCount(queue=queue, tenant=tenant, state=STATES[stage], count=count)
            for queue, tenant, stage, count, _ in found
        ]
        is_all = sum(each.count for each in counts) < ENDED_MAX
        return after if is_all else min(first for *_, first in found), counts
