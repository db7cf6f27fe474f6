"""/v1/lanes: the jobs of each lane by state, why a lane waits, and pauses."""

from fastapi import Request
from msgspec import Struct

from leaseway.api.errors import Problem
from leaseway.api.inspection import find_closed_gates, lane_closures, read_pauses, store_stats
from leaseway.api.pagination import PageLimit, build_page, paginate
from leaseway.api.request_body import read_body
from leaseway.api.routing import Authenticated, DocumentPage, Routes, visible_tenant
from leaseway.api.schemas.jobs import (
    LanesDocument,
    LanesPausedDocument,
    LanesPauseDocument,
    lane_document,
    pause_document,
    total_counts,
)
from leaseway.api.schemas.values import extend
from leaseway.api.service import get_service
from leaseway.domain.identity import Scope
from leaseway.domain.lane import LaneCount, Pause, check_pause
from leaseway.domain.validators import check_name
from leaseway.ports.definitions import LanePauses
from leaseway.ports.store import require_pauses

routes = Routes("/v1/lanes", "lanes")


class LanesBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """All lanes of a queue, or those of one tenant in it."""

    queue: str
    tenant: str | None = None
    """null: all tenants, also those that submit their first job later."""

    def pause(self) -> Pause:
        return check_pause(Pause(self.queue, self.tenant))


@routes.get("", Scope.JOBS_READ, problems=(400,))
async def list_lanes(
    request: Request,
    caller: Authenticated,
    queue: str | None = None,
    tenant: str | None = None,
    limit: PageLimit = 50,
    cursor: str | None = None,
) -> LanesDocument:
    """List lanes with the number of jobs in each state, and why and until when each lane waits."""
    world, visible = get_service(request).world, visible_tenant(caller, tenant)
    if queue is not None:
        check_name("queue", queue)
    lanes = [
        lane
        for lane in await world.store.reads.lanes()
        if queue in (None, lane.queue) and visible in (None, lane.tenant)
    ]
    shown, more = paginate(request, caller, lanes, lane_key, limit, cursor)
    now = await world.store.reads.now()
    closures, pauses = await find_closed_gates(world, shown, now), await read_pauses(world)
    since = {(each.queue, each.tenant, each.needs): each.since for each in await store_stats(world).waiting()}
    items = [lane_document(lane, lane_closures(lane, closures, pauses), since, now) for lane in shown]
    return LanesDocument(items=items, next=more, total=total_counts(lanes))


@routes.get("/pauses", Scope.OPERATE, problems=(400,))
async def list_pauses(
    request: Request, caller: Authenticated, limit: PageLimit = 50, cursor: str | None = None
) -> DocumentPage[LanesPauseDocument]:
    """List the pauses in effect, including those of queues without jobs."""
    pauses = await read_pauses(get_service(request).world)
    return build_page(request, caller, pauses, str, pause_document, limit, cursor)


@routes.post("/pause", Scope.OPERATE, body=LanesBody)
async def pause_lanes(request: Request) -> LanesPausedDocument:
    """Pause the lanes of a queue: none of their jobs starts until they are resumed. Running jobs finish."""
    wanted, pauses = (await read_body(request, LanesBody)).pause(), pausable_store(request)
    await pauses.pause(wanted.queue, wanted.tenant)
    found = next(
        (each for each in await pauses.all() if (each.queue, each.tenant) == (wanted.queue, wanted.tenant)), None
    )
    return extend(LanesPausedDocument, pause_document(found or wanted), paused=True)


@routes.post("/resume", Scope.OPERATE, body=LanesBody, problems=(404,))
async def resume_lanes(request: Request) -> LanesPausedDocument:
    """Resume lanes that were paused with the same queue and tenant."""
    wanted, pauses = (await read_body(request, LanesBody)).pause(), pausable_store(request)
    if not await pauses.resume(wanted.queue, wanted.tenant):
        known = "; ".join(map(str, await pauses.all()))[:300]
        raise Problem(404, "not_found", f"{wanted} is not paused; paused lanes: {known or 'none'}")
    return LanesPausedDocument(queue=wanted.queue, tenant=wanted.tenant, since=None, paused=False)


def pausable_store(request: Request) -> LanePauses:
    return require_pauses(get_service(request).world.store)


def lane_key(lane: LaneCount) -> str:
    return "\n".join((lane.queue, lane.tenant, lane.needs))
