"""Forty hours of a lagging source in virtual time: which watermark rule loses changes? The provider's own table
decides. Changes become visible up to ten minutes after they were made, in any order; rows change while they are paged,
and paging takes longer than the overlap. Planning, paging and row building are the real ones; they call the fake API
without a socket, in its virtual time.
"""

import json
import random
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace

from leaseway.imports.domain.page import Row
from leaseway.imports.domain.partition import Cursor, Shard
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState
from leaseway.imports.rows import RowBuilder
from leaseway.imports.run.plan import build_plan
from leaseway.imports.sources.http_json import JsonSource
from leaseway.imports.spec.reader import read_spec
from leaseway.testing.fake_open_charge_map import API_KEY, FakeApi, Faults, synthetic
from leaseway.testing.provider import ReceivedRequest

SPEC = """
version = 1
[source]
name = "ocm"
base_url = "http://source/v3"
[resource]
path = "/poi"
params = {{ compact = true, verbose = false, key = "{key}" }}
key = "ID"
stamp = {{ field = "DateLastStatusUpdate", granularity = "1m", lag = "{lag}" }}
incremental = {{ overlap = "{overlap}", reconcile = "300d" }}
partition = {{ by = "none" }}
filters = {{ window = {{ lower = "modifiedsince", path = "DateLastStatusUpdate", format = "iso" }} }}
[resource.page]
cursor = "keyset"
param = "greaterthanid"
start = 0
limit_param = "maxresults"
limit = 100
fixed = {{ sortby = "id_asc" }}
[sink]
url = "sqlite:///none.db"
table = "poi"
"""
NOON = 1_790_000_040_000_000
MINUTE_US = 60_000_000
RUNS = 40
LAG_MINUTES = 10
PAGE_MINUTES = 6
CHANGES_PER_MINUTE = 6
ROWS = 2_000
PAGES_MAX = 200


class Reply(NamedTuple):
    status_code: int
    content: bytes
    headers: dict[str, str]

    @property
    def is_success(self) -> bool:
        return self.status_code < 300


class World:
    """The source, its clock, and the edits."""

    def __init__(self, seed: int) -> None:
        self.now = NOON
        self.it = FakeApi(synthetic(ROWS), now=lambda: self.now)
        self.it.faults = Faults(lag_seconds=60 * LAG_MINUTES)
        self._chance = random.Random(seed)
        self._ids = sorted(self.it.table.truth)
        self._edits = 0

    async def request(self, method: str, url: str, *args: Any, **options: Any) -> Reply:
        path = url.removeprefix("http://source") + "?" + urlencode(options["params"])
        answer = self.it.usual(ReceivedRequest(method, path, {}, ""))
        headers = {name.lower(): text for name, text in answer.headers.items()}
        return Reply(answer.status, answer.body, headers)

    def pass_minutes(self, count: int) -> None:
        for _ in range(count):
            for _ in range(CHANGES_PER_MINUTE):
                self.now += MINUTE_US // CHANGES_PER_MINUTE
                self._edits += 1
                self.it.table.update([self._chance.choice(self._ids)], f"edit {self._edits}")


class Importer:
    """The real planning, source and rows, with a dictionary as the sink."""

    def __init__(self, world: World, overlap: str, lag: str) -> None:
        self.spec = read_spec(SPEC.format(overlap=overlap, lag=lag, key=API_KEY), "spec.toml")
        self.source = JsonSource(self.spec, {})
        self.shape = RowBuilder(self.spec.resource).build
        self.rows: dict[str, Row] = {}
        self.world = world
        self.stamp_max = 0

    async def run(self, base: RunRow | None, last_full: RunRow | None) -> RunRow:
        probe = await self.source.probe(self.world)
        plan = build_plan(self.spec, self.source.caps, probe, None, 100, base=base, last_full=last_full)
        for shard in plan.shards:
            await self._read(shard)
        return RunRow(
            id="r", source="ocm", spec_hash="", started_at=0, state=RunState.COMPLETE, mode=plan.mode,
            since=plan.since, watermark=plan.watermark,
        )  # fmt: skip

    async def _read(self, shard: Shard) -> None:
        cursor: Cursor | None = None
        for _ in range(PAGES_MAX):
            page = await self.source.fetch(shard, cursor, 100, self.world)
            rows, bad = self.shape(page.records, page.server_time)
            assert not bad
            for row in rows:
                self.stamp_max = max(self.stamp_max, row.stamp)
                if row.external_id not in self.rows or row.stamp >= self.rows[row.external_id].stamp:
                    self.rows[row.external_id] = row
            if page.next is None or len(page.records) < 100:
                return
            cursor = page.next
            self.world.pass_minutes(PAGE_MINUTES)
        raise AssertionError("it never ended")

    def stale(self) -> int:
        """Rows that changed two hours ago or more and differ from the source."""
        old = [poi for poi in self.world.it.table.truth.values() if poi.modified < self.world.now - 120 * MINUTE_US]
        assert len(old) > ROWS / 4
        here = {id: json.loads(row.document).get("GeneralComments") for id, row in self.rows.items()}
        return sum(here.get(str(poi.id), "") != poi.comment for poi in old)


async def stale_after(seed: int, *, overlap: str, lag: str, rule: str = "start") -> int:
    world = World(seed)
    importer = Importer(world, overlap, lag)
    full = base = await importer.run(None, None)
    modes = set()
    for _ in range(RUNS):
        if rule == "max seen":
            base = replace(base, watermark=importer.stamp_max)
        world.pass_minutes(60)
        base = await importer.run(base, full)
        modes.add(base.mode)
    assert modes == {RunMode.INCREMENTAL}
    return importer.stale()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_no_change_is_lost_with_the_start_of_the_run_as_watermark(seed: int) -> None:
    """This rule is the basis of all incremental runs: a lost change is never fetched again."""
    assert await stale_after(seed, overlap="15m", lag="10m") == 0


async def test_an_overlap_that_does_not_know_the_lag_loses_changes() -> None:
    """The proof above must be able to fail: here the spec declares no lag."""
    assert await stale_after(1, overlap="1m", lag="0s") > 0


async def test_the_largest_stamp_as_watermark_loses_changes_whatever_the_overlap_is() -> None:
    """The largest stamp comes from the end of the paging, and changes behind the cursor are older."""
    assert await stale_after(1, overlap="15m", lag="10m", rule="max seen") > 0
