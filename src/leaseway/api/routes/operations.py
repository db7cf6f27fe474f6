"""/v1/tenants, /v1/quotas, /v1/schedules and /v1/workers: what operators administer.

Apps declare schedules; operators pause and resume them. Workers report themselves.
"""

from fastapi import Request
from msgspec import Struct

from leaseway.api.errors import not_found
from leaseway.api.inspection import read_workers
from leaseway.api.pagination import PageLimit, build_page
from leaseway.api.preconditions import change_lock
from leaseway.api.request_body import body_fields, read_body
from leaseway.api.routes.limits import RateBody, parse_rate_body
from leaseway.api.routing import Authenticated, DocumentPage, Reply, Routes, visible_tenant
from leaseway.api.schemas.operations import (
    ScheduleDocument,
    TenantDocument,
    TenantQuotasDocument,
    WorkerDocument,
    quotas_document,
    schedule_document,
    tenant_document,
    worker_document,
)
from leaseway.api.service import get_service
from leaseway.domain.identity import Scope
from leaseway.domain.ids import WorkerId
from leaseway.domain.quota import NO_QUOTAS, Quotas
from leaseway.domain.schedule import StoredSchedule, upcoming_fire
from leaseway.domain.tenant import Tenant, check_tenant
from leaseway.domain.validators import check_name
from leaseway.ports.store import require_workers
from leaseway.worker.definitions import store_tenant

tenant_routes = Routes("/v1/tenants", "tenants")


ADVICE = "it has weight 1, no caps and the default quotas"


class TenantBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """All settings of a tenant: omitted fields have their default values."""

    weight: int = 1
    starts: list[str | RateBody] = []
    """How many jobs may start: "100/minute", or count and window."""
    concurrency: int | None = None
    """How many jobs may run at the same time."""
    quotas: Quotas = NO_QUOTAS


@tenant_routes.get("", Scope.OPERATE, problems=(400,))
async def list_tenants(
    request: Request, caller: Authenticated, limit: PageLimit = 50, cursor: str | None = None
) -> DocumentPage[TenantDocument]:
    """List tenants with settings. Every other tenant has weight 1, no caps and the default quotas."""
    tenants = await get_service(request).world.store.tenants.all()
    return build_page(request, caller, tenants, lambda tenant: tenant.name, tenant_document, limit, cursor)


@tenant_routes.get("/{name:path}", Scope.JOBS_READ)
async def show_tenant(request: Request, caller: Authenticated, name: str) -> TenantDocument:
    """Show the settings of a tenant. Tenants can read their own settings."""
    found = await find_tenant(request, name) if caller.sees(name) else None
    if found is None:
        raise not_found("tenant with settings named", name, ADVICE)
    return tenant_document(found)


@tenant_routes.put("/{name:path}", Scope.OPERATE, body=TenantBody, also=(201,))
async def put_tenant(request: Request, name: str) -> Reply[TenantDocument]:
    """Set the weight, the caps and the quotas of a tenant. Weight and caps take effect with the next claim, quotas in
    this process with the next submission and in others within two seconds."""
    wanted = parse_tenant(name, await read_body(request, TenantBody))
    world = get_service(request).world
    async with change_lock(request):
        before = await find_tenant(request, name)
        await store_tenant(world.store.tenants, world.limiter, wanted)
        get_service(request).quotas.forget_settings()
    return Reply(tenant_document(wanted), 201 if before is None else 200)


@tenant_routes.delete("/{name:path}", Scope.OPERATE, status_code=204)
async def delete_tenant(request: Request, name: str) -> None:
    """Forget the settings of a tenant: it has weight 1, no caps and the default quotas. Its jobs stay."""
    known = await find_tenant(request, name)
    if known is None or not await get_service(request).world.store.tenants.forget(name):
        raise not_found("tenant with settings named", name, ADVICE)
    get_service(request).quotas.forget_settings()


async def find_tenant(request: Request, name: str) -> Tenant | None:
    tenants = await get_service(request).world.store.tenants.all()
    return next((tenant for tenant in tenants if tenant.name == name), None)


def parse_tenant(name: str, given: TenantBody) -> Tenant:
    check_name("name", name)
    limit = Tenant(name=name).limit
    # The caps are checked as the limit that they become.
    with body_fields(f"tenant {name}", "weight"), body_fields(f"limit {limit}", "starts", {"rates": "starts"}):
        rates = tuple(sorted(parse_rate_body(limit, rate) for rate in given.starts))
        tenant = Tenant(
            name=name, weight=given.weight, starts=rates, concurrency=given.concurrency, quotas=given.quotas
        )
        return check_tenant(tenant)


quota_routes = Routes("/v1/quotas", "tenants")


@quota_routes.get("", Scope.JOBS_READ)
async def show_quotas(request: Request, caller: Authenticated, tenant: str | None = None) -> TenantQuotasDocument:
    """Show what a tenant may keep in the store, and what it keeps now. Without `tenant`: the caller's."""
    name, quotas = visible_tenant(caller, tenant) or caller.tenant, get_service(request).quotas
    return quotas_document(name, await quotas.quotas(name), await quotas.use(name))


schedule_routes = Routes("/v1/schedules", "schedules")


@schedule_routes.get("", Scope.OPERATE, problems=(400,))
async def list_schedules(
    request: Request, caller: Authenticated, limit: PageLimit = 50, cursor: str | None = None
) -> DocumentPage[ScheduleDocument]:
    """List schedules with their last and next fire times."""
    rows = await get_service(request).world.store.schedules.all()
    return build_page(request, caller, rows, lambda row: row.schedule.name, document, limit, cursor)


@schedule_routes.get("/{name:path}", Scope.OPERATE)
async def show_schedule(request: Request, name: str) -> ScheduleDocument:
    """Show one schedule."""
    return document(await find_schedule(request, name))


@schedule_routes.post("/{name:path}/pause", Scope.OPERATE)
async def pause_schedule(request: Request, name: str) -> ScheduleDocument:
    """Pause a schedule. Fires that fall into the pause are skipped."""
    return await set_paused(request, name, True)


@schedule_routes.post("/{name:path}/resume", Scope.OPERATE)
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


worker_routes = Routes("/v1/workers", "workers")


@worker_routes.get("", Scope.OPERATE, problems=(400,))
async def list_workers(
    request: Request, caller: Authenticated, limit: PageLimit = 50, cursor: str | None = None
) -> DocumentPage[WorkerDocument]:
    """List the workers: those that report themselves, and those that hold leases. A worker that was killed is listed as
    lost for an hour."""
    views = await read_workers(get_service(request).world)
    return build_page(request, caller, views, lambda view: view.worker.name, worker_document, limit, cursor)


@worker_routes.post("/{name:path}/drain", Scope.OPERATE)
async def drain_worker(request: Request, name: str) -> WorkerDocument:
    """Ask a worker to stop. It learns of it within five seconds, claims no more jobs, and finishes those that it
    runs."""
    world = get_service(request).world
    known = await require_workers(world.store).drain(WorkerId(name))
    for view in await read_workers(world) if known else []:
        if view.worker.name == name:
            return worker_document(view)
    raise not_found("worker", name, "it has stopped, or sends no heartbeats")
