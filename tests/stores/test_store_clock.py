"""A clock that is set back stops nothing: the store's time goes on where it was, and makes up for it later."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.stores.postgres_support import connected, new_name, new_role, opened, until

from leaseway.domain.budgets.budget import MICRO, Budget, Charge, HoldGranted
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.job import State
from leaseway.domain.limits.buckets import Granted
from leaseway.domain.limits.limit import Limit, PermitRequest
from leaseway.domain.schedule import Schedule
from leaseway.domain.store_clock import HELD_US_MAX, STEP_US_MAX, ClockState, ClockWatch, advance_clock, start_clock
from leaseway.ports.store import require_inspection
from leaseway.stores.memory.store import MemoryStore
from leaseway.stores.postgres.budgets import PostgresLedger
from leaseway.stores.postgres.limits import PostgresLimiter
from leaseway.stores.postgres.store import PostgresStore
from leaseway.stores.sqlite.database import FileClock, MachineClock
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.system import ProcessTime
from leaseway.testing.clock import START_US
from leaseway.testing.job_store_contract.fixtures import ContractWorker, done, held, id_of, job_of, new_job, retry
from leaseway.testing.postgres import PostgresServer

MINUTE_US = 60 * SECOND_US


class Machine:
    """A machine whose clock can be set, and whose ticks cannot."""

    def __init__(self) -> None:
        self.ticks = 7_000 * SECOND_US
        self.offset = START_US - self.ticks

    def pass_us(self, us: int) -> None:
        self.ticks += us

    def set_by(self, us: int) -> None:
        self.offset += us

    def wall_us(self) -> Instant:
        return self.ticks + self.offset

    def ticks_us(self) -> int:
        return self.ticks

    def clock(self, boot: str = "first boot") -> MachineClock:
        return MachineClock(self.ticks_us, boot, self.wall_us)


# -- the rule ---------------------------------------------------------------------------------------------------------

passing = st.tuples(st.just("pass"), st.integers(0, 2 * HELD_US_MAX))
setting = st.tuples(st.just("set"), st.integers(-2 * HELD_US_MAX, 2 * HELD_US_MAX))


@example([("set", 2), ("set", -STEP_US_MAX - 2)])
@given(st.lists(passing | setting, max_size=30))
def test_time_goes_back_only_by_two_seconds_or_by_more_than_an_hour(steps: list[tuple[str, int]]) -> None:
    """Whatever happens to the machine's clock: otherwise what was stamped before would wait."""
    machine = Machine()
    state, now = start_clock(machine.wall_us(), machine.ticks), machine.wall_us()
    for what, us in steps:
        if what == "pass":
            machine.pass_us(us)
        else:
            machine.set_by(us)
        passed = us if what == "pass" else 0
        after, state = advance_clock(state, machine.wall_us(), machine.ticks)
        assert after >= machine.wall_us() - STEP_US_MAX
        assert after - machine.wall_us() <= HELD_US_MAX
        expected = now + passed - passed // 10 - 1
        assert after >= expected - 2 * STEP_US_MAX or expected - machine.wall_us() > HELD_US_MAX - 2 * STEP_US_MAX
        now = after


def test_held_time_is_made_up_for() -> None:
    """A store that stays in the future fires schedules early, and books costs into the wrong day."""
    machine = Machine()
    state = start_clock(machine.wall_us(), machine.ticks)
    machine.set_by(-10 * MINUTE_US)
    now, state = advance_clock(state, machine.wall_us(), machine.ticks)
    assert now == machine.wall_us() + 10 * MINUTE_US
    machine.pass_us(50 * MINUTE_US)
    now, state = advance_clock(state, machine.wall_us(), machine.ticks)
    assert now == machine.wall_us() + 5 * MINUTE_US
    machine.pass_us(50 * MINUTE_US)
    assert advance_clock(state, machine.wall_us(), machine.ticks) == (
        machine.wall_us(), ClockState(machine.offset)
    )  # fmt: skip


