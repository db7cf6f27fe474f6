"""Workers that are killed in the middle of a page, lost replies, and lock waits."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import pytest
from tests.imports.sql_sink_fixtures import (
    PLACES,
    TABLE,
    Place,
    PostgresPlace,
    SqlitePlace,
    empty_place,
    empty_postgres,
)
from tests.imports.sql_sink_worker import ROWS

from leaseway.domain.errors import UnknownOutcome
from leaseway.imports.domain.page import WriteCounts
from leaseway.testing.postgres import PostgresServer
from leaseway.testing.sink_contract.fixtures import LOW, RUN, imported, page, row, rows, shard, started, written

KILLS = 6
STEPS_MAX = 1_000
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> SqlitePlace | PostgresPlace:
    return await empty_place(request, tmp_path)


def killed(address: str, fence: int, pages: int, microseconds: int) -> int:
    """The last page that a worker knew to be written when it was killed with SIGKILL a moment later."""
    command = [sys.executable, "-m", "tests.imports.sql_sink_worker", address, str(fence)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as worker:
        assert worker.stdout is not None
        for _ in range(pages):
            assert worker.stdout.readline(), "the worker ended by itself"
        time.sleep(microseconds / 1_000_000)  # not asserted: over many kills, each moment of a page is hit
        worker.kill()
        rest = worker.stdout.read().split("\n")[:-1]
    return int(rest[-1]) if rest else 0


async def test_rows_and_counters_agree_after_every_kill(place: SqlitePlace | PostgresPlace) -> None:
    """Rows, bad rows, seen ids, counters and cursor must belong to the same page, never to a state in between."""
    address = place.url if isinstance(place, PostgresPlace) else place.path
    sink = place.sink()
    await sink.open()
    await sink.runs.start(RUN, [LOW])
    for kill in range(KILLS):
        known = await asyncio.to_thread(killed, address, kill + 1, 3 + kill, 700 * kill)
        await sink.shards.begin(
            RUN.id, LOW.key, kill + 1
        )  # waits until the transaction of the killed worker is rolled back
        found = await shard(sink)
        assert found.pages >= known
        assert found.pages >= 3 * (kill + 1)
        assert found.cursor == {"after": found.pages}
        assert found.rows == found.inserted == found.size_bytes == found.pages * ROWS
        assert sorted(map(int, await place.rows())) == list(range(found.pages * ROWS))
        assert [one.position for _, _, one in await sink.quarantine.find_all(limit=10_000)] == list(range(found.pages))
        assert [count for (count,) in await place.execute("SELECT count(*) FROM leaseway_seen")] == [found.rows]
        assert found.attempts == kill + 1
    await sink.close()


async def test_a_lost_reply_is_told_and_the_sink_knows_where_it_stands(server: PostgresServer) -> None:
    """The worker reads its position from the sink and continues: nothing twice, nothing skipped."""
    place = await empty_postgres(server.url)
    sink = place.sink()
    await sink.open()
    await started(sink)
    await written(sink, page(rows(1), after=1))
    holder = await asyncpg.connect(place.url)
    async with asyncio.TaskGroup() as tasks, holder.transaction():
        await holder.execute("SELECT 1 FROM leaseway_shards FOR UPDATE")
        sent = tasks.create_task(lost(sink.shards.write(page(rows(2), 1, 2))))
        await holder.execute("SELECT pg_terminate_backend($1)", await waiting(place))
        assert "may be repeated" in await sent
    await holder.close()
    begun = await sink.shards.begin(RUN.id, LOW.key, 1)
    assert begun is not None
    assert begun.cursor == {"after": 1}
    assert await sink.shards.write(page(rows(2), 1, 2)) == WriteCounts(inserted=1)
    await sink.close()


async def test_unchanged_rows_are_not_even_locked(server: PostgresServer) -> None:
    """A second import of the same data must not wait for locks or leave dead rows for the server to clean up."""
    place = await empty_postgres(server.url)
    sink = place.sink()
    await sink.open()
    await imported(sink, "run-1", row(1, 5), row(2, 5))
    holder = await asyncpg.connect(place.url)
    async with holder.transaction():
        await holder.execute(f'SELECT 1 FROM "{TABLE}" FOR UPDATE')
        async with asyncio.timeout(60):
            assert await imported(sink, "run-2", row(1, 5), row(2, 4)) == WriteCounts(unchanged=1, stale=1)
    await holder.close()
    await sink.close()


async def test_workers_that_open_at_once_make_the_tables_once(place: Place) -> None:
    """A fleet of workers may start with an empty database."""
    sinks = [place.sink() for _ in range(4)]
    await asyncio.gather(*(sink.open() for sink in sinks))
    assert await imported(sinks[0], "run-1", *rows(1, 2)) == WriteCounts(inserted=2)
    assert [await sink.rows.count() for sink in sinks] == [2, 2, 2, 2]
    await asyncio.gather(*(sink.close() for sink in sinks))


async def lost(call: object) -> str:
    with pytest.raises(UnknownOutcome) as caught:
        await call  # type: ignore[misc]
    return str(caught.value)


async def waiting(place: Place) -> int:
    """The server process that waits for a lock."""
    for _ in range(STEPS_MAX):
        found = await place.execute("SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        if found:
            return int(found[0][0])
        await asyncio.sleep(0.01)
    raise AssertionError("nobody waits")
