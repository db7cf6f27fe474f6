"""What people may ask: command line, API and dashboard. Reading changes nothing and blocks no writer."""

from collections.abc import Sequence
from typing import Protocol

from leaseway.domain.ids import Instant, JobId
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import ErrorRecord, Job, LaneCount


class ReadModel(Protocol):
    async def job(self, job: JobId) -> Job | None:
        """One record, or None."""
        ...

    async def jobs(self, which: JobFilter, *, before: JobId | None = None, limit: int = 50) -> list[Job]:
        """Newest first. `before` continues after the last id of the previous page."""
        ...

    async def errors(self, job: JobId) -> list[ErrorRecord]:
        """The last failed attempts of a job, oldest first; a bounded number is kept."""
        ...

    async def lanes(self) -> Sequence[LaneCount]:
        """Every lane with its counters, by queue, tenant and needs."""
        ...

    async def now(self) -> Instant:
        """The store's clock."""
        ...
