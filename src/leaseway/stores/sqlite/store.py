"""The store in one SQLite file: it opens and closes the file, and each of its attributes is one port."""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping

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
from leaseway.stores.sqlite.connection import CHANCE, Connection
from leaseway.stores.sqlite.database import Database, FileNotifications, statements
from leaseway.stores.sqlite.definitions import SqlitePauses, SqlitePools, SqliteSchedules, SqliteTenants, SqliteWorkers
from leaseway.stores.sqlite.jobs import SqliteBlockingSubmission, SqliteJobs
from leaseway.stores.sqlite.keys import SqliteKeys, SqliteSessions
from leaseway.stores.sqlite.operations import SqliteOperations
from leaseway.stores.sqlite.reads import SqliteHistory, SqliteInspection, SqliteReads
from leaseway.stores.sqlite.schema import migrate, read_versions


class SqliteStore:
    def __init__(
        self,
        path: str,
        now_us: Callable[[], Instant],
        *,
        durable: bool = True,
        inline: bool = False,
        sql: Mapping[str, str] | None = None,
        random: Callable[[], float] = CHANCE.random,
        connection: Connection | None = None,
    ) -> None:
        self.path = path
        self.connection = connection or Connection(path, random, durable=durable, inline=inline)
        self.database = database = Database(self.connection, now_us, statements() if sql is None else sql)
        self._notifications = FileNotifications(database.notifier, self.connection.connect)
        self.jobs: JobStore = SqliteJobs(database)
        self.operations: JobOperations = SqliteOperations(database)
        self.reads: JobReads = SqliteReads(database)
        self.schedules: ScheduleStore = SqliteSchedules(database)
        self.tenants: TenantStore = SqliteTenants(database)
        self.keys: KeyStore = SqliteKeys(database)
        self.sessions: SessionStore = SqliteSessions(database)
        self.notifications: Notifications = self._notifications
        self.inspection: Inspection | None = SqliteInspection(database)
        self.pauses: LanePauses | None = SqlitePauses(database)
        self.workers: WorkerRegistry | None = SqliteWorkers(database)
        self.history: HistoryStore | None = SqliteHistory(database)
        self.pools: PoolBoard | None = SqlitePools(database)
        self.blocking: BlockingSubmission | None = SqliteBlockingSubmission(database)
        self.transactional: TransactionalSubmission | None = None

    async def open(self) -> int:
        """Open the file or create it, and migrate its schema. Return the number of migrations that were applied."""
        await self.connection.open()
        return await self.connection.write(self._migrate)

    def _migrate(self, connection: sqlite3.Connection) -> int:
        count = migrate(connection, self.path)
        self.database.begin(connection)  # reads need the file's clock before the first write
        return count

    async def versions(self) -> SchemaVersions:
        return await asyncio.to_thread(read_versions, self.path)

    async def close(self) -> None:
        self._notifications.close()
        await self.connection.close()
