"""/v1/jobs: submit, list and show jobs, and change a single job."""

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import Query, Request
from msgspec.structs import replace
from starlette.responses import Response, StreamingResponse

from leaseway.api.errors import Problem, problem_document, problem_from
from leaseway.api.inspection import find_closed_gates, lane_closures, read_pauses
from leaseway.api.pagination import PageLimit, decode_cursor, encode_cursor
from leaseway.api.request_body import BULK_BYTES_MAX, decode, map_in_turns, read_body
from leaseway.api.routes.submissions import (
    REPLAYED,
    Submission,
    Submissions,
    idempotency_key,
    new_job,
    refuse_idempotency_key,
)
from leaseway.api.routing import Authenticated, DocumentPage, Reply, Routes, visible_tenant
from leaseway.api.schemas.jobs import (
    ItemSubmittedDocument,
    JobChangedDocument,
    JobListedDocument,
    JobShownDocument,
    ManySubmittedDocument,
    ResultDocument,
    SubmittedDocument,
    WhyDocument,
    listed_job_document,
    shown_job_document,
    why_document,
)
from leaseway.api.service import get_service
from leaseway.domain.blob import is_reference
from leaseway.domain.errors import BlobDamaged, BlobMissing, LeasewayError
from leaseway.domain.explain.closures import Closure, closed_by_session, closed_by_worker
from leaseway.domain.explain.reasons import explain
from leaseway.domain.identity import Caller, Scope
from leaseway.domain.ids import Instant, JobId
from leaseway.domain.inspection import CancelResult, JobFilter, SearchPage
from leaseway.domain.job import Job, NewJob, State, Submitted
from leaseway.domain.lane import LaneCount
from leaseway.domain.validators import check_name, parse_stored
from leaseway.ports.store import Store, require_inspection
from leaseway.worker.definitions import booked_for_job, cancel_job
from leaseway.worker.environment import Environment

routes = Routes("/v1/jobs", "jobs")

BULK_MAX = 1_000
WAIT_SECONDS_MAX = 30.0
ID_LENGTH = 26
IDEMPOTENCY_HEADER = (
    "Idempotency-Key",
    "Repeating a request with the same key and body returns the first response; another body returns 422.",
)

BlobField = Literal["payload", "cursor", "result"]
Wait = Annotated[float, Query(ge=0, le=WAIT_SECONDS_MAX)]


# -- submitting -----------------------------------------------------------------------------------------------------


@routes.post(
    "", Scope.JOBS_WRITE, is_fast=True, status_code=202, body=Submission, problems=(400, 409),
    headers=(IDEMPOTENCY_HEADER,),
)  # fmt: skip
async def submit(request: Request, caller: Authenticated) -> Reply[SubmittedDocument]:
    """Submit one job."""
    service = get_service(request)
    given = await read_body(request, Submission)
    key = idempotency_key(request.headers, given.key)
    job = new_job(service.app, given, caller.tenant, key)
    async with service.quotas.admit(caller, caller.tenant, [[job]]) as (refusal,):
        if refusal is not None:
            raise refusal
        submitted = await service.submitter.submit(job)
    headers = {"Location": f"/v1/jobs/{submitted.id}", **(REPLAYED if submitted.replayed else {})}
    return Reply(SubmittedDocument(id=submitted.id, kind=given.kind), headers=headers)


@routes.post("/bulk", Scope.JOBS_WRITE, body=Submissions)
async def submit_many(request: Request, caller: Authenticated) -> ManySubmittedDocument:
    """Submit up to 1,000 jobs in one transaction. The response has one item per job, in the same order."""
    service = get_service(request)
    refuse_idempotency_key(request.headers)
    given = await read_body(request, Submissions, BULK_BYTES_MAX)
    if not 1 <= len(given.items) <= BULK_MAX:
        raise Problem(422, "invalid", f"items: must be 1 to {BULK_MAX:,} (are {len(given.items):,})")
    clock = service.world.clock
    parsed = await map_in_turns(clock, lambda raw: parse_item(request, bytes(raw), caller), given.items)
    jobs = [each for each in parsed if isinstance(each, NewJob)]
    async with service.quotas.admit(caller, caller.tenant, [[job] for job in jobs]) as refusals:
        admitted = [job for job, refusal in zip(jobs, refusals, strict=True) if refusal is None]
        stored = iter(await service.submitter.submit_many(admitted))
    results = iter([refusal or next(stored) for refusal in refusals])
    items = [item_document(next(results) if isinstance(each, NewJob) else each) for each in parsed]
    return ManySubmittedDocument(items=items)


def parse_item(request: Request, raw: bytes, caller: Caller) -> NewJob | Exception:
    try:
        given = decode(raw, Submission)
        return new_job(get_service(request).app, given, caller.tenant, given.key)
    except (Problem, LeasewayError) as error:
        return error


