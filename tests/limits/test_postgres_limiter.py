"""Limits in PostgreSQL: loss of state in a crash, concurrency, and rights."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from tests.stores.postgres_support import (
    address,
    connected,
    error_of,
    new_name,
    new_role,
    until,
    value,
    waiting_for_a_lock,
)
from tests.stores.test_postgres_pooler import Pooler, through

from leaseway.domain.errors import StoreBusy, StoreRefused, UnknownLimit, UnknownOutcome
from leaseway.domain.ids import Instant
from leaseway.domain.limits.buckets import IN_FLIGHT_GRACE_US, Granted, Never, Notice, Wait, us_from_ns
from leaseway.domain.limits.limit import Limit, PermitRequest, size_limit
from leaseway.stores.postgres.limits import PostgresLimiter
from leaseway.testing.clock import FakeClock
from leaseway.testing.limiter_contract.fixtures import (
    MAPS,
    MAPS_BURST,
    PHONE,
    SEAT_US,
    ask,
    drained,
    granted,
    left,
    level_of,
    ready,
    seated,
    waits,
)
from leaseway.testing.postgres import FOLDER, NOT_DURABLE, SMALL, PostgresServer, answers, postgres_server

ROOMY = tuple(Limit(name, "100000/minute") for name in "abc")
"""Limits that many can use at once: five thousand tokens each."""
TABLES = ("limits", "levels", "in_flight_calls", "limiter_fence")
OF_TENANT = Limit("maps:{tenant}", "100/minute")


@asynccontextmanager
async def opened(url: str, now_us: Callable[[], Instant] | None = None) -> AsyncIterator[PostgresLimiter]:
    limiter = PostgresLimiter(url, now_us)
    try:
        await limiter.open()
        yield limiter
    finally:
        await limiter.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def url(server: PostgresServer) -> str:
    return address(server, new_name())


@pytest.fixture
async def limiter(url: str, clock: FakeClock) -> AsyncIterator[PostgresLimiter]:
    async with opened(url, clock.now_us) as limiter:
        yield limiter


@pytest.fixture
async def unmoved(url: str) -> AsyncIterator[PostgresLimiter]:
    """A limiter with the server's own clock."""
    async with opened(url) as limiter:
        yield limiter


# -- what a crash takes away ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crashing_server() -> Iterator[PostgresServer]:
    """A server that may be killed without affecting other tests."""
    with postgres_server() as server:
        yield server


async def killed(server: PostgresServer) -> None:
    """Kill everything at once, like a power failure."""
    server.crash()
    server.start()


async def bereft(server: PostgresServer) -> None:
    """Kill one session: the server ends all others and recovers, without a visible restart."""
    async with connected(server) as victim, connected(server) as witness:
        os.kill(victim.get_server_pid(), signal.SIGKILL)

        async def is_back() -> bool:
            return witness.is_closed() and answers(server.port)

        await until(is_back)


async def test_a_new_schema_starts_full(server: PostgresServer, clock: FakeClock) -> None:
    """Nothing was used before, and the server knows it: users must not wait for the first permits of a day."""
    async with opened(address(server, new_name()), clock.now_us) as limiter:
        await limiter.definitions.declare([MAPS.definition])
        assert (await drained(limiter, ask(MAPS))).count == MAPS_BURST
        assert isinstance(await limiter.acquire([ask(MAPS)]), Wait)


@pytest.mark.parametrize("crash", [killed, bereft])
async def test_after_a_crash_everything_counts_as_used_up(
    crashing_server: PostgresServer, clock: FakeClock, crash: Callable[[PostgresServer], Awaitable[None]]
) -> None:
    """The use of the last moments may be lost; full buckets would grant it twice."""
    url = address(crashing_server, new_name())
    async with opened(url, clock.now_us) as before:
        await ready(before, clock, MAPS)
        taken = await granted(before, ask(MAPS))
    await crash(crashing_server)
    clock.advance(1)
    async with opened(url, clock.now_us) as after:
        assert [definition for definition, _ in await after.definitions.all()] == [MAPS.definition]
        wait = await waits(after, ask(MAPS))
        assert (await level_of(after, MAPS)).since == clock.now_us() > taken.since
        assert await left(after, MAPS) == [0]
        await after.return_unused(taken, 1)
        assert await left(after, MAPS) == [0]
        clock.advance_us(wait.wait_us)
        await granted(after, ask(MAPS))


