"""The store in one PostgreSQL schema: it opens and closes connections, and each of its attributes is one port."""

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
from leaseway.stores.postgres.database import JobDatabase
from leaseway.stores.postgres.definitions import (
    PostgresPauses,
    PostgresPools,
    PostgresSchedules,
    PostgresTenants,
    PostgresWorkers,
)
from leaseway.stores.postgres.jobs import PostgresJobs, PostgresOperations, PostgresTransactionalSubmission
from leaseway.stores.postgres.keys import PostgresKeys, PostgresSessions
from leaseway.stores.postgres.reads import PostgresHistory, PostgresInspection, PostgresReads
from leaseway.stores.postgres.schema import migrate, read_versions


class PostgresStore:
    def __init__(self, url: str, now_us: Callable[[], Instant] | None = None) -> None:
        self.database = database = JobDatabase(url, now_us)
        self.address = database.address
        self.connections = database.connections
        self.jobs: JobStore = PostgresJobs(database)
        self.operations: JobOperations = PostgresOperations(database)
        self.reads: JobReads = PostgresReads(database)
        self.schedules: ScheduleStore = PostgresSchedules(database)
        self.tenants: TenantStore = PostgresTenants(database)
        self.keys: KeyStore = PostgresKeys(database)
        self.sessions: SessionStore = PostgresSessions(database)
        self.notifications: Notifications = database.listener
        self.inspection: Inspection | None = PostgresInspection(database)
        self.pauses: LanePauses | None = PostgresPauses(database)
        self.workers: WorkerRegistry | None = PostgresWorkers(database)
        self.history: HistoryStore | None = PostgresHistory(database)
        self.pools: PoolBoard | None = PostgresPools(database)
        self.blocking: BlockingSubmission | None = None
        self.transactional: TransactionalSubmission | None = PostgresTransactionalSubmission(database)

    async def open(self) -> int:
        """Connect and migrate the schema. Return the number of migrations that were applied."""
        return await migrate(self.connections)

    async def versions(self) -> SchemaVersions:
        async with self.connections.borrow() as connection:
            return await read_versions(connection, self.address)

    async def close(self) -> None:
        await self.database.notifier.close()
        await self.database.listener.close()
        await self.connections.close()
