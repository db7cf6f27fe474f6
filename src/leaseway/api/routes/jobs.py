"""/v1/jobs: submit, list, show, and what one may ask of a single job."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query, Request
from msgspec.structs import replace
from starlette.responses import Response

from leaseway.api import request_body
from leaseway.api.errors import Problem, document_of, problem_of
from leaseway.api.inspection import of_lane, pauses_in, shut_now
from leaseway.api.pagination import cursor_of, place_of
from leaseway.api.responses import answer, page
from leaseway.api.routes.idempotency import REPLAYED, key_of, refuse_key
from leaseway.api.routes.submissions import Submission, Submissions, new_job
from leaseway.api.routing import Asking, Routes, tenant_for
from leaseway.api.schemas.serializers import error_json, job_json, listed_job_json, reason_json, stored, timeline_json
from leaseway.api.service import service_of
from leaseway.domain.errors import LeasewayError, UsageError
from leaseway.domain.explain import explain
from leaseway.domain.gates import Closure
from leaseway.domain.identity import Caller, Scope
from leaseway.domain.ids import Instant, JobId
from leaseway.domain.inspection import CancelResult, JobFilter, SearchPage
from leaseway.domain.job import Job, LaneCount, NewJob, State, Submitted
from leaseway.domain.validators import check_name
from leaseway.ports.idempotency import Keyed
from leaseway.ports.search import Search
from leaseway.ports.store import Store
from leaseway.worker.environment import Environment

routes = Routes("/v1/jobs", "jobs")

BULK_MAX = 1_000
WAIT_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.25
ID_LENGTH = 26

Limit = Annotated[int, Query(ge=1, le=200)]
Wait = Annotated[float, Query(ge=0, le=WAIT_SECONDS_MAX)]


# -- submitting -----------------------------------------------------------------------------------------------------


@routes.post("", Scope.JOBS_WRITE, busy=True, status_code=202, body=Submission)
async def submit(request: Request, caller: Asking) -> Response:
    """Submit one job."""
    service = service_of(request)
    given = await request_body.body_of(request, Submission)
    key = key_of(request.headers, given.key)
    submitted = await service.gathering.submit(new_job(service.app, given, caller.tenant, key))
    headers = {"Location": f"/v1/jobs/{submitted.id}", **(REPLAYED if submitted.replayed else {})}
    return answer({"id": submitted.id, "kind": given.kind}, 202, headers)


@routes.post("/bulk", Scope.JOBS_WRITE, body=Submissions)
async def submit_many(request: Request, caller: Asking) -> Response:
    """Submit up to 1,000 jobs in one transaction. Each has its own answer, in their order."""
    service = service_of(request)
    refuse_key(request.headers)
    given = await request_body.body_of(request, Submissions, request_body.BULK_BYTES_MAX)
    if not 1 <= len(given.items) <= BULK_MAX:
        raise Problem(422, "invalid", f"items: must be 1 to {BULK_MAX:,} (are {len(given.items):,})")
    made = [made_of(request, bytes(raw), caller) for raw in given.items]
    answers = iter(await service.gathering.submit_many([each for each in made if isinstance(each, NewJob)]))
    items = [item_of(next(answers) if isinstance(each, NewJob) else each) for each in made]
    return answer({"items": items})


def made_of(request: Request, raw: bytes, caller: Caller) -> NewJob | Exception:
    try:
        given = request_body.decoded(raw, Submission)
        return new_job(service_of(request).app, given, caller.tenant, given.key)
    except (Problem, LeasewayError) as error:
        return error


def item_of(result: Submitted | Exception) -> dict[str, object]:
    if isinstance(result, Submitted):
        return {"status": 202, "id": result.id, "replayed": result.replayed}
    problem = problem_of(result)
    return {"status": problem.status, "problem": document_of(problem)}


# -- looking --------------------------------------------------------------------------------------------------------


@routes.get("", Scope.JOBS_READ)
async def list_jobs(
    request: Request,
    caller: Asking,
    state: Annotated[list[State] | None, Query()] = None,
    kind: str | None = None,
    queue: str | None = None,
    tenant: str | None = None,
    error_code: str | None = None,
    key: str | None = None,
    shard_key: str | None = None,
    limit: Limit = 50,
    cursor: str | None = None,
) -> Response:
    """Jobs, the newest first. A page of a large store may hold fewer than asked for; `next` says whether to go on."""
    service = service_of(request)
    which = JobFilter(
        states=tuple(state) if state else None,
        kind=checked("kind", kind),
        queue=checked("queue", queue),
        tenant=tenant_for(caller, tenant),
        error_code=checked("error_code", error_code),
        shard_key=checked("shard_key", shard_key),
    )
    if key is not None:
        which = replace(which, ids=await ids_of(service.world.store, tenant or caller.tenant, check_name("key", key)))
    secret, about = service.settings.cursor_secret, f"jobs {caller.name}"
    before = None if cursor is None else JobId(place_of(secret, cursor, about))
    found = await searched(service.world.store, which, before, limit)
    more = None if found.upto is None else cursor_of(secret, found.upto, about)
    return page([listed_job_json(job) for job in found.jobs], more)


async def ids_of(store: Store, tenant: str, key: str) -> tuple[JobId, ...]:
    """The job of a key, which is one tenant's: the caller's, or the one whom an operator names."""
    if not isinstance(store, Keyed):
        raise UsageError("key: this store does not know which job a key stands for")
    found = await store.keyed(tenant, key)
    return () if found is None else (found,)


async def searched(store: Store, which: JobFilter, before: JobId | None, limit: int) -> SearchPage:
    if which.ids == ():
        return SearchPage([], None)
    if isinstance(store, Search) and which.ids is None:
        return await store.search(which, before=before, limit=limit)
    # One more than asked for: it says whether there is another page.
    found = await store.jobs(which, before=before, limit=limit + 1)
    return SearchPage(found[:limit], found[limit - 1].id if len(found) > limit else None)


def checked(field: str, value: str | None) -> str | None:
    return None if value is None else check_name(field, value)


@routes.get("/{id}", Scope.JOBS_READ)
async def show(request: Request, caller: Asking, id: str) -> Response:
    """One job with its timeline and its failed attempts."""
    job = await job_of(request, caller, id)
    errors = await service_of(request).world.store.errors(job.id)
    told = {"errors": [error_json(error) for error in errors], "timeline": timeline_json(job, errors)}
    return answer({**job_json(job), **told})


@routes.get("/{id}/result", Scope.JOBS_READ)
async def result(request: Request, caller: Asking, id: str, wait_seconds: Wait = 0.0) -> Response:
    """What the job answered. With `wait_seconds` the answer comes as soon as the job has finished, or then."""
    job = await finished(request, await job_of(request, caller, id), wait_seconds)
    if job.state is State.DONE:
        return answer({"id": job.id, "state": job.state.value, "result": stored(job.result)})
    if job.state.is_final:
        raise Problem(
            409, "no_result", f"job {job.id} is {job.state} and has no result", extra={"state": job.state.value}
        )
    raise Problem(
        409, "not_finished", f"job {job.id} is {job.state}; ask again, or with wait_seconds",
        headers={"Retry-After": "1"}, extra={"state": job.state.value},
    )  # fmt: skip


@routes.get("/{id}/why", Scope.JOBS_READ)
async def why(request: Request, caller: Asking, id: str) -> Response:
    """Why a job has not run, what it waits for, and what to do."""
    world = service_of(request).world
    job, now = await job_of(request, caller, id), await world.store.now()
    lane = next((lane for lane in await world.store.lanes() if lane_key(lane) == lane_key(job)), None)
    is_ready = job.state is State.PENDING and job.run_at <= now and lane is not None
    shuts = await shuts_of(world, lane, now) if lane is not None and is_ready else ()
    return answer(reason_json(job, explain(job, lane, now, shuts), shuts))


async def shuts_of(world: Environment, lane: LaneCount, now: Instant) -> Sequence[Closure]:
    return of_lane(lane, await shut_now(world, [lane], now), await pauses_in(world))


def lane_key(of: Job | LaneCount) -> tuple[str, str, str]:
    return of.queue, of.tenant, of.needs


async def finished(request: Request, job: Job, wait_seconds: float) -> Job:
    """As soon as it has, or as it is when the time is over."""
    service = service_of(request)
    store, clock = service.world.store, service.world.clock
    ends = clock.monotonic() + wait_seconds
    while not job.state.is_final and clock.monotonic() < ends and not service.stopping.is_set():
        await store.wait(LOOK_SECONDS)
        job = await store.job(job.id) or job
    return job


# -- changing -------------------------------------------------------------------------------------------------------


@routes.post("/{id}/cancel", Scope.JOBS_WRITE)
async def cancel(request: Request, caller: Asking, id: str) -> Response:
    """Cancel a job: at once if it waits, through its worker if it runs."""
    job = await job_of(request, caller, id)
    became = await service_of(request).world.store.cancel(job.id)
    if became is CancelResult.UNKNOWN:
        raise not_found(id)
    return answer({"id": job.id, "answer": became.value})


@routes.post("/{id}/retry", Scope.JOBS_WRITE)
async def retry(request: Request, caller: Asking, id: str) -> Response:
    """Make a failed or cancelled job pending again, with fresh attempts and its old cursor."""
    job = await job_of(request, caller, id)
    if not await service_of(request).world.store.replay(JobFilter(ids=(job.id,)), 1):
        raise Problem(409, "not_retryable", f"job {id} is {job.state}; only failed or cancelled jobs can be retried")
    return answer({"id": job.id, "answer": "retried"})


@routes.delete("/{id}", Scope.JOBS_WRITE, status_code=204)
async def discard(request: Request, caller: Asking, id: str) -> Response:
    """Delete a finished job for good."""
    job = await job_of(request, caller, id)
    if not await service_of(request).world.store.discard(JobFilter(ids=(job.id,)), 1):
        raise Problem(
            409, "not_finished", f"job {id} is {job.state}; only finished jobs can be discarded; cancel it first"
        )
    return Response(status_code=204)


async def job_of(request: Request, caller: Caller, id: str) -> Job:
    """One that the caller may see. Another's is as unknown as one that never was."""
    is_id = len(id) == ID_LENGTH and id.isascii() and id.isalnum()
    job: Job | None = await service_of(request).world.store.job(JobId(id)) if is_id else None
    if job is None or not caller.sees(job.tenant):
        raise not_found(id)
    return job


def not_found(id: str) -> Problem:
    return Problem(404, "not_found", f"there is no job {id[:40]!r}; it may have been pruned or discarded")