async def test_after_a_crash_no_call_starts_beside_calls_in_flight(
    crashing_server: PostgresServer, clock: FakeClock
) -> None:
    """Calls in flight do not end because the database crashed."""
    url = address(crashing_server, new_name())
    async with opened(url, clock.now_us) as before:
        await ready(before, clock, PHONE)
        await seated(before, "one", ask(PHONE), most=2)
    await killed(crashing_server)
    async with opened(url, clock.now_us) as after:
        wait = await seated(after, "two", ask(PHONE))
        assert isinstance(wait, Wait)
        assert wait.wait_us == IN_FLIGHT_GRACE_US
        await after.renew_calls([ask(PHONE)], "one", 2, SEAT_US)
        clock.advance_us(IN_FLIGHT_GRACE_US)
        verdict = await seated(after, "two", ask(PHONE), most=3)
        assert isinstance(verdict, Granted)
        assert verdict.count == 1


async def test_a_clean_restart_keeps_all_state(crashing_server: PostgresServer, clock: FakeClock) -> None:
    """An update of the server must neither cost permits nor grant new ones."""
    url = address(crashing_server, new_name())
    async with opened(url, clock.now_us) as before:
        await ready(before, clock, MAPS, PHONE)
        await drained(before, ask(MAPS))
        await seated(before, "one", ask(PHONE), most=3)
        known = await before.levels([ask(MAPS), ask(PHONE)])
    crashing_server.restart()
    async with opened(url, clock.now_us) as after:
        assert await after.levels([ask(MAPS), ask(PHONE)]) == known
        await waits(after, ask(MAPS))
        assert isinstance(await seated(after, "two", ask(PHONE)), Wait)


def tool(server: PostgresServer, name: str) -> str:
    """A program of the PostgreSQL distribution; a given folder of binaries may lack it."""
    path = server.binaries / name
    if FOLDER in os.environ and not path.exists():
        pytest.skip(f"{FOLDER} has no {name}")
    return str(path)


@contextmanager
def standby_of(server: PostgresServer) -> Iterator[PostgresServer]:
    """A streaming replica of this server."""
    # Not in pytest's folder, which the account of the server cannot enter.
    with TemporaryDirectory(prefix="leaseway-standby-", ignore_cleanup_errors=True) as folder:
        base = Path(folder)
        base.chmod(0o755)
        standby = PostgresServer(base, {**SMALL, **NOT_DURABLE})
        copy_of(server, standby, base)
        standby.start()
        try:
            yield standby
        finally:
            standby.stop()


