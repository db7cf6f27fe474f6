"""The store in one MongoDB database: it opens and closes connections, and each of its attributes is one port."""

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
from leaseway.stores.mongodb.database import JobDatabase
from leaseway.stores.mongodb.definitions import MongoPauses, MongoPools, MongoSchedules, MongoTenants, MongoWorkers
from leaseway.stores.mongodb.jobs import MongoJobs
from leaseway.stores.mongodb.keys import MongoKeys, MongoSessions
from leaseway.stores.mongodb.notify import MongoNotifications
from leaseway.stores.mongodb.operations import MongoOperations
from leaseway.stores.mongodb.reads import MongoHistory, MongoInspection, MongoReads
from leaseway.stores.mongodb.schema import migrate, read_versions
from leaseway.stores.mongodb.submit import MongoTransactionalSubmission


class MongoStore:
    def __init__(self, url: str, now_us: Callable[[], Instant] | None = None) -> None:
        self.database = database = JobDatabase(url, now_us)
        self.address = database.address
        self.connections = database.connections
        self._notifications = MongoNotifications(database)
        self.jobs: JobStore = MongoJobs(database)
        self.operations: JobOperations = MongoOperations(database)
        self.reads: JobReads = MongoReads(database)
        self.schedules: ScheduleStore = MongoSchedules(database)
        self.tenants: TenantStore = MongoTenants(database)
        self.keys: KeyStore = MongoKeys(database)
        self.sessions: SessionStore = MongoSessions(database)
        self.notifications: Notifications = self._notifications
        self.inspection: Inspection | None = MongoInspection(database)
        self.pauses: LanePauses | None = MongoPauses(database)
        self.workers: WorkerRegistry | None = MongoWorkers(database)
        self.history: HistoryStore | None = MongoHistory(database)
        self.pools: PoolBoard | None = MongoPools(database)
        self.blocking: BlockingSubmission | None = None
        self.transactional: TransactionalSubmission | None = MongoTransactionalSubmission(database)

    async def open(self) -> int:
        """Connect and migrate the schema. Return the number of migrations that were applied."""
        return await migrate(self.connections)

    async def versions(self) -> SchemaVersions:
        return await read_versions(self.connections)

    async def close(self) -> None:
        await self._notifications.close()
        await self.connections.close()
