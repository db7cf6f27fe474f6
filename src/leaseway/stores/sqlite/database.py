"""One SQLite file as the store's ports share it: connection, clock, statements, and the notifier of this process.

SQLite is a library, so the process that calls it is the store, and the clock it is given is the store's clock. Each
transaction reads the clock once.
"""

import sqlite3
from collections.abc import Callable, Mapping
from typing import TypeVar

from leaseway.domain.ids import Instant
from leaseway.stores.local_notifier import Bell
from leaseway.stores.sqlite.connection import Connection
from leaseway.stores.sqlite.rows import Row
from leaseway.stores.sqlite.transaction import Transaction

T = TypeVar("T")


class Database:
    def __init__(self, connection: Connection, now_us: Callable[[], Instant], sql: Mapping[str, str]) -> None:
        self.connection = connection
        self.now_us = now_us
        self.sql = sql
        self.notifier = Bell()

    async def write(self, step: Callable[[Transaction], T]) -> T:
        return await self.connection.write(self._in_transaction(step))

    def write_blocking(self, step: Callable[[Transaction], T]) -> T:
        return self.connection.write_now(self._in_transaction(step))

    def _in_transaction(self, step: Callable[[Transaction], T]) -> Callable[[sqlite3.Connection], T]:
        def work(connection: sqlite3.Connection) -> T:
            transaction = Transaction(connection, self.now_us(), self.sql)
            answer = step(transaction)
            transaction.close()
            return answer

        return work

    async def read(self, verb: str, **values: object) -> list[Row]:
        return await self.connection.read(lambda connection: connection.execute(self.sql[verb], values).fetchall())
