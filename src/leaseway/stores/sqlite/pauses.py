"""Lanes that are paused, in one SQLite file."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from leaseway.domain.pauses import Pause, check_pause
from leaseway.stores.sqlite.rows import Row
from leaseway.stores.sqlite.transaction import Transaction

T = TypeVar("T")


class Writing(Protocol):
    """The store of which this is a part."""

    async def _read(self, verb: str, **values: object) -> list[Row]: ...

    async def _write(self, work: Callable[[Transaction], T]) -> T: ...


class SqlitePauses:
    async def pause_lanes(self: Writing, queue: str, tenant: str | None = None) -> bool:
        check_pause(Pause(queue, tenant))

        def work(transaction: Transaction) -> int:
            return transaction.change("pause_lanes", queue=queue, tenant=tenant or "", now=transaction.now)

        return bool(await self._write(work))

    async def resume_lanes(self: Writing, queue: str, tenant: str | None = None) -> bool:
        def work(transaction: Transaction) -> int:
            return transaction.change("resume_lanes", queue=queue, tenant=tenant or "")

        return bool(await self._write(work))

    async def pauses(self: Writing) -> list[Pause]:
        return [Pause(queue, tenant or None, since) for queue, tenant, since in await self._read("pause_list")]
