"""Which job a key stands for, asked of PostgreSQL."""

from typing import Protocol

from leaseway.domain.ids import Instant, JobId
from leaseway.stores.postgres.connection import Record


class Asking(Protocol):
    """The store of which this is a part."""

    def _at(self) -> Instant | None: ...

    async def _look(self, verb: str, *values: object) -> list[Record]: ...


class PostgresKeyed:
    async def keyed(self: Asking, tenant: str, key: str) -> JobId | None:
        for (job,) in await self._look("job_by_key", tenant, key, self._at()):
            return JobId(job)
        return None
