"""One PostgreSQL schema as several ports share it: connections, statements, the clock, and notifications.

The server's clock decides. `now_us` is for tests that move time: its value is then sent along as the instant.
"""

import asyncio
from collections.abc import Callable

from leaseway.domain.errors import LeasewayError, StoreRefused
from leaseway.domain.ids import Instant
from leaseway.domain.store_clock import ClockWatch
from leaseway.stores.event_loops import LocalNotifier
from leaseway.stores.postgres.address import parse_address
from leaseway.stores.postgres.connection import Connections, Record
from leaseway.stores.postgres.notify import NotificationListener, Notifier
from leaseway.stores.postgres.statements import statements_for

WATCH_SECONDS = 5.0
"""How often a process that makes calls compares the server's clock with its own."""


class Database:
    def __init__(
        self, url: str, now_us: Callable[[], Instant] | None = None, connections: Connections | None = None
    ) -> None:
        self.address = parse_address(url)
        self.now_us = now_us
        self.connections = connections or Connections(self.address)
        self.sql = statements_for(self.address.quoted)
        self._watch = ClockWatch()
        self._watched_at = 0.0

    def at(self) -> Instant | None:
        return None if self.now_us is None else self.now_us()

    async def now(self) -> Instant:
        if self.now_us is not None:
            return self.now_us()
        ((now,),) = await self.read("now")
        return int(now)

    async def call(self, verb: str, *values: object) -> list[Record]:
        answer = await self.connections.call(self.sql[verb], *values)
        if monotonic() > self._watched_at + WATCH_SECONDS and self.now_us is None:
            await self.watch_clock()
        return answer

    async def watch_clock(self) -> None:
        """Compare the server's clock with the one of this process. If it was set back, the store's time goes on."""
        sent = self._watched_at = monotonic()
        try:
            ((instant,),) = await self.connections.call(self.sql["watch_clock"], self._watch.least_now(sent))
        except StoreRefused:  # this role may only submit
            self._watched_at = float("inf")
        except LeasewayError:
            return
        else:
            self._watch.observe(instant, monotonic())

    async def read(self, verb: str, *values: object) -> list[Record]:
        return await self.connections.read(self.sql[verb], *values)


def monotonic() -> float:
    """Seconds of a clock that all event loops of this process share."""
    return asyncio.get_running_loop().time()


class JobDatabase(Database):
    """With notifications to the workers of this process and of others."""

    def __init__(self, url: str, now_us: Callable[[], Instant] | None = None) -> None:
        super().__init__(url, now_us)
        self.local = LocalNotifier()
        self.notifier = Notifier(self.connections, self.local)
        self.listener = NotificationListener(self.connections, self.local, self.notifier.is_own)
