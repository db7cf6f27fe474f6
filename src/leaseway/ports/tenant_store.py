"""Where it is kept what was agreed with tenants. It is in force from the next claim on."""

from typing import Protocol

from leaseway.domain.tenant import Tenant


class TenantStore(Protocol):
    async def set_tenant(self, tenant: Tenant) -> None:
        """Create or replace it. A tenant that nobody has set weighs 1 and has no caps."""
        ...

    async def tenants(self) -> list[Tenant]:
        """All that were set, by name."""
        ...

    async def forget_tenant(self, name: str) -> bool:
        """As if nobody had set it. False: nobody had."""
        ...
