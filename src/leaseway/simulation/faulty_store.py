"""The store ports as a simulated process sees them, over a faulty link."""

from collections.abc import Mapping, Sequence

from leaseway.domain.errors import SchemaVersions
from leaseway.domain.exchange import Exchange, ExchangeReply, Gate, HeldLease, ProgressReport, Renewed
from leaseway.domain.ids import Instant, JobId, Token
from leaseway.domain.inspection import CancelResult, JobFilter
from leaseway.domain.job import ErrorRecord, Job, NewJob, Submitted
from leaseway.domain.lane import LaneCount
from leaseway.domain.schedule import Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant
from leaseway.ports.job_store import BlockingSubmission, JobOperations, JobStore, TransactionalSubmission
from leaseway.ports.key_store import KeyStore, SessionStore
from leaseway.ports.notifications import Notifications
from leaseway.ports.reads import Inspection, JobReads
from leaseway.ports.schedule_store import ScheduleStore
from leaseway.ports.tenant_store import LanePauses, TenantStore
from leaseway.simulation.faulty_link import FaultyLink
from leaseway.simulation.process import Process
from leaseway.simulation.world import SimulatedWorld
from leaseway.stores.unsupported import UnsupportedKeys, UnsupportedSessions


class FaultyJobs:
    def __init__(self, link: FaultyLink) -> None:
        self._link = link
        self._port = link.store.jobs

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        return await self._link.call(self._port.submit, jobs)

    async def exchange(self, call: Exchange) -> ExchangeReply:
        return await self._link.call(self._port.exchange, call)

    async def renew(self, leases: Sequence[HeldLease]) -> Renewed:
        return await self._link.call(self._port.renew, leases)

    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        return await self._link.call(self._port.checkpoint, job, token, cursor)

    async def report(self, reports: Sequence[ProgressReport]) -> None:
        await self._link.call(self._port.report, reports)

    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        return await self._link.call(self._port.wait_us, queues, closed)

    async def traces(self, leases: Sequence[HeldLease]) -> Mapping[JobId, str]:
        return await self._link.call(self._port.traces, leases)


class FaultyOperations:
    def __init__(self, link: FaultyLink) -> None:
        self._link = link
        self._port = link.store.operations

    async def cancel(self, job: JobId) -> CancelResult:
        return await self._link.call(self._port.cancel, job)

    async def retry(self, which: JobFilter, limit: int) -> list[JobId]:
        return await self._link.call(self._port.retry, which, limit)

    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        return await self._link.call(self._port.discard, which, limit)

    async def prune(self, keep_us: int, limit: int) -> int:
        return await self._link.call(self._port.prune, keep_us, limit)


class FaultyReads:
    def __init__(self, link: FaultyLink) -> None:
        self._link = link
        self._port = link.store.reads

    async def job(self, job: JobId) -> Job | None:
        return await self._link.call(self._port.job, job)

    async def jobs(self, which: JobFilter, *, before: JobId | None = None, limit: int = 50) -> list[Job]:
        return await self._link.call(self._port.jobs, which, before=before, limit=limit)

    async def errors(self, job: JobId) -> list[ErrorRecord]:
        return await self._link.call(self._port.errors, job)

    async def lanes(self) -> Sequence[LaneCount]:
        return await self._link.call(self._port.lanes)

    async def now(self) -> Instant:
        return await self._link.call(self._port.now)


class FaultySchedules:
    def __init__(self, link: FaultyLink) -> None:
        self._link = link
        self._port = link.store.schedules

    async def declare(self, schedules: Sequence[Schedule]) -> None:
        await self._link.call(self._port.declare, schedules)

    async def all(self) -> list[StoredSchedule]:
        return await self._link.call(self._port.all)

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        return await self._link.call(self._port.fire, name, seen, upto, jobs)

    async def pause(self, name: str, paused: bool) -> bool:
        return await self._link.call(self._port.pause, name, paused)


class FaultyTenants:
    def __init__(self, link: FaultyLink) -> None:
        self._link = link
        self._port = link.store.tenants

    async def set(self, tenant: Tenant) -> None:
        await self._link.call(self._port.set, tenant)

    async def all(self) -> list[Tenant]:
        return await self._link.call(self._port.all)

    async def forget(self, name: str) -> bool:
        return await self._link.call(self._port.forget, name)


class SimulatedNotifications:
    def __init__(self, universe: SimulatedWorld, process: Process) -> None:
        self._universe = universe
        self._process = process

    async def wait(self, seconds: float) -> bool:
        return await self._universe.bell.heard(self._process, seconds)


class FaultyStore:
    def __init__(self, universe: SimulatedWorld, process: Process) -> None:
        self._link = link = FaultyLink(universe, process)
        self.jobs: JobStore = FaultyJobs(link)
        self.operations: JobOperations = FaultyOperations(link)
        self.reads: JobReads = FaultyReads(link)
        self.schedules: ScheduleStore = FaultySchedules(link)
        self.tenants: TenantStore = FaultyTenants(link)
        self.keys: KeyStore = UnsupportedKeys()
        self.sessions: SessionStore = UnsupportedSessions()
        self.notifications: Notifications = SimulatedNotifications(universe, process)
        self.inspection: Inspection | None = None
        self.pauses: LanePauses | None = None
        self.blocking: BlockingSubmission | None = None
        self.transactional: TransactionalSubmission | None = None

    async def open(self) -> int:
        self._link.open()
        return 0

    async def versions(self) -> SchemaVersions:
        return SchemaVersions(1, 1)

    async def close(self) -> None:
        """The simulated world closes every file at the end, including those of killed processes."""
