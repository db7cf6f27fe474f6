"""/v1/jobs/cancel, retry, discard: many jobs at once, by their ids or by what they have in common.

Whoever names a filter is first told how many match, and changes them by saying that number: if more match by then,
nothing happens. A call changes a bounded number; `more` says that another one has something to do.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from fastapi import Request
from msgspec import Struct
from starlette.responses import Response

from leaseway.api.errors import Problem
from leaseway.api.request_body import body_of
from leaseway.api.responses import answer
from leaseway.api.routes.jobs import checked, searched
from leaseway.api.routing import Asking, Routes, tenant_for
from leaseway.api.service import service_of
from leaseway.domain.identity import Caller, Scope
from leaseway.domain.ids import JobId
from leaseway.domain.inspection import CancelResult, JobFilter
from leaseway.domain.job import Job, State
from leaseway.domain.validators import check_name
from leaseway.ports.store import Store

routes = Routes("/v1/jobs", "jobs")

CHANGE_MAX = 1_000
LOOKS_MAX = 1_000
"""Five million jobs."""

Act = Callable[[Store, JobFilter], Awaitable[Sequence[JobId]]]


class Filter(Struct, kw_only=True, forbid_unknown_fields=True):
    """All conditions must hold; what is left out means any."""

    states: list[State] | None = None
    kind: str | None = None
    queue: str | None = None
    tenant: str | None = None
    error_code: str | None = None
    shard_key: str | None = None


class Change(Struct, kw_only=True, forbid_unknown_fields=True):
    """Either ids or a filter, and with a filter the number that was confirmed."""

    ids: list[str] | None = None
    filter: Filter | None = None
    confirm: int | None = None


class Verb(NamedTuple):
    past: str
    states: tuple[State, ...]
    """Those that it changes."""
    act: Act


async def cancel_each(store: Store, which: JobFilter) -> list[JobId]:
    return [
        id_ for id_ in which.ids or () if await store.cancel(id_) in (CancelResult.CANCELLED, CancelResult.REQUESTED)
    ]


async def replay(store: Store, which: JobFilter) -> list[JobId]:
    return await store.replay(which, CHANGE_MAX)


async def discard(store: Store, which: JobFilter) -> list[JobId]:
    return await store.discard(which, CHANGE_MAX)


CANCEL = Verb("cancelled", (State.PENDING, State.LEASED), cancel_each)
RETRY = Verb("retried", (State.FAILED, State.CANCELLED), replay)
DISCARD = Verb("discarded", (State.DONE, State.FAILED, State.CANCELLED), discard)


@routes.post("/cancel", Scope.JOBS_WRITE, body=Change)
async def cancel_many(request: Request, caller: Asking) -> Response:
    """Cancel jobs by ids or by a filter."""
    return await change(request, caller, CANCEL)


@routes.post("/retry", Scope.JOBS_WRITE, body=Change)
async def retry_many(request: Request, caller: Asking) -> Response:
    """Make failed or cancelled jobs pending again, by ids or by a filter."""
    return await change(request, caller, RETRY)


@routes.post("/discard", Scope.JOBS_WRITE, body=Change)
async def discard_many(request: Request, caller: Asking) -> Response:
    """Delete finished jobs for good, by ids or by a filter."""
    return await change(request, caller, DISCARD)


async def change(request: Request, caller: Caller, verb: Verb) -> Response:
    store, wanted = service_of(request).world.store, await body_of(request, Change)
    if (wanted.ids is None) == (wanted.filter is None):
        raise Problem(422, "invalid", "ids: name either ids or a filter")
    if wanted.ids is not None:
        return answer(await change_named(store, caller, verb, wanted.ids))
    assert wanted.filter is not None
    return answer(await change_matching(store, verb, filter_of(caller, verb, wanted.filter), wanted.confirm))


async def change_named(store: Store, caller: Caller, verb: Verb, ids: Sequence[str]) -> dict[str, Any]:
    if not 1 <= len(ids) <= CHANGE_MAX:
        raise Problem(422, "invalid", f"ids: must be 1 to {CHANGE_MAX:,} (are {len(ids):,})")
    asked = tuple(dict.fromkeys(JobId(check_name("ids", id_)) for id_ in ids))
    which = JobFilter(ids=asked, tenant=tenant_for(caller, None))
    known = {job.id: job for job in await store.jobs(which, limit=CHANGE_MAX)}
    fitting = tuple(id_ for id_ in asked if id_ in known and known[id_].state in verb.states)
    changed = set(await verb.act(store, JobFilter(ids=fitting))) if fitting else set()
    refused = [{"id": id_, "reason": reason_of(known.get(id_), verb)} for id_ in asked if id_ not in changed]
    return {verb.past: len(changed), "refused": refused}


def reason_of(job: Job | None, verb: Verb) -> str:
    if job is None:
        return "there is no such job"
    return f"it is {job.state}; only {', '.join(verb.states)} jobs can be {verb.past}"


def filter_of(caller: Caller, verb: Verb, given: Filter) -> JobFilter:
    states = tuple(given.states or verb.states)
    if not set(states) <= set(verb.states):
        raise Problem(422, "invalid", f"filter.states: only {', '.join(verb.states)} jobs can be {verb.past}")
    return JobFilter(
        states=states,
        kind=checked("filter.kind", given.kind),
        queue=checked("filter.queue", given.queue),
        tenant=tenant_for(caller, given.tenant),
        error_code=checked("filter.error_code", given.error_code),
        shard_key=checked("filter.shard_key", given.shard_key),
    )


async def gathered(store: Store, which: JobFilter) -> list[Job]:
    """As many as one call changes. By looks that end, so that others are served in between."""
    found, before = list[Job](), None
    for _ in range(LOOKS_MAX):
        page = await searched(store, which, before, CHANGE_MAX - len(found))
        found, before = [*found, *page.jobs], page.upto
        if before is None or len(found) >= CHANGE_MAX:
            break
    return found


async def change_matching(store: Store, verb: Verb, which: JobFilter, confirm: int | None) -> dict[str, Any]:
    found = await gathered(store, which)
    told = {"matching": len(found), "more": len(found) == CHANGE_MAX}
    if confirm is None:
        return {verb.past: 0, **told}
    if len(found) > confirm:
        detail = f"confirm: {confirm:,} were confirmed, and {len(found):,} match now; look again"
        raise Problem(409, "count_changed", detail, extra=told)
    ids = tuple(job.id for job in found)
    # Once more by state: who has changed meanwhile is left alone.
    changed = await verb.act(store, JobFilter(ids=ids, states=which.states)) if ids else ()
    return {verb.past: len(changed), **told}
