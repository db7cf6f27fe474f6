"""Where jobs came from, asked of PostgreSQL."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from leaseway.domain.exchange import HeldLease
from leaseway.domain.ids import JobId
from leaseway.stores.postgres.connection import Record


class Asking(Protocol):
    """The store of which this is a part."""

    async def _look(self, verb: str, *values: object) -> list[Record]: ...


class PostgresTraces:
    async def traces(self: Asking, leases: Sequence[HeldLease]) -> Mapping[JobId, str]:
        held = ([each.id for each in leases], [each.token for each in leases])
        return {JobId(row[0]): row[1] for row in await self._look("list_traces", *held)}
