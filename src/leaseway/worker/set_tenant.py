"""What is agreed with a tenant reaches two places: the caps go to the limiter, the agreement to the store."""

from leaseway.domain.tenant import Tenant
from leaseway.ports.limiter import Limiter
from leaseway.ports.tenant_store import TenantStore


async def store_tenant(tenants: TenantStore, limiter: Limiter, tenant: Tenant) -> None:
    """The caps first: whoever sees that a tenant is capped must find them."""
    if tenant.is_capped:
        await limiter.open()
        await limiter.definitions.change(tenant.definition())
    await tenants.set(tenant)
