"""Jobs of a service, for workers and submitters that have an API key and no database credentials."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from leaseway.domain.exchange import Exchange, ExchangeReply, Gate, HeldLease, ProgressReport, Renewed
from leaseway.domain.history.rows import HISTORY_PAGE, HistoryLevel, HistoryRow
from leaseway.domain.ids import Instant, JobId, Token, WorkerId
from leaseway.domain.inspection import PAGE_MAX, CancelResult, JobFilter, cut_page, is_cut
from leaseway.domain.job import ErrorRecord, Job, NewJob, Submitted
from leaseway.domain.lane import LaneCount
from leaseway.domain.schedule import Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant
from leaseway.domain.workers import Heartbeat, HeartbeatReply, StoredWorker
from leaseway.ports.store import not_here
from leaseway.stores.http import messages, protocol
from leaseway.stores.http.client import ServiceClient

REPORTS_LENGTH_MAX = 200_000
"""The most characters of all reports in one request; with four bytes each they fit."""


class HttpJobs:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        return (await self._line.ask(protocol.SUBMIT, messages.SubmitRequest(tuple(jobs)))).value

    async def exchange(self, call: Exchange) -> ExchangeReply:
        return await self._line.ask(protocol.EXCHANGE, call)

    async def renew(self, leases: Sequence[HeldLease]) -> Renewed:
        return await self._line.ask(protocol.RENEW, messages.RenewRequest(tuple(leases)))

    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        return (await self._line.ask(protocol.CHECKPOINT, messages.CheckpointRequest(job, token, cursor))).value

    async def report(self, reports: Sequence[ProgressReport]) -> None:
        for part in split_reports(reports):
            await self._line.ask(protocol.REPORT, messages.ReportRequest(tuple(part)))

    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        return (await self._line.ask(protocol.WAIT_US, messages.WaitRequest(tuple(queues), tuple(closed)))).value

    async def traces(self, leases: Sequence[HeldLease]) -> Mapping[JobId, str]:
        return (await self._line.ask(protocol.TRACES, messages.TracesRequest(tuple(leases)))).value


def split_reports(reports: Sequence[ProgressReport]) -> Iterator[list[ProgressReport]]:
    """The reports in parts that fit into one request each."""
    part, length = list[ProgressReport](), 0
    for report in reports:
        length += len(report.progress)
        if part and (len(part) == protocol.REPORTS_MAX or length > REPORTS_LENGTH_MAX):
            yield part
            part, length = [], len(report.progress)
        part.append(report)
    if part:
        yield part


class HttpOperations:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def cancel(self, job: JobId) -> CancelResult:
        return (await self._line.ask(protocol.CANCEL, messages.JobRequest(job))).value

    async def retry(self, which: JobFilter, limit: int) -> list[JobId]:
        return await self._change_in_steps(protocol.RETRY, which, limit)

    async def run_now(self, which: JobFilter, limit: int) -> list[JobId]:
        return (await self._line.ask(protocol.RUN_NOW, messages.BulkRequest(limit, which))).value

    async def open_lanes(self, name: str, limit: int, tenant: str | None = None) -> int:
        return (await self._line.ask(protocol.OPEN_LANES, messages.OpenLanesRequest(name, limit, tenant))).value

    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        return await self._change_in_steps(protocol.DISCARD, which, limit)

    async def _change_in_steps(
        self, verb: protocol.Verb[messages.BulkRequest, messages.Value[list[JobId]]], which: JobFilter, limit: int
    ) -> list[JobId]:
        """One call names and changes a bounded number of jobs."""
        changed: list[JobId] = []
        for part in split_ids(which):
            while (step := min(limit - len(changed), PAGE_MAX)) > 0:
                found = (await self._line.ask(verb, messages.BulkRequest(step, part))).value
                changed += found
                if len(found) < step:
                    break
        return changed

    async def prune(self, keep_us: int, limit: int) -> int:
        return (await self._line.ask(protocol.PRUNE, messages.PruneRequest(keep_us, limit))).value


class HttpReads:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def job(self, job: JobId) -> Job | None:
        return (await self._line.ask(protocol.JOB, messages.JobRequest(job))).value

    async def jobs(
        self, which: JobFilter, *, before: JobId | None = None, limit: int = 50, bytes_max: int | None = None
    ) -> list[Job]:
        limit = min(limit, PAGE_MAX)
        if which.ids is not None and len(which.ids) > PAGE_MAX:
            newest = sorted({id_ for id_ in which.ids if before is None or id_ < before}, reverse=True)
            return await self._first_of(replace(which, ids=tuple(newest)), limit)
        found = page = (await self._line.ask(protocol.JOBS, messages.JobsRequest(which, before, limit))).value
        while len(found) < limit and is_cut(page) and not (bytes_max is not None and is_cut(found, bytes_max)):
            request = messages.JobsRequest(which, page[-1].id, limit - len(found))
            page = (await self._line.ask(protocol.JOBS, request)).value
            found = [*found, *page]
        return cut_page(found, bytes_max)

    async def _first_of(self, which: JobFilter, limit: int) -> list[Job]:
        """The first page of jobs with many ids, which are in the order of the list."""
        for part in split_ids(which):
            found = await self.jobs(part, limit=limit)
            if found:
                return found
        return []

    async def errors(self, job: JobId) -> list[ErrorRecord]:
        return (await self._line.ask(protocol.ERRORS, messages.JobRequest(job))).value

    async def lanes(self, tenant: str | None = None) -> Sequence[LaneCount]:
        return list((await self._line.ask(protocol.LANES, messages.LanesRequest(tenant))).value)

    async def now(self) -> Instant:
        return (await self._line.ask(protocol.NOW, messages.EmptyRequest())).value

    async def locked_by(self, job: JobId) -> str | None:
        """Sessions of the database belong to the service: see GET /v1/jobs/{id}/why."""
        return None


def split_ids(which: JobFilter) -> list[JobFilter]:
    """The filter in parts, each with as many ids as one call names."""
    if which.ids is None or len(which.ids) <= PAGE_MAX:
        return [which]
    ids = which.ids
    return [replace(which, ids=ids[start : start + PAGE_MAX]) for start in range(0, len(ids), PAGE_MAX)]


class HttpSchedules:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def declare(self, schedules: Sequence[Schedule]) -> None:
        await self._line.ask(protocol.DECLARE, messages.DeclareSchedulesRequest(tuple(schedules)))

    async def all(self) -> list[StoredSchedule]:
        return (await self._line.ask(protocol.SCHEDULES, messages.EmptyRequest())).value

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        return (await self._line.ask(protocol.FIRE, messages.FireRequest(name, seen, upto, tuple(jobs)))).value

    async def pause(self, name: str, paused: bool) -> bool:
        return (await self._line.ask(protocol.PAUSE, messages.PauseScheduleRequest(name, paused))).value


class HttpTenants:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def set(self, tenant: Tenant) -> None:
        await self._line.ask(protocol.SET_TENANT, messages.SetTenantRequest(tenant))

    async def all(self) -> list[Tenant]:
        return (await self._line.ask(protocol.TENANTS, messages.EmptyRequest())).value

    async def forget(self, name: str) -> bool:
        return (await self._line.ask(protocol.FORGET_TENANT, messages.NameRequest(name))).value


class HttpWorkers:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        return await self._line.ask(protocol.BEAT, beat)

    async def leave(self, worker: WorkerId) -> None:
        await self._line.ask(protocol.LEAVE, messages.WorkerRequest(worker))

    async def all(self, tenant: str | None = None) -> list[StoredWorker]:
        return (await self._line.ask(protocol.WORKERS, messages.WorkersRequest(tenant))).value

    async def drain(self, worker: WorkerId) -> bool:
        return (await self._line.ask(protocol.DRAIN, messages.WorkerRequest(worker))).value


class HttpHistory:
    """Workers record over HTTP; the service merges and prunes."""

    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def record(self, rows: Sequence[HistoryRow]) -> None:
        await self._line.ask(protocol.RECORD, messages.RecordRequest(tuple(rows)))

    async def rows(
        self,
        level: HistoryLevel,
        since: Instant,
        until: Instant,
        *,
        tenant: str | None = None,
        after: str = "",
        limit: int = HISTORY_PAGE,
    ) -> list[HistoryRow]:
        request = messages.HistoryRequest(level, since, until, tenant, min(limit, HISTORY_PAGE), after)
        return (await self._line.ask(protocol.HISTORY, request)).value

    async def replace(self, ids: Sequence[str], rows: Sequence[HistoryRow]) -> None:
        raise not_here("merged")

    async def prune(self, level: HistoryLevel, before: Instant, limit: int) -> int:
        raise not_here("merged")
