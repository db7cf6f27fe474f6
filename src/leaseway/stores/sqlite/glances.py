"""Jobs seen in passing, asked of one SQLite file."""

from collections.abc import Callable, Sequence
from typing import Protocol

from leaseway.domain.ids import Instant, JobId
from leaseway.domain.inspection import SUMMARIES_MAX, JobSummary
from leaseway.stores.sqlite.rows import STATES, Row, as_json


class Asking(Protocol):
    """The store of which this is a part."""

    now_us: Callable[[], Instant]

    async def _read(self, verb: str, **values: object) -> list[Row]: ...


class SqliteGlances:
    async def lately(self: Asking, newest: int, ended_after: Instant, ended: int) -> tuple[Instant, list[JobSummary]]:
        now = self.now_us()
        found = await self._read("glimpse_lately", newest=max(newest, 0), after=ended_after, ended=max(ended, 0))
        return now, [glimpse_of(row) for row in found]

    async def glimpses(self: Asking, ids: Sequence[JobId]) -> list[JobSummary]:
        return [glimpse_of(row) for row in await self._read("glimpse_list", ids=as_json(list(ids[:SUMMARIES_MAX])))]


def glimpse_of(row: Row) -> JobSummary:
    (id_, kind, queue, tenant, stage, priority, attempts, most, progress, owner, until, cancel_requested, created_at,
     run_at, finished_at, error_code, error_at) = row  # fmt: skip
    return JobSummary(
        id=id_, kind=kind, queue=queue, tenant=tenant, state=STATES[stage], priority=priority, attempts=attempts,
        attempts_max=most, progress=progress, lease_owner=owner, lease_until=until,
        cancel_requested=bool(cancel_requested), created_at=created_at, run_at=run_at, finished_at=finished_at,
        last_error_code=error_code, last_error_at=error_at,
    )  # fmt: skip
