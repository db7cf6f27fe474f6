"""Hazards of limits in SQLite: the boot of the machine is the fence, and other processes write as well."""

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from leaseway.domain.errors import StoreBusy, StoreRefused
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import Granted, Notice, Wait
from leaseway.domain.limits.limit import Limit, PermitRequest
from leaseway.stores.sqlite import errors as sqlite_errors
from leaseway.stores.sqlite.database import MachineClock, machine_clock, since_boot_us, wall_us
from leaseway.stores.sqlite.limits import FileLevels, SqliteLimiter
from leaseway.testing.clock import FakeClock

MAPS = Limit("maps", "100/minute")
ASK = PermitRequest("maps", "maps")
DAY_SECONDS = 86_400


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "work.db")


async def opened(path: str, clock: FakeClock, identity: str = "first start") -> SqliteLimiter:
    limiter = SqliteLimiter(path, clock.now_us, identity)
    await limiter.open()
    return limiter


async def ready(path: str, clock: FakeClock) -> SqliteLimiter:
    limiter = await opened(path, clock)
    await limiter.definitions.declare([MAPS.definition])
    await limiter.levels([ASK])  # the fence: buckets fill from now on
    clock.advance(DAY_SECONDS)
    return limiter


async def taken(limiter: SqliteLimiter) -> int:
    verdict = await limiter.acquire([ASK], most=100)
    return verdict.count if isinstance(verdict, Granted) else 0


async def test_a_process_that_ends_forgets_nothing(path: str, clock: FakeClock) -> None:
    """A restarted worker must not get a fresh burst."""
    limiter = await ready(path, clock)
    assert await taken(limiter) == 5
    await limiter.close()
    limiter = await opened(path, clock)
    assert await taken(limiter) == 0
    assert await limiter.definitions.all() == [(MAPS.definition, 1)]
    await limiter.close()


async def test_another_start_of_the_machine_is_a_fence(path: str, clock: FakeClock) -> None:
    """The last commits may not have reached the disk, so everything must count as used."""
    limiter = await ready(path, clock)
    old = await limiter.acquire([ASK], most=3)
    assert isinstance(old, Granted)
    await limiter.close()
    limiter = await opened(path, clock, "second start")
    assert await taken(limiter) == 0
    await limiter.return_unused(old, 3)
    assert await taken(limiter) == 0
    clock.advance(4)
    assert await taken(limiter) == 5
    await limiter.close()


async def test_definitions_and_refusals_survive_another_start(path: str, clock: FakeClock) -> None:
    """An operator's change and a provider's wait of one hour must survive a reboot."""
    limiter = await ready(path, clock)
    await limiter.definitions.change(Limit("maps", "50/minute").definition)
    await limiter.observe(Notice("maps", "maps", 0, throttled=True, retry_after_us=3_600 * SECOND_US))
    await limiter.close()
    limiter = await opened(path, clock, "second start")
    assert await limiter.definitions.all() == [(Limit("maps", "50/minute").definition, 2)]
    wait = await limiter.acquire([ASK])
    assert isinstance(wait, Wait)
    assert wait.wait_us == 3_600 * SECOND_US
    await limiter.close()


def synchronous(limiter: SqliteLimiter) -> list[int]:
    """The synchronous setting of the two connections: 1 is NORMAL, 2 is FULL."""
    answers = []
    for one in (limiter._file, limiter._connection):
        with closing(one.connect()) as connection:
            answers.append(connection.execute("PRAGMA synchronous").fetchone()[0])
    return answers


async def test_grants_do_not_wait_for_the_disk_but_definitions_do(path: str, clock: FakeClock) -> None:
    """The setting must never be OFF: a power failure could damage the database and its definitions."""
    limiter = await opened(path, clock)
    assert synchronous(limiter) == [1, 2]
    await limiter.close()


