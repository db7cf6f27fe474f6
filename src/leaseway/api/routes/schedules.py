"""/v1/schedules: when jobs are submitted automatically. Apps declare schedules; operators pause and resume them."""

from fastapi import Request

from leaseway.api.errors import not_found
from leaseway.api.pagination import PageLimit, build_page
from leaseway.api.responses import DocumentPage
from leaseway.api.routing import Authenticated, Routes
from leaseway.api.schemas.operations import ScheduleDocument, schedule_document
from leaseway.api.service import get_service
from leaseway.domain.identity import Scope
from leaseway.domain.schedule import StoredSchedule, upcoming_fire

routes = Routes("/v1/schedules", "schedules")


@routes.get("", Scope.OPERATE, problems=(400,))
async def list_schedules(
    request: Request, caller: Authenticated, limit: PageLimit = 50, cursor: str | None = None
) -> DocumentPage[ScheduleDocument]:
    """List schedules with their last and next fire times."""
    rows = await get_service(request).world.store.schedules.all()
    return build_page(request, caller, rows, lambda row: row.schedule.name, document, limit, cursor)


@routes.get("/{name:path}", Scope.OPERATE)
async def show_schedule(request: Request, name: str) -> ScheduleDocument:
    """Show one schedule."""
    return document(await find_schedule(request, name))


@routes.post("/{name:path}/pause", Scope.OPERATE)
async def pause_schedule(request: Request, name: str) -> ScheduleDocument:
    """Pause a schedule. Fires that fall into the pause are skipped."""
    return await set_paused(request, name, True)


@routes.post("/{name:path}/resume", Scope.OPERATE)
async def resume_schedule(request: Request, name: str) -> ScheduleDocument:
    """Resume a schedule. It fires again from now on."""
    return await set_paused(request, name, False)


async def set_paused(request: Request, name: str, is_paused: bool) -> ScheduleDocument:
    await find_schedule(request, name)
    if not await get_service(request).world.store.schedules.pause(name, is_paused):
        raise not_found("schedule", name)
    return document(await find_schedule(request, name))


async def find_schedule(request: Request, name: str) -> StoredSchedule:
    for row in await get_service(request).world.store.schedules.all():
        if row.schedule.name == name:
            return row
    raise not_found("schedule", name, "a worker declares the schedules of its app when it starts")


def document(row: StoredSchedule) -> ScheduleDocument:
    return schedule_document(row, upcoming_fire(row))