def test_a_clock_that_was_an_hour_ahead_by_mistake_is_followed_back() -> None:
    """Nobody would understand a store that is in the wrong day for weeks."""
    machine = Machine()
    state = start_clock(machine.wall_us(), machine.ticks)
    machine.set_by(24 * HELD_US_MAX)
    now, state = advance_clock(state, machine.wall_us(), machine.ticks)
    assert now == machine.wall_us()
    machine.set_by(-24 * HELD_US_MAX)
    assert advance_clock(state, machine.wall_us(), machine.ticks)[0] == machine.wall_us()


def test_a_watch_expects_less_than_the_time_that_has_passed() -> None:
    """While time is held it is slower; that must not look like another step."""
    watch = ClockWatch()
    assert watch.least_now(5.0) is None
    watch.observe(START_US, 10.0)
    assert watch.least_now(110.0) == START_US + 90 * SECOND_US


# -- SQLite and memory ------------------------------------------------------------------------------------------------


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, machine: Machine, tmp_path: Path) -> AsyncIterator[Any]:
    store: MemoryStore | SqliteStore
    if request.param == "memory":
        store = MemoryStore(ProcessTime(machine.wall_us, machine.ticks_us))
    else:
        store = SqliteStore(str(tmp_path / "work.db"), FileClock(machine.clock()))
    await store.open()
    yield store
    await store.close()


async def test_retries_schedules_and_leases_go_on(store: Any, machine: Machine) -> None:
    """With the machine's clock they would stop for ten minutes, and the jobs of a dead worker as well."""
    worker = ContractWorker(store)
    await store.jobs.submit([new_job(1), new_job(2)])
    await store.schedules.declare([Schedule(name="each-minute", kind="count", cron="* * * * *")])
    first, _ = await worker.claim(2)
    await worker.settle(retry(first, delay_us=5 * SECOND_US))
    machine.set_by(-10 * MINUTE_US)
    (before,) = await store.schedules.all()
    machine.pass_us(70 * SECOND_US)
    (after,) = await store.schedules.all()
    assert after.now - before.now >= 63 * SECOND_US
    assert after.now > after.seen
    again = await worker.claim(2)
    assert {lease.id for lease in again} == {id_of(1), id_of(2)}  # a retry, and an expired lease


async def test_leases_granted_after_the_step_do_not_end_early(store: Any, machine: Machine) -> None:
    """A lease that is stamped with the lower time would be reclaimed when time goes on."""
    await store.jobs.submit([new_job(1)])
    machine.set_by(-10 * MINUTE_US)
    lease = await ContractWorker(store).claim_one()
    machine.pass_us(14 * SECOND_US)
    assert (await store.jobs.renew([held(lease)])).lost == ()
    assert await ContractWorker(store, "other").claim() == ()


async def test_all_processes_of_a_file_agree(machine: Machine, tmp_path: Path) -> None:
    """A process that starts after the step would see a lease of the others as ten minutes long, or its own leases be
    reclaimed by them."""
    path = str(tmp_path / "work.db")
    early = SqliteStore(path, FileClock(machine.clock()))
    await early.open()
    machine.pass_us(3 * MINUTE_US)
    machine.set_by(-10 * MINUTE_US)
    late = SqliteStore(path, FileClock(machine.clock()))
    await late.open()  # the others have not made a call since
    machine.pass_us(2 * SECOND_US)
    await early.jobs.submit([new_job(1)])
    assert abs(await early.reads.now() - await late.reads.now()) <= 1
    assert await early.reads.now() >= START_US + 3 * MINUTE_US
    machine.pass_us(MINUTE_US)
    assert await late.reads.now() == await early.reads.now() >= START_US + 3 * MINUTE_US + 54 * SECOND_US
    await early.close()
    await late.close()