async def test_where_starts_cannot_be_told_apart_grants_wait_for_the_disk(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a boot id from the kernel, a loss by a power failure could not be detected."""
    monkeypatch.setattr("leaseway.stores.sqlite.database.BOOT_ID", Path("/nowhere"))
    limiter = SqliteLimiter(path)
    await limiter.open()
    assert synchronous(limiter) == [2, 2]
    await limiter.close()


def test_the_clock_of_the_machine_is_moved_to_our_time() -> None:
    """The monotonic clock counts from boot and restarts with the next one: a limit that was closed for an hour would
    stay closed for weeks.
    """
    piece = machine_clock()
    if piece.wall_us is None:
        pytest.skip("this machine has no such clock")
    moved_us = piece.ticks_us() + piece.ahead_us(0)
    assert abs(moved_us - wall_us()) < 60 * SECOND_US
    assert piece.identity


def test_a_machine_that_lost_its_date_goes_on_after_the_last_fence() -> None:
    """Two fences at the same instant would be one."""
    piece = MachineClock(lambda: 5, "second start", lambda: 1_000)
    assert piece.ticks_us() + piece.ahead_us(7_000) == 7_001


def levels_at(piece: MachineClock, file: sqlite3.Connection) -> int:
    """Run one transaction in a separate process and return its instant."""
    levels = FileLevels(piece)
    levels.begin(file)
    levels.end(file)
    return levels.now


async def test_a_wall_clock_that_is_set_back_stands_still(path: str, clock: FakeClock) -> None:
    """This must hold for all processes, so the database stores the latest time."""
    limiter = await opened(path, clock)
    await limiter.close()
    ticks = FakeClock()
    with closing(sqlite3.connect(limiter.path, isolation_level=None)) as file:
        piece = MachineClock(ticks.now_us, is_settable=True)
        first = levels_at(piece, file)
        ticks.advance(-100)
        assert levels_at(piece, file) == first
        ticks.advance(100.5)
        assert levels_at(piece, file) == first + SECOND_US // 2


async def test_two_processes_see_each_others_grants(path: str, clock: FakeClock) -> None:
    """The cache of one process is invalid once another process has written."""
    one, two = await ready(path, clock), await opened(path, clock)
    assert [await one.acquire([ASK]) for _ in range(2)]
    assert await taken(two) == 3
    assert await taken(one) == 0
    clock.advance(10)
    assert await taken(one) == 5
    assert await taken(two) == 0
    await two.definitions.change(Limit("maps", "1000/minute").definition)
    assert await taken(one) == 45
    await one.close()
    await two.close()


TAKER = """
import asyncio, sys
from leaseway.domain.limits.buckets import Granted
from leaseway.domain.limits.limit import PermitRequest
from leaseway.stores.sqlite.limits import SqliteLimiter

async def main():
    limiter = SqliteLimiter(sys.argv[1])
    await limiter.open()
    asks = [PermitRequest(name, name) for name in sys.argv[2].split(",")]
    verdicts = await asyncio.gather(*[limiter.acquire(asks) for _ in range(300)])
    print(sum(isinstance(verdict, Granted) for verdict in verdicts))
    await limiter.close()

asyncio.run(main())
"""


async def granted_to(path: str, names: str) -> int:
    command = [sys.executable, "-c", TAKER, path, names]
    taker = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await taker.communicate()
    return int(said)


async def test_nothing_is_lost_or_granted_twice_between_processes(path: str) -> None:
    """Real processes use one database with the machine's clock: the grants must equal what the buckets lack."""
    limits = [Limit(name, "100000/day", burst=0.5) for name in ("a", "b")]
    limiter = SqliteLimiter(path)
    await limiter.open()
    await limiter.definitions.declare([limit.definition for limit in limits])
    await limiter.levels([PermitRequest("a", "a")])
    with closing(sqlite3.connect(limiter.path)) as file, file:  # as if it had started long ago: the buckets are full
        file.execute("UPDATE fence SET since = since - 1000000000000")
    began, _ = await limiter.levels([PermitRequest("a", "a")])
    granted = sum(await asyncio.gather(*[granted_to(path, names) for names in ("a,b", "b,a", "a,b")]))
    assert granted == 900
    ended, levels = await limiter.levels([PermitRequest("a", "a"), PermitRequest("b", "b")])
    for level in levels:
        (bucket,) = level.buckets.values()
        used_us = granted * -(-bucket.permit_ns // 1_000)
        assert began + used_us <= bucket.tat <= ended + used_us
    await limiter.close()


async def test_a_transaction_that_fails_leaves_nothing_behind(path: str, clock: FakeClock) -> None:
    """The cache of the process must not run ahead of the database: after a rollback, nothing is granted or used."""
    limiter = await ready(path, clock)
    await limiter.acquire([ASK])
    with closing(sqlite3.connect(limiter.path)) as file:
        file.execute("CREATE TRIGGER broken BEFORE UPDATE ON levels BEGIN SELECT RAISE(ABORT, 'broken'); END")
    with pytest.raises(Exception, match="broken"):
        await limiter.acquire([ASK], most=4)
    with closing(sqlite3.connect(limiter.path)) as file:
        file.execute("DROP TRIGGER broken")
    assert await taken(limiter) == 4
    await limiter.close()


async def test_bad_company_harms_nobody(path: str, clock: FakeClock) -> None:
    """Concurrent calls share a transaction, but an error of one must not affect the others."""
    limiter = await ready(path, clock)
    asks = [[ASK], [PermitRequest("fax", "fax")], [ASK], [PermitRequest("fax", "fax")], [ASK]]
    answers = await asyncio.gather(*[limiter.acquire(some) for some in asks], return_exceptions=True)
    assert [type(answer).__name__ for answer in answers] == ["Granted", "UnknownLimit"] * 2 + ["Granted"]
    assert await taken(limiter) == 2
    await limiter.close()


async def test_a_file_that_another_keeps_locked_grants_nothing(
    path: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same call may succeed later; until then, no request may be sent."""
    monkeypatch.setattr(sqlite_errors, "BUSY_SECONDS_MAX", 0.01)
    limiter = await ready(path, clock)
    with closing(sqlite3.connect(limiter.path, isolation_level=None)) as file:
        file.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy):
            await limiter.acquire([ASK])
        file.execute("ROLLBACK")
    assert await taken(limiter) == 5
    await limiter.close()


def another_program(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE theirs (id)")


def newer(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (another_program, "another program"),
        (newer, "newer leaseway"),
        (Path.mkdir, "folder"),
        (
            lambda file: file.write_text("not a database, but long enough to be looked at" * 50),
            "not an SQLite database",
        ),
    ],
    ids=["foreign", "newer", "folder", "text"],
)
async def test_a_file_that_is_not_ours_is_refused(
    path: str, clock: FakeClock, spoil: Callable[[Path], object], why: str
) -> None:
    """A database of another application must never be written."""
    spoil(Path(path + "-limits"))
    limiter = SqliteLimiter(path, clock.now_us)
    with pytest.raises(StoreRefused, match=why):
        await limiter.open()
    await limiter.close()


async def test_limits_that_nobody_uses_any_more_do_not_pile_up(path: str, clock: FakeClock) -> None:
    """A limit per user of a public site would fill the disk in a year."""
    each = Limit("maps:{user}", "100/minute")
    limiter = await opened(path, clock)
    await limiter.definitions.declare([each.definition])
    for number in range(200):
        clock.advance(4 * 86_400)
        await limiter.acquire([PermitRequest(f"maps:{number}", each.name)])
    with closing(sqlite3.connect(limiter.path)) as file:
        assert file.execute("SELECT count(*) FROM levels").fetchone()[0] < 20
    await limiter.close()


async def test_the_real_clock_serves_too(path: str) -> None:
    """Without an injected clock, a new file must grant the burst, and not more."""
    limiter = SqliteLimiter(path)
    await limiter.open()
    await limiter.definitions.declare([MAPS.definition])
    assert isinstance(await limiter.acquire([ASK], most=100), Granted)
    wait = await limiter.acquire([ASK])
    assert isinstance(wait, Wait)
    assert 0 < wait.wait_us <= SECOND_US
    now, _ = await limiter.levels([ASK])
    assert abs(now - wall_us()) < 60 * SECOND_US
    assert since_boot_us() > 0
    await limiter.close()


async def test_a_new_file_starts_full_and_one_after_a_restart_of_the_machine_empty(path: str, clock: FakeClock) -> None:
    """README's "50/second, 20k/day" took 45 seconds for its first ten calls. A new file knows that nothing was used;
    after a restart, use may have been lost."""
    limiter = await opened(path, clock)
    readme = Limit("maps", "50/second", "20k/day")
    await limiter.definitions.declare([readme.definition])
    asked = PermitRequest("maps", "maps")
    for _ in range(5):
        assert isinstance(await limiter.acquire([asked], least=2, most=2), Granted)
        clock.advance(0.1)
    await limiter.close()
    limiter = await opened(path, clock, "second start")
    wait = await limiter.acquire([asked])
    assert isinstance(wait, Wait)
    assert wait.wait_us > 4 * SECOND_US, "the bucket of the day is empty"
    await limiter.close()
