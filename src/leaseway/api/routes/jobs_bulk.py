"""/v1/jobs/cancel, retry, discard: change many jobs, selected by ids or by a filter.

A request with a filter first returns how many jobs match. The client repeats it with that number in `confirm`; if more
jobs match by then, nothing is changed. One request changes a bounded number of jobs; `more` says whether others match.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from fastapi import Request
from msgspec import Struct

from leaseway.api.errors import Problem
from leaseway.api.request_body import read_body
from leaseway.api.routes.jobs import check_optional_name, search_jobs
from leaseway.api.routing import Authenticated, Routes, visible_tenant
from leaseway.api.schemas.jobs import JobsChangedDocument, RefusedDocument
from leaseway.api.service import get_service
from leaseway.domain.identity import Caller, Scope
from leaseway.domain.ids import JobId
from leaseway.domain.inspection import CancelResult, JobFilter, JobSummary
from leaseway.domain.job import State
from leaseway.domain.validators import check_name
from leaseway.ports.store import Store, require_inspection
from leaseway.worker.definitions import cancel_job
from leaseway.worker.environment import Environment

routes = Routes("/v1/jobs", "jobs")

CHANGE_MAX = 1_000
SEARCHES_MAX = 1_000
"""Each search step reads a bounded number of jobs; together they cover five million."""

Apply = Callable[[Environment, JobFilter], Awaitable[Sequence[JobId]]]


class JobFilterBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """All conditions must hold; an omitted condition matches every job."""

    states: list[State] | None = None
    kind: str | None = None
    queue: str | None = None
    tenant: str | None = None
    error_code: str | None = None
    shard_key: str | None = None


class JobsChangeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Either ids or a filter, and with a filter the confirmed number of jobs."""

    ids: list[str] | None = None
    filter: JobFilterBody | None = None
    confirm: int | None = None


class BulkAction(NamedTuple):
    past: str
    states: tuple[State, ...]
    """The states in which a job can be changed."""
    apply: Apply


async def cancel_each(world: Environment, which: JobFilter) -> list[JobId]:
    cancelled = (CancelResult.CANCELLED, CancelResult.REQUESTED)
    return [id_ for id_ in which.ids or () if await cancel_job(world.store, world.ledger, id_) in cancelled]


async def retry_all(world: Environment, which: JobFilter) -> list[JobId]:
    return await world.store.operations.retry(which, CHANGE_MAX)


async def discard_all(world: Environment, which: JobFilter) -> list[JobId]:
    return await world.store.operations.discard(which, CHANGE_MAX)


CANCEL = BulkAction("cancelled", (State.PENDING, State.LEASED), cancel_each)
RETRY = BulkAction("retried", (State.FAILED, State.CANCELLED), retry_all)
DISCARD = BulkAction("discarded", (State.DONE, State.FAILED, State.CANCELLED), discard_all)


@routes.post("/cancel", Scope.JOBS_WRITE, body=JobsChangeBody, problems=(409,))
async def cancel_many(request: Request, caller: Authenticated) -> JobsChangedDocument:
    """Cancel jobs by ids or by a filter."""
    return await change_jobs(request, caller, CANCEL)


@routes.post("/retry", Scope.JOBS_WRITE, body=JobsChangeBody, problems=(409,))
async def retry_many(request: Request, caller: Authenticated) -> JobsChangedDocument:
    """Make failed or cancelled jobs pending again, by ids or by a filter."""
    return await change_jobs(request, caller, RETRY)


@routes.post("/discard", Scope.JOBS_WRITE, body=JobsChangeBody, problems=(409,))
async def discard_many(request: Request, caller: Authenticated) -> JobsChangedDocument:
    """Delete finished jobs permanently, by ids or by a filter."""
    return await change_jobs(request, caller, DISCARD)


