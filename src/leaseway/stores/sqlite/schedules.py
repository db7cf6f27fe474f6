"""Schedules in one SQLite file."""

from collections.abc import Sequence

from leaseway.domain.ids import Instant
from leaseway.domain.job import NewJob
from leaseway.domain.schedule import Schedule, StoredSchedule
from leaseway.stores.sqlite import rows
from leaseway.stores.sqlite.database import Database
from leaseway.stores.sqlite.rows import Row
from leaseway.stores.sqlite.transaction import Transaction


class SqliteSchedules:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def declare(self, schedules: Sequence[Schedule]) -> None:
        def work(transaction: Transaction) -> None:
            for each in schedules:
                names = {"name": each.name, "kind": each.kind, "cron": each.cron, "tz": each.tz}
                transaction.run("schedule_declare", **names, missed=each.missed.value, now=transaction.now)

        await self._database.write(work)

    async def all(self) -> list[StoredSchedule]:
        found = await self._database.read("schedule_list")
        return [rows.schedule_of(row, self._database.now_us()) for row in found]

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        def work(transaction: Transaction) -> bool:
            if not transaction.run("schedule_fire", name=name, seen=seen, upto=upto):
                return False
            transaction.submit(jobs, conflicts_replay=True)
            return True

        fired = await self._database.write(work)
        self._database.notifier.ring()
        return fired

    async def pause(self, name: str, paused: bool) -> bool:
        def work(transaction: Transaction) -> list[Row]:
            return transaction.run("schedule_pause", name=name, paused=paused, now=transaction.now)

        return bool(await self._database.write(work))
