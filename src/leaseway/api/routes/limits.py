"""/v1/limits: what providers permit, and how much of it is in use. `limits_write` changes it."""

from fastapi import Request

from leaseway.api.errors import not_found
from leaseway.api.inspection import try_read_levels
from leaseway.api.pagination import PageLimit, paginate
from leaseway.api.preconditions import etag
from leaseway.api.responses import DocumentPage, Reply
from leaseway.api.routing import Authenticated, Routes
from leaseway.api.schemas.limits import LimitDocument, limit_document
from leaseway.api.service import get_service
from leaseway.domain.identity import Scope
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, matching_limit, template_fields
from leaseway.worker.explain_waits import Defined, limits_by_name

routes = Routes("/v1/limits", "limits")


@routes.get("", Scope.OPERATE, problems=(400,))
async def list_limits(
    request: Request, caller: Authenticated, limit: PageLimit = 50, cursor: str | None = None
) -> DocumentPage[LimitDocument]:
    """List limits, how much of each is in use, and when it has permits again."""
    world = get_service(request).world
    defined = await limits_by_name(world.limiter)
    shown, more = paginate(request, caller, sorted(defined), str, limit, cursor)
    seen = await try_read_levels(
        world.limiter, [PermitRequest(name, name) for name in shown if not template_fields(name)]
    )
    now = await world.store.reads.now()
    return DocumentPage(
        [limit_document(*defined[name], seen.get(PermitRequest(name, name)), now) for name in shown], more
    )


@routes.get("/{name:path}", Scope.OPERATE)
async def show_limit(request: Request, name: str) -> Reply[LimitDocument]:
    """Show one limit. The name may also be an instance of a limit with fields: maps:acme for maps:{tenant}."""
    world = get_service(request).world
    definition, version = find_definition(name, await limits_by_name(world.limiter))
    seen = await try_read_levels(world.limiter, [] if template_fields(name) else [PermitRequest(name, definition.name)])
    shown = limit_document(definition, version, next(iter(seen.values()), None), await world.store.reads.now())
    shown.name, shown.limit = name, definition.name
    return Reply(shown, headers=etag(version))


def find_definition(name: str, defined: Defined) -> tuple[LimitDefinition, int]:
    limit = matching_limit(name, defined)
    if limit is None:
        advice = "a worker declares it with the first job that needs it, or you define it with PUT"
        raise not_found("limit", name, advice)
    return defined[limit]
