"""/v1/scale: how many workers a pool should have, for orchestrators."""

from collections.abc import Sequence

from fastapi import Request

from leaseway.api.errors import Problem
from leaseway.api.pagination import PageLimit, build_page
from leaseway.api.routes.metrics import system_snapshot
from leaseway.api.routing import Authenticated, DocumentPage, Routes
from leaseway.api.schemas.scaling import PoolDocument, ScaleDocument, pool_document, scale_document
from leaseway.api.service import get_service
from leaseway.domain.identity import Scope
from leaseway.domain.ids import Instant
from leaseway.domain.lane import LaneCount
from leaseway.domain.scaling.agreement import PoolAgreement
from leaseway.scaling.agree import read_pools

routes = Routes("/v1/scale", "scaling")


@routes.get("", Scope.OPERATE, problems=(400,))
async def list_pools(
    request: Request, caller: Authenticated, limit: PageLimit = 50, cursor: str | None = None
) -> DocumentPage[PoolDocument]:
    """List the pools of workers that are scaled now, with their fleets and their last decisions.

    Fleets of the same queues share a pool, also on several machines, and so do the replicas of this service."""
    found = list((await read_pools(get_service(request).world.store)).items())
    return build_page(request, caller, found, pool_name, name_pool, limit, cursor)


def pool_name(found: tuple[str, PoolAgreement]) -> str:
    return found[0]


def name_pool(found: tuple[str, PoolAgreement]) -> PoolDocument:
    return pool_document(*found)


@routes.get("/{name}", Scope.OPERATE, problems=(404,))
async def read_scale(request: Request, name: str) -> ScaleDocument:
    """Show how many workers a pool should have, and why. For orchestrators, which start and end the workers.

    A pool is a set of queues that is named by `leaseway serve --pool`. If the store has not responded for a minute, the
    answer is 503: keep the workers that run."""
    pools = get_service(request).pools
    if name not in pools:
        raise Problem(404, "not_found", f"there is no pool {name[:100]!r}; pools: {', '.join(pools)[:300]}")

    async def load() -> tuple[Instant, Sequence[LaneCount]]:
        snapshot = await system_snapshot(request)
        return snapshot.at, snapshot.lanes

    return scale_document(pools[name].spec, await pools[name].read(load))
