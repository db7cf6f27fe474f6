"""Limits in a separate file beside the jobs: `work.db-limits`.

The file is separate because it is written far more often and without waiting for the disk: grants that a power cut
loses count as used. A killed process loses nothing. Definitions are flushed to the disk.

Queued calls share a transaction, which reads and writes each level at most once. Cached levels are not read again while
no other process has written.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import msgspec

from leaseway.domain.errors import StoreRefused, UsageError
from leaseway.domain.ids import Instant
from leaseway.domain.inspection import DAMAGE, only_usable
from leaseway.domain.limits import buckets
from leaseway.domain.limits.buckets import Acquisition, Granted, Notice, Verdict
from leaseway.domain.limits.level import NEW, Level
from leaseway.domain.limits.limit import KNOWN_US, LimitDefinition, PermitRequest, Sizing, check_limit, size_limit
from leaseway.domain.limits.validation import (
    check_acquire,
    check_ended,
    check_in_flight,
    check_notice,
    check_requests,
    check_unused,
)
from leaseway.ports.limiter import LimitDefinitions
from leaseway.stores.python_limiter import FORGET_MAX, LimitLevels, StoredLimit, change_limit, check_all, declare_limit
from leaseway.stores.sqlite.connection import CHANCE, Answer, Connection, FileSession, Work, WriteSession
from leaseway.stores.sqlite.database import MachineClock, machine_clock
from leaseway.stores.sqlite.schema import read_version, refuse_foreign, split, write_version

SQL = files(__package__) / "sql" / "limits"
SCHEMA_VERSION = 1
CACHED_MAX = 10_000

parse_level = msgspec.json.Decoder(Level).decode
parse_definition = msgspec.json.Decoder(LimitDefinition).decode
Key = tuple[str, str]


@cache
def statements() -> Mapping[str, str]:
    return {file.name.removesuffix(".sql"): file.read_text("utf-8") for file in SQL.iterdir()}


def render_json(value: Level | LimitDefinition) -> str:
    return msgspec.json.encode(value).decode()


def create_tables(connection: sqlite3.Connection, path: str) -> None:
    """Create the tables of a new file, within the caller's transaction."""
    refuse_foreign(connection, path)
    present = read_version(connection)
    if present > SCHEMA_VERSION:
        raise StoreRefused(f"{path}: was written by a newer leaseway (version {present}); install a newer leaseway")
    if present == 0:
        for statement in split(statements()["schema"]):
            connection.execute(statement)
        write_version(connection, SCHEMA_VERSION)


def read_definition(connection: sqlite3.Connection, name: str) -> StoredLimit | None:
    found = connection.execute(statements()["definition_read"], {"name": name}).fetchone()
    if found is None:
        return None
    # One that cannot be used counts as none, so that the next declaration replaces it.
    return next(iter(only_usable([found], parse_stored)), None)


def parse_stored(row: Sequence[Any]) -> StoredLimit:
    text, declared, version = row
    definition = check_limit(parse_definition(text))
    return StoredLimit(
        definition, None if declared is None else parse_definition(declared), size_limit(definition, version)
    )


def parse_stored_level(limit: str, text: str) -> Level:
    try:
        return parse_level(text)
    except DAMAGE as error:
        advice = f"remove it with the limit: leaseway limits forget {limit}"
        raise StoreRefused(f"limit {limit}: what it has granted cannot be read ({error}); {advice}") from error


