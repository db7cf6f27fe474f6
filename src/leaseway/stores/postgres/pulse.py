"""How the store is doing, asked of PostgreSQL."""

from datetime import UTC, datetime
from typing import Protocol

from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.inspection import OWNERS_MAX, EndedCount, LaneWait, LeaseOwner
from leaseway.stores.postgres.address import Address
from leaseway.stores.postgres.connection import Record
from leaseway.stores.postgres.rows import STATES

DAY_US = 86_400 * SECOND_US
PAGES_MAX = 512
"""Of 8 KiB: they hold about ENDED_MAX jobs with small payloads."""


class Asking(Protocol):
    """The store of which this is a part."""

    address: Address

    async def now(self) -> Instant: ...

    def _at(self) -> Instant | None: ...

    async def _look(self, verb: str, *values: object) -> list[Record]: ...


class PostgresPulse:
    async def owners(self: Asking) -> list[LeaseOwner]:
        found = await self._look("list_owners", self._at(), OWNERS_MAX)
        return [
            LeaseOwner(name=name, leased=leased, late=late, heard_at=heard_at, until=until)
            for name, leased, late, heard_at, until in found
        ]

    async def waiting(self: Asking) -> list[LaneWait]:
        found = await self._look("oldest_waiting")
        return [LaneWait(queue=queue, tenant=tenant, needs=needs, since=since) for queue, tenant, needs, since in found]

    async def ended(self: Asking, after: Instant) -> tuple[Instant, list[EndedCount]]:
        now = await self.now()
        day = now - now % DAY_US
        table = f"{self.address.quoted}.history_{datetime.fromtimestamp(day // SECOND_US, UTC):%Y%m%d}"
        found = await self._look("recent_outcomes", after, day, day + DAY_US, table, PAGES_MAX)
        return int(found[0][0]), [
            EndedCount(queue=queue, tenant=tenant, state=STATES[state], count=count)
            for _, queue, tenant, state, count in found
            if count is not None
        ]
