"""Lists for people who choose and turn pages, however many jobs there are.

Reading changes nothing and blocks no writer, and what one look costs does not grow with the number of jobs.
One contract, `leaseway.testing.search_contract`, proves every store.
"""

from typing import Protocol, runtime_checkable

from leaseway.domain.ids import JobId
from leaseway.domain.inspection import SCAN_MAX, JobFilter, SearchPage


@runtime_checkable
class Search(Protocol):
    async def search(
        self, which: JobFilter, *, before: JobId | None = None, limit: int = 50, looks: int = SCAN_MAX
    ) -> SearchPage:
        """Jobs that fit and are older than `before`, the newest first, at most `limit`.

        It looks at about so many jobs at most, and may answer with fewer than there are, even with none: `upto` says
        where to go on. Whoever goes on until it is None has seen every job that fits, and each once."""
        ...