class FileLevels(LimitLevels):
    def __init__(self, clock: MachineClock, in_flight_grace_us: int = 0) -> None:
        super().__init__(in_flight_grace_us)
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._seen = -1
        """SQLite's data version of the file, which changes when other processes write."""
        self._is_open = False
        self._ahead_us = 0
        self._latest = 0
        self._forget_all()

    def _forget_all(self) -> None:
        self._is_fenced = False
        self._sizings: dict[str, Sizing | None] = {}
        self._levels: dict[Key, Level] = {}
        self._changed: dict[Key, Sizing] = {}
        self._is_new: set[Key] = set()

    def begin(self, connection: sqlite3.Connection) -> None:
        """Start a transaction. The cache is valid if only this process has written, without a failure."""
        (seen,) = connection.execute("PRAGMA data_version").fetchone()
        is_other = connection is not self._connection or seen != self._seen
        if is_other or self._is_open or len(self._levels) > CACHED_MAX:
            self._forget_all()
        self._connection, self._seen, self._is_open = connection, seen, True
        if not self._is_fenced:
            self._read_fence(connection)
        self.now = self._clock.ticks_us() + self._ahead_us
        if self._clock.is_settable:
            self.now = self._latest = max(self.now, self._latest)

    def end(self, connection: sqlite3.Connection) -> None:
        if self._clock.is_settable:
            self._write_fence(connection)
        rows = [self._row(key, sizing) for key, sizing in self._changed.items()]
        connection.executemany(statements()["level_write"], rows)
        if self._is_new:
            gone = self._run("level_forget", now=self.now, limit=FORGET_MAX * len(self._is_new)).fetchall()
            for key in gone:
                self._levels.pop(key, None)
        self._changed, self._is_new = {}, set()
        # If the COMMIT fails after this, the cache is ahead of the file; `rolled_back` discards it.
        self._is_open = False

    def rolled_back(self) -> None:
        self._is_open = True

    # -- reading and writing levels ---------------------------------------------------------------------------------

    def sizing(self, limit: str) -> Sizing | None:
        if limit not in self._sizings:
            known = read_definition(self._here, limit)
            self._sizings[limit] = known.sizing if known else None
        return self._sizings[limit]

    def read(self, limit: str, name: str) -> Level:
        level = self._levels.get((limit, name))
        if level is None:
            found = self._run("level_read", definition=limit, name=name).fetchone()
            level = self._levels[(limit, name)] = NEW if found is None else parse_stored_level(limit, found[0])
        return level

    def write(self, taking: Acquisition, level: Level) -> None:
        key = (taking.ask.limit, taking.ask.name)
        if taking.level is NEW:
            self._is_new.add(key)
        self._levels[key], self._changed[key] = level, taking.sizing

    # -- the file ---------------------------------------------------------------------------------------------------

    @property
    def _here(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    def _run(self, verb: str, **values: object) -> sqlite3.Cursor:
        return self._here.execute(statements()[verb], values)

    def _row(self, key: Key, sizing: Sizing) -> dict[str, object]:
        level = self._levels[key]
        idle_at = buckets.idle_at(level, sizing)
        return {"definition": key[0], "name": key[1], "level": render_json(level), "idle_at": idle_at}

    def _read_fence(self, connection: sqlite3.Connection) -> None:
        """After a restart of the machine, all earlier state counts as used. A new file knows that nothing was used."""
        found = self._run("fence_read").fetchone()
        if found is None or found[0] != self._clock.identity:
            self._ahead_us = self._clock.ahead_us(found[1] if found else 0)
            self._latest = self._clock.ticks_us() + self._ahead_us
            self.since = self._latest if found else self._latest - KNOWN_US
            self._write_fence(connection)
        else:
            _, self.since, self._ahead_us, self._latest = found
        self._is_fenced = True

    def _write_fence(self, connection: sqlite3.Connection) -> None:
        values = {"identity": self._clock.identity, "since": self.since}
        self._run("fence_write", **values, ahead_us=self._ahead_us, latest=self._latest)


class LevelsFile(Connection):
    """A connection whose transactions load and store the levels."""

    def __init__(
        self, path: str, random: Callable[[], float], levels: FileLevels, *, synchronous: str, inline: bool
    ) -> None:
        self._levels = levels
        self._synchronous = synchronous
        super().__init__(path, random, inline=inline)

    def connect(self) -> sqlite3.Connection:
        connection = super().connect()
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        return connection

    def write_session(self) -> FileSession:
        return LevelsSession(self, self._levels)


class LevelsSession(WriteSession):
    def __init__(self, file: Connection, levels: FileLevels) -> None:
        super().__init__(file)
        self._levels = levels

    def serve(self, works: Sequence[Work[Any]]) -> list[Answer]:
        """Run all works in one transaction. Only after an invalid call is each work run alone: works that may have been
        committed are not repeated, because permits must not be returned twice."""
        try:
            return [(answer, None) for answer in self._transact(works)]
        except Exception as error:  # noqa: BLE001 - it is delivered to the waiting caller
            if len(works) == 1 or not isinstance(error, UsageError):
                return [(None, error)] * len(works)
        return [answer for work in works for answer in self.serve([work])]

    def _transact(self, works: Sequence[Work[Any]]) -> list[Any]:
        try:
            return super()._transact([self._levels.begin, *works, self._levels.end])[1:-1]
        except BaseException:
            self._levels.rolled_back()
            raise


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
            return only_usable(found, lambda row: (check_limit(parse_definition(row[0])), row[1]))

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
        random: Callable[[], float] = CHANCE.random,
    ) -> None:
        self.path = path + SUFFIX
        clock = machine_clock() if now_us is None else MachineClock(now_us, identity)
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

    async def end_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, used: Sequence[int] = ()) -> None:
        check_ended(asks, holder, count, used)
        await self._write(lambda levels: levels.end_calls(asks, holder, count, used))

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


def synchronous_setting(clock: MachineClock) -> str:
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
