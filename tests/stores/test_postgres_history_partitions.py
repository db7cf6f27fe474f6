"""The history is partitioned by day: partitions are created ahead and dropped as a whole, without blocking others."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.stores.postgres_support import SOON_SECONDS, connected, opened, recounted, value

from leaseway.domain.ids import SECOND_US
from leaseway.domain.job import Submitted
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import (
    ALL,
    ContractWorker,
    counts,
    done,
    failed,
    id_of,
    ids_in,
    new_job,
)
from leaseway.testing.postgres import PostgresServer

DAY_US = 86_400 * SECOND_US
NOON_US = (20_000 * 86_400 + 43_200) * SECOND_US
"""12:00 UTC on 2024-10-04."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON_US)


@pytest.fixture
async def store(server: PostgresServer, clock: FakeClock) -> AsyncIterator[PostgresStore]:
    async with opened(server, now_us=clock.now_us) as store:
        yield store


def table_of(instant_us: int) -> str:
    return f"history_{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=instant_us):%Y%m%d}"


async def tables(server: PostgresServer, store: PostgresStore) -> set[str]:
    """The partitions of the test's days, without the server's own today and tomorrow."""
    sql = "SELECT array_agg(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = $1::regclass"
    schema = store.address.schema
    found = await value(server, sql, f"{schema}.history")
    return {name.removeprefix(f"{schema}.") for name in found if name < f"{schema}.history_2025"}


async def finish(store: PostgresStore, *numbers: int, fails: bool = False) -> None:
    worker = ContractWorker(store)
    await store.jobs.submit([new_job(number) for number in numbers])
    leases = await worker.claim(len(numbers))
    await worker.settle(*((failed if fails else done)(lease) for lease in leases))


async def rows_in(server: PostgresServer, store: PostgresStore, table: str) -> int:
    return int(await value(server, f"SELECT count(*) FROM {store.address.schema}.{table}"))


# -- others are in the way --------------------------------------------------------------------------------------------


