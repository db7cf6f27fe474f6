"""The store ports as a simulated process sees them, over a faulty link."""

from collections.abc import Mapping, Sequence

from leaseway.domain.errors import SchemaVersions
from leaseway.domain.exchange import Exchange, ExchangeReply, Gate, HeldLease, ProgressReport, Renewed
from leaseway.domain.ids import Instant, JobId, Token
from leaseway.domain.inspection import CancelResult, JobFilter
from leaseway.domain.job import ErrorRecord, Job, LaneCount, NewJob, Submitted
from leaseway.domain.schedule import Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant
from leaseway.simulation.faulty_link import FaultyLink
from leaseway.simulation.process import Process
from leaseway.simulation.world import SimulatedWorld
from leaseway.stores.keyless import Keyless


class FaultyStore(Keyless):
    def __init__(self, universe: SimulatedWorld, process: Process) -> None:
        self._universe = universe
        self._process = process
        self._link = FaultyLink(universe, process)

    async def open(self) -> int:
        self._link.open()
        return 0

    async def versions(self) -> SchemaVersions:
        return SchemaVersions(1, 1)

    async def close(self) -> None:
        """The simulated world closes every file at the end, including those of killed processes."""

    async def wait(self, seconds: float) -> bool:
        return await self._universe.bell.heard(self._process, seconds)

    # -- jobs: writing ----------------------------------------------------------------------------------------------

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        return await self._link.call(self._link.store.submit, jobs)

    async def exchange(self, call: Exchange) -> ExchangeReply:
        return await self._link.call(self._link.store.exchange, call)

    async def renew(self, leases: Sequence[HeldLease]) -> Renewed:
        return await self._link.call(self._link.store.renew, leases)

    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        return await self._link.call(self._link.store.checkpoint, job, token, cursor)

    async def report(self, reports: Sequence[ProgressReport]) -> None:
        await self._link.call(self._link.store.report, reports)

    async def cancel(self, job: JobId) -> CancelResult:
        return await self._link.call(self._link.store.cancel, job)

    async def replay(self, which: JobFilter, limit: int) -> list[JobId]:
        return await self._link.call(self._link.store.replay, which, limit)

    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        return await self._link.call(self._link.store.discard, which, limit)

    async def prune(self, keep_us: int, limit: int) -> int:
        return await self._link.call(self._link.store.prune, keep_us, limit)

    # -- jobs: reading ----------------------------------------------------------------------------------------------

    async def traces(self, leases: Sequence[HeldLease]) -> Mapping[JobId, str]:
        return await self._link.call(self._link.store.traces, leases)

    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        return await self._link.call(self._link.store.wait_us, queues, closed)

    async def job(self, job: JobId) -> Job | None:
        return await self._link.call(self._link.store.job, job)

    async def jobs(self, which: JobFilter, *, before: JobId | None = None, limit: int = 50) -> list[Job]:
        return await self._link.call(self._link.store.jobs, which, before=before, limit=limit)

    async def errors(self, job: JobId) -> list[ErrorRecord]:
        return await self._link.call(self._link.store.errors, job)

    async def lanes(self) -> Sequence[LaneCount]:
        return await self._link.call(self._link.store.lanes)

    async def now(self) -> Instant:
        return await self._link.call(self._link.store.now)

    # -- schedules --------------------------------------------------------------------------------------------------

    async def declare(self, schedules: Sequence[Schedule]) -> None:
        await self._link.call(self._link.store.declare, schedules)

    async def schedules(self) -> list[StoredSchedule]:
        return await self._link.call(self._link.store.schedules)

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        return await self._link.call(self._link.store.fire, name, seen, upto, jobs)

    async def pause(self, name: str, paused: bool) -> bool:
        return await self._link.call(self._link.store.pause, name, paused)

    # -- tenants ----------------------------------------------------------------------------------------------------

    async def set_tenant(self, tenant: Tenant) -> None:
        await self._link.call(self._link.store.set_tenant, tenant)

    async def tenants(self) -> list[Tenant]:
        return await self._link.call(self._link.store.tenants)

    async def forget_tenant(self, name: str) -> bool:
        return await self._link.call(self._link.store.forget_tenant, name)
