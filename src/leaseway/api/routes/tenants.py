"""/v1/tenants: what is agreed with tenants: weight, starts, and how much may run at once."""

from fastapi import Request
from msgspec import Struct
from starlette.responses import Response

from leaseway.api.pagination import Limit, changing, paged, pointing, service_in, unknown
from leaseway.api.request_body import body_of
from leaseway.api.responses import answer, page
from leaseway.api.routes.limits_write import RateBody, rate_in
from leaseway.api.routing import Asking, Routes
from leaseway.api.schemas.serializers import tenant_json
from leaseway.domain.identity import Scope
from leaseway.domain.tenant import Tenant, check_tenant
from leaseway.domain.validators import check_name
from leaseway.worker.set_tenant import store_tenant

routes = Routes("/v1/tenants", "tenants")


class TenantBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """An agreement as a whole: what is left out is not agreed."""

    weight: int = 1
    starts: list[str | RateBody] = []
    """How many jobs may start: "100/minute", or count and window."""
    concurrency: int | None = None
    """How many jobs may run at once."""


@routes.get("", Scope.OPERATE)
async def list_tenants(request: Request, caller: Asking, limit: Limit = 50, cursor: str | None = None) -> Response:
    """Every tenant with whom something is agreed. Others weigh 1 and have no caps."""
    tenants = await service_in(request).world.store.tenants()
    shown, more = paged(request, caller, tenants, lambda tenant: tenant.name, limit, cursor)
    return page([tenant_json(tenant) for tenant in shown], more)


@routes.get("/{name:path}", Scope.JOBS_READ)
async def show_tenant(request: Request, caller: Asking, name: str) -> Response:
    """What is agreed with a tenant. Tenants see their own."""
    found = await tenant_named(request, name) if caller.sees(name) else None
    if found is None:
        raise unknown("agreement with a tenant", name, "it weighs 1 and has no caps")
    return answer(tenant_json(found))


@routes.put("/{name:path}", Scope.OPERATE, body=TenantBody)
async def put_tenant(request: Request, name: str) -> Response:
    """Agree something with a tenant, as a whole. In force from the next claim on."""
    wanted = tenant_of(name, await body_of(request, TenantBody))
    world = service_in(request).world
    async with changing(request):
        before = await tenant_named(request, name)
        await store_tenant(world.store, world.limiter, wanted)
    return answer(tenant_json(wanted), 201 if before is None else 200)


@routes.delete("/{name:path}", Scope.OPERATE, status_code=204)
async def delete_tenant(request: Request, name: str) -> Response:
    """Forget what was agreed: the tenant weighs 1 and has no caps. Its jobs stay."""
    known = await tenant_named(request, name)
    if known is None or not await service_in(request).world.store.forget_tenant(name):
        raise unknown("agreement with a tenant", name)
    return Response(status_code=204)


async def tenant_named(request: Request, name: str) -> Tenant | None:
    tenants = await service_in(request).world.store.tenants()
    return next((tenant for tenant in tenants if tenant.name == name), None)


def tenant_of(name: str, given: TenantBody) -> Tenant:
    check_name("name", name)
    limit = Tenant(name=name).limit
    # The caps are checked as the limit that they become.
    with pointing(f"tenant {name}", "weight"), pointing(f"limit {limit}", "starts", {"rates": "starts"}):
        rates = tuple(sorted(rate_in(limit, rate) for rate in given.starts))
        return check_tenant(Tenant(name=name, weight=given.weight, starts=rates, concurrency=given.concurrency))
