"""Where jobs came from, asked of one SQLite file."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from leaseway.domain.exchange import HeldLease
from leaseway.domain.ids import JobId
from leaseway.stores.sqlite.rows import Row, as_json


class Asking(Protocol):
    """The store of which this is a part."""

    async def _read(self, verb: str, **values: object) -> list[Row]: ...


class SqliteTraces:
    async def traces(self: Asking, leases: Sequence[HeldLease]) -> Mapping[JobId, str]:
        held = as_json([(each.id, each.token) for each in leases])
        return dict(await self._read("trace_list", leases=held))
