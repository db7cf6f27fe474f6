"""/v1/schedules: when jobs are submitted by themselves. Code declares them; people pause and resume them."""

from fastapi import Request
from starlette.responses import Response

from leaseway.api.pagination import Limit, paged, service_in, unknown
from leaseway.api.responses import answer, page
from leaseway.api.routing import Asking, Routes
from leaseway.api.schemas.serializers import schedule_json
from leaseway.domain.identity import Scope
from leaseway.domain.schedule import StoredSchedule, upcoming_fire

routes = Routes("/v1/schedules", "schedules")


@routes.get("", Scope.OPERATE)
async def list_schedules(request: Request, caller: Asking, limit: Limit = 50, cursor: str | None = None) -> Response:
    """Every schedule, with its last and its next fire."""
    rows = await service_in(request).world.store.schedules()
    shown, more = paged(request, caller, rows, lambda row: row.schedule.name, limit, cursor)
    return page([schedule_json(row, upcoming_fire(row)) for row in shown], more)


@routes.get("/{name:path}", Scope.OPERATE)
async def show_schedule(request: Request, name: str) -> Response:
    """One schedule."""
    row = await row_of(request, name)
    return answer(schedule_json(row, upcoming_fire(row)))


@routes.post("/{name:path}/pause", Scope.OPERATE)
async def pause_schedule(request: Request, name: str) -> Response:
    """Pause a schedule. What it would have submitted meanwhile is dropped."""
    return await paused(request, name, True)


@routes.post("/{name:path}/resume", Scope.OPERATE)
async def resume_schedule(request: Request, name: str) -> Response:
    """Resume a schedule, from now on."""
    return await paused(request, name, False)


async def paused(request: Request, name: str, is_paused: bool) -> Response:
    await row_of(request, name)
    if not await service_in(request).world.store.pause(name, is_paused):
        raise unknown("schedule", name)
    row = await row_of(request, name)
    return answer(schedule_json(row, upcoming_fire(row)))


async def row_of(request: Request, name: str) -> StoredSchedule:
    for row in await service_in(request).world.store.schedules():
        if row.schedule.name == name:
            return row
    raise unknown("schedule", name, "a worker declares those of its app when it starts")