async def test_a_partition_that_is_being_read_is_dropped_later(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """A backup reads for hours. A pruning that waits for it would block all settlements."""
    await store.operations.prune(7 * DAY_US, 10)
    await finish(store, 1, 2)
    old = table_of(NOON_US)
    clock.advance_us(9 * DAY_US)
    async with connected(server) as reader, reader.transaction():
        await reader.fetch(f"SELECT * FROM {store.address.schema}.{old}")
        async with asyncio.timeout(SOON_SECONDS):
            assert await store.operations.prune(7 * DAY_US, 10) == 0
        await finish(store, 3)
        assert old in await tables(server, store)
        assert await counts(store) == {"done": 3}
    assert await store.operations.prune(7 * DAY_US, 10) == 2
    assert old not in await tables(server, store)
    assert await counts(store) == {"done": 1}


async def test_a_full_backup_does_not_block_workers_or_pruning(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """pg_dump locks every table for reading, so that the partition of tomorrow cannot be attached."""
    await store.operations.prune(7 * DAY_US, 10)
    await finish(store, 1)
    clock.advance_us(9 * DAY_US)
    async with connected(server) as backup, backup.transaction():
        await backup.execute(f"LOCK TABLE {store.address.schema}.history IN ACCESS SHARE MODE")
        async with asyncio.timeout(SOON_SECONDS):
            assert await store.operations.prune(7 * DAY_US, 10) == 0
            await finish(store, 2, 3)
            assert await store.jobs.submit([new_job(4)]) == [Submitted(id_of(4))]
    assert await store.operations.prune(7 * DAY_US, 10) == 1
    assert await counts(store) == {"ready": 1, "done": 2}


async def test_a_waiting_pruning_gives_up_its_lock_soon(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """Later statements queue up behind a lock that is being waited for."""
    await store.operations.prune(7 * DAY_US, 10)
    await finish(store, 1)
    clock.advance_us(9 * DAY_US)
    async with connected(server) as reader, reader.transaction():
        await reader.fetch(f"SELECT * FROM {store.address.schema}.history")
        async with asyncio.timeout(SOON_SECONDS):
            await asyncio.gather(
                store.operations.prune(7 * DAY_US, 10), *(finish(store, number) for number in range(2, 8))
            )
    assert await counts(store) == {"done": 7}


async def test_concurrent_prunings_count_each_job_once(server: PostgresServer, clock: FakeClock) -> None:
    """Every worker prunes."""
    async with (
        opened(server, now_us=clock.now_us) as one,
        opened(server, one.address.schema, now_us=clock.now_us) as two,
    ):
        await one.operations.prune(7 * DAY_US, 10)
        await finish(one, *range(20))
        clock.advance_us(9 * DAY_US)
        await asyncio.gather(
            *(store.operations.prune(7 * DAY_US, 10) for store in (one, two) * 4), return_exceptions=True
        )
        await one.operations.prune(7 * DAY_US, 10)
        assert await one.reads.lanes() == await recounted(one)
        assert await counts(one) == {}


# -- making -----------------------------------------------------------------------------------------------------------


async def test_pruning_creates_the_partitions_of_today_and_tomorrow(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """They must exist before midnight, when settlements need them."""
    await store.operations.prune(DAY_US, 10)
    assert await tables(server, store) >= {table_of(NOON_US), table_of(NOON_US + DAY_US)}
    await finish(store, 1)
    clock.advance_us(DAY_US)
    await finish(store, 2)
    assert await rows_in(server, store, table_of(NOON_US)) == 1
    assert await rows_in(server, store, table_of(NOON_US + DAY_US)) == 1
    assert await rows_in(server, store, "history_default") == 0
    for _ in range(2):
        await store.operations.prune(7 * DAY_US, 10)
    assert await ids_in(store) == [id_of(1), id_of(2)]


async def test_days_start_at_midnight_utc_to_the_microsecond(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """Sessions in different time zones must not create two partitions for one day."""
    await value(server, "ALTER DATABASE postgres SET timezone = 'Pacific/Kiritimati'")
    try:
        async with opened(server, store.address.schema, now_us=clock.now_us) as elsewhere:
            await elsewhere.operations.prune(7 * DAY_US, 10)
            await store.operations.prune(7 * DAY_US, 10)
            clock.set_us(NOON_US + DAY_US // 2 - 1)
            await finish(elsewhere, 1)
            clock.advance_us(1)
            await finish(elsewhere, 2)
        assert await rows_in(server, store, table_of(NOON_US)) == 1
        assert await rows_in(server, store, table_of(NOON_US + DAY_US)) == 1
        clock.set_us(NOON_US + 8 * DAY_US)
        async with opened(server, store.address.schema, now_us=clock.now_us) as elsewhere:
            assert await elsewhere.operations.prune(7 * DAY_US, 10) == 1
        assert await ids_in(store) == [id_of(2)]
    finally:
        await value(server, "ALTER DATABASE postgres RESET timezone")


async def test_a_new_schema_has_its_first_partitions(server: PostgresServer) -> None:
    """Jobs of the first day would go to the default partition, and the partition of that day could not be attached."""
    async with opened(server) as store:
        sql = "SELECT count(*) FROM pg_inherits WHERE inhparent = $1::regclass"
        assert await value(server, sql, f"{store.address.schema}.history") == 3
        await finish(store, 1)
        assert await rows_in(server, store, "history_default") == 0


# -- dropping ---------------------------------------------------------------------------------------------------------


async def test_dropping_partitions_updates_the_counters(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """Dropping takes no time and leaves no dead rows, however many jobs there are."""
    await store.operations.prune(7 * DAY_US, 10)
    await finish(store, *range(1, 16))
    await finish(store, 20, fails=True)
    await store.jobs.submit([new_job(21)])
    await store.operations.cancel(id_of(21))
    clock.advance_us(DAY_US)
    await store.operations.prune(7 * DAY_US, 10)
    await finish(store, 30)
    assert await counts(store) == {"done": 16, "failed": 1, "cancelled": 1}
    clock.advance_us(7 * DAY_US)
    assert await store.operations.prune(7 * DAY_US, 10) == 17
    assert await counts(store) == {"done": 1}
    assert await store.reads.lanes() == await recounted(store)
    assert await store.reads.errors(id_of(20)) == []
    assert await store.operations.prune(7 * DAY_US, 10) == 0
    assert table_of(NOON_US) not in await tables(server, store)


async def test_a_long_retention_drops_whole_days_and_never_too_early(store: PostgresStore, clock: FakeClock) -> None:
    """Partitions avoid deleting single rows from large tables; the retention is still a promise."""
    await store.operations.prune(2 * DAY_US, 10)
    await finish(store, 1)
    midnight_us = NOON_US + DAY_US // 2
    for instant_us, left in (
        (NOON_US + 2 * DAY_US, 1),
        (midnight_us + 2 * DAY_US - 1, 1),
        (midnight_us + 2 * DAY_US, 0),
    ):
        clock.set_us(instant_us)
        await store.operations.prune(2 * DAY_US, 10)
        assert len(await ids_in(store)) == left


async def test_a_short_retention_is_exact(store: PostgresStore, clock: FakeClock) -> None:
    """A retention of an hour must not keep jobs for two days."""
    await store.operations.prune(DAY_US, 10)
    await finish(store, 1)
    clock.advance_us(10 * SECOND_US)
    await finish(store, 2)
    clock.advance_us(3_590 * SECOND_US - 1)
    assert await store.operations.prune(3_600 * SECOND_US, 10) == 0
    clock.advance_us(1)
    assert await store.operations.prune(3_600 * SECOND_US, 10) == 1
    assert await ids_in(store) == [id_of(2)]
    assert await counts(store) == {"done": 1}


async def test_jobs_without_a_partition_go_to_the_default_one_and_are_pruned_by_row(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """No worker ran the day before, so the partition is missing: settling must continue."""
    await finish(store, *range(1, 6))
    assert await rows_in(server, store, "history_default") == 5
    await store.operations.prune(7 * DAY_US, 10)
    assert await ids_in(store) == [id_of(number) for number in range(1, 6)]
    clock.advance_us(7 * DAY_US)
    assert [await store.operations.prune(7 * DAY_US, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert await counts(store) == {}
    await store.operations.prune(7 * DAY_US, 2)
    await finish(store, 9)
    assert await rows_in(server, store, "history_default") == 0, (
        "the default partition is empty, and days have partitions again"
    )


async def test_a_day_that_started_in_the_default_partition_stays_there(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """Its own partition cannot be attached any more; that must not stop pruning or the partition of tomorrow."""
    await finish(store, 1)
    await store.operations.prune(7 * DAY_US, 10)
    assert table_of(NOON_US) not in await tables(server, store)
    assert table_of(NOON_US + DAY_US) in await tables(server, store)
    await finish(store, 2)
    assert await rows_in(server, store, "history_default") == 2
    assert [job.id for job in await store.reads.jobs(ALL)] == [id_of(2), id_of(1)]


async def test_a_retried_job_is_not_dropped_with_its_old_day(store: PostgresStore, clock: FakeClock) -> None:
    """An operator retries a dead letter just before its day is dropped."""
    await store.operations.prune(7 * DAY_US, 10)
    await finish(store, 1, 2, fails=True)
    clock.advance_us(7 * DAY_US)
    (replayed, _) = await store.operations.retry(ALL, 2)
    await store.operations.cancel(id_of(2))
    clock.advance_us(2 * DAY_US)
    await store.operations.prune(7 * DAY_US, 10)
    assert replayed == id_of(1)
    assert await ids_in(store) == [id_of(1), id_of(2)]
    assert await store.reads.lanes() == await recounted(store)


async def test_pruning_zero_jobs_creates_partitions_and_drops_none(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """A worker that may not delete must still prepare the next day."""
    await store.operations.prune(7 * DAY_US, 0)
    await finish(store, 1)
    clock.advance_us(30 * DAY_US)
    assert await store.operations.prune(7 * DAY_US, 0) == 0
    assert await tables(server, store) >= {table_of(NOON_US), table_of(clock.now_us())}
    assert await ids_in(store) == [id_of(1)]


async def test_a_detached_partition_is_left_alone(server: PostgresServer, store: PostgresStore) -> None:
    """An operator detached a day to keep it: pruning must not fail on its name for ever."""
    name = f"{store.address.schema}.{table_of(NOON_US)}"
    await value(server, f"CREATE TABLE {name} AS SELECT 7 AS x")
    await store.operations.prune(0, 10)
    assert await value(server, f"SELECT x FROM {name}") == 7
    await finish(store, 1)
    assert await rows_in(server, store, "history_default") == 1