def copy_of(server: PostgresServer, standby: PostgresServer, base: Path) -> None:
    for folder in (standby.data, base / "run"):
        folder.mkdir(mode=0o700)
        if standby._account:
            os.chown(folder, standby._account["user"], standby._account["group"])
    where = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres", "-D", str(standby.data)]
    copy = [tool(standby, "pg_basebackup"), *where, "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
    subprocess.run(copy, check=True, capture_output=True, cwd="/", **standby._account)


async def test_a_replica_grants_nothing_and_a_promoted_one_starts_used_up(
    crashing_server: PostgresServer, clock: FakeClock
) -> None:
    """It may lag behind the last grants: state that it does not know counts as used."""
    schema = new_name()
    async with opened(address(crashing_server, schema), clock.now_us) as before:
        await ready(before, clock, MAPS)
        await granted(before, ask(MAPS))
        with standby_of(crashing_server) as standby:
            there = address(standby, schema)
            replica = PostgresLimiter(there, clock.now_us)
            error = await error_of(replica.open())
            assert isinstance(error, StoreRefused)
            assert "connect to the primary" in str(error)
            assert isinstance(await error_of(replica.acquire([ask(MAPS)])), StoreBusy)
            await replica.close()
            await value(standby, "SELECT pg_promote()")
            async with opened(there, clock.now_us) as after:
                assert await left(after, MAPS) == [0]
                await waits(after, ask(MAPS))


def dumped(server: PostgresServer, limiter: PostgresLimiter) -> bytes:
    dump = [tool(server, "pg_dump"), "-n", limiter.address.schema, limiter.address.dsn]
    return subprocess.run(dump, capture_output=True, check=True, cwd="/").stdout


def restored(server: PostgresServer, limiter: PostgresLimiter, dump: bytes) -> None:
    restore = [tool(server, "psql"), "-v", "ON_ERROR_STOP=1", "-q", limiter.address.dsn]
    subprocess.run(restore, input=dump, capture_output=True, check=True, cwd="/")


async def test_a_restored_dump_grants_no_permits(
    server: PostgresServer, limiter: PostgresLimiter, clock: FakeClock
) -> None:
    """A backup contains old levels, at which less was used."""
    await ready(limiter, clock, MAPS)
    await granted(limiter, ask(MAPS))
    dump = dumped(server, limiter)
    await value(server, f"DROP SCHEMA {limiter.address.schema} CASCADE")
    restored(server, limiter, dump)
    async with opened(address(server, limiter.address.schema), clock.now_us) as after:
        assert await value(server, f"SELECT count(*) FROM {limiter.address.schema}.levels") == 1
        await waits(after, ask(MAPS))
        assert await left(after, MAPS) == [0]


async def test_definitions_that_a_promoted_replica_missed_are_declared_again(
    server: PostgresServer, limiter: PostgresLimiter, clock: FakeClock
) -> None:
    """Workers must not need a restart to declare their limits again."""
    await ready(limiter, clock, MAPS, PHONE)
    await value(server, f"TRUNCATE {', '.join(f'{limiter.address.schema}.{table}' for table in TABLES)}")
    wait = await waits(limiter, ask(MAPS))
    clock.advance_us(wait.wait_us)
    await granted(limiter, ask(MAPS))
    assert len(await limiter.definitions.all()) == 2


async def test_a_forgotten_limit_is_not_declared_again(limiter: PostgresLimiter, clock: FakeClock) -> None:
    """Otherwise an operator could not remove a limit while a worker runs."""
    await ready(limiter, clock, MAPS)
    await limiter.definitions.forget("maps")
    assert isinstance(await error_of(limiter.acquire([ask(MAPS)])), UnknownLimit)
    assert await limiter.definitions.all() == []


@pytest.mark.parametrize("table", ["levels", "in_flight_calls", "limiter_fence"])
async def test_logged_limiter_tables_are_refused(server: PostgresServer, limiter: PostgresLimiter, table: str) -> None:
    """A promoted replica would trust tables that survive a crash, although they may lag behind."""
    await value(server, f"ALTER TABLE {limiter.address.schema}.{table} SET LOGGED")
    error = await error_of(limiter.open())
    assert isinstance(error, StoreRefused)
    assert f"ALTER TABLE {limiter.address.schema}.{table} SET UNLOGGED" in str(error)


# -- many at once -----------------------------------------------------------------------------------------------------


async def test_concurrent_takes_in_any_order_neither_deadlock_nor_lose_permits(
    server: PostgresServer, limiter: PostgresLimiter, url: str, clock: FakeClock
) -> None:
    """A deadlock costs a second; a lost update grants a permit twice."""
    log_before = len(server.log)
    await ready(limiter, clock, *ROOMY)
    orders = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0], [0, 2], [1], [1, 0, 2], [2, 0, 1]]
    taken: list[Granted] = []

    async def use(order: list[int], other: PostgresLimiter) -> None:
        asks = [ask(ROOMY[place], cost=1) for place in order]
        for times in range(1, 26):
            grant = await granted(other, *asks, most=times % 3 + 1)
            taken.append(grant)
            if times % 5 == 0:
                await other.renew_calls(asks[::-1], "one", times, SEAT_US)

    async with opened(f"{url}&pool=4", clock.now_us) as second:
        await asyncio.gather(*(use(order, (limiter, second)[n % 2]) for n, order in enumerate(orders)))
    for limit in ROOMY:
        (window,) = size_limit(limit.definition).windows
        spent_us = sum(us_from_ns(grant.count * window.permit_ns) for grant in taken if ask(limit) in grant.asks)
        level = await level_of(limiter, limit)
        assert level.buckets[window.window_us].tat == clock.now_us() + spent_us
    assert "deadlock" not in server.log[log_before:]


