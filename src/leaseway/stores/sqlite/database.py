"""One SQLite file as the store's ports share it: connection, clock, statements, and the notifier of this process.

SQLite is a library, so the process that calls it is the store, and the clock it is given is the store's clock. Each
transaction reads the clock once.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import msgspec

from leaseway.domain.ids import Instant
from leaseway.domain.job import State
from leaseway.domain.lane import LaneCount
from leaseway.stores.local_notifier import LocalNotifier
from leaseway.stores.sqlite.connection import Connection

T = TypeVar("T")
Row = tuple[Any, ...]

SQL = files(__package__) / "sql"
READY, SCHEDULED, LEASED, DONE, FAILED, CANCELLED = "ready", "scheduled", "leased", "done", "failed", "cancelled"
STATES = {
    READY: State.PENDING, SCHEDULED: State.PENDING, LEASED: State.LEASED, DONE: State.DONE, FAILED: State.FAILED,
    CANCELLED: State.CANCELLED,
}  # fmt: skip
"""The states of the table `jobs`, in the order of the counters of a lane. A pending job is ready or scheduled."""

_encode = msgspec.json.Encoder().encode
_decode_rows = msgspec.json.Decoder(list[Row]).decode


def as_json(value: Any) -> str:
    return _encode(value).decode()


@cache
def statements() -> Mapping[str, str]:
    """The statements of the store by name; each is a file."""
    return {file.name.removesuffix(".sql"): file.read_text("utf-8") for file in SQL.iterdir() if file.is_file()}


def parse_lane(row: Row) -> LaneCount:
    queue, tenant, needs, ready, scheduled, leased, done, failed, cancelled = row
    return LaneCount(
        queue=queue, tenant=tenant, needs=needs, ready=ready, scheduled=scheduled, leased=leased, done=done,
        failed=failed, cancelled=cancelled,
    )  # fmt: skip


class Transaction:
    """An open write transaction, with the instant at which it began and the changes to the counters of lanes.

    `close` adds the changes to the counters: one statement per lane, however many jobs moved.
    """

    def __init__(self, connection: sqlite3.Connection, now: Instant, sql: Mapping[str, str]) -> None:
        self.connection = connection
        self.now = now
        self._sql = sql
        self._changes: dict[int, dict[str, int]] = {}

    def run(self, verb: str, **values: object) -> list[Row]:
        """Run a statement by its name and return all rows."""
        return self.connection.execute(self._sql[verb], values).fetchall()

    def run_one(self, verb: str, **values: object) -> list[Row]:
        """Run a statement that packs all rows into one row of JSON.

        sqlite3 releases the interpreter lock before each row and must get it back afterwards: a thousand rows would
        mean a thousand waits while handlers are busy.
        """
        ((text,),) = self.run(verb, **values)
        return _decode_rows(text)

    def change(self, verb: str, **values: object) -> int:
        """Run a statement by its name and return the number of rows that it changed."""
        return self.connection.execute(self._sql[verb], values).rowcount

    def run_each(self, verb: str, rows: Iterable[Row]) -> int:
        """Run a statement once per row of values and return the number of rows that it changed."""
        return self.connection.executemany(self._sql[verb], rows).rowcount

    def count(self, lane: int, state: str, change: int) -> None:
        changes = self._changes.get(lane)
        if changes is None:
            changes = self._changes[lane] = dict.fromkeys(STATES, 0)
        changes[state] += change

    def moved(self, lane: int, before: str, after: str) -> None:
        self.count(lane, before, -1)
        self.count(lane, after, +1)

    def close(self) -> None:
        if self._changes:
            self.run_each("lane_count", [(*changes.values(), lane) for lane, changes in self._changes.items()])
            self._changes.clear()


class Database:
    def __init__(self, connection: Connection, now_us: Callable[[], Instant], sql: Mapping[str, str]) -> None:
        self.connection = connection
        self.now_us = now_us
        self.sql = sql
        self.notifier = LocalNotifier()

    async def write(self, step: Callable[[Transaction], T]) -> T:
        return await self.connection.write(self._in_transaction(step))

    def write_blocking(self, step: Callable[[Transaction], T]) -> T:
        return self.connection.write_blocking(self._in_transaction(step))

    def _in_transaction(self, step: Callable[[Transaction], T]) -> Callable[[sqlite3.Connection], T]:
        def work(connection: sqlite3.Connection) -> T:
            transaction = Transaction(connection, self.now_us(), self.sql)
            answer = step(transaction)
            transaction.close()
            return answer

        return work

    async def read(self, verb: str, **values: object) -> list[Row]:
        return await self.connection.read(lambda connection: connection.execute(self.sql[verb], values).fetchall())
