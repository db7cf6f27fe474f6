"""Lanes that are paused, in memory: the rules that the other stores follow."""

from collections.abc import Callable
from threading import RLock
from typing import Protocol

from leaseway.domain.ids import Instant
from leaseway.domain.pauses import Pause, check_pause


class Keeping(Protocol):
    """The store of which this is a part."""

    _lock: RLock
    _now: Callable[[], Instant]
    _pauses: dict[tuple[str, str | None], Pause]

    def _wake(self) -> None: ...


class MemoryPauses:
    async def pause_lanes(self: Keeping, queue: str, tenant: str | None = None) -> bool:
        with self._lock:
            pause = check_pause(Pause(queue, tenant, self._now()))
            return self._pauses.setdefault((queue, tenant), pause) is pause

    async def resume_lanes(self: Keeping, queue: str, tenant: str | None = None) -> bool:
        with self._lock:
            self._wake()
            return self._pauses.pop((queue, tenant), None) is not None

    async def pauses(self: Keeping) -> list[Pause]:
        with self._lock:
            return sorted(self._pauses.values(), key=lambda pause: (pause.queue, pause.tenant or ""))
