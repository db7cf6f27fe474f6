"""Jobs seen in passing, asked of PostgreSQL."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

from leaseway.domain.ids import SECOND_US, Instant, JobId
from leaseway.domain.inspection import SUMMARIES_MAX, JobSummary
from leaseway.stores.postgres.address import Address
from leaseway.stores.postgres.connection import Record
from leaseway.stores.postgres.rows import STATES

DAY_US = 86_400 * SECOND_US


class Asking(Protocol):
    """The store of which this is a part."""

    address: Address

    async def now(self) -> Instant: ...

    async def _look(self, verb: str, *values: object) -> list[Record]: ...


class PostgresGlances:
    async def lately(self: Asking, newest: int, ended_after: Instant, ended: int) -> tuple[Instant, list[JobSummary]]:
        now = await self.now()
        day = now - now % DAY_US
        table = f"{self.address.quoted}.history_{datetime.fromtimestamp(day // SECOND_US, UTC):%Y%m%d}"
        bounds = (day, day + DAY_US, table)
        found = await self._look("recent_summaries", max(newest, 0), ended_after, max(ended, 0), *bounds)
        return now, [glimpse_of(row) for row in found]

    async def glimpses(self: Asking, ids: Sequence[JobId]) -> list[JobSummary]:
        return [glimpse_of(row) for row in await self._look("summaries_by_id", list(ids[:SUMMARIES_MAX]))]


def glimpse_of(row: Record) -> JobSummary:
    (id_, kind, queue, tenant, state, priority, attempts, most, progress, owner, until, cancel_requested, created_at,
     run_at, finished_at, error_code, error_at) = row  # fmt: skip
    return JobSummary(
        id=id_, kind=kind, queue=queue, tenant=tenant, state=STATES[state], priority=priority, attempts=attempts,
        attempts_max=most, progress=progress, lease_owner=owner, lease_until=until, cancel_requested=cancel_requested,
        created_at=created_at, run_at=run_at, finished_at=finished_at, last_error_code=error_code,
        last_error_at=error_at,
    )  # fmt: skip
