"""Schedules in one SQLite file."""

from collections.abc import Sequence

from leaseway.domain.ids import Instant
from leaseway.domain.job import NewJob
from leaseway.domain.schedule import Missed, Schedule, StoredSchedule
from leaseway.stores.sqlite.database import Database, Row, Transaction
from leaseway.stores.sqlite.jobs import submit


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
        return [parse_schedule(row, self._database.now_us()) for row in found]

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        def work(transaction: Transaction) -> bool:
            if not transaction.run("schedule_fire", name=name, seen=seen, upto=upto):
                return False
            submit(transaction, jobs, ignore_conflicts=True)
            return True

        fired = await self._database.write(work)
        self._database.notifier.ring()
        return fired

    async def pause(self, name: str, paused: bool) -> bool:
        def work(transaction: Transaction) -> list[Row]:
            return transaction.run("schedule_pause", name=name, paused=paused, now=transaction.now)

        return bool(await self._database.write(work))


def parse_schedule(row: Row, now: Instant) -> StoredSchedule:
    name, kind, cron, tz, missed, seen, last_fire, paused = row
    schedule = Schedule(name=name, kind=kind, cron=cron, tz=tz, missed=Missed(missed))
    return StoredSchedule(schedule=schedule, seen=seen, now=now, last_fire=last_fire, paused=bool(paused))