def item_document(result: Submitted | Exception) -> ItemSubmittedDocument:
    if isinstance(result, Submitted):
        return ItemSubmittedDocument(status=202, id=result.id, replayed=result.replayed)
    problem = problem_from(result)
    return ItemSubmittedDocument(status=problem.status, problem=problem_document(problem))


# -- reading --------------------------------------------------------------------------------------------------------


@routes.get("", Scope.JOBS_READ, problems=(400,))
async def list_jobs(
    request: Request,
    caller: Authenticated,
    state: Annotated[list[State] | None, Query()] = None,
    kind: str | None = None,
    queue: str | None = None,
    tenant: str | None = None,
    error_code: str | None = None,
    key: str | None = None,
    shard_key: str | None = None,
    limit: PageLimit = 50,
    cursor: str | None = None,
) -> DocumentPage[JobListedDocument]:
    """List jobs, newest first. In a large store a page may contain fewer jobs than `limit`; follow `next`."""
    service = get_service(request)
    which = JobFilter(
        states=tuple(state) if state else None,
        kind=check_optional_name("kind", kind),
        queue=check_optional_name("queue", queue),
        tenant=visible_tenant(caller, tenant),
        error_code=check_optional_name("error_code", error_code),
        shard_key=check_optional_name("shard_key", shard_key),
    )
    if key is not None:
        ids = await find_by_key(service.world.store, tenant or caller.tenant, check_name("key", key))
        which = replace(which, ids=ids)
    secret, context = service.settings.cursor_secret, f"jobs {caller.name}"
    before = None if cursor is None else JobId(decode_cursor(secret, cursor, context))
    found = await search_jobs(service.world.store, which, before, limit)
    more = None if found.upto is None else encode_cursor(secret, found.upto, context)
    opened = service.world.encryption.open_job
    return DocumentPage([listed_job_document(opened(job)) for job in found.jobs], more)


async def find_by_key(store: Store, tenant: str, key: str) -> tuple[JobId, ...]:
    """The job with an idempotency key. Keys belong to a tenant: the caller's, or the one that an operator names."""
    return tuple((await require_inspection(store).jobs_for_keys(tenant, [key])).values())


async def search_jobs(store: Store, which: JobFilter, before: JobId | None, limit: int) -> SearchPage:
    if which.ids == ():
        return SearchPage([], None)
    if store.inspection is not None and which.ids is None:
        return await store.inspection.search(which, before=before, limit=limit)
    # One job more than the limit shows whether there is another page.
    found = await store.reads.jobs(which, before=before, limit=limit + 1)
    return SearchPage(found[:limit], found[limit - 1].id if len(found) > limit else None)


def check_optional_name(field: str, value: str | None) -> str | None:
    return None if value is None else check_name(field, value)


@routes.get("/{id}", Scope.JOBS_READ)
async def show(request: Request, caller: Authenticated, id: str) -> JobShownDocument:
    """Show a job with its timeline and its failed attempts. Tracebacks are shown to operators only."""
    job, world = await find_job(request, caller, id), get_service(request).world
    errors = world.encryption.open_errors(job, await world.store.reads.errors(job.id))
    return shown_job_document(world.encryption.open_job(job), errors, with_tracebacks=caller.sees_all)


@routes.get("/{id}/result", Scope.JOBS_READ, problems=(409,))
async def result(request: Request, caller: Authenticated, id: str, wait_seconds: Wait = 0.0) -> ResultDocument:
    """Show the result of a job. With `wait_seconds` the response is sent when the job finishes, or after that time."""
    job = await wait_until_finished(request, await find_job(request, caller, id), wait_seconds)
    if job.state is State.DONE:
        job = get_service(request).world.encryption.open_job(job)
        return ResultDocument(id=job.id, state=job.state, result=parse_stored(job.result))
    if job.state.is_final:
        raise Problem(
            409, "no_result", f"job {job.id} is {job.state} and has no result", extra={"state": job.state.value}
        )
    raise Problem(
        409, "not_finished", f"job {job.id} is {job.state}; try again later, or use wait_seconds",
        headers={"Retry-After": "1"}, extra={"state": job.state.value},
    )  # fmt: skip


@routes.get("/{id}/blob", Scope.JOBS_READ, media_type="application/json", problems=(409,))
async def blob(request: Request, caller: Authenticated, id: str, field: BlobField = "result") -> Response:
    """Download a text of a job that is in the blob store, as JSON. Other responses show a reference, `{"$blob": …}`. A
    text that a client has encrypted stays encrypted."""
    job, world = await find_job(request, caller, id), get_service(request).world
    text = getattr(job, field)
    if not is_reference(text):
        raise Problem(
            409, "no_blob", f"the {field} of job {job.id} is not in a blob store; GET /v1/jobs/{job.id} has it"
        )
    try:
        size, parts = await world.blobs.parts(job.id, field, text)
    except (BlobMissing, BlobDamaged) as error:
        # The error may name a folder of the service.
        detail = f"the {field} of job {job.id} is missing in the blob store, or its reference was changed"
        raise Problem(409, "blob_missing", f"{detail}; restore it from a backup, or submit the job again") from error
    return StreamingResponse(parts, headers={"Content-Length": str(size)}, media_type="application/json")


