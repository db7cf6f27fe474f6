"""History by the day: tables are made ahead, dropped as a whole, and nobody has to wait for that."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.stores.postgres_support import SOON_SECONDS, connected, opened, recounted, value

from leaseway.domain.ids import SECOND_US
from leaseway.domain.job import Submitted
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.contract.actors import ALL, Worker, counts, done, failed, id_of, ids_in, new_job
from leaseway.testing.postgres import PostgresServer

DAY_US = 86_400 * SECOND_US
NOON_US = (20_000 * 86_400 + 43_200) * SECOND_US
"""12:00 of 2024-10-04 in Greenwich."""


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
    """Those of days that the test's clock knows; the server's own today and tomorrow were made when it was opened."""
    sql = "SELECT array_agg(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = $1::regclass"
    schema = store.address.schema
    found = await value(server, sql, f"{schema}.history")
    return {name.removeprefix(f"{schema}.") for name in found if name < f"{schema}.history_2025"}


async def finish(store: PostgresStore, *numbers: int, fails: bool = False) -> None:
    worker = Worker(store)
    await store.jobs.submit([new_job(number) for number in numbers])
    leases = await worker.claim(len(numbers))
    await worker.settle(*((failed if fails else done)(lease) for lease in leases))


async def rows_in(server: PostgresServer, store: PostgresStore, table: str) -> int:
    return int(await value(server, f"SELECT count(*) FROM {store.address.schema}.{table}"))


# -- others are in the way --------------------------------------------------------------------------------------------


async def test_a_day_that_somebody_reads_is_left_for_later(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """A backup reads for hours. Whoever waits for it behind the pruning would wait for hours as well."""
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


async def test_a_backup_of_everything_stops_neither_workers_nor_pruning_for_long(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """pg_dump locks every table for reading. Tomorrow's table cannot be attached then, and nobody may mind."""
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


async def test_a_pruning_that_waits_keeps_settlements_waiting_no_longer_than_itself(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """Its lock stands in line before everybody who comes later; so it must give up soon."""
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


async def test_two_who_prune_at_once_count_once(server: PostgresServer, clock: FakeClock) -> None:
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


async def test_pruning_makes_the_tables_of_today_and_tomorrow(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """Made before midnight: at midnight nobody has time for it."""
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


async def test_a_day_begins_and_ends_in_greenwich_to_the_microsecond(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """Whatever time zone the session has: two workers must not make two tables for one day."""
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


async def test_a_fresh_schema_has_its_first_tables(server: PostgresServer) -> None:
    """Otherwise the first day would land in the rest, and its table could never be made."""
    async with opened(server) as store:
        sql = "SELECT count(*) FROM pg_inherits WHERE inhparent = $1::regclass"
        assert await value(server, sql, f"{store.address.schema}.history") == 3
        await finish(store, 1)
        assert await rows_in(server, store, "history_default") == 0


# -- dropping ---------------------------------------------------------------------------------------------------------


async def test_whole_days_are_dropped_and_the_counters_know(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """Dropping takes no time and leaves no dead rows: also when it is more than one deletes at once."""
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


async def test_a_long_retention_is_kept_by_the_day_and_never_too_short(store: PostgresStore, clock: FakeClock) -> None:
    """Deleting single rows out of large tables is what days are there to avoid; a promise to keep is a promise."""
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
    """Who keeps jobs for an hour does not want to keep them for two days."""
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


async def test_what_no_day_has_a_table_for_lands_in_the_rest_and_is_pruned_by_the_row(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """No worker ran the day before, so nobody made the table: settling must go on."""
    await finish(store, *range(1, 6))
    assert await rows_in(server, store, "history_default") == 5
    await store.operations.prune(7 * DAY_US, 10)
    assert await ids_in(store) == [id_of(number) for number in range(1, 6)]
    clock.advance_us(7 * DAY_US)
    assert [await store.operations.prune(7 * DAY_US, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert await counts(store) == {}
    await store.operations.prune(7 * DAY_US, 2)
    await finish(store, 9)
    assert await rows_in(server, store, "history_default") == 0, "the rest is empty, and days have their tables again"


async def test_a_day_whose_first_jobs_are_in_the_rest_goes_on_there(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    """Its table cannot be attached any more: that must neither stop the pruning nor tomorrow's table."""
    await finish(store, 1)
    await store.operations.prune(7 * DAY_US, 10)
    assert table_of(NOON_US) not in await tables(server, store)
    assert table_of(NOON_US + DAY_US) in await tables(server, store)
    await finish(store, 2)
    assert await rows_in(server, store, "history_default") == 2
    assert [job.id for job in await store.reads.jobs(ALL)] == [id_of(2), id_of(1)]


async def test_a_job_that_comes_back_from_an_old_day_is_not_dropped_with_it(
    store: PostgresStore, clock: FakeClock
) -> None:
    """A dead letter that somebody retries, a moment before its day is over."""
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


async def test_a_pruning_of_nothing_still_makes_tables_and_drops_none(
    server: PostgresServer, store: PostgresStore, clock: FakeClock
) -> None:
    await store.operations.prune(7 * DAY_US, 0)
    await finish(store, 1)
    clock.advance_us(30 * DAY_US)
    assert await store.operations.prune(7 * DAY_US, 0) == 0
    assert await tables(server, store) >= {table_of(NOON_US), table_of(clock.now_us())}
    assert await ids_in(store) == [id_of(1)]


async def test_a_table_of_somebody_elses_with_the_name_of_a_day_is_left_alone(
    server: PostgresServer, store: PostgresStore
) -> None:
    """Someone detached a day to keep it: pruning must not stop for ever at the name."""
    name = f"{store.address.schema}.{table_of(NOON_US)}"
    await value(server, f"CREATE TABLE {name} AS SELECT 7 AS x")
    await store.operations.prune(0, 10)
    assert await value(server, f"SELECT x FROM {name}") == 7
    await finish(store, 1)
    assert await rows_in(server, store, "history_default") == 1
