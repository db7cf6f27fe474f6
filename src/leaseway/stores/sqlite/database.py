"""One SQLite file as the store's ports share it: connection, statements, clock, and notifications that it was written.

Notifications: within a process the notifier wakes waiting tasks. Writes of other processes change the file's data
version, which SQLite keeps in shared memory: reading it takes microseconds and no lock.

Clock: SQLite is a library, so the process that calls it is the store. All processes of a file run on one machine and
read the same two clocks: the wall clock, which can be set, and ticks since boot, which cannot. `domain.store_clock`
decides what time it is; the file holds its state, so that processes agree that start before and after the clock was
set. Each transaction reads the clock once.
"""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from leaseway.domain.exchange import Gate
from leaseway.domain.ids import SECOND_US, Instant, Token
from leaseway.domain.job import LEASE_US_MAX, LEASE_US_MIN, Lease, State
from leaseway.domain.lane import LaneCount, LaneTurn
from leaseway.domain.outcome import usable_lease_us
from leaseway.domain.store_clock import ClockState, advance_clock, start_clock
from leaseway.stores.event_loops import LocalNotifier
from leaseway.stores.sqlite.connection import Connection

T = TypeVar("T")
Row = tuple[Any, ...]
LaneNames = Mapping[int, tuple[str, str, str]]
"""Queue, tenant and needs of lanes, by their number."""

SQL = files(__package__) / "sql"
READY, SCHEDULED, LEASED, DONE, FAILED, CANCELLED = "ready", "scheduled", "leased", "done", "failed", "cancelled"
STATES = {
    READY: State.PENDING, SCHEDULED: State.PENDING, LEASED: State.LEASED, DONE: State.DONE, FAILED: State.FAILED,
    CANCELLED: State.CANCELLED,
}  # fmt: skip
"""The states of the table `jobs`. A pending job is ready or scheduled."""
LEASE_BOUNDS = {"lease_us_min": LEASE_US_MIN, "lease_us_max": LEASE_US_MAX}
BYTES = "bytes"
COUNTERS = (*STATES, BYTES)
"""The counters of a lane, in the order of lane_count.sql."""


def parse_state(text: str) -> State:
    """A job in a state that no statement writes is shown as failed: it never runs, and an operator can discard it."""
    return STATES.get(text, State.FAILED)


_encode = msgspec.json.Encoder().encode
_decode_rows = msgspec.json.Decoder(list[Row]).decode


def as_json(value: Any) -> str:
    return _encode(value).decode()


@cache
def statements() -> Mapping[str, str]:
    """The statements of the store by name; each is a file."""
    return {file.name.removesuffix(".sql"): file.read_text("utf-8") for file in SQL.iterdir() if file.is_file()}


def parse_lane(row: Row) -> LaneCount:
    """From the columns of lane_list.sql."""
    queue, tenant, needs, ready, scheduled, leased, done, failed, cancelled, size, closed_until, closed_why = row
    return LaneCount(
        queue=queue, tenant=tenant, needs=needs, ready=ready, scheduled=scheduled, leased=leased, done=done,
        failed=failed, cancelled=cancelled, bytes=size, closed_until=closed_until, closed_why=closed_why,
    )  # fmt: skip


def parse_turn(row: Row) -> LaneTurn:
    """From the columns of lanes_with_work.sql."""
    lane, queue, tenant, needs, ready, weight, is_gated, place, lane_place = row
    gate = Gate(needs, tenant) if is_gated else None
    return LaneTurn(lane, ready, weight, gate, (queue, tenant), place, lane_place)


PAYLOAD = 4
"""The place of the payload in a row of claimable.sql and adoptable.sql; None: it is in large_payloads."""


