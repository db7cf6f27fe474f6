"""Weights and caps of tenants, and paused lanes, in memory."""

from leaseway.domain.lane import Pause, check_pause
from leaseway.domain.tenant import Tenant
from leaseway.stores.memory.state import MemoryState, atomic


class MemoryTenants:
    def __init__(self, state: MemoryState) -> None:
        self._state = state

    @atomic
    async def set(self, tenant: Tenant) -> None:
        self._state.tenants[tenant.name] = tenant
        self._state.wake()

    @atomic
    async def all(self) -> list[Tenant]:
        return [tenant for _, tenant in sorted(self._state.tenants.items())]

    @atomic
    async def forget(self, name: str) -> bool:
        self._state.wake()
        return self._state.tenants.pop(name, None) is not None


class MemoryPauses:
    def __init__(self, state: MemoryState) -> None:
        self._state = state

    @atomic
    async def pause(self, queue: str, tenant: str | None = None) -> bool:
        pause = check_pause(Pause(queue, tenant, self._state.now_us()))
        return self._state.pauses.setdefault((queue, tenant), pause) is pause

    @atomic
    async def resume(self, queue: str, tenant: str | None = None) -> bool:
        self._state.wake()
        return self._state.pauses.pop((queue, tenant), None) is not None

    @atomic
    async def all(self) -> list[Pause]:
        return sorted(self._state.pauses.values(), key=lambda pause: (pause.queue, pause.tenant or ""))
