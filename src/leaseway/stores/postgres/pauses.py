"""Lanes that are paused, in PostgreSQL."""

from typing import Protocol

from leaseway.domain.ids import Instant
from leaseway.domain.pauses import Pause, check_pause
from leaseway.stores.postgres.connection import Record


class Ringer(Protocol):
    def ring(self) -> None: ...


class Calling(Protocol):
    """The store of which this is a part."""

    @property
    def _ringer(self) -> Ringer: ...

    def _at(self) -> Instant | None: ...

    async def _call(self, verb: str, *values: object) -> list[Record]: ...

    async def _look(self, verb: str, *values: object) -> list[Record]: ...


class PostgresPauses:
    async def pause_lanes(self: Calling, queue: str, tenant: str | None = None) -> bool:
        check_pause(Pause(queue, tenant))
        ((is_new,),) = await self._call("pause_lanes", queue, tenant or "", self._at())
        return bool(is_new)

    async def resume_lanes(self: Calling, queue: str, tenant: str | None = None) -> bool:
        ((was_paused,),) = await self._call("resume_lanes", queue, tenant or "")
        self._ringer.ring()
        return bool(was_paused)

    async def pauses(self: Calling) -> list[Pause]:
        return [Pause(queue, tenant or None, since) for queue, tenant, since in await self._look("list_pauses")]
