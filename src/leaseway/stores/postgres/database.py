"""One PostgreSQL schema as several ports share it: connections, statements, the clock, and notifications.

The server's clock decides. `now_us` is for tests that move time: its value is then sent along as the instant.
"""

from collections.abc import Callable

from leaseway.domain.ids import Instant
from leaseway.stores.local_notifier import LocalNotifier
from leaseway.stores.postgres.address import parse_address
from leaseway.stores.postgres.connection import Connections, Record
from leaseway.stores.postgres.notify import NotificationListener, Notifier
from leaseway.stores.postgres.statements import statements_for


class Database:
    def __init__(
        self, url: str, now_us: Callable[[], Instant] | None = None, connections: Connections | None = None
    ) -> None:
        self.address = parse_address(url)
        self.now_us = now_us
        self.connections = connections or Connections(self.address)
        self.sql = statements_for(self.address.quoted)

    def at(self) -> Instant | None:
        return None if self.now_us is None else self.now_us()

    async def now(self) -> Instant:
        if self.now_us is not None:
            return self.now_us()
        ((now,),) = await self.read("now")
        return int(now)

    async def call(self, verb: str, *values: object) -> list[Record]:
        return await self.connections.call(self.sql[verb], *values)

    async def read(self, verb: str, *values: object) -> list[Record]:
        return await self.connections.read(self.sql[verb], *values)


class JobDatabase(Database):
    """With notifications to the workers of this process and of others."""

    def __init__(self, url: str, now_us: Callable[[], Instant] | None = None) -> None:
        super().__init__(url, now_us)
        self.local = LocalNotifier()
        self.notifier = Notifier(self.connections, self.local)
        self.listener = NotificationListener(self.connections, self.local, self.notifier.is_own)
