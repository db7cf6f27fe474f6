"""The levels of limits in a file during one write transaction, cached until another process writes.

Queued calls share a transaction, which reads and writes each level at most once. Cached levels are not read again
while no other process has written.
"""

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from leaseway.domain.errors import StoreRefused, UsageError
from leaseway.domain.ids import Instant
from leaseway.domain.limits import buckets
from leaseway.domain.limits.buckets import NEW, Acquisition, Level
from leaseway.domain.limits.limit import LimitDefinition
from leaseway.domain.limits.sizing import Sizing, size_limit
from leaseway.stores.python_limiter import FORGET_MAX, LimitLevels, StoredLimit
from leaseway.stores.sqlite.connection import Answer, Connection, Work
from leaseway.stores.sqlite.schema import read_version, refuse_foreign, split, write_version

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class LimiterClock(Struct, frozen=True):
    ticks_us: Callable[[], int]
    identity: str = ""
    """Identifies one boot of the machine; empty if a restart cannot be detected."""
    wall_us: Callable[[], Instant] | None = None
    """Set if ticks do not count from 1970."""
    is_settable: bool = False
    """The clock can be set back."""

    def ahead_us(self, since: Instant) -> int:
        """The offset from ticks to instants, which continue after the last fence even if the machine lost its date."""
        return 0 if self.wall_us is None else max(self.wall_us(), since + 1) - self.ticks_us()


def wall_us() -> Instant:
    return time.time_ns() // 1_000


def since_boot_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def machine_clock() -> LimiterClock:
    """The best clock of this machine: since boot where available, otherwise the wall clock."""
    if hasattr(time, "CLOCK_BOOTTIME") and BOOT_ID.exists():
        return LimiterClock(since_boot_us, BOOT_ID.read_text("ascii").strip(), wall_us)
    return LimiterClock(wall_us, is_settable=True)


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
    definition, declared, number = parse_definition(found[0]), found[1], found[2]
    return StoredLimit(
        definition, None if declared is None else parse_definition(declared), size_limit(definition, number)
    )


class FileLevels(LimitLevels):
    def __init__(self, clock: LimiterClock, in_flight_grace_us: int = 0) -> None:
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
            level = self._levels[(limit, name)] = NEW if found is None else parse_level(found[0])
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
        """After a restart of the machine, or if none is recorded, all earlier state counts as used."""
        found = self._run("fence_read").fetchone()
        if found is None or found[0] != self._clock.identity:
            self._ahead_us = self._clock.ahead_us(found[1] if found else 0)
            self.since = self._latest = self._clock.ticks_us() + self._ahead_us
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
        super().__init__(path, random, inline=inline)
        self._levels = levels
        self._synchronous = synchronous

    def connect(self) -> sqlite3.Connection:
        connection = super().connect()
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        return connection

    def _write_all(self, works: Sequence[Work[Any]]) -> list[Answer]:
        """Run all works in one transaction. Only after an invalid call is each work run alone: works that may have been
        committed are not repeated, because permits must not be returned twice."""
        try:
            return [(answer, None) for answer in self._transact(works)]
        except Exception as error:  # noqa: BLE001 - it is delivered to the waiting caller
            if len(works) == 1 or not isinstance(error, UsageError):
                return [(None, error)] * len(works)
        return [answer for work in works for answer in self._write_all([work])]

    def _transact(self, works: Sequence[Work[Any]]) -> list[Any]:
        try:
            return super()._transact([self._levels.begin, *works, self._levels.end])[1:-1]
        except BaseException:
            self._levels.rolled_back()
            raise