async def test_concurrent_takes_of_new_names_count_each_once(
    server: PostgresServer, limiter: PostgresLimiter, clock: FakeClock
) -> None:
    """Rows that do not exist cannot be locked; creating them must not block others."""
    log_before = len(server.log)
    await ready(limiter, clock, OF_TENANT)
    names = [f"maps:{number}" for number in range(8)]

    async def use(order: list[str]) -> None:
        await granted(limiter, *(ask(OF_TENANT, name=name) for name in order))

    for start in range(4):
        await value(server, f"TRUNCATE {limiter.address.schema}.levels")
        await asyncio.gather(*(use(names[start::step]) for step in (1, -1, 1, -1)))
        _, levels = await limiter.levels([ask(OF_TENANT, name=name) for name in names])
        uses = [sum(name in names[start::step] for step in (1, -1, 1, -1)) for name in names]
        token_us = us_from_ns(size_limit(OF_TENANT.definition).windows[0].permit_ns)
        tats = [max(level.buckets[60_000_000].tat - clock.now_us(), 0) for level in levels]
        assert tats == [count * token_us for count in uses]
    assert "deadlock" not in server.log[log_before:]


@asynccontextmanager
async def locked(server: PostgresServer, limiter: PostgresLimiter, limit: Limit) -> AsyncIterator[Any]:
    """Another session locks a level meanwhile."""
    async with connected(server) as other, other.transaction():
        await other.execute(f"SET LOCAL search_path TO {limiter.address.schema}")
        await other.execute("SELECT FROM levels WHERE name = $1 FOR UPDATE".replace("$1", f"'{limit.name}'"))
        yield other


async def test_the_clock_is_read_after_waiting_for_the_lock(server: PostgresServer, unmoved: PostgresLimiter) -> None:
    """With an earlier time, permits would be granted that others got during the wait."""
    await unmoved.definitions.declare([limit.definition for limit in ROOMY])
    await unmoved.acquire([ask(ROOMY[1])])
    async with asyncio.TaskGroup() as tasks:
        async with locked(server, unmoved, ROOMY[1]) as other:
            taking = tasks.create_task(unmoved.acquire([ask(limit) for limit in ROOMY]))
            await waiting_for_a_lock(other)
            released_at = await other.fetchval("SELECT now_us()")
        granted_late = await taking
    assert isinstance(granted_late, Granted)
    assert granted_late.granted_at >= released_at


async def test_a_definition_changed_during_the_wait_applies(
    server: PostgresServer, limiter: PostgresLimiter, clock: FakeClock
) -> None:
    """A change by an operator applies to waiting calls as well."""
    await ready(limiter, clock, MAPS)
    await granted(limiter, ask(MAPS))
    async with asyncio.TaskGroup() as tasks:
        async with locked(server, limiter, MAPS) as other:
            taking = tasks.create_task(limiter.acquire([ask(MAPS)], least=2, most=2))
            await waiting_for_a_lock(other)
            await limiter.definitions.change(Limit("maps", "1/minute").definition)
        assert await taking == Never("maps", 1)


# -- lost replies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["take", "give_back"])
async def test_a_call_whose_reply_is_lost_is_not_repeated(
    server: PostgresServer, limiter: PostgresLimiter, clock: FakeClock, verb: str
) -> None:
    """It may have been executed; a repetition would take unused permits or return some twice."""
    await ready(limiter, clock, MAPS)
    taken = await granted(limiter, ask(MAPS), most=2)
    calls: dict[str, Callable[[], Any]] = {
        "take": lambda: limiter.acquire([ask(MAPS)]),
        "give_back": lambda: limiter.return_unused(taken, 1),
    }
    async with locked(server, limiter, MAPS) as other:
        call = asyncio.ensure_future(calls[verb]())
        (pid,) = await waiting_for_a_lock(other)
        await value(server, "SELECT pg_terminate_backend($1)", pid)
        error = await error_of(call)  # although the level is still locked: a second try would wait
    assert isinstance(error, UnknownOutcome)
    assert await left(limiter, MAPS) == [MAPS_BURST - 2]