async def test_after_a_reboot_time_goes_on_after_the_last_claim(machine: Machine, tmp_path: Path) -> None:
    """A machine without a battery starts with an old date."""
    path = str(tmp_path / "work.db")
    before = SqliteStore(path, FileClock(machine.clock()))
    await before.open()
    await before.jobs.submit([new_job(1)])
    await ContractWorker(before).claim_one()
    claimed = await before.reads.now()
    await before.close()
    machine.ticks = 5 * SECOND_US
    machine.offset = claimed - 10 * MINUTE_US - machine.ticks
    after = SqliteStore(path, FileClock(machine.clock("second boot")))
    await after.open()
    assert await after.reads.now() == claimed
    await after.close()


async def test_a_rolled_back_transaction_keeps_no_state_that_the_file_lacks(machine: Machine, tmp_path: Path) -> None:
    """The other processes would never learn of the step."""
    path = str(tmp_path / "work.db")
    store = SqliteStore(path, FileClock(machine.clock()))
    await store.open()
    machine.set_by(-10 * MINUTE_US)

    def fail(transaction: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.database.write(fail)
    await store.jobs.submit([new_job(1)])
    rows = await store.connection.read(lambda connection: connection.execute("SELECT * FROM clock").fetchall())
    assert rows == [(1, "first boot", START_US - machine.ticks, machine.ticks)]
    await store.close()


# -- PostgreSQL -------------------------------------------------------------------------------------------------------


async def set_clock(server: PostgresServer, schema: str, by_us: int) -> None:
    """Set the server's clock, as far as this schema can see it."""
    async with connected(server) as connection:
        await connection.execute(
            f"CREATE OR REPLACE FUNCTION {schema}.wall_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE "
            f"RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {by_us}"
        )


async def test_postgres_goes_on_where_it_was(server: PostgresServer) -> None:
    """Limits would stay closed, and retries and schedules wait, until the server's clock has caught up."""
    schema = new_name()
    async with opened(server, schema) as store:
        limiter = PostgresLimiter(f"{server.url}?schema={schema}")
        await limiter.open()
        await limiter.definitions.declare([Limit("maps", "10/second").definition])

        async def is_open() -> bool:
            return isinstance(await limiter.acquire([PermitRequest("maps", "maps")]), Granted)

        worker = ContractWorker(store)
        await store.jobs.submit([new_job(1)])
        await worker.settle(retry(await worker.claim_one(), delay_us=SECOND_US // 2))
        await store.database.watch_clock()
        before = await store.reads.now()
        await until(is_open)
        await set_clock(server, schema, -10 * MINUTE_US)
        assert await store.reads.now() < before  # until the next watch
        await store.database.watch_clock()
        after = await store.reads.now()
        assert before <= after < before + 60 * SECOND_US
        (finding,) = [each for each in await require_inspection(store).health() if each.check == "clock"]
        assert finding.level == "problem"
        assert "in the future: the clock was set back" in finding.text
        await until(is_open)
        assert await until(worker.claim)
        await limiter.close()


async def test_leases_and_holds_of_the_moment_before_do_not_end_early(server: PostgresServer) -> None:
    """They are stamped with the lower time. When time goes on, they must not look ten minutes old: their handlers are
    running, and their calls are on the way."""
    schema = new_name()
    async with opened(server, schema) as store:
        ledger = PostgresLedger(f"{server.url}?schema={schema}")
        await ledger.definitions.declare([Budget("spend", usd=10, every="month").definition])
        await store.jobs.submit([new_job(1)])
        await store.database.watch_clock()
        await set_clock(server, schema, -10 * MINUTE_US)
        lease = await ContractWorker(store).claim_one()
        lines = ((Charge("spend", "spend"), MICRO),)
        assert isinstance(await ledger.hold("call", lines, 15 * SECOND_US, dispatch=True), HoldGranted)
        await store.database.watch_clock()
        assert await ContractWorker(store, "other").claim() == ()
        assert await store.jobs.checkpoint(lease.id, lease.token, "1")
        assert (await store.jobs.renew([held(lease)])).lost == ()
        wait_us = await store.jobs.wait_us(["default"])
        assert wait_us is not None
        assert wait_us > 0  # or idle workers would ask all the time
        assert (await ledger.expire(10)).count == 0
        assert await ledger.dispatch("call")
        await ContractWorker(store).settle(done(lease))
        assert (await job_of(store)).state is State.DONE
        await ledger.close()


async def test_a_corrected_clock_moves_time_only_once(server: PostgresServer) -> None:
    """Time that is ten minutes ahead of the clock would be in the future when the clock is set right, and every lease
    would end at once."""
    schema = new_name()
    async with opened(server, schema) as store:
        await store.database.watch_clock()
        before = await store.reads.now()
        await set_clock(server, schema, -10 * MINUTE_US)
        await store.database.watch_clock()
        await set_clock(server, schema, 0)
        assert before <= await store.reads.now() < before + 60 * SECOND_US
        await store.database.watch_clock()
        async with connected(server) as connection:
            assert await connection.fetchval(f"SELECT {schema}.now_us() - {schema}.wall_us()") <= 10 * SECOND_US
        await set_clock(server, schema, MINUTE_US)  # the clock catches up
        await store.database.watch_clock()
        assert await sources(server, schema) == ["wall_us()"]


async def test_a_step_of_more_than_an_hour_is_followed(server: PostgresServer) -> None:
    """The clock may have been wrong before: a day in the future, for example."""
    schema = new_name()
    async with opened(server, schema) as store:
        await store.database.watch_clock()
        before = await store.reads.now()
        await set_clock(server, schema, -61 * MINUTE_US)
        await store.database.watch_clock()
        assert await store.reads.now() < before - 60 * MINUTE_US
        assert await sources(server, schema) == ["wall_us()"]


async def test_a_process_that_starts_after_the_step_compares_with_the_last_claim(server: PostgresServer) -> None:
    """The server and all workers may have restarted together, or a standby with a slow clock has taken over."""
    schema = new_name()
    async with opened(server, schema) as store:
        await store.jobs.submit([new_job(1)])
        await ContractWorker(store).claim_one()
        claimed = await store.reads.now()
    await set_clock(server, schema, -10 * MINUTE_US)
    async with opened(server, schema) as store:
        await store.jobs.submit([new_job(2)])  # the first call of a process watches the clock
        assert await store.reads.now() >= claimed - SECOND_US


async def test_many_clients_hold_the_clock_once(server: PostgresServer) -> None:
    """All of them notice the step at the same time."""
    schema = new_name()
    async with opened(server, schema) as one, opened(server, schema) as other:
        for store in (one, other):
            await store.database.watch_clock()
        before = await one.reads.now()
        await set_clock(server, schema, -10 * MINUTE_US)
        for _ in range(3):
            await asyncio.gather(*(store.database.watch_clock() for store in (one, other)))
        assert before <= await one.reads.now() < before + 60 * SECOND_US
        async with connected(server) as connection:
            assert await connection.fetchval(f"SELECT count(*) FROM {schema}.held_clock") == 1
            assert await connection.fetchval(f"SELECT {schema}.expiry_grace_us()") < 11 * MINUTE_US


async def test_a_role_that_may_only_submit_watches_nothing(server: PostgresServer) -> None:
    """It has no right to, and must not fail."""
    schema = new_name()
    async with opened(server, schema):
        role = await new_role(server)
        async with connected(server) as connection:
            await connection.execute(f"SELECT {schema}.grant_submitter('{role}')")
        store = PostgresStore(f"postgresql://{role}@127.0.0.1:{server.port}/postgres?schema={schema}")
        await store.jobs.submit([new_job(1)])
        await store.jobs.submit([new_job(2)])
        await store.close()


async def sources(server: PostgresServer, schema: str) -> list[str]:
    """What `now_us` returns."""
    async with connected(server) as connection:
        text = await connection.fetchval(f"SELECT pg_get_function_sqlbody('{schema}.now_us'::regproc)")
    return [str(text).removeprefix("RETURN ").replace(f"{schema}.", "")]
