"""Jobs of a service, for workers and submitters that have an API key and no database credentials."""

from collections.abc import Mapping, Sequence

from leaseway.domain.exchange import Exchange, ExchangeReply, Gate, HeldLease, ProgressReport, Renewed
from leaseway.domain.ids import Instant, JobId, Token
from leaseway.domain.inspection import CancelResult, JobFilter
from leaseway.domain.job import ErrorRecord, Job, NewJob, Submitted
from leaseway.domain.lane import LaneCount
from leaseway.domain.schedule import Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant
from leaseway.stores.http import protocol, requests
from leaseway.stores.http.client import ServiceClient


class HttpJobs:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        return (await self._line.ask(protocol.SUBMIT, requests.SubmitRequest(tuple(jobs)))).value

    async def exchange(self, call: Exchange) -> ExchangeReply:
        return await self._line.ask(protocol.EXCHANGE, call)

    async def renew(self, leases: Sequence[HeldLease]) -> Renewed:
        return await self._line.ask(protocol.RENEW, requests.RenewRequest(tuple(leases)))

    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        return (await self._line.ask(protocol.CHECKPOINT, requests.CheckpointRequest(job, token, cursor))).value

    async def report(self, reports: Sequence[ProgressReport]) -> None:
        await self._line.ask(protocol.REPORT, requests.ReportRequest(tuple(reports)))

    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        return (await self._line.ask(protocol.WAIT_US, requests.WaitRequest(tuple(queues), tuple(closed)))).value

    async def traces(self, leases: Sequence[HeldLease]) -> Mapping[JobId, str]:
        return (await self._line.ask(protocol.TRACES, requests.TracesRequest(tuple(leases)))).value


class HttpOperations:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def cancel(self, job: JobId) -> CancelResult:
        return (await self._line.ask(protocol.CANCEL, requests.JobRequest(job))).value

    async def retry(self, which: JobFilter, limit: int) -> list[JobId]:
        return (await self._line.ask(protocol.RETRY, requests.BulkRequest(limit, which))).value

    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        return (await self._line.ask(protocol.DISCARD, requests.BulkRequest(limit, which))).value

    async def prune(self, keep_us: int, limit: int) -> int:
        return (await self._line.ask(protocol.PRUNE, requests.PruneRequest(keep_us, limit))).value


class HttpReads:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def job(self, job: JobId) -> Job | None:
        return (await self._line.ask(protocol.JOB, requests.JobRequest(job))).value

    async def jobs(self, which: JobFilter, *, before: JobId | None = None, limit: int = 50) -> list[Job]:
        return (await self._line.ask(protocol.JOBS, requests.JobsRequest(which, before, limit))).value

    async def errors(self, job: JobId) -> list[ErrorRecord]:
        return (await self._line.ask(protocol.ERRORS, requests.JobRequest(job))).value

    async def lanes(self) -> Sequence[LaneCount]:
        return list((await self._line.ask(protocol.LANES, requests.EmptyRequest())).value)

    async def now(self) -> Instant:
        return (await self._line.ask(protocol.NOW, requests.EmptyRequest())).value


class HttpSchedules:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def declare(self, schedules: Sequence[Schedule]) -> None:
        await self._line.ask(protocol.DECLARE, requests.DeclareSchedulesRequest(tuple(schedules)))

    async def all(self) -> list[StoredSchedule]:
        return (await self._line.ask(protocol.SCHEDULES, requests.EmptyRequest())).value

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        return (await self._line.ask(protocol.FIRE, requests.FireRequest(name, seen, upto, tuple(jobs)))).value

    async def pause(self, name: str, paused: bool) -> bool:
        return (await self._line.ask(protocol.PAUSE, requests.PauseScheduleRequest(name, paused))).value


class HttpTenants:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def set(self, tenant: Tenant) -> None:
        await self._line.ask(protocol.SET_TENANT, requests.SetTenantRequest(tenant))

    async def all(self) -> list[Tenant]:
        return (await self._line.ask(protocol.TENANTS, requests.EmptyRequest())).value

    async def forget(self, name: str) -> bool:
        return (await self._line.ask(protocol.FORGET_TENANT, requests.NameRequest(name))).value