# -- unused levels --------------------------------------------------------------------------------------------------


async def names_in(server: PostgresServer, limiter: PostgresLimiter) -> set[str]:
    return set(await value(server, f"SELECT coalesce(array_agg(name), '{{}}') FROM {limiter.address.schema}.levels"))


async def of_tenants(limiter: PostgresLimiter, first: int, last: int) -> None:
    for number in range(first, last):
        await granted(limiter, ask(OF_TENANT, name=f"maps:{number}"))


async def test_levels_of_inactive_tenants_are_deleted(
    server: PostgresServer, limiter: PostgresLimiter, clock: FakeClock
) -> None:
    """A limit with a field has a level for every value ever seen; their number must be bounded."""
    await ready(limiter, clock, OF_TENANT)
    await of_tenants(limiter, 0, 100)
    for number in range(50):
        assert isinstance(await limiter.acquire([ask(OF_TENANT, 99, f"never:{number}")]), Never)
    clock.advance(32 * 86_400)
    await of_tenants(limiter, 100, 300)
    names = await names_in(server, limiter)
    assert {f"maps:{number}" for number in range(100, 300)} <= names
    assert len(names) < 220


async def test_levels_with_visible_state_are_not_deleted(
    server: PostgresServer, limiter: PostgresLimiter, clock: FakeClock
) -> None:
    """A deleted slow, closed, busy or recently used limit would reappear as fast, open and unused."""
    seated_limit = Limit("seats:{tenant}", "100/minute", concurrency=3)
    await ready(limiter, clock, OF_TENANT, seated_limit)
    clock.advance(32 * 86_400)
    await limiter.observe(Notice("maps:slow", OF_TENANT.name, 0, throttled=True))
    await limiter.renew_calls([ask(seated_limit, name="seats:kept")], "one", 1, 31 * 86_400_000_000)
    clock.advance(30 * 86_400)
    await limiter.observe(Notice("maps:used", OF_TENANT.name, 0, remaining=0))
    clock.advance(30 * 86_400)
    for round_ in range(1, 4):
        await of_tenants(limiter, 1000 * round_, 1000 * round_ + 60)
    assert {"maps:slow", "maps:used", "seats:kept"} <= await names_in(server, limiter)


async def test_a_new_level_costs_the_same_however_many_there_are(
    server: PostgresServer, limiter: PostgresLimiter, clock: FakeClock
) -> None:
    """A session that had planned while there were few levels read a third of all for every new one. The server counts
    what it reads."""
    levels = f"{limiter.address.schema}.levels"
    await ready(limiter, clock, OF_TENANT)
    await of_tenants(limiter, 0, 20)
    await value(server, f"VACUUM ANALYZE {levels}")
    await of_tenants(limiter, 20, 21)
    more = "SELECT 'old:' || n, $1 FROM generate_series(1, 2000) AS n"
    await value(server, f"INSERT INTO {levels} (name, of_limit) {more}", OF_TENANT.name)
    count = (
        "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'levels' AND schemaname = $1"
    )
    async with limiter.connections.transaction() as connection:
        before = await connection.fetchval(count, limiter.address.schema)
        take = limiter._database.sql["take_permits"]
        await connection.fetch(take, ["maps:new"], [OF_TENANT.name], [1], 1, 1, "w", SEAT_US, clock.now_us())
        read = await connection.fetchval(count, limiter.address.schema) - before
    assert 0 < read < 50


# -- database roles -------------------------------------------------------------------------------------------------


