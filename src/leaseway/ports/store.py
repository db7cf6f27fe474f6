"""Everything that one store offers. Callers that need less say so by naming the smaller port."""

from typing import Protocol

from leaseway.domain.errors import SchemaVersions
from leaseway.ports.job_store import JobStore
from leaseway.ports.job_traces import Traces
from leaseway.ports.key_store import KeyStore
from leaseway.ports.notifications import Wakeups
from leaseway.ports.read_model import ReadModel
from leaseway.ports.schedule_store import ScheduleStore
from leaseway.ports.tenant_store import TenantStore


class Store(JobStore, ReadModel, ScheduleStore, TenantStore, KeyStore, Traces, Wakeups, Protocol):
    async def open(self) -> int:
        """Connect, and bring the schema up to date; how many migrations that took."""
        ...

    async def versions(self) -> SchemaVersions:
        """The schema's version. Changes nothing, and works on a store that is not open."""
        ...

    async def close(self) -> None:
        """Let go of everything. Nothing is lost by not calling it."""
        ...
