"""/v1/tenants: the weight and the caps of tenants."""

from fastapi import Request
from msgspec import Struct

from leaseway.api.errors import not_found
from leaseway.api.pagination import PageLimit, build_page
from leaseway.api.preconditions import change_lock
from leaseway.api.request_body import body_fields, read_body
from leaseway.api.responses import DocumentPage, Reply
from leaseway.api.routes.limits import RateBody, parse_rate_body
from leaseway.api.routing import Authenticated, Routes
from leaseway.api.schemas.operations import TenantDocument, tenant_document
from leaseway.api.service import get_service
from leaseway.domain.identity import Scope
from leaseway.domain.tenant import Tenant, check_tenant
from leaseway.domain.validators import check_name
from leaseway.worker.definitions import store_tenant

routes = Routes("/v1/tenants", "tenants")


ADVICE = "it has weight 1 and no caps"


class TenantBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """All settings of a tenant: omitted fields have their default values."""

    weight: int = 1
    starts: list[str | RateBody] = []
    """How many jobs may start: "100/minute", or count and window."""
    concurrency: int | None = None
    """How many jobs may run at the same time."""


@routes.get("", Scope.OPERATE, problems=(400,))
async def list_tenants(
    request: Request, caller: Authenticated, limit: PageLimit = 50, cursor: str | None = None
) -> DocumentPage[TenantDocument]:
    """List tenants with settings. Every other tenant has weight 1 and no caps."""
    tenants = await get_service(request).world.store.tenants.all()
    return build_page(request, caller, tenants, lambda tenant: tenant.name, tenant_document, limit, cursor)


@routes.get("/{name:path}", Scope.JOBS_READ)
async def show_tenant(request: Request, caller: Authenticated, name: str) -> TenantDocument:
    """Show the settings of a tenant. Tenants can read their own settings."""
    found = await find_tenant(request, name) if caller.sees(name) else None
    if found is None:
        raise not_found("tenant with settings named", name, ADVICE)
    return tenant_document(found)


@routes.put("/{name:path}", Scope.OPERATE, body=TenantBody, also=(201,))
async def put_tenant(request: Request, name: str) -> Reply[TenantDocument]:
    """Set the weight and the caps of a tenant. They take effect with the next claim."""
    wanted = parse_tenant(name, await read_body(request, TenantBody))
    world = get_service(request).world
    async with change_lock(request):
        before = await find_tenant(request, name)
        await store_tenant(world.store.tenants, world.limiter, wanted)
    return Reply(tenant_document(wanted), 201 if before is None else 200)


@routes.delete("/{name:path}", Scope.OPERATE, status_code=204)
async def delete_tenant(request: Request, name: str) -> None:
    """Forget the settings of a tenant: it has weight 1 and no caps. Its jobs stay."""
    known = await find_tenant(request, name)
    if known is None or not await get_service(request).world.store.tenants.forget(name):
        raise not_found("tenant with settings named", name, ADVICE)


async def find_tenant(request: Request, name: str) -> Tenant | None:
    tenants = await get_service(request).world.store.tenants.all()
    return next((tenant for tenant in tenants if tenant.name == name), None)


def parse_tenant(name: str, given: TenantBody) -> Tenant:
    check_name("name", name)
    limit = Tenant(name=name).limit
    # The caps are checked as the limit that they become.
    with body_fields(f"tenant {name}", "weight"), body_fields(f"limit {limit}", "starts", {"rates": "starts"}):
        rates = tuple(sorted(parse_rate_body(limit, rate) for rate in given.starts))
        return check_tenant(Tenant(name=name, weight=given.weight, starts=rates, concurrency=given.concurrency))
