"""Schedules, tenants and lane pauses: what an app declares or an operator sets, and a store keeps."""

from collections.abc import Sequence
from typing import Protocol

from leaseway.domain.ids import Instant
from leaseway.domain.job import NewJob
from leaseway.domain.lane import Pause
from leaseway.domain.schedule import Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant


class ScheduleStore(Protocol):
    async def declare(self, schedules: Sequence[Schedule]) -> None:
        """Create or update schedules. A new or changed expression counts from now: it has no missed fires."""
        ...

    async def all(self) -> list[StoredSchedule]:
        """Return all schedules, by name, with the instant up to which fires were handled."""
        ...

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        """Submit the jobs and advance the schedule from `seen` to `upto`, in one transaction.

        False: another process has fired it, and nothing was written.
        """
        ...

    async def pause(self, name: str, paused: bool) -> bool:
        """Pause or resume a schedule. Fires missed while paused are dropped. False: there is no such schedule."""
        ...


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
