"""Reads for the command line, the API and the dashboard. Reading changes nothing and blocks no writer."""

from collections.abc import Sequence
from typing import Protocol

from leaseway.domain.health import Finding
from leaseway.domain.ids import Instant, JobId
from leaseway.domain.inspection import SCAN_MAX, EndedCount, JobFilter, JobSummary, LaneWait, LeaseOwner, SearchPage
from leaseway.domain.job import ErrorRecord, Job
from leaseway.domain.lane import LaneCount


class JobReads(Protocol):
    """Every store offers these. `leaseway.testing.reads_contract` proves each of them."""

    async def job(self, job: JobId) -> Job | None:
        """Return one job, or None if it does not exist."""
        ...

    async def jobs(
        self, which: JobFilter, *, before: JobId | None = None, limit: int = 50, bytes_max: int | None = None
    ) -> list[Job]:
        """Return matching jobs, newest first. `before` is the last id of the previous page.

        With `bytes_max`, the list ends with the job whose payload, cursor, progress and result reach this size. The
        texts of further jobs are not read.
        """
        ...

    async def errors(self, job: JobId) -> list[ErrorRecord]:
        """Return the last failed attempts of a job, oldest first. A bounded number is kept."""
        ...

    async def lanes(self, tenant: str | None = None) -> Sequence[LaneCount]:
        """Return the lanes of a tenant, or every lane, with their counters; by queue, tenant and needs."""
        ...

    async def now(self) -> Instant:
        """Return the store's clock."""
        ...

    async def locked_by(self, job: JobId) -> str | None:
        """Return the database session whose open transaction keeps workers from claiming this job, or None.

        Claims lock jobs for moments only; such locks are not reported.
        """
        ...


class Inspection(Protocol):
    """Reads that only a store with direct access to its data offers.

    The cost of a call does not grow with the number of jobs.
    """

    async def search(
        self, which: JobFilter, *, before: JobId | None = None, limit: int = 50, scan_max: int = SCAN_MAX
    ) -> SearchPage:
        """Return matching jobs older than `before`, newest first, at most `limit`.

        A call examines about `scan_max` jobs. It may therefore return fewer jobs than match, or none: `upto` is the id
        from which to continue. Calls repeated until `upto` is None return every matching job exactly once. A page ends
        with the job whose texts reach `PAGE_BYTES_MAX`, too.
        """
        ...

    async def recent(self, newest: int, ended_after: Instant, ended: int) -> tuple[Instant, list[JobSummary]]:
        """Return the store's clock as of before the read, the `newest` jobs by id, and the last jobs that ended after
        `ended_after`, at most `ended` of them. The order is unspecified, and a job may be listed twice.

        The answer is a sample: where many jobs end at once, some may be missing, and so may those among the newest
        that have ended.
        """
        ...

    async def summaries(self, ids: Sequence[JobId]) -> list[JobSummary]:
        """Return the jobs with these ids in any state. Unknown ids are left out. At most `SUMMARIES_MAX`."""
        ...

    async def owners(self) -> list[LeaseOwner]:
        """Return the workers that hold leases, by name, at most `OWNERS_MAX`. Idle workers are not listed."""
        ...

    async def waiting(self) -> list[LaneWait]:
        """Return every lane with a ready job, and since when its oldest is ready; by queue, tenant and needs.

        Readiness is that of the counters: a scheduled job whose time has come is ready once a worker has promoted it.
        """
        ...

    async def ended(self, after: Instant) -> tuple[Instant, list[EndedCount]]:
        """Count the jobs that ended after this instant, by queue, tenant and state.

        If more ended than the store examines, only the last ones are counted. The first value says from which instant
        on the counts are complete: `after`, or later.
        """
        ...

    async def jobs_for_keys(self, tenant: str, keys: Sequence[str]) -> dict[str, JobId]:
        """Return the jobs that were submitted with these idempotency keys, whether they are still stored or not.

        Keys that the tenant has not used, or that have expired and may be used again, are left out.
        """
        ...

    async def health(self, *, deep: bool = False) -> list[Finding]:
        """Run every health check and return all findings, in an order that leads from cause to effect.

        Works on a store that is not open, and reports a broken store instead of raising. Checks that read everything
        stop after some seconds; with `deep` they finish.
        """
        ...
