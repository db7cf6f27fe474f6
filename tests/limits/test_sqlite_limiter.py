"""What is particular about limits in a file: the machine's start is the fence, and other processes write, too."""

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
from leaseway.stores.sqlite import connection as sqlite_connection
from leaseway.stores.sqlite.limit_levels import FileLevels, LimiterClock, machine_clock, since_boot_us, wall_us
from leaseway.stores.sqlite.limits import SqliteLimiter
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
    await limiter.levels([ASK])  # the fence: buckets are filled from now on
    clock.advance(DAY_SECONDS)
    return limiter


async def taken(limiter: SqliteLimiter) -> int:
    verdict = await limiter.acquire([ASK], most=100)
    return verdict.count if isinstance(verdict, Granted) else 0


async def test_a_process_that_ends_forgets_nothing(path: str, clock: FakeClock) -> None:
    """A restarted worker must not find a fresh burst."""
    limiter = await ready(path, clock)
    assert await taken(limiter) == 5
    await limiter.close()
    limiter = await opened(path, clock)
    assert await taken(limiter) == 0
    assert await limiter.definitions.all() == [(MAPS.definition, 1)]
    await limiter.close()


async def test_another_start_of_the_machine_is_a_fence(path: str, clock: FakeClock) -> None:
    """The last commits may not have reached the disk: all that was known counts as used."""
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
    """An operator's change, and an hour of silence that the provider asked for."""
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
    """How each of the two connections waits for the disk: 1 is NORMAL, 2 is FULL."""
    answers = []
    for one in (limiter._file, limiter._connection):
        with closing(one.connect()) as connection:
            answers.append(connection.execute("PRAGMA synchronous").fetchone()[0])
    return answers


async def test_grants_do_not_wait_for_the_disk_but_definitions_do(path: str, clock: FakeClock) -> None:
    """And never OFF: after a power cut the file itself could be damaged, and the definitions with it."""
    limiter = await opened(path, clock)
    assert synchronous(limiter) == [1, 2]
    await limiter.close()


async def test_where_starts_cannot_be_told_apart_grants_wait_for_the_disk(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the kernel's word nobody would notice what a power cut took."""
    monkeypatch.setattr("leaseway.stores.sqlite.limit_levels.BOOT_ID", Path("/nowhere"))
    limiter = SqliteLimiter(path)
    await limiter.open()
    assert synchronous(limiter) == [2, 2]
    await limiter.close()


def test_the_clock_of_the_machine_is_moved_to_our_time() -> None:
    """It counts from the start of the machine, and after the next start it would begin anew: a limit that was closed
    for an hour would stay closed for weeks."""
    piece = machine_clock()
    if piece.wall_us is None:
        pytest.skip("this machine has no such clock")
    moved_us = piece.ticks_us() + piece.ahead_us(0)
    assert abs(moved_us - wall_us()) < 60 * SECOND_US
    assert piece.identity


def test_a_machine_that_lost_its_date_goes_on_after_the_last_fence() -> None:
    """Two fences at one instant would be one."""
    piece = LimiterClock(lambda: 5, "second start", lambda: 1_000)
    assert piece.ticks_us() + piece.ahead_us(7_000) == 7_001


def levels_at(piece: LimiterClock, file: sqlite3.Connection) -> int:
    """One transaction, in a process of its own; its instant."""
    levels = FileLevels(piece)
    levels.begin(file)
    levels.end(file)
    return levels.now


async def test_a_wall_clock_that_is_set_back_stands_still(path: str, clock: FakeClock) -> None:
    """For all processes: the file remembers how late it was."""
    limiter = await opened(path, clock)
    await limiter.close()
    ticks = FakeClock()
    with closing(sqlite3.connect(limiter.path, isolation_level=None)) as file:
        piece = LimiterClock(ticks.now_us, is_settable=True)
        first = levels_at(piece, file)
        ticks.advance(-100)
        assert levels_at(piece, file) == first
        ticks.advance(100.5)
        assert levels_at(piece, file) == first + SECOND_US // 2


async def test_two_processes_see_each_others_grants(path: str, clock: FakeClock) -> None:
    """What one remembers is worth nothing once the other has written."""
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
    """Real processes on one file, by the machine's own clock: what was granted is exactly what the buckets miss."""
    limits = [Limit(name, "100000/day", burst=0.5) for name in ("a", "b")]
    limiter = SqliteLimiter(path)
    await limiter.open()
    await limiter.definitions.declare([limit.definition for limit in limits])
    await limiter.levels([PermitRequest("a", "a")])
    with closing(sqlite3.connect(limiter.path)) as file, file:  # as if it had begun long ago: the buckets are full
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
    """What the process remembers must not run ahead of the file: rolled back is not granted, and not used."""
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
    """Calls that wait at the same time share a transaction, but not their mistakes."""
    limiter = await ready(path, clock)
    asks = [[ASK], [PermitRequest("fax", "fax")], [ASK], [PermitRequest("fax", "fax")], [ASK]]
    answers = await asyncio.gather(*[limiter.acquire(some) for some in asks], return_exceptions=True)
    assert [type(answer).__name__ for answer in answers] == ["Granted", "UnknownLimit"] * 2 + ["Granted"]
    assert await taken(limiter) == 2
    await limiter.close()


async def test_a_file_that_another_keeps_locked_grants_nothing(
    path: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same call may succeed later; until then nobody sends."""
    monkeypatch.setattr(sqlite_connection, "BUSY_SECONDS_MAX", 0.01)
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
    """Never write into what belongs to another."""
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
    """Without an injected clock: a new file grants nothing at once, and says for how long."""
    limiter = SqliteLimiter(path)
    await limiter.open()
    await limiter.definitions.declare([MAPS.definition])
    wait = await limiter.acquire([ASK])
    assert isinstance(wait, Wait)
    assert 0 < wait.wait_us <= SECOND_US
    now, _ = await limiter.levels([ASK])
    assert abs(now - wall_us()) < 60 * SECOND_US
    assert since_boot_us() > 0
    await limiter.close()
