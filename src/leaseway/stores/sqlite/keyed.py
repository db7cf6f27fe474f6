"""Which job a key stands for, asked of one SQLite file."""

from collections.abc import Callable
from typing import Protocol

from leaseway.domain.ids import Instant, JobId
from leaseway.stores.sqlite.rows import Row


class Asking(Protocol):
    """The store of which this is a part."""

    now_us: Callable[[], Instant]

    async def _read(self, verb: str, **values: object) -> list[Row]: ...


class SqliteKeyed:
    async def keyed(self: Asking, tenant: str, key: str) -> JobId | None:
        for job, _ in await self._read("key_find", tenant=tenant, key=key, now=self.now_us()):
            return JobId(job)
        return None