@routes.get("/{id}/why", Scope.JOBS_READ)
async def why(request: Request, caller: Authenticated, id: str) -> WhyDocument:
    """Explain why a job has not run, what it waits for, and what to do."""
    world = get_service(request).world
    job, now = await find_job(request, caller, id), await world.store.reads.now()
    lanes = await world.store.reads.lanes(None if caller.sees_all else job.tenant)
    lane = next((lane for lane in lanes if lane_key(lane) == lane_key(job)), None)
    is_ready = job.state is State.PENDING and job.run_at <= now and lane is not None
    closures = await find_closures(world, lane, now) if lane is not None and is_ready else ()
    if is_ready and caller.sees_all:  # sessions of the database are the operator's
        closures = [*closures, *closed_by_session(await world.store.reads.locked_by(job.id))]
    closures = [*closures, *(closed_by_worker(lane, now, closures) if is_ready else ())]
    busy = sum(each.leased for each in lanes if each.queue == job.queue) if caller.sees_all else None
    booked = await booked_for_job(world.ledger, job) if job.state is State.PENDING and not is_ready else ()
    reason = explain(job, lane, now, closures, booked=booked, busy_elsewhere=busy)
    return why_document(job, reason, closures)


async def find_closures(world: Environment, lane: LaneCount, now: Instant) -> Sequence[Closure]:
    # The job is due. Until a worker claims jobs, the lane may still count it as scheduled.
    lane = replace(lane, ready=max(lane.ready, 1))
    return lane_closures(lane, await find_closed_gates(world, [lane], now), await read_pauses(world))


def lane_key(of: Job | LaneCount) -> tuple[str, str, str]:
    return of.queue, of.tenant, of.needs


async def wait_until_finished(request: Request, job: Job, wait_seconds: float) -> Job:
    """The job when it finishes, or as it is when the time is over."""
    service = get_service(request)
    if job.state.is_final or not wait_seconds or service.stopping.is_set():
        return job
    await service.job_waits.wait(job.id, wait_seconds)
    return await service.world.store.reads.job(job.id) or job


# -- changing -------------------------------------------------------------------------------------------------------


@routes.post("/{id}/cancel", Scope.JOBS_WRITE)
async def cancel(request: Request, caller: Authenticated, id: str) -> JobChangedDocument:
    """Cancel a job: a pending job immediately, a running job through its worker."""
    job = await find_job(request, caller, id)
    world = get_service(request).world
    became = await cancel_job(world.store, world.ledger, job.id)
    if became is CancelResult.UNKNOWN:
        raise no_such_job(id)
    return JobChangedDocument(id=job.id, answer=became.value)


@routes.post("/{id}/retry", Scope.JOBS_WRITE, problems=(409,))
async def retry(request: Request, caller: Authenticated, id: str) -> JobChangedDocument:
    """Make a failed or cancelled job pending again, with all its attempts and its last checkpoint."""
    job = await find_job(request, caller, id)
    if not await get_service(request).world.store.operations.retry(JobFilter(ids=(job.id,)), 1):
        raise Problem(409, "not_retryable", f"job {id} is {job.state}; only failed or cancelled jobs can be retried")
    return JobChangedDocument(id=job.id, answer="retried")


@routes.post("/{id}/run-now", Scope.JOBS_WRITE, problems=(409,))
async def run_now(request: Request, caller: Authenticated, id: str) -> JobChangedDocument:
    """Bring forward a pending job that waits for its time to run: its schedule, a retry or a booked budget window."""
    job = await find_job(request, caller, id)
    if not await get_service(request).world.store.operations.run_now(JobFilter(ids=(job.id,)), 1):
        raise Problem(409, "not_waiting", f"job {id} is {job.state} and does not wait for its time to run")
    return JobChangedDocument(id=job.id, answer="ready")


@routes.delete("/{id}", Scope.JOBS_WRITE, status_code=204, problems=(409,))
async def discard(request: Request, caller: Authenticated, id: str) -> None:
    """Delete a finished job permanently."""
    job = await find_job(request, caller, id)
    if not await get_service(request).world.store.operations.discard(JobFilter(ids=(job.id,)), 1):
        raise Problem(
            409, "not_finished", f"job {id} is {job.state}; only finished jobs can be discarded; cancel it first"
        )


async def find_job(request: Request, caller: Caller, id: str) -> Job:
    """A job of another tenant is reported like one that does not exist."""
    is_id = len(id) == ID_LENGTH and id.isascii() and id.isalnum()
    job: Job | None = await get_service(request).world.store.reads.job(JobId(id)) if is_id else None
    if job is None or not caller.sees(job.tenant):
        raise no_such_job(id)
    return job


def no_such_job(id: str) -> Problem:
    return Problem(404, "not_found", f"there is no job {id[:40]!r}; it may have been pruned or discarded")
