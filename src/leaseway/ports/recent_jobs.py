"""A look at jobs in passing, several times a second, for those who watch.

Reading changes nothing and blocks no writer, and what it costs does not grow with the number of jobs.
One contract, `leaseway.testing.glances_contract`, proves every store.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from leaseway.domain.ids import Instant, JobId
from leaseway.domain.inspection import JobSummary


@runtime_checkable
class Glances(Protocol):
    async def lately(self, newest: int, ended_after: Instant, ended: int) -> tuple[Instant, list[JobSummary]]:
        """The store's clock from before the look; the newest jobs by id, at most so many, and the last that ended after
        this instant, at most so many. In no order, and perhaps one of them twice.

        A sample: where many jobs end at once, some may be missing, and so may those of the newest that have ended."""
        ...

    async def glimpses(self, ids: Sequence[JobId]) -> list[JobSummary]:
        """These jobs, wherever they are; unknown ones are left out. At most `SUMMARIES_MAX`."""
        ...
