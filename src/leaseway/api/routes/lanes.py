"""/v1/lanes: what each lane holds, and what keeps it from being served."""

from collections.abc import Sequence
from typing import Any

from fastapi import Request
from msgspec import Struct
from starlette.responses import Response

from leaseway.api.errors import Problem
from leaseway.api.inspection import of_lane, pauses_in, shut_now
from leaseway.api.pagination import Limit, paged, pulse_of, service_in
from leaseway.api.request_body import body_of
from leaseway.api.responses import answer, page
from leaseway.api.routing import Asking, Routes, tenant_for
from leaseway.api.schemas.serializers import iso, lane_json, seconds_of
from leaseway.domain.errors import UsageError
from leaseway.domain.gates import Closure, longest_closure
from leaseway.domain.identity import Scope
from leaseway.domain.ids import Instant
from leaseway.domain.job import LaneCount
from leaseway.domain.pauses import Pause, check_pause
from leaseway.domain.validators import check_name
from leaseway.ports.lane_pauses import LanePauses

routes = Routes("/v1/lanes", "lanes")

COUNTS = ("ready", "scheduled", "leased", "done", "failed", "cancelled")
"""What it said itself names addresses."""

Since = dict[tuple[str, str, str], Instant]


class LanesBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The lanes of a queue, whatever their jobs need."""

    queue: str
    tenant: str | None = None
    """null: of all tenants, also of those who come later."""

    def pause(self) -> Pause:
        return check_pause(Pause(self.queue, self.tenant))


@routes.get("", Scope.JOBS_READ)
async def list_lanes(
    request: Request,
    caller: Asking,
    queue: str | None = None,
    tenant: str | None = None,
    limit: Limit = 50,
    cursor: str | None = None,
) -> Response:
    """Every lane with its counters, and why and until when it waits."""
    world, whose = service_in(request).world, tenant_for(caller, tenant)
    if queue is not None:
        check_name("queue", queue)
    lanes = [lane for lane in await world.store.lanes() if is_asked_for(lane, queue, whose)]
    shown, more = paged(request, caller, lanes, key_of, limit, cursor)
    now = await world.store.now()
    shuts, pauses = await shut_now(world, shown, now), await pauses_in(world)
    since = {(each.queue, each.tenant, each.needs): each.since for each in await pulse_of(request).waiting()}
    items = [lane_document(lane, of_lane(lane, shuts, pauses), since, now) for lane in shown]
    return answer({"items": items, "next": more, "total": totals_of(lanes)})


@routes.get("/pauses", Scope.OPERATE)
async def list_pauses(request: Request, caller: Asking, limit: Limit = 50, cursor: str | None = None) -> Response:
    """Every pause of lanes that is in force, also of queues that hold nothing."""
    found = await pauses_in(service_in(request).world)
    shown, more = paged(request, caller, found, str, limit, cursor)
    return page([pause_json(pause) for pause in shown], more)


@routes.post("/pause", Scope.OPERATE, body=LanesBody)
async def pause_lanes(request: Request) -> Response:
    """Pause the lanes of a queue: none of their jobs begins until they are resumed. What runs goes on to its end."""
    wanted, store = (await body_of(request, LanesBody)).pause(), pausable(request)
    await store.pause_lanes(wanted.queue, wanted.tenant)
    found = next(
        (each for each in await store.pauses() if (each.queue, each.tenant) == (wanted.queue, wanted.tenant)), None
    )
    return answer(pause_json(found or wanted) | {"paused": True})


@routes.post("/resume", Scope.OPERATE, body=LanesBody)
async def resume_lanes(request: Request) -> Response:
    """Resume the lanes of a queue that were paused with the same words."""
    wanted, store = (await body_of(request, LanesBody)).pause(), pausable(request)
    if not await store.resume_lanes(wanted.queue, wanted.tenant):
        known = "; ".join(map(str, await store.pauses()))[:300]
        raise Problem(404, "not_found", f"{wanted} is not paused; paused lanes: {known or 'none'}")
    return answer({"queue": wanted.queue, "tenant": wanted.tenant, "since": None, "paused": False})


def pausable(request: Request) -> LanePauses:
    store = service_in(request).world.store
    if not isinstance(store, LanePauses):
        raise UsageError("this store cannot pause lanes; serve one that can: sqlite:///… or postgresql://…")
    return store


def pause_json(pause: Pause) -> dict[str, Any]:
    return {"queue": pause.queue, "tenant": pause.tenant, "since": iso(pause.since)}


def is_asked_for(lane: LaneCount, queue: str | None, tenant: str | None) -> bool:
    return queue in (None, lane.queue) and tenant in (None, lane.tenant)


def key_of(lane: LaneCount) -> str:
    return "\n".join((lane.queue, lane.tenant, lane.needs))


def totals_of(lanes: Sequence[LaneCount]) -> dict[str, int]:
    return {name: sum(getattr(lane, name) for lane in lanes) for name in COUNTS}


def lane_document(lane: LaneCount, shuts: Sequence[Closure], since: Since, now: Instant) -> dict[str, Any]:
    """`reason` and `until` are those of what lasts longest; `until` is null where nobody can know."""
    shut = longest_closure(shuts) if shuts else None
    oldest = since.get((lane.queue, lane.tenant, lane.needs))
    return {
        **lane_json(lane, shuts),
        "oldest_ready_seconds": None if oldest is None else seconds_of(max(now - oldest, 0)),
        "reason": None if shut is None else f"{shut.what} {shut.name}: {shut.why}",
        "until": None if shut is None or shut.wait_us is None else iso(now + shut.wait_us),
    }
