"""MongoDB and Parquet: workers that are killed in the middle of a page, and random histories from Hypothesis."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.imports.mongodb_fixtures import MongoPlace
from tests.imports.parquet_fixtures import ParquetPlace
from tests.imports.sql_sink_worker import ROWS
from tests.imports.test_sink_state_machine import LIVES, Life

from leaseway.imports.domain.page import WriteCounts
from leaseway.imports.domain.run_state import RunState, ShardState
from leaseway.testing.mongodb import MongoServer, mongodb_server
from leaseway.testing.sink_contract.fixtures import LOW, RUN, bad, page, row, shard

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KILLS = 3
ROOT = Path(__file__).parents[2]
SOON = ("--setParameter", "transactionLifetimeLimitSeconds=3")
"""The server frees the transaction of a killed worker after this time; the default is a minute."""


@pytest.fixture(scope="module")
def replica_set() -> Iterator[MongoServer]:
    with mongodb_server(*SOON) as server:
        yield server


@pytest.fixture(scope="module")
def standalone() -> Iterator[MongoServer]:
    with mongodb_server(replica_set=False) as server:
        yield server


@pytest.fixture(params=["replica_set", "standalone", "parquet"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> MongoPlace | ParquetPlace:
    if request.param == "parquet":
        return ParquetPlace(tmp_path / "places")
    place = MongoPlace(request.getfixturevalue(request.param).url)
    await place.empty()
    return place


def killed(address: str, fence: int, pages: int, microseconds: int) -> int:
    """The last page that a worker knew to be written when it was killed with SIGKILL a moment later."""
    command = [sys.executable, "-m", "tests.imports.document_sink_worker", address, str(fence)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as worker:
        assert worker.stdout is not None
        for _ in range(pages):
            assert worker.stdout.readline(), "the worker ended by itself"
        time.sleep(microseconds / 1_000_000)  # not asserted: over many kills, each moment of a page is hit
        worker.kill()
        rest = worker.stdout.read().split("\n")[:-1]
    return int(rest[-1]) if rest else 0


async def test_rows_and_counters_agree_after_every_kill(place: MongoPlace | ParquetPlace) -> None:
    """A half-written page is written again by the next worker and must count once. In the end nothing is missing,
    nothing is duplicated, and the counters match the rows.
    """
    address = place.url if isinstance(place, MongoPlace) else str(place.folder)
    sink = place.sink()
    await sink.open()
    await sink.runs.start(RUN, [LOW])
    for kill in range(KILLS):
        known = await asyncio.to_thread(killed, address, kill + 1, 3 + kill, 700 * kill)
        found = await shard(sink)
        assert found.pages >= max(known, 3 * (kill + 1))
        assert found.cursor == {"after": found.pages}
        assert found.rows == found.inserted == found.size_bytes == found.pages * ROWS
        assert found.quarantined == found.pages
    await sink.close()
    sink = place.sink()
    await sink.open()
    last = KILLS + 1
    begun = await sink.shards.begin(RUN.id, LOW.key, last)
    assert begun is not None
    some = [row(one, title="x" * 500) for one in range(begun.pages * ROWS, (begun.pages + 1) * ROWS)]
    end = page(some, begun.pages, begun.pages + 1, last, bad=[bad(begun.pages)], state=ShardState.DONE)
    assert await sink.shards.write(end) == WriteCounts(inserted=ROWS, quarantined=1)
    await sink.runs.finish(RUN.id, RunState.COMPLETE)
    found = await shard(sink)
    assert found.inserted == found.rows == found.pages * ROWS == await sink.rows.count()
    assert sorted(map(int, await place.rows())) == list(range(found.pages * ROWS))
    assert [one.position for _, _, one in await sink.quarantine.find_all(limit=10_000)] == list(range(found.pages))
    await sink.close()


STARTER = """
from leaseway.testing.mongodb import mongodb_server
with mongodb_server(replica_set=False) as server:
    print(server.process.pid, flush=True)
    input()
"""


def test_a_server_dies_with_whoever_started_it(tmp_path: Path) -> None:
    """A killed test run must not leave a server process behind."""
    command, environment = [sys.executable, "-c", STARTER], {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as starter:
        assert starter.stdout is not None
        number = int(starter.stdout.readline())
        assert is_alive(number)
        starter.kill()
    for _ in range(500):
        if not is_alive(number):
            break
        time.sleep(0.02)
    assert not is_alive(number)


def is_alive(number: int) -> bool:
    """A zombie process is not alive."""
    try:
        return ") Z " not in Path(f"/proc/{number}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


# -- random histories --


class Mongo(Life):
    url: str

    async def opened(self) -> None:
        self.place = MongoPlace(self.url)
        await self.place.empty()
        self.sink = self.place.sink(self.clock.now_us)
        await self.sink.open()


class Standalone(Mongo):
    pass


class Parquet(Life):
    async def opened(self) -> None:
        self.folder = tempfile.mkdtemp()
        self.place = ParquetPlace(Path(self.folder) / "places")
        self.sink = self.place.sink(self.clock.now_us)
        await self.sink.open()

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)


@pytest.fixture(scope="module", autouse=True)
def _servers(replica_set: MongoServer, standalone: MongoServer) -> None:
    Mongo.url, Standalone.url = replica_set.url, standalone.url


FEWER = settings(LIVES, max_examples=6)
TestMongo = Mongo.TestCase
TestMongo.settings = FEWER
TestStandalone = Standalone.TestCase
TestStandalone.settings = FEWER
TestParquet = Parquet.TestCase
TestParquet.settings = FEWER
