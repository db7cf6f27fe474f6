"""No tests: a PostgreSQL store that is called as the flows call it."""

from collections.abc import Sequence
from typing import Any

from leaseway.domain.job import NewJob, Submitted
from leaseway.stores.postgres.store import PostgresStore


class CalledPostgres(PostgresStore):
    """Who submits says of ids that were never sent that they are fresh, and of no others. So the contract goes both
    ways: the short one, and the one for repetitions."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._sent: set[str] = set()

    async def submit(self, jobs: Sequence[NewJob], *, fresh: bool = False) -> list[Submitted]:
        fresh = self._sent.isdisjoint(job.id for job in jobs)
        self._sent.update(job.id for job in jobs)
        return await super().submit(jobs, fresh=fresh)
