"""/v1/workers: who works. Leases tell it: a worker that has nothing to do holds none, and is not seen."""

from typing import Any

from fastapi import Request
from starlette.responses import Response

from leaseway.api.pagination import Limit, paged, pulse_of
from leaseway.api.responses import page
from leaseway.api.routing import Asking, Routes
from leaseway.api.schemas.serializers import iso
from leaseway.domain.identity import Scope
from leaseway.domain.inspection import LeaseOwner

routes = Routes("/v1/workers", "workers")


@routes.get("", Scope.OPERATE)
async def list_workers(request: Request, caller: Asking, limit: Limit = 50, cursor: str | None = None) -> Response:
    """Every worker that holds leases."""
    owners = await pulse_of(request).owners()
    shown, more = paged(request, caller, owners, lambda owner: owner.name, limit, cursor)
    return page([worker_json(owner) for owner in shown], more)


def worker_json(owner: LeaseOwner) -> dict[str, Any]:
    return {
        "name": owner.name,
        "leased": owner.leased,
        "late": owner.late,
        "heard_at": iso(owner.heard_at),
        "until": iso(owner.until),
    }