def parse_lease(row: Row, token: Token, lanes: LaneNames, large_payload: str) -> Lease:
    """From the columns of claimable.sql and adoptable.sql."""
    # fmt: off
    (_, id_, fence, kind, payload, attempts, most, lease_us, timeout_us, shard_key, cursor, priority, lane) = row
    # fmt: on
    queue, tenant, needs = lanes[lane]
    return Lease(
        id=id_, token=token, fence=fence, kind=kind, queue=queue, tenant=tenant,
        payload=large_payload if payload is None else payload, attempts=attempts,
        attempts_max=most, lease_us=usable_lease_us(lease_us), timeout_us=timeout_us, shard_key=shard_key,
        cursor=cursor, priority=priority, needs=needs,
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
        """Change a counter of a lane: the number of its jobs in a state, or its bytes."""
        changes = self._changes.get(lane)
        if changes is None:
            changes = self._changes[lane] = dict.fromkeys(COUNTERS, 0)
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
        self._clock = now_us if isinstance(now_us, FileClock) else None
        self.sql = sql
        self.notifier = LocalNotifier()

    async def write(self, step: Callable[[Transaction], T]) -> T:
        return await self.connection.write(self._in_transaction(step))

    def write_blocking(self, step: Callable[[Transaction], T]) -> T:
        return self.connection.write_blocking(self._in_transaction(step))

    def _in_transaction(self, step: Callable[[Transaction], T]) -> Callable[[sqlite3.Connection], T]:
        def work(connection: sqlite3.Connection) -> T:
            transaction = Transaction(connection, self.begin(connection), self.sql)
            answer = step(transaction)
            transaction.close()
            return answer

        return work

    def begin(self, connection: sqlite3.Connection) -> Instant:
        """The time of a write transaction that has begun."""
        return self.now_us() if self._clock is None else self._clock.begin(connection)

    async def read(self, verb: str, **values: object) -> list[Row]:
        return await self.connection.read(lambda connection: connection.execute(self.sql[verb], values).fetchall())


POLL_SECONDS = 0.010


class FileNotifications:
    def __init__(self, notifier: LocalNotifier, connect: Callable[[], sqlite3.Connection]) -> None:
        self._notifier = notifier
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        """One thread may close the connection while the event loop of another one waits for changes."""
        self._seen: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        """The version that each waiting task has seen, so that a change wakes every task."""
        self._last_seen: int | None = None
        """The version that a task sees as the last one when it waits for the first time. The service has a task for
        each request, and a new task must not take an old change for a new one."""

    async def wait(self, seconds: float) -> bool:
        with self._notifier.waiting() as notified:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + seconds
            while (left := deadline - loop.time()) > 0:
                if self._changed():
                    return True
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, POLL_SECONDS)):
                        await notified.wait()
                        return True
        return False

    def _changed(self) -> bool:
        try:
            version = self._version()
        except sqlite3.Error:
            return False  # a notification may be lost; workers poll as well
        task = asyncio.current_task()
        changed = self._seen.get(task, self._last_seen) != version
        self._seen[task] = self._last_seen = version
        return changed

    def _version(self) -> int:
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


# -- the clock --------------------------------------------------------------------------------------------------------

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
READ_EVERY_US = SECOND_US
"""How long a process trusts the state that it has read."""

READ_CLOCK = "SELECT boot, ahead_us, held_since FROM clock"
WRITE_CLOCK = "INSERT OR REPLACE INTO clock (one, boot, ahead_us, held_since) VALUES (1, ?, ?, ?)"
NEWEST_TIME = "SELECT coalesce(max(served_at), 0) FROM flows"


class MachineClock(Struct, frozen=True):
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


def machine_clock() -> MachineClock:
    """The best clock of this machine: since boot where available, otherwise the wall clock."""
    if hasattr(time, "CLOCK_BOOTTIME") and BOOT_ID.exists():
        return MachineClock(since_boot_us, BOOT_ID.read_text("ascii").strip(), wall_us)
    return MachineClock(wall_us, is_settable=True)


class FileClock:
    """The clock of a file, called like a function. Without ticks, it is the wall clock."""

    def __init__(self, machine: MachineClock | None = None) -> None:
        self._machine = machine or machine_clock()
        self._wall_us = self._machine.wall_us or self._machine.ticks_us
        self._state: ClockState | None = None
        self._read_at: int | None = None

    def __call__(self) -> Instant:
        """For reads. They use the state that the last transaction of this process has seen."""
        if self._state is None:
            return self._wall_us()
        return advance_clock(self._state, self._wall_us(), self._machine.ticks_us())[0]

    def begin(self, connection: sqlite3.Connection) -> Instant:
        """The time of a write transaction that has begun."""
        if self._machine.wall_us is None:
            return self._wall_us()
        wall, ticks, state = self._wall_us(), self._machine.ticks_us(), self._state
        if state is None or self._read_at is None or ticks - self._read_at > READ_EVERY_US:
            state, self._read_at = self._read(connection, wall, ticks), ticks
        now, after = advance_clock(state, wall, ticks)
        if after is not state:
            # Another process may have noticed the same step a moment before.
            state = self._read(connection, wall, ticks)
            now, after = advance_clock(state, wall, ticks)
            if after is not state:
                self._write(connection, after)
            self._read_at = None  # this transaction may be rolled back
        self._state = after
        return now

    def _read(self, connection: sqlite3.Connection, wall: Instant, ticks: int) -> ClockState:
        found = connection.execute(READ_CLOCK).fetchone()
        if found is not None and found[0] == self._machine.identity:
            return ClockState(found[1], found[2])
        state = start_clock(wall, ticks, connection.execute(NEWEST_TIME).fetchone()[0])
        self._write(connection, state)
        return state

    def _write(self, connection: sqlite3.Connection, state: ClockState) -> None:
        connection.execute(WRITE_CLOCK, (self._machine.identity, state.ahead_us, state.held_since))
