"""/v1/limits: what providers permit, and how much of it is used. How that is changed: `limits_changes`."""

from fastapi import Request
from starlette.responses import Response

from leaseway.api.inspection import seen_in
from leaseway.api.pagination import Limit as PageLimit
from leaseway.api.pagination import etag_of, paged, service_in, unknown
from leaseway.api.responses import answer, page
from leaseway.api.routing import Asking, Routes
from leaseway.api.schemas.limits import document
from leaseway.domain.identity import Scope
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, matching_limit, template_fields
from leaseway.worker.explain_waits import Defined, limits_by_name

routes = Routes("/v1/limits", "limits")

# -- looking --------------------------------------------------------------------------------------------------------


@routes.get("", Scope.OPERATE)
async def list_limits(request: Request, caller: Asking, limit: PageLimit = 50, cursor: str | None = None) -> Response:
    """Every limit, with how much of it is used and when it opens."""
    world = service_in(request).world
    defined = await limits_by_name(world.limiter)
    shown, more = paged(request, caller, sorted(defined), str, limit, cursor)
    seen = await seen_in(world.limiter, [PermitRequest(name, name) for name in shown if not template_fields(name)])
    now = await world.store.now()
    return page([document(*defined[name], seen.get(PermitRequest(name, name)), now) for name in shown], more)


@routes.get("/{name:path}", Scope.OPERATE)
async def show_limit(request: Request, name: str) -> Response:
    """One limit; also one of those that a limit with fields stands for."""
    world = service_in(request).world
    definition, version = defined_as(name, await limits_by_name(world.limiter))
    seen = await seen_in(world.limiter, [] if template_fields(name) else [PermitRequest(name, definition.name)])
    shown = document(definition, version, next(iter(seen.values()), None), await world.store.now())
    return answer({**shown, "name": name, "limit": definition.name}, headers=etag_of(version))


def defined_as(name: str, defined: Defined) -> tuple[LimitDefinition, int]:
    limit = matching_limit(name, defined)
    if limit is None:
        raise unknown("limit", name, "a worker declares it with the first job that needs it, or: PUT it here")
    return defined[limit]
