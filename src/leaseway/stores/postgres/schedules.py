"""Schedules in PostgreSQL."""

from collections.abc import Sequence

from leaseway.domain.ids import Instant
from leaseway.domain.job import NewJob
from leaseway.domain.schedule import Schedule, StoredSchedule
from leaseway.stores.postgres import rows
from leaseway.stores.postgres.database import JobDatabase
from leaseway.stores.postgres.jobs import distinct
from leaseway.stores.postgres.rows import encode_json


class PostgresSchedules:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def declare(self, schedules: Sequence[Schedule]) -> None:
        last = {schedule.name: schedule for schedule in schedules}
        await self._database.call("declare_schedules", encode_json(list(last.values())), self._database.at())

    async def all(self) -> list[StoredSchedule]:
        found = await self._database.read("list_schedules")
        now = await self._database.now()
        return [rows.parse_schedule(row, now) for row in found]

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        ((fired,),) = await self._database.call(
            "fire_schedule", name, seen, upto, *rows.submit_arguments(distinct(jobs)), self._database.at()
        )
        self._database.notifier.notify()
        return bool(fired)

    async def pause(self, name: str, paused: bool) -> bool:
        ((is_known,),) = await self._database.call("pause_schedule", name, paused, self._database.at())
        return bool(is_known)
