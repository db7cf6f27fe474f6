"""Jobs that a service keeps: for workers and submitters who have a key, and no credentials of a database."""

from collections.abc import Mapping, Sequence

from leaseway.domain.errors import SchemaVersions
from leaseway.domain.exchange import Exchange, ExchangeReply, Gate, HeldLease, ProgressReport, Renewed
from leaseway.domain.ids import Instant, JobId, Token
from leaseway.domain.inspection import CancelResult, JobFilter
from leaseway.domain.job import ErrorRecord, Job, LaneCount, NewJob, Submitted
from leaseway.domain.schedule import Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant
from leaseway.stores.http import protocol, requests
from leaseway.stores.http.client import Line, patiently
from leaseway.stores.keyless import Keyless


class HttpStore(Keyless):
    """Implements every port of a store. Any thread and any loop may call it."""

    def __init__(self, line: Line) -> None:
        self.line = line

    async def open(self) -> int:
        """Whether we are let in, the first call says; the service has opened its own store."""
        return 0

    async def versions(self) -> SchemaVersions:
        """The schema is the service's affair."""
        return SchemaVersions(1, 1)

    async def close(self) -> None:
        await self.line.close()

    # -- what workers do --------------------------------------------------------------------------------------------

    async def exchange(self, call: Exchange) -> ExchangeReply:
        return await self.line.ask(protocol.EXCHANGE, call)

    async def renew(self, leases: Sequence[HeldLease]) -> Renewed:
        return await self.line.ask(protocol.RENEW, requests.Renew(tuple(leases)))

    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        return (await self.line.ask(protocol.CHECKPOINT, requests.Checkpoint(job, token, cursor))).answer

    async def report(self, reports: Sequence[ProgressReport]) -> None:
        await self.line.ask(protocol.REPORT, requests.Reports(tuple(reports)))

    async def traces(self, leases: Sequence[HeldLease]) -> Mapping[JobId, str]:
        return (await self.line.ask(protocol.TRACES, requests.Origins(tuple(leases)))).answer

    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        return (await self.line.ask(protocol.WAIT_US, requests.Look(tuple(queues), tuple(closed)))).answer

    async def wait(self, seconds: float) -> bool:
        """Hints are for workers. Others wait in vain, and look when the time is over."""
        return await patiently(self.line, seconds)

    async def prune(self, keep_us: int, limit: int) -> int:
        return (await self.line.ask(protocol.PRUNE, requests.Old(keep_us, limit))).answer

    async def lanes(self) -> Sequence[LaneCount]:
        return list((await self.line.ask(protocol.LANES, requests.Nothing())).answer)

    # -- what submitters do -----------------------------------------------------------------------------------------

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        return (await self.line.ask(protocol.SUBMIT, requests.Submit(tuple(jobs)))).answer

    async def cancel(self, job: JobId) -> CancelResult:
        return (await self.line.ask(protocol.CANCEL, requests.OneJob(job))).answer

    async def replay(self, which: JobFilter, limit: int) -> list[JobId]:
        return (await self.line.ask(protocol.REPLAY, requests.SomeJobs(limit, which))).answer

    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        return (await self.line.ask(protocol.DISCARD, requests.SomeJobs(limit, which))).answer

    async def job(self, job: JobId) -> Job | None:
        return (await self.line.ask(protocol.JOB, requests.OneJob(job))).answer

    async def jobs(self, which: JobFilter, *, before: JobId | None = None, limit: int = 50) -> list[Job]:
        return (await self.line.ask(protocol.JOBS, requests.Page(which, before, limit))).answer

    async def errors(self, job: JobId) -> list[ErrorRecord]:
        return (await self.line.ask(protocol.ERRORS, requests.OneJob(job))).answer

    async def now(self) -> Instant:
        return (await self.line.ask(protocol.NOW, requests.Nothing())).answer

    # -- schedules and tenants --------------------------------------------------------------------------------------

    async def declare(self, schedules: Sequence[Schedule]) -> None:
        await self.line.ask(protocol.DECLARE, requests.Schedules(tuple(schedules)))

    async def schedules(self) -> list[StoredSchedule]:
        return (await self.line.ask(protocol.SCHEDULES, requests.Nothing())).answer

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        return (await self.line.ask(protocol.FIRE, requests.Fire(name, seen, upto, tuple(jobs)))).answer

    async def pause(self, name: str, paused: bool) -> bool:
        return (await self.line.ask(protocol.PAUSE, requests.Pause(name, paused))).answer

    async def set_tenant(self, tenant: Tenant) -> None:
        await self.line.ask(protocol.SET_TENANT, requests.Agreed(tenant))

    async def tenants(self) -> list[Tenant]:
        return (await self.line.ask(protocol.TENANTS, requests.Nothing())).answer

    async def forget_tenant(self, name: str) -> bool:
        return (await self.line.ask(protocol.FORGET_TENANT, requests.Named(name))).answer
