"""Whole imports: a spec, a misbehaving source, real workers, a real sink. The provider's own table decides what is
correct.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from tests.imports.apps import import_app
from tests.sqlite_files import open_sqlite

from leaseway.imports.domain.run_state import RunState, ShardRow, ShardState
from leaseway.imports.run.assembly import ImportParts, load_import
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.plan import plan_with_history
from leaseway.imports.run.shard_jobs import submit_open_shards
from leaseway.imports.run.start import start_planned
from leaseway.system import wall_clock_us
from leaseway.testing.fake_open_charge_map import API_KEY, FakeApi, Faults, Listing, fake_api
from leaseway.testing.mongodb import MongoServer

OCM = """
version = 1
[source]
name = "ocm"
base_url = "{url}/v3"
auth = {{ header = "X-API-Key", env = "OCM_API_KEY" }}
limits = [{limits}]
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
limit = 100
fixed = {{ sortby = "id_asc" }}
[resource.columns]
title = {{ path = "AddressInfo.Title", type = "text" }}
[sink]
url = "{sink}"
table = "poi"
"""

AIRPORTS = """
version = 1
[source]
name = "airports"
base_url = "{url}"
[resource]
path = "/offset/airports"
records = "$.{records}"
key = "icao"
page = {{ cursor = "offset", limit_param = "limit", limit = 100 }}
[sink]
url = "sqlite:///{folder}/data.db"
table = "airports"
"""


class Place:
    """One import in a folder of its own."""

    def __init__(self, folder: Path, it: FakeApi, text: str) -> None:
        self.folder = folder
        self.it = it
        self.path = folder / "spec.toml"
        self.path.write_text(text, "utf-8")
        self.store = f"sqlite:///{folder}/jobs.db"
        self.parts: ImportParts = load_import(self.path, {"OCM_API_KEY": API_KEY})

    async def plan(self) -> Any:

        return await plan_with_history(self.parts)

    async def run(self, run: str = "run", lease_seconds: float = 15) -> RunState:
        """Run in this process, with one worker."""
        await self.parts.sink.open()
        app, handle = import_app(self.parts, self.store, lease_seconds)
        async with app:
            await start_planned(self.parts, handle, run, (await self.plan()).shards, wall_clock_us())
            await app.run_worker(queues=[self.parts.queue], until_empty=True, concurrency=4)
            return await finish_run(self.parts, run)

    def rows(self, table: str = "poi") -> dict[str, str]:
        with open_sqlite(self.folder / "data.db") as file:
            return dict(file.execute(f"SELECT external_id, content_hash FROM {table}").fetchall())

    async def shards(self, run: str = "run") -> list[ShardRow]:
        return await self.parts.sink.shards.find_all(run)

    def truth(self) -> set[str]:
        return {str(id_) for id_ in self.it.table.readable()}


@pytest.fixture
async def ocm(tmp_path: Path) -> AsyncIterator[Place]:
    async with fake_api(5_000) as it:
        place = Place(
            tmp_path, it, OCM.format(url=it.url, sink=f"sqlite:///{tmp_path}/data.db", limits='"1000/second"')
        )
        yield place
        await place.parts.sink.close()


async def test_an_import_brings_every_row_once(ocm: Place) -> None:
    """This is the main promise of an import, and the provider's own table decides it."""
    assert await ocm.run() is RunState.COMPLETE
    assert set(ocm.rows()) == ocm.truth()
    shards = await ocm.shards()
    assert (sum(row.inserted for row in shards), sum(row.updated for row in shards)) == (5_000, 0)


async def test_a_second_run_over_unchanged_data_rewrites_nothing(ocm: Place) -> None:
    """Rewriting unchanged rows costs disk writes and makes every row look changed."""
    await ocm.run("first")
    assert await ocm.run("second") is RunState.COMPLETE
    shards = await ocm.shards("second")
    assert [sum(getattr(row, name) for row in shards) for name in ("inserted", "updated", "unchanged")] == [0, 0, 5_000]


async def test_empty_pages_broken_bodies_and_errors_lose_nothing(ocm: Place) -> None:
    """An empty page is not proof of the end, and an HTML page is not a page of records."""
    ocm.it.faults = Faults(empty_every=7, html_every=11, error_every=13)
    assert await ocm.run() is RunState.COMPLETE
    assert set(ocm.rows()) == ocm.truth()


async def test_a_source_that_sorts_by_something_else_is_never_silently_short(ocm: Place) -> None:
    """Ids that do not ascend mean that pages overlap or leave gaps, so nothing of such a page may be written."""
    ocm.it.faults = Faults(reordered=True)
    await ocm.parts.sink.open()
    app, handle = import_app(ocm.parts, ocm.store)
    async with app:
        await start_planned(ocm.parts, handle, "run", (await ocm.plan()).shards, wall_clock_us())
        worker = app.worker(queues=[ocm.parts.queue])
        async with asyncio.TaskGroup() as group:
            task = group.create_task(app.run_worker(worker))
            await ocm.it.has_seen(20)
            worker.drain(1)
            await task
    assert await finish_run(ocm.parts, "run") is RunState.PARTIAL
    assert ocm.rows() == {}


async def test_a_wrong_key_stops_the_whole_run_at_once(ocm: Place) -> None:
    """Two hundred shards with five attempts each would get the client banned."""
    await ocm.parts.sink.open()
    shards = (await ocm.plan()).shards
    ocm.parts = load_import(ocm.path, {"OCM_API_KEY": "nobody knows this one"})
    await ocm.parts.sink.open()
    before = len(ocm.it.arrivals)
    app, handle = import_app(ocm.parts, ocm.store)
    async with app:
        await start_planned(ocm.parts, handle, "run", shards, wall_clock_us())
        await app.run_worker(queues=[ocm.parts.queue], until_empty=True, concurrency=1)
        assert await finish_run(ocm.parts, "run") is RunState.FAILED
    assert len(shards) > 1
    assert len(ocm.it.arrivals) - before == 1
    assert ocm.rows() == {}


