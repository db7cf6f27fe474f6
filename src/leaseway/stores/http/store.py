"""The store of a service, reached over HTTP. Each of its attributes is one port; any thread and loop may call it."""

from leaseway.domain.errors import SchemaVersions
from leaseway.ports.definitions import LanePauses, ScheduleStore, TenantStore
from leaseway.ports.history import HistoryStore
from leaseway.ports.job_store import BlockingSubmission, JobOperations, JobStore, TransactionalSubmission
from leaseway.ports.key_store import KeyStore, SessionStore
from leaseway.ports.pool_board import PoolBoard
from leaseway.ports.reads import Inspection, JobReads
from leaseway.ports.store import Notifications
from leaseway.ports.workers import WorkerRegistry
from leaseway.stores.http.client import ServiceClient, wait_for_notification
from leaseway.stores.http.jobs import (
    HttpHistory,
    HttpJobs,
    HttpOperations,
    HttpReads,
    HttpSchedules,
    HttpTenants,
    HttpWorkers,
)
from leaseway.stores.keys import UnsupportedKeys, UnsupportedSessions


class HttpStore:
    def __init__(self, line: ServiceClient) -> None:
        self.line = line
        self.jobs: JobStore = HttpJobs(line)
        self.operations: JobOperations = HttpOperations(line)
        self.reads: JobReads = HttpReads(line)
        self.schedules: ScheduleStore = HttpSchedules(line)
        self.tenants: TenantStore = HttpTenants(line)
        self.keys: KeyStore = UnsupportedKeys()
        self.sessions: SessionStore = UnsupportedSessions()
        self.notifications: Notifications = HttpNotifications(line)
        self.inspection: Inspection | None = None
        self.pauses: LanePauses | None = None
        self.workers: WorkerRegistry | None = HttpWorkers(line)
        self.history: HistoryStore | None = HttpHistory(line)
        self.pools: PoolBoard | None = None
        self.blocking: BlockingSubmission | None = None
        self.transactional: TransactionalSubmission | None = None

    async def open(self) -> int:
        """Do nothing: the service has opened its own store, and the first call shows whether the key is accepted."""
        return 0

    async def versions(self) -> SchemaVersions:
        """Return a fixed version: the service migrates its own schema."""
        return SchemaVersions(1, 1)

    async def close(self) -> None:
        await self.line.close()


class HttpNotifications:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def wait(self, seconds: float) -> bool:
        """Wait for a notification, which the service sends to workers only; other clients wait the full time."""
        return await wait_for_notification(self._line, seconds)
