"""/v1/workers: workers that hold leases. An idle worker holds none and is not listed."""

from fastapi import Request

from leaseway.api.inspection import store_stats
from leaseway.api.pagination import PageLimit, build_page
from leaseway.api.responses import DocumentPage
from leaseway.api.routing import Authenticated, Routes
from leaseway.api.schemas.operations import WorkerDocument, worker_document
from leaseway.api.service import get_service
from leaseway.domain.identity import Scope

routes = Routes("/v1/workers", "workers")


@routes.get("", Scope.OPERATE, problems=(400,))
async def list_workers(
    request: Request, caller: Authenticated, limit: PageLimit = 50, cursor: str | None = None
) -> DocumentPage[WorkerDocument]:
    """List the workers that hold leases."""
    owners = await store_stats(get_service(request).world).owners()
    return build_page(request, caller, owners, lambda owner: owner.name, worker_document, limit, cursor)
