"""Limits in a separate file beside the jobs: `work.db-limits`.

The file is separate because it is written far more often and without waiting for the disk: grants that a power cut
loses count as used. A killed process loses nothing. Definitions are flushed to the disk.
"""

import random
import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from leaseway.domain.ids import Instant
from leaseway.domain.limits.buckets import Granted, Level, Notice, Verdict
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest
from leaseway.domain.limits.validation import check_acquire, check_in_flight, check_notice, check_requests, check_unused
from leaseway.ports.limiter import LimitDefinitions
from leaseway.stores.python_limiter import StoredLimit, change_limit, check_all, declare_limit
from leaseway.stores.sqlite.connection import Connection
from leaseway.stores.sqlite.limit_levels import (
    FileLevels,
    LevelsFile,
    LimiterClock,
    create_tables,
    machine_clock,
    parse_definition,
    read_definition,
    render_json,
    statements,
)

T = TypeVar("T")

SUFFIX = "-limits"


class SqliteLimitDefinitions:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def declare(self, definitions: Sequence[LimitDefinition]) -> None:
        check_all(definitions)

        def work(connection: sqlite3.Connection) -> None:
            for definition in definitions:
                if (news := declare_limit(read_definition(connection, definition.name), definition)) is not None:
                    write_definition(connection, news)

        await self._connection.write(work)

    async def change(self, definition: LimitDefinition, *, expected: int | None = None) -> int:
        check_all([definition])

        def work(connection: sqlite3.Connection) -> int:
            news = change_limit(read_definition(connection, definition.name), definition, expected)
            write_definition(connection, news)
            return news.sizing.version

        return await self._connection.write(work)

    async def all(self) -> list[tuple[LimitDefinition, int]]:
        def work(connection: sqlite3.Connection) -> list[tuple[LimitDefinition, int]]:
            found = connection.execute(statements()["definition_list"]).fetchall()
            return [(parse_definition(definition), version) for definition, version in found]

        return await self._connection.read(work)

    async def forget(self, name: str) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            connection.execute(statements()["level_delete"], {"definition": name})
            return connection.execute(statements()["definition_delete"], {"name": name}).rowcount > 0

        return await self._connection.write(work)


class SqliteLimiter:
    """The limiter for the jobs at `path`. Any event loop may call it. `now_us` and `identity` are for tests."""

    def __init__(
        self,
        path: str,
        now_us: Callable[[], Instant] | None = None,
        identity: str = "",
        *,
        durable: bool = True,
        inline: bool = False,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.path = path + SUFFIX
        clock = machine_clock() if now_us is None else LimiterClock(now_us, identity)
        # No grace for in-flight calls: every process that used this file stopped together with the machine.
        self._levels = FileLevels(clock)
        synchronous = synchronous_setting(clock) if durable else "OFF"
        self._file = LevelsFile(self.path, random, self._levels, synchronous=synchronous, inline=inline)
        self._connection = Connection(self.path, random, durable=durable, inline=inline)
        self.definitions: LimitDefinitions = SqliteLimitDefinitions(self._connection)

    async def open(self) -> None:
        await self._connection.open()
        await self._connection.write(lambda connection: create_tables(connection, self.path))
        await self._file.open()

    async def close(self) -> None:
        await self._file.close()
        await self._connection.close()

    async def acquire(
        self, asks: Sequence[PermitRequest], *, least: int = 1, most: int = 1, holder: str = "", in_flight_us: int = 0
    ) -> Verdict:
        check_acquire(asks, least, most, in_flight_us)
        return await self._write(lambda levels: levels.acquire(asks, least, most, holder, in_flight_us))

    async def return_unused(self, granted: Granted, unused: int) -> None:
        check_unused(granted, unused)
        await self._write(lambda levels: levels.return_unused(granted, unused))

    async def end_calls(self, asks: Sequence[PermitRequest], holder: str, count: int) -> None:
        check_in_flight(asks, holder, count)
        await self._write(lambda levels: levels.end_calls(asks, holder, count))

    async def renew_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, in_flight_us: int) -> None:
        check_in_flight(asks, holder, count, in_flight_us)
        await self._write(lambda levels: levels.renew_calls(asks, holder, count, in_flight_us))

    async def observe(self, notice: Notice) -> None:
        check_notice(notice)
        await self._write(lambda levels: levels.observe(notice))

    async def levels(self, asks: Sequence[PermitRequest]) -> tuple[Instant, list[Level]]:
        check_requests(asks)
        return await self._write(lambda levels: levels.read_levels(asks))

    async def _write(self, verb: Callable[[FileLevels], T]) -> T:
        return await self._file.write(lambda connection: verb(self._levels))


def synchronous_setting(clock: LimiterClock) -> str:
    """A power cut may lose the last grants if the fence detects it; otherwise each transaction is flushed.

    It must never damage the file, which holds the definitions: with OFF, pages could reach the disk before the log.
    """
    return "FULL" if clock.is_settable else "NORMAL"


def write_definition(connection: sqlite3.Connection, news: StoredLimit) -> None:
    name = news.definition.name
    declared = None if news.declared is None else render_json(news.declared)
    values = {"name": name, "definition": render_json(news.definition), "declared": declared}
    connection.execute(statements()["definition_write"], {**values, "version": news.sizing.version})
    connection.execute(statements()["level_remember"], {"definition": name})
