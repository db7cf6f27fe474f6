"""Claiming: fair shares, resume points in long lanes, and no job for two workers."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tests.stores.postgres_support import (
    address,
    connected,
    new_name,
    opened,
    recounted,
    seen_now,
    until,
    value,
    waiting_for_a_lock,
)

from leaseway.domain.ids import SECOND_US
from leaseway.domain.job import Lease
from leaseway.domain.lane import share
from leaseway.domain.tenant import WEIGHT_MAX
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import ContractWorker, counts, done, id_of, new_job, retry
from leaseway.testing.postgres import PostgresServer

FAR = 10_000
"""The number of ready jobs from which on a lane counts as long."""


# -- shares -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runner() -> Any:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def sharing(server: PostgresServer, runner: asyncio.Runner) -> Any:
    """The server's function `share`, over one connection."""
    store = PostgresStore(address(server, new_name()))
    runner.run(store.open())
    sql = f"SELECT {store.address.schema}.share($1, $2, $3)"

    async def ask(wanted: int, ready: list[int], weights: list[int]) -> list[int]:
        ((answer,),) = await store.connections.call(sql, wanted, ready, weights)
        return list(answer)

    yield lambda wanted, ready, weights: runner.run(ask(wanted, ready, weights))
    runner.run(store.close())


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wanted=st.integers(-1, 200) | st.just(2**31 - 1),
    lanes=st.lists(
        st.tuples(st.integers(0, 60) | st.just(10**12), st.integers(1, 3) | st.just(WEIGHT_MAX)), max_size=12
    ),
)
def test_the_server_shares_as_the_domain_does(sharing: Any, wanted: int, lanes: list[tuple[int, int]]) -> None:
    """The rule exists in Python and in SQL; the two must not diverge."""
    ready, weights = [ready for ready, _ in lanes], [weight for _, weight in lanes]
    expected = share(wanted, dict(enumerate(ready)), dict(enumerate(weights)))
    assert sharing(wanted, ready, weights) == [expected.get(lane, 0) for lane in range(len(ready))]


# -- many lanes -------------------------------------------------------------------------------------------------------


async def test_changes_of_many_lanes_are_folded_by_every_exchange(server: PostgresServer) -> None:
    """Every survey adds them up for each lane: with thousands of tenants an exchange became nine times slower."""
    async with opened(server) as store:
        worker = ContractWorker(store)
        most = 0
        for turn in range(8):
            await store.jobs.submit([new_job(100 * turn + n, tenant=f"t{n}") for n in range(60)])
            assert len(await worker.claim(60)) == 60
            changes = await value(server, f"SELECT count(*) FROM {store.address.schema}.lane_changes")
            most = max(most, changes)
        assert most <= 60


# -- long lanes -------------------------------------------------------------------------------------------------------


