"""The workers of a store, with their heartbeats. `leaseway.testing.workers_contract` proves every store."""

from typing import Protocol

from leaseway.domain.ids import WorkerId
from leaseway.domain.workers import Heartbeat, HeartbeatReply, StoredWorker


class WorkerRegistry(Protocol):
    """A list for people and for explanations. No promise about jobs depends on it: leases decide who runs a job.

    A store may lose the list when its server crashes. The next heartbeat of each worker restores it.
    """

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        """Store the heartbeat of a worker. A new worker is listed if there is room; workers that were silent for
        `FORGET_AFTER_US` are deleted then."""
        ...

    async def leave(self, worker: WorkerId) -> None:
        """Remove a worker that has stopped."""
        ...

    async def all(self, tenant: str | None = None) -> list[StoredWorker]:
        """Return the workers, by name: those that work for this tenant only, or all. At most `WORKERS_MAX`."""
        ...

    async def drain(self, worker: WorkerId) -> bool:
        """Ask a worker to stop, which it learns with its next heartbeat. False: there is no such worker."""
        ...
