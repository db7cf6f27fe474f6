"""Stores a tenant's settings: its caps in the limiter, everything else in the store."""

from leaseway.domain.tenant import Tenant
from leaseway.ports.limiter import Limiter
from leaseway.ports.tenant_store import TenantStore


async def store_tenant(tenants: TenantStore, limiter: Limiter, tenant: Tenant) -> None:
    """The caps are stored first, because a worker that sees a capped tenant must find its limit."""
    if tenant.is_capped:
        await limiter.open()
        await limiter.definitions.change(tenant.definition())
    await tenants.set(tenant)