async def change_jobs(request: Request, caller: Caller, action: BulkAction) -> JobsChangedDocument:
    world, wanted = get_service(request).world, await read_body(request, JobsChangeBody)
    if (wanted.ids is None) == (wanted.filter is None):
        raise Problem(422, "invalid", "ids: send either ids or a filter")
    if wanted.ids is not None:
        return await change_by_ids(world, caller, action, wanted.ids)
    assert wanted.filter is not None
    return await change_matching(world, action, parse_filter(caller, action, wanted.filter), wanted.confirm)


async def change_by_ids(
    world: Environment, caller: Caller, action: BulkAction, ids: Sequence[str]
) -> JobsChangedDocument:
    if not 1 <= len(ids) <= CHANGE_MAX:
        raise Problem(422, "invalid", f"ids: must be 1 to {CHANGE_MAX:,} (are {len(ids):,})")
    wanted = tuple(dict.fromkeys(JobId(check_name("ids", id_)) for id_ in ids))
    found = await require_inspection(world.store).summaries(wanted)
    known = {job.id: job for job in found if caller.sees(job.tenant)}
    eligible = tuple(id_ for id_ in wanted if id_ in known and known[id_].state in action.states)
    changed = set(await action.apply(world, JobFilter(ids=eligible))) if eligible else set()
    left = [id_ for id_ in wanted if id_ not in changed]
    refused = [RefusedDocument(id=id_, reason=refusal_reason(known.get(id_), action)) for id_ in left]
    return changed_document(action, len(changed), JobsChangedDocument(refused=refused))


def changed_document(action: BulkAction, count: int, document: JobsChangedDocument) -> JobsChangedDocument:
    setattr(document, action.past, count)
    return document


def refusal_reason(job: JobSummary | None, action: BulkAction) -> str:
    if job is None:
        return "there is no such job"
    return f"it is {job.state}; only {', '.join(action.states)} jobs can be {action.past}"


def parse_filter(caller: Caller, action: BulkAction, given: JobFilterBody) -> JobFilter:
    states = tuple(given.states or action.states)
    if not set(states) <= set(action.states):
        raise Problem(422, "invalid", f"filter.states: only {', '.join(action.states)} jobs can be {action.past}")
    return JobFilter(
        states=states,
        kind=check_optional_name("filter.kind", given.kind),
        queue=check_optional_name("filter.queue", given.queue),
        tenant=visible_tenant(caller, given.tenant),
        error_code=check_optional_name("filter.error_code", given.error_code),
        shard_key=check_optional_name("filter.shard_key", given.shard_key),
    )


async def collect_matching(store: Store, which: JobFilter) -> tuple[tuple[JobId, ...], bool]:
    """As many jobs as one request changes, and whether there may be more. In bounded search steps, so that other
    requests are served in between, and without the texts of the jobs, which may be large."""
    found, before = list[JobId](), None
    for _ in range(SEARCHES_MAX):
        page = await search_jobs(store, which, before, CHANGE_MAX - len(found))
        found, before = [*found, *(job.id for job in page.jobs)], page.upto
        if before is None or len(found) >= CHANGE_MAX:
            break
    return tuple(found), before is not None or len(found) >= CHANGE_MAX


async def change_matching(
    world: Environment, action: BulkAction, which: JobFilter, confirm: int | None
) -> JobsChangedDocument:
    ids, has_more = await collect_matching(world.store, which)
    document = JobsChangedDocument(matching=len(ids), more=has_more)
    if confirm is None:
        return changed_document(action, 0, document)
    if len(ids) > confirm:
        detail = f"confirm: {confirm:,} jobs were confirmed, but {len(ids):,} match now; check again"
        extra = {"matching": document.matching, "more": document.more}
        raise Problem(409, "count_changed", detail, extra=extra)
    # The states are compared again: jobs that have changed meanwhile are left alone.
    changed = await action.apply(world, JobFilter(ids=ids, states=which.states)) if ids else ()
    return changed_document(action, len(changed), document)
