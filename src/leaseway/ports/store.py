"""Everything that one store offers. A function that needs less takes the smaller port."""

from typing import Protocol

from leaseway.domain.errors import SchemaVersions, StoreRefused
from leaseway.ports.definitions import LanePauses, ScheduleStore, TenantStore
from leaseway.ports.history import HistoryStore
from leaseway.ports.job_store import BlockingSubmission, JobOperations, JobStore, TransactionalSubmission
from leaseway.ports.key_store import KeyStore, SessionStore
from leaseway.ports.pool_board import PoolBoard
from leaseway.ports.reads import Inspection, JobReads
from leaseway.ports.workers import WorkerRegistry


class Notifications(Protocol):
    """Hints that there may be work. They may be late, lost or wrong: workers poll as well."""

    async def wait(self, seconds: float) -> bool:
        """Return True soon after any process has written, and False after this time at the latest."""
        ...


class Store(Protocol):
    jobs: JobStore
    operations: JobOperations
    reads: JobReads
    schedules: ScheduleStore
    tenants: TenantStore
    keys: KeyStore
    sessions: SessionStore
    notifications: Notifications
    inspection: Inspection | None
    """None for a store over HTTP and in a simulation: ask the service instead. See `require_inspection`."""
    pauses: LanePauses | None
    """None where `inspection` is None."""
    workers: WorkerRegistry | None
    """None in a simulation: its workers send no heartbeats."""
    history: HistoryStore | None
    """None where `workers` is None."""
    pools: PoolBoard | None
    """None where `inspection` is None."""
    blocking: BlockingSubmission | None
    """None if the store can only be called from an event loop."""
    transactional: TransactionalSubmission | None
    """None if the store cannot take part in a transaction of the caller."""

    async def open(self) -> int:
        """Connect and bring the schema up to date. Return the number of migrations that were applied."""
        ...

    async def versions(self) -> SchemaVersions:
        """Return the schema's version. Changes nothing and works on a store that is not open."""
        ...

    async def close(self) -> None:
        """Release all connections. A process that exits without it loses nothing."""
        ...


def require_inspection(store: Store) -> Inspection:
    if store.inspection is None:
        raise not_here("inspected")
    return store.inspection


def require_pauses(store: Store) -> LanePauses:
    if store.pauses is None:
        raise not_here("paused or resumed")
    return store.pauses


def require_workers(store: Store) -> WorkerRegistry:
    if store.workers is None:
        raise StoreRefused("this store has no list of workers")
    return store.workers


def require_history(store: Store) -> HistoryStore:
    if store.history is None:
        raise StoreRefused("this store keeps no history of the work")
    return store.history


def require_pools(store: Store) -> PoolBoard:
    if store.pools is None:
        raise StoreRefused("this store keeps no decisions of autoscalers")
    return store.pools


def not_here(verb: str) -> StoreRefused:
    return StoreRefused(
        f"lanes and jobs cannot be {verb} through this store; "
        "use the service's routes, or the address of the database behind the service"
    )