async def test_a_run_that_failed_for_its_key_goes_on_with_the_right_one(ocm: Place) -> None:
    """After the key is corrected, a resume must not plan or fetch anything again."""
    await ocm.parts.sink.open()
    right, shards = ocm.parts, (await ocm.plan()).shards
    wrong = load_import(ocm.path, {"OCM_API_KEY": "nobody knows this one"})
    await wrong.sink.open()
    for parts, state in ((wrong, RunState.FAILED), (right, RunState.COMPLETE)):
        app, handle = import_app(parts, ocm.store)
        async with app:
            await start_planned(parts, handle, "run", shards, wall_clock_us())
            await app.run_worker(queues=[ocm.parts.queue], until_empty=True, concurrency=1)
            assert await finish_run(parts, "run") is state
    assert set(ocm.rows()) == ocm.truth()
    await wrong.sink.close()


async def test_another_api_is_imported_by_its_spec_alone(tmp_path: Path) -> None:
    """Users must be able to import a new API (here airports, paged by offset) without code."""
    records = [{"icao": f"X{n:05}", "name": f"airport {n}"} for n in range(1_234)]
    async with fake_api(0, listings={"airports": Listing(records, key="icao")}) as it:
        wrapper = await wrapped_in(it)
        place = Place(
            tmp_path, it, AIRPORTS.format(url=it.url, folder=tmp_path, records=wrapper).replace('"$."', '"$"')
        )
        assert await place.run() is RunState.COMPLETE
        assert len(place.rows("airports")) == 1_234
        await place.parts.sink.close()


async def wrapped_in(it: FakeApi) -> str:
    """The path under which the fake API returns the records of a listing."""
    import httpx2

    async with httpx2.AsyncClient() as client:
        body = (await client.get(f"{it.url}/offset/airports", params={"limit": 1})).json()
    return "" if isinstance(body, list) else next(name for name, value in body.items() if isinstance(value, list))


async def test_a_run_that_was_given_up_goes_on_where_it_was(ocm: Place) -> None:
    """Its jobs are dead letters; the written rows must stay and must not be requested again."""
    await ocm.parts.sink.open()
    app, handle = import_app(ocm.parts, ocm.store)
    async with app:
        await start_planned(ocm.parts, handle, "run", (await ocm.plan()).shards, wall_clock_us())
        worker = app.worker(queues=[ocm.parts.queue], concurrency=1)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(app.run_worker(worker))
            await ocm.it.has_seen(25)
            worker.drain(0)
            await task
        pages = sum(row.pages for row in await ocm.shards())
        assert await submit_open_shards(ocm.parts, handle, "run") > 0
        before = len(ocm.it.arrivals)
        await app.run_worker(queues=[ocm.parts.queue], until_empty=True)
        assert await finish_run(ocm.parts, "run") is RunState.COMPLETE
    assert set(ocm.rows()) == ocm.truth()
    rest = sum(row.pages for row in await ocm.shards()) - pages
    assert len(ocm.it.arrivals) - before <= rest + 3 * len(await ocm.shards())


async def test_the_command_line_plans_runs_and_tells(ocm: Place) -> None:
    """The commands are run one after the other by users, so each must find what the previous one left."""

    def leaseway(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "leaseway.cli", "import", *words, "--store", ocm.store]
        return subprocess.run(command, env={**os.environ, "OCM_API_KEY": API_KEY}, capture_output=True, text=True)

    planned = await asyncio.to_thread(leaseway, "plan", str(ocm.path))
    assert planned.returncode == 0
    assert "shards into poi" in planned.stdout
    ran = await asyncio.to_thread(leaseway, "run", str(ocm.path), "--json")
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["inserted"] == 5_000
    told = await asyncio.to_thread(leaseway, "status", str(ocm.path))
    assert "complete" in told.stdout
    none = await asyncio.to_thread(leaseway, "quarantine", str(ocm.path))
    assert none.returncode == 0
    unknown = await asyncio.to_thread(leaseway, "status", str(ocm.path), "--run", "nobody")
    assert unknown.returncode == 2
    assert "its latest runs: " in unknown.stderr


async def test_jobs_rows_and_limits_share_one_mongodb_database(mongodb: MongoServer, tmp_path: Path) -> None:
    """A team on MongoDB needs no second database: a page and its cursor are one transaction beside the jobs."""
    url = mongodb.url.replace("/leaseway?", "/everything?")
    async with fake_api(1_000) as it:
        place = Place(tmp_path, it, OCM.format(url=it.url, sink=url, limits='"1000/second"'))
        place.store = url
        it.faults = Faults(empty_every=7, html_every=11, error_every=13)
        assert await place.run() is RunState.COMPLETE
        shards = await place.shards()
        assert sum(row.inserted for row in shards) == 1_000
        assert {row.state for row in shards} == {ShardState.DONE}
        client: AsyncMongoClient[dict[str, Any]]
        async with AsyncMongoClient(mongodb.url) as client:
            rows: list[dict[str, Any]] = await client.everything.poi.find().to_list()
            names = set(await client.everything.list_collection_names())
        await place.parts.sink.close()
        assert {row["_id"]["external_id"] for row in rows} == place.truth()
        assert {"poi", "leaseway_shards", "leaseway_jobs", "leaseway_limits"} <= names
