"""Workers are killed repeatedly while they hold leases. The provider's own table and journal decide what is correct."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import asyncpg
import pytest
from tests.imports.apps import import_app
from tests.processes import child_processes
from tests.sqlite_files import open_sqlite

from leaseway.app import App
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import State
from leaseway.imports.domain.run_state import RunState, ShardRow
from leaseway.imports.run.assembly import ImportParts, load_import
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.plan import plan_with_history
from leaseway.imports.run.start import start_planned
from leaseway.system import wall_clock_us
from leaseway.testing.fake_open_charge_map import API_KEY, FakeApi, fake_api
from leaseway.testing.postgres import PostgresServer

PAGE_ROWS = 20
WORKERS = 4
PAGES_BETWEEN = (5, 25)
"""Kills follow the number of requests that the provider has seen, not the clock: the import cannot end before the last
kill.
"""
LEASE_SECONDS = 2.0
LOOK_SECONDS = 0.02
STUCK_SECONDS = 60
"""No requests arrive, so no worker is left to kill, and the test must report that."""

SPEC = """
version = 1
[source]
name = "ocm"
base_url = "{url}/v3"
auth = {{ header = "X-API-Key", env = "OCM_API_KEY" }}
limits = ["200/second"]
[resource]
path = "/poi"
params = {{ compact = true, verbose = false }}
key = "ID"
stamp = {{ field = "DateLastStatusUpdate", granularity = "1m", lag = "0s" }}
volatile = ["IsRecentlyVerified", "DateLastVerified"]
partition = {{ by = "id_range", size = 1000, upper = "/system/status#$.maxPOIId" }}
[resource.page]
cursor = "keyset"
param = "greaterthanid"
start = 0
limit_param = "maxresults"
limit = {page_rows}
fixed = {{ sortby = "id_asc" }}
[sink]
url = "{sink}"
table = "poi"
"""

WRITTEN = "SELECT external_id, stamp, updated_at = first_seen FROM {table}"


class Place(NamedTuple):
    """One import, its provider, and the location of its rows and jobs."""

    it: FakeApi
    path: Path
    store: str
    parts: ImportParts
    rows: str
    """A SQLite file, or a PostgreSQL URL and a schema."""

    def worker(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "leaseway.cli", "import", "work", str(self.path), "--until-empty"]
        environ = {**os.environ, "OCM_API_KEY": API_KEY}
        quiet = subprocess.DEVNULL
        return subprocess.Popen([*command, "--store", self.store], env=environ, stdout=quiet, stderr=quiet)

    def command(self, verb: str, *options: str) -> "subprocess.Popen[str]":
        command = [
            sys.executable,
            "-m",
            "leaseway.cli",
            "import",
            verb,
            str(self.path),
            "--store",
            self.store,
            *options,
        ]
        environ = {**os.environ, "OCM_API_KEY": API_KEY}
        return subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    async def written(self) -> dict[str, tuple[int, bool]]:
        """The stamp of each row, and whether it was written once."""
        if self.rows.startswith("postgresql"):
            address, _, schema = self.rows.partition("?schema=")
            connection = await asyncpg.connect(address)
            lines = await connection.fetch(WRITTEN.format(table=f"{schema}.poi"))
            await connection.close()
        else:
            with open_sqlite(self.rows.removeprefix("sqlite:///")) as file:
                lines = file.execute(WRITTEN.format(table="poi")).fetchall()
        assert len(lines) == len({line[0] for line in lines})
        return {line[0]: (line[1], bool(line[2])) for line in lines}

    def pages(self) -> int:
        return sum("/poi" in arrival.path for arrival in self.it.arrivals)


@asynccontextmanager
async def sqlite_place(folder: Path, it: FakeApi, server: PostgresServer) -> AsyncIterator[Place]:
    yield place_of(folder, it, f"sqlite:///{folder}/rows.db", f"sqlite:///{folder}/jobs.db")


@asynccontextmanager
async def postgres_place(folder: Path, it: FakeApi, server: PostgresServer) -> AsyncIterator[Place]:
    """In schemas of its own, on a server that other tests share."""
    schema = f"kills_{os.getpid()}"
    connection = await asyncpg.connect(server.url)
    try:
        await connection.execute(f"CREATE SCHEMA {schema}")
        yield place_of(folder, it, f"{server.url}?schema={schema}", f"{server.url}?schema={schema}_jobs")
    finally:
        await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE; DROP SCHEMA IF EXISTS {schema}_jobs CASCADE")
        await connection.close()


def place_of(folder: Path, it: FakeApi, rows: str, store: str) -> Place:
    path = folder / "spec.toml"
    path.write_text(SPEC.format(url=it.url, page_rows=PAGE_ROWS, sink=rows), "utf-8")
    return Place(it, path, store, load_import(path, {"OCM_API_KEY": API_KEY}), rows)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("rows", "kills"), [(5_000, 8), pytest.param(20_000, 25, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("database", [sqlite_place, postgres_place], ids=["sqlite", "postgresql"])
async def test_workers_killed_at_random_leave_every_row_once(
    tmp_path: Path,
    server: PostgresServer,
    database: Callable[..., AbstractAsyncContextManager[Place]],
    rows: int,
    kills: int,
) -> None:
    """Kills of workers that hold shards must leave nothing missing, nothing extra and nothing written twice."""
    async with fake_api(rows) as it, database(tmp_path, it, server) as place:
        await place.parts.sink.open()
        app, handle = import_app(place.parts, place.store, LEASE_SECONDS)
        async with app:
            await start_planned(
                place.parts, handle, "run", (await plan_with_history(place.parts)).shards, wall_clock_us()
            )
            await killed_and_done(place, app, kills)
            assert await finish_run(place.parts, "run") is RunState.COMPLETE
        shards = await place.parts.sink.shards.find_all("run")
        truth = {str(number): (stamp, True) for number, stamp in it.table.readable().items()}
        assert await place.written() == truth
        check_counters(shards, rows, place.pages())
        await place.parts.sink.close()


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_killed_worker_of_a_command_is_replaced(tmp_path: Path, server: PostgresServer) -> None:
    """If the system kills the only worker, the command would report a partial import, and nobody would continue it."""
    async with fake_api(2_000) as it, sqlite_place(tmp_path, it, server) as place:
        with place.command("run", "--workers", "1", "--lease", "1") as run:
            for seen in (10, 40):
                await asyncio.wait_for(it.has_seen(seen), STUCK_SECONDS)
                for worker in child_processes(run.pid):
                    os.kill(worker, signal.SIGKILL)
            _, errors = await asyncio.to_thread(run.communicate)
        assert run.returncode == 0, errors
        assert errors.count("was killed by SIGKILL; another one takes over") == 2
        truth = {str(number): (stamp, True) for number, stamp in it.table.readable().items()}
        assert await place.written() == truth


def check_counters(shards: list[ShardRow], rows: int, seen: int) -> None:
    """`seen`: the number of pages that the provider was asked for."""

    def total(name: str) -> int:
        return sum(getattr(row, name) for row in shards)

    assert (total("rows"), total("inserted")) == (rows, rows)
    assert [total(name) for name in ("updated", "unchanged", "stale", "quarantined")] == [0, 0, 0, 0]
    assert sum(row.attempts > 1 for row in shards) > 0, "nobody was killed with a shard in hand"
    assert total("pages") <= total("requests") <= seen, "a page was counted that nobody asked for"
    assert seen <= 1.15 * total("pages"), "more was fetched again than was in hand"


async def killed_and_done(place: Place, app: App, kills: int) -> None:
    """Run four workers until no job is left; kill the given number of them on the way and start replacements."""
    chance, workers = random.Random(5), [place.worker() for _ in range(WORKERS)]
    try:
        for _ in range(kills):
            seen = len(place.it.arrivals) + chance.randint(*PAGES_BETWEEN)
            await asyncio.wait_for(place.it.has_seen(seen), STUCK_SECONDS)
            victim = chance.choice(await busy(app, workers))
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            workers[workers.index(victim)] = place.worker()
        assert [await asyncio.to_thread(each.wait) for each in workers] == [0] * WORKERS
    finally:
        for each in workers:
            each.kill()
            each.wait()


async def busy(app: App, workers: "list[subprocess.Popen[bytes]]") -> "list[subprocess.Popen[bytes]]":
    """The workers that hold a lease now; killing one that is still starting would prove nothing."""
    store = await app.store()
    while True:  # bounded by the test's timeout: the leases of dead workers expire, and living workers take them
        leased = await store.reads.jobs(JobFilter(states=(State.LEASED,)), limit=200)
        owners = {job.lease_owner.split(":")[1] for job in leased if job.lease_owner}
        found = [each for each in workers if each.poll() is None and str(each.pid) in owners]
        if found:
            return found
        await asyncio.sleep(LOOK_SECONDS)
