"""Weights and caps of tenants, and paused lanes. Both take effect at the next claim."""

from typing import Protocol

from leaseway.domain.lane import Pause
from leaseway.domain.tenant import Tenant


class TenantStore(Protocol):
    async def set(self, tenant: Tenant) -> None:
        """Create or replace a tenant's settings. A tenant without settings has weight 1 and no caps."""
        ...

    async def all(self) -> list[Tenant]:
        """Return every tenant that has settings, by name."""
        ...

    async def forget(self, name: str) -> bool:
        """Restore the defaults. False: the tenant had no settings."""
        ...


class LanePauses(Protocol):
    """`leaseway.testing.pauses_contract` proves every store."""

    async def pause(self, queue: str, tenant: str | None = None) -> bool:
        """Stop claims from the lanes of this queue, of one tenant or of all. Running jobs continue and settle.

        False: they were paused already.
        """
        ...

    async def resume(self, queue: str, tenant: str | None = None) -> bool:
        """Allow claims again. Only this pause ends: a queue that is paused as a whole stays paused for its tenants.

        False: there was no such pause.
        """
        ...

    async def all(self) -> list[Pause]:
        """Return all pauses in force, by queue and tenant."""
        ...