class Long:
    """A lane with more than ten thousand jobs, claimed by one session that may have a resume point."""

    def __init__(self, store: PostgresStore, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        self.worker = ContractWorker(store)
        self.claimed: list[str] = []

    async def claim(self, number: int) -> list[Lease]:
        leases = await self.worker.claim(number)
        self.claimed += [lease.id for lease in leases]
        assert len(set(self.claimed)) == len(self.claimed), "a job was claimed twice"
        return list(leases)

    async def mark(self, number: int, valid_us: int = 60 * SECOND_US) -> None:
        """Pretend that the last claim of this session ended with this job and was slow."""
        async with self.store.connections.borrow() as connection:
            schema = self.store.address.schema
            row = await connection.fetchrow(
                f"SELECT lane, ARRAY[priority, run_at, seq, $2] AS mark FROM {schema}.jobs WHERE id = $1",
                id_of(number),
                self.clock.now_us() + valid_us,
            )
            name = f"leaseway.position_{schema}_{row['lane']}"
            text = "{" + ",".join(map(str, row["mark"])) + "}"
            await connection.execute("SELECT set_config($1, $2, false)", name, text)


@pytest.fixture
async def long(server: PostgresServer, clock: FakeClock) -> AsyncIterator[Long]:
    async with opened(server, now_us=clock.now_us, pool="1") as store:
        await store.jobs.submit([new_job(number) for number in range(1, FAR + 501)])
        yield Long(store, clock)


async def test_a_claim_continues_from_the_resume_point(long: Long) -> None:
    """Otherwise the other tests of resume points would prove nothing."""
    await long.mark(5_000)
    assert [lease.id for lease in await long.claim(3)] == [id_of(5_001), id_of(5_002), id_of(5_003)]
    assert [lease.id for lease in await long.claim(2)] == [id_of(5_004), id_of(5_005)]


async def test_a_resume_point_does_not_skip_higher_priorities(long: Long) -> None:
    """An urgent job may arrive at any time, with a time to run before or after the resume point."""
    await long.mark(5_000)
    await long.store.jobs.submit(
        [new_job(20_001, priority=1), new_job(20_002, priority=9), new_job(20_003, priority=-1)]
    )
    assert [lease.id for lease in await long.claim(3)] == [id_of(20_002), id_of(20_001), id_of(5_001)]


async def test_jobs_before_the_resume_point_are_found_when_it_expires(long: Long) -> None:
    """A job that was released, or locked by another session for a moment, must not wait for ever."""
    await long.mark(5_000, valid_us=SECOND_US)
    await long.claim(1)
    long.clock.advance(1)
    assert [lease.id for lease in await long.claim(2)] == [id_of(1), id_of(2)]


async def test_jobs_before_the_resume_point_are_found_when_the_lane_runs_out(long: Long) -> None:
    """A claim for more jobs than there are after the resume point takes the others from before it."""
    await long.mark(FAR + 498)
    assert [lease.id for lease in await long.claim(4)] == [id_of(number) for number in (1, 2, 3, 4)]
    leases = await long.claim(5_000)
    assert len(leases) == 5_000
    assert await counts(long.store) == {"ready": FAR + 500 - 5_004, "leased": 5_004}


async def test_a_lane_with_resume_points_is_drained_completely(long: Long) -> None:
    """With settled, retried and new jobs in between, every job is leased, and none twice per run."""
    fresh = count(30_000)
    await long.mark(9_000)
    retried: list[str] = []
    while leases := await long.claim(2_500):
        again = leases[:5] if not retried else []
        retried += [lease.id for lease in again]
        for lease in again:
            long.claimed.remove(lease.id)
        await long.store.jobs.submit([new_job(next(fresh))] if len(long.claimed) < FAR else [])
        settlements = [retry(lease) for lease in again] + [done(lease) for lease in leases[len(again) :]]
        await long.worker.settle(*settlements)
    assert set(retried) <= set(long.claimed)
    lanes = await long.store.reads.lanes()
    assert lanes == await recounted(long.store)
    assert lanes[0].unfinished == 0


async def test_a_resume_point_belongs_to_one_lane_of_one_schema(server: PostgresServer, clock: FakeClock) -> None:
    """Two long lanes may be claimed at once."""
    async with opened(server, now_us=clock.now_us, pool="1") as store:
        await store.jobs.submit([new_job(number, tenant="a") for number in range(FAR)])
        await store.jobs.submit([new_job(FAR + number, tenant="b") for number in range(FAR)])
        await Long(store, clock).mark(500)
        leases = await ContractWorker(store).claim(4)
        assert [lease.id for lease in leases] == [id_of(number) for number in (501, 502, FAR, FAR + 1)]


async def test_an_invalid_resume_point_affects_only_its_session(server: PostgresServer) -> None:
    """Every session may change its own settings; whatever they contain, no job may be claimed twice."""
    async with opened(server) as store:
        await store.jobs.submit([new_job(number) for number in range(FAR + 1)])
        schema = store.address.schema
        async with connected(server) as connection:
            await connection.execute("SELECT set_config($1, $2, false)", f"leaseway.position_{schema}_1", "{9,9}")
            sql = f"SELECT id FROM {schema}.exchange('w', '{{default}}', 2, 't', false" + ", NULL" * 12 + ")"
            assert [row["id"] for row in await connection.fetch(sql)] == [id_of(0), id_of(1)]


# -- two at once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [3_000, FAR + 1_000], ids=["short lane", "long lane"])
async def test_sessions_that_claim_at_the_same_time_never_get_the_same_job(server: PostgresServer, jobs: int) -> None:
    """The first promise of the store."""
    async with opened(server, pool="4") as one, opened(server, one.address.schema, pool="4") as two:
        for start in range(0, jobs, 5_000):
            await one.jobs.submit([new_job(number) for number in range(start, min(start + 5_000, jobs))])
        claimed: list[str] = []

        async def work(store: PostgresStore, name: str) -> None:
            worker, previous = ContractWorker(store, name), ()
            while True:
                answer = await worker.exchange(*map(done, previous), wants=worker.wants(97))
                assert answer.lost == ()
                if not answer.leases:
                    return
                claimed.extend(lease.id for lease in answer.leases)
                previous = answer.leases  # type: ignore[assignment]

        await asyncio.gather(*(work(store, f"{n}") for n, store in enumerate((one, two) * 3)))
        assert len(claimed) == len(set(claimed)) == jobs
        assert await counts(one) == {"done": jobs}
        assert await one.reads.lanes() == await recounted(one)


async def test_a_job_locked_by_another_claim_is_skipped_and_found_later(server: PostgresServer) -> None:
    """Claims do not wait for each other, and a claim that is rolled back loses no job."""
    async with opened(server) as store, connected(server) as connection:
        await store.jobs.submit([new_job(1), new_job(2)])
        schema = store.address.schema
        transaction = connection.transaction()
        await transaction.start()
        sql = f"SELECT id FROM {schema}.exchange('other', '{{default}}', 1, 't', false" + ", NULL" * 12 + ")"
        assert [row["id"] for row in await connection.fetch(sql)] == [id_of(1)]
        assert [lease.id for lease in await ContractWorker(store).claim(2)] == [id_of(2)]
        await transaction.rollback()
        assert [lease.id for lease in await ContractWorker(store).claim(2)] == [id_of(1)]
        assert await store.reads.lanes() == await recounted(store)


# -- the check for expired leases -------------------------------------------------------------------------------------


async def test_a_check_that_is_slow_because_the_server_is_busy_pauses_nothing(server: PostgresServer) -> None:
    """The check pauses when it reads very many dead rows. A session that only had to wait must keep checking: on a busy
    machine, expired leases would otherwise stay for up to five seconds longer.
    """
    async with opened(server) as store, connected(server) as session, connected(server) as other:
        schema = store.address.schema
        await session.execute(f"SET search_path TO {schema}")
        transaction = other.transaction()
        await transaction.start()
        await other.execute(f"LOCK TABLE {schema}.jobs IN ACCESS EXCLUSIVE MODE")
        check = asyncio.create_task(session.fetchval("SELECT any_expired(now_us())"))
        (pid,) = await waiting_for_a_lock(other)
        slow = "SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND clock_timestamp() - query_start > interval '50 ms'"
        await until(lambda: seen_now(other, slow, pid))
        await transaction.rollback()
        assert await check is False
        pause = f"SELECT current_setting('leaseway.expiry_check_paused_until_{schema}', true)"
        assert await session.fetchval(pause) is None
