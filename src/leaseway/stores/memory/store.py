"""The store in memory, for tests and first steps: each of its attributes is one port."""

import asyncio
from collections.abc import Callable

from leaseway.domain.errors import SchemaVersions
from leaseway.domain.ids import Instant
from leaseway.ports.definitions import LanePauses, ScheduleStore, TenantStore
from leaseway.ports.history import HistoryStore
from leaseway.ports.job_store import BlockingSubmission, JobOperations, JobStore, TransactionalSubmission
from leaseway.ports.key_store import KeyStore, SessionStore
from leaseway.ports.pool_board import PoolBoard
from leaseway.ports.reads import Inspection, JobReads
from leaseway.ports.store import Notifications
from leaseway.ports.workers import WorkerRegistry
from leaseway.stores.memory.definitions import MemoryPauses, MemoryPools, MemorySchedules, MemoryTenants, MemoryWorkers
from leaseway.stores.memory.jobs import MemoryBlockingSubmission, MemoryJobs, MemoryOperations
from leaseway.stores.memory.keys import MemoryKeys, MemorySessions
from leaseway.stores.memory.reads import MemoryHistory, MemoryInspection, MemoryReads
from leaseway.stores.memory.state import MemoryState


class MemoryStore:
    """Any thread and any event loop may call it."""

    def __init__(self, now_us: Callable[[], Instant]) -> None:
        self.state = state = MemoryState(now_us)
        self.jobs: JobStore = MemoryJobs(state)
        self.operations: JobOperations = MemoryOperations(state)
        self.reads: JobReads = MemoryReads(state)
        self.schedules: ScheduleStore = MemorySchedules(state)
        self.tenants: TenantStore = MemoryTenants(state)
        self.keys: KeyStore = MemoryKeys(state)
        self.sessions: SessionStore = MemorySessions(state)
        self.notifications: Notifications = MemoryNotifications(state)
        self.inspection: Inspection | None = MemoryInspection(state)
        self.pauses: LanePauses | None = MemoryPauses(state)
        self.workers: WorkerRegistry | None = MemoryWorkers(state)
        self.history: HistoryStore | None = MemoryHistory(state)
        self.pools: PoolBoard | None = MemoryPools(state)
        self.blocking: BlockingSubmission | None = MemoryBlockingSubmission(state)
        self.transactional: TransactionalSubmission | None = None

    async def open(self) -> int:
        """Do nothing: memory needs no migration."""
        return 0

    async def versions(self) -> SchemaVersions:
        return SchemaVersions(0, 0)

    async def close(self) -> None:
        """Do nothing: memory ends with the process."""


class MemoryNotifications:
    def __init__(self, state: MemoryState) -> None:
        self._waiting = state.waiting

    async def wait(self, seconds: float) -> bool:
        event = asyncio.Event()
        self._waiting[event] = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                return await event.wait()
        except TimeoutError:
            return False
        finally:
            del self._waiting[event]
