"""An import from a changing source, run after run, with a clock that the test controls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from tests.imports.apps import import_app
from tests.sqlite_files import open_sqlite

from leaseway.domain.ids import SECOND_US, Instant
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardRow
from leaseway.imports.run.assembly import ImportParts, load_import
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.plan import Plan, load_history, plan_with_history
from leaseway.imports.run.shard_jobs import submit_open_shards
from leaseway.imports.run.start import start_planned
from leaseway.system import wall_clock_us
from leaseway.testing.fake_open_charge_map import API_KEY, FakeApi, fake_api

NOON: Instant = 1_790_000_040_000_000
"""The source's time at the start of these tests."""
MINUTE_US = 60 * SECOND_US
TIMEOUT_SECONDS = 60
ROWS = 300

SPEC = """
version = 1
[source]
name = "ocm"
base_url = "{url}/v3"
auth = {{ header = "X-API-Key", env = "OCM_API_KEY" }}
limits = ["1000/second"]
[resource]
path = "/poi"
params = {{ compact = true, verbose = false }}
key = "ID"
stamp = {{ field = "DateLastStatusUpdate", granularity = "1m", lag = "0s" }}
volatile = ["IsRecentlyVerified", "DateLastVerified"]
partition = {partition}
incremental = {{ overlap = "15m", reconcile = "7d" }}
{more}
[resource.filters]
window = {{ lower = "modifiedsince", path = "DateLastStatusUpdate", format = "iso" }}
country = {{ param = "countryid", values = [1, 2, 210], path = "AddressInfo.CountryID" }}
[resource.page]
cursor = "keyset"
param = "greaterthanid"
start = 0
limit_param = "maxresults"
limit = 100
fixed = {{ sortby = "id_asc" }}
[sink]
url = "{sink}"
table = "poi"
"""
IDS = '{ by = "id_range", size = 1000, upper = "/system/status#$.maxPOIId" }'


class Stored(NamedTuple):
    document: str
    deleted_reason: str | None


class Changing:
    """One import in a folder of its own; `now` is the source's time."""

    def __init__(self, folder: Path, sink: str | None = None) -> None:
        self.folder = folder
        self.store = f"sqlite:///{folder}/jobs.db"
        self.sink = sink or f"sqlite:///{folder}/data.db"
        self.now = NOON
        self.it: FakeApi
        self.parts: ImportParts

    def write(self, more: str = "", partition: str = IDS) -> None:
        """Write the spec again, with changes."""
        path = self.folder / "spec.toml"
        path.write_text(SPEC.format(url=self.it.url, sink=self.sink, more=more, partition=partition), "utf-8")
        self.parts = load_import(path, {"OCM_API_KEY": API_KEY})

    def later(self, minutes: float) -> None:
        self.now += round(minutes * MINUTE_US)

    # -- runs --

    async def plan(self, wanted: RunMode | None = None) -> Plan:
        await self.parts.sink.open()
        try:
            history = await load_history(self.parts.sink, "ocm", self.parts.task.spec_hash)
            return await plan_with_history(self.parts, history, wanted)
        finally:
            await self.parts.sink.close()

    async def run(self, name: str, wanted: RunMode | None = None, *, plan: Plan | None = None) -> RunState:
        plan = plan or await self.plan(wanted)
        return await self._worked(name, plan)

    async def resume(self, name: str) -> RunState:
        return await self._worked(name, None)

    async def _worked(self, name: str, plan: Plan | None) -> RunState:
        await self.parts.sink.open()
        app, handle = import_app(self.parts, self.store)
        try:
            async with app, asyncio.timeout(TIMEOUT_SECONDS):
                if plan is None:
                    await submit_open_shards(self.parts, handle, name)
                else:
                    await start_planned(self.parts, handle, name, plan, wall_clock_us())
                await app.run_worker(queues=[self.parts.queue], until_empty=True)
                return await finish_run(self.parts, name)
        finally:
            await self.parts.sink.close()

    # -- reads --

    async def row(self, name: str) -> RunRow:
        await self.parts.sink.open()
        found = await self.parts.sink.runs.find(name)
        await self.parts.sink.close()
        assert found is not None
        return found

    async def shards(self, name: str) -> list[ShardRow]:
        await self.parts.sink.open()
        found = await self.parts.sink.shards.find_all(name)
        await self.parts.sink.close()
        return found

    def stored(self) -> dict[int, Stored]:
        with open_sqlite(self.folder / "data.db") as file:
            rows = file.execute("SELECT external_id, document, deleted_at, deleted_reason FROM poi").fetchall()
        return {int(id): Stored(text, reason if at is not None else None) for id, text, at, reason in rows}

    def living(self) -> set[int]:
        return {id for id, row in self.stored().items() if row.deleted_reason is None}

    def gone(self) -> dict[int, str | None]:
        return {id: row.deleted_reason for id, row in self.stored().items() if row.deleted_reason is not None}

    def truth(self) -> set[int]:
        return set(self.it.table.readable())

    def asked(self) -> list[str]:
        """The requests for pages so far."""
        return [arrival.path for arrival in self.it.arrivals if "/v3/poi" in arrival.path]


@asynccontextmanager
async def changing(
    folder: Path, more: str = "", partition: str = IDS, sink: str | None = None
) -> AsyncIterator[Changing]:
    place = Changing(folder, sink)
    async with fake_api(ROWS, now=lambda: place.now) as it:
        place.it = it
        place.write(more, partition)
        yield place