class Town(NamedTuple):
    owner: PostgresLimiter
    reader: PostgresLimiter
    submitter: PostgresLimiter
    worker: PostgresLimiter
    operator: PostgresLimiter


@pytest.fixture
async def town(server: PostgresServer, limiter: PostgresLimiter, clock: FakeClock) -> AsyncIterator[Town]:
    """One limiter for each kind of role."""
    schema = limiter.address.schema
    await ready(limiter, clock, MAPS, PHONE)
    people = []
    for kind in Town._fields[1:]:
        role = await new_role(server)
        await value(server, f"SELECT {schema}.grant_{kind}($1)", role)
        people.append(PostgresLimiter(address(server, schema, role), clock.now_us))
    yield Town(limiter, *people)
    for person in people:
        await person.close()


def changes_of(limiter: PostgresLimiter) -> list[Any]:
    """Every method of a worker that changes state."""
    grant = Granted((ask(MAPS),), 1, 0, 0, 0, (0,))
    return [
        limiter.definitions.declare([MAPS.definition]),
        limiter.acquire([ask(MAPS)]),
        limiter.return_unused(grant, 1),
        limiter.renew_calls([ask(PHONE)], "one", 1, SEAT_US),
        limiter.end_calls([ask(PHONE)], "one", 1),
        limiter.observe(Notice("maps", "maps", 0)),
    ]


def operations_of(limiter: PostgresLimiter) -> list[Any]:
    return [
        limiter.definitions.change(MAPS.definition),
        limiter.definitions.change(MAPS.definition, expected=1),
        limiter.definitions.forget("maps"),
    ]


async def refused(call: Any) -> None:
    error = await error_of(call)
    assert isinstance(error, StoreRefused), repr(error)
    assert "permission denied" in str(error)


async def test_a_submitter_cannot_use_or_read_limits(town: Town) -> None:
    """A compromised web server must neither use up the quota nor learn what is left of it."""
    for call in (*changes_of(town.submitter), *operations_of(town.submitter)):
        await refused(call)
    await refused(town.submitter.levels([ask(MAPS)]))
    await refused(town.submitter.definitions.all())


async def test_a_reader_can_read_and_not_change_limits(town: Town) -> None:
    """The dashboard uses this role."""
    known = await town.owner.levels([ask(MAPS)])
    for call in (*changes_of(town.reader), *operations_of(town.reader)):
        await refused(call)
    await town.reader.open()
    assert await town.reader.levels([ask(MAPS)]) == known
    assert len(await town.reader.definitions.all()) == 2


async def test_a_worker_cannot_change_definitions(town: Town) -> None:
    """Handlers run third-party code, which must not be able to raise its own limits."""
    await town.worker.open()
    for call in changes_of(town.worker):
        await call
    assert await left(town.worker, MAPS) == [MAPS_BURST - 1]
    for call in operations_of(town.worker):
        await refused(call)


async def test_an_operator_can_change_and_forget_limits(town: Town) -> None:
    """A missing grant would show only when an operator needs the command."""
    assert await town.operator.definitions.change(Limit("maps", "7/minute").definition) == 2
    assert await town.operator.definitions.change(Limit("maps", "8/minute").definition, expected=2) == 3
    assert await town.operator.definitions.forget("maps")
    assert [definition.name for definition, _ in await town.owner.definitions.all()] == ["phone"]


# -- behind a pooler --------------------------------------------------------------------------------------------------


async def test_every_method_works_with_another_session_per_transaction(
    server: PostgresServer, clock: FakeClock
) -> None:
    """Behind a pooler, no state may be left in a session or expected there."""
    async with (
        Pooler(server.port) as pooler,
        opened(through(pooler, new_name(), pooler="transaction"), clock.now_us) as limiter,
    ):
        await ready(limiter, clock, MAPS, PHONE)
        for call in changes_of(limiter):
            await call
        await asyncio.gather(*(limiter.acquire([PermitRequest("maps", "maps")]) for _ in range(9)))
        assert await left(limiter, MAPS) == [0]
        assert await limiter.definitions.change(Limit("maps", "7/minute").definition) == 2
        assert await limiter.definitions.forget("maps")
