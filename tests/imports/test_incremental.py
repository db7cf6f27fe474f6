"""Incremental runs: they must fetch every change, whatever the source's lag, with few requests."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.imports.changing_source import MINUTE_US, NOON, changing

from leaseway.domain.errors import BadValue, UsageError
from leaseway.imports.domain.partition import format_instant
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState
from leaseway.imports.run.plan import build_plan
from leaseway.imports.run.watermark import RunHistory, StampGrain, choose_scope
from leaseway.imports.sources.http_json import JsonSource
from leaseway.imports.sources.port import SourceProbe
from leaseway.imports.spec.model import Incremental
from leaseway.imports.spec.reader import read_spec
from leaseway.testing.fake_open_charge_map import Faults

GRAIN = StampGrain(MINUTE_US, 10 * MINUTE_US)
WEEKLY = Incremental(overlap="15m", reconcile="7d")
DAY_US = 24 * 60 * MINUTE_US
FLAG = 'deletes = { flag = { params = { submissionstatustypeid = "1002" } } }'


def complete(id: str, watermark: int, mode: RunMode = RunMode.FULL) -> RunRow:
    return RunRow(
        id=id, source="ocm", spec_hash="h", started_at=watermark, state=RunState.COMPLETE, mode=mode,
        watermark=watermark,
    )  # fmt: skip


# -- the decision --


def test_a_run_begins_at_the_last_watermark_less_the_overlap_on_the_sources_grain() -> None:
    """Changes that become visible late are lost if the next run starts exactly at the watermark."""
    base = complete("a", NOON)
    course = choose_scope(WEEKLY, GRAIN, RunHistory(base, base), None, NOON + 61 * MINUTE_US + 7)
    assert course.mode is RunMode.INCREMENTAL
    assert (course.since, course.watermark) == (NOON - 15 * MINUTE_US, NOON + 61 * MINUTE_US)
    assert "run a" in course.why


@pytest.mark.parametrize(
    ("history", "wanted", "why"),
    [
        (RunHistory(), None, "no run of this spec is complete yet"),
        (RunHistory(base=complete("b", NOON)), None, "no full run of this spec is stored"),
        (RunHistory(complete("b", NOON), complete("a", NOON - 7 * DAY_US)), None, "7 days"),
        (RunHistory(complete("b", NOON), complete("b", NOON)), RunMode.FULL, "it was requested"),
    ],
)
def test_everything_is_read_when_nothing_tells_where_to_begin(
    history: RunHistory, wanted: RunMode | None, why: str
) -> None:
    """An incremental run without a complete base would leave gaps that no later run fills."""
    course = choose_scope(WEEKLY, GRAIN, history, wanted, NOON)
    assert (course.mode, course.since, course.watermark) == (RunMode.FULL, None, NOON)
    assert why in course.why


def test_a_full_run_that_is_due_can_be_put_off_by_asking_for_changes() -> None:
    """An operator must be able to keep a costly full run out of a busy hour."""
    history = RunHistory(complete("b", NOON), complete("a", NOON - 8 * DAY_US))
    assert choose_scope(WEEKLY, GRAIN, history, RunMode.INCREMENTAL, NOON).mode is RunMode.INCREMENTAL


@pytest.mark.parametrize("incremental", [WEEKLY, None])
def test_changes_that_cannot_be_asked_for_are_refused_with_the_way_out(incremental: Incremental | None) -> None:
    """A silent full run could spend the whole budget."""
    with pytest.raises(UsageError, match="without --incremental"):
        choose_scope(incremental, GRAIN, RunHistory(), RunMode.INCREMENTAL, NOON)


def test_an_overlap_shorter_than_the_lag_of_the_source_is_refused() -> None:
    """A change that appears after the overlap has passed would be lost for ever."""
    with pytest.raises(BadValue, match=r"resource.incremental.overlap: must be at least .* 660 s"):
        choose_scope(Incremental(overlap="10m"), GRAIN, RunHistory(), None, NOON)


def test_a_source_whose_clock_was_set_back_is_asked_from_there() -> None:
    """The new stamps lie before the watermark and would never be requested."""
    base = complete("a", NOON)
    course = choose_scope(WEEKLY, GRAIN, RunHistory(base, base), None, NOON - 60 * MINUTE_US)
    assert course.since == NOON - 75 * MINUTE_US


# -- the shards --

MARKS = """
version = 1
source = { name = "s", base_url = "https://s.example" }
sink = { url = "sqlite:///d.db", table = "t" }
[resource]
key = "id"
stamp = { field = "at", granularity = "1m" }
incremental = { overlap = "15m", filter = "changed" }
page = { cursor = "keyset", param = "after", start = 0, limit_param = "n" }
deletes = { flag = { params = { deleted = "only" } } }
[resource.filters]
changed = { lower = "since", path = "at", format = "iso" }
window = { lower = "from", upper = "to", path = "at", format = "iso" }
box = { param = "bbox", box = "west,south,east,north", latitude = "lat", longitude = "lon" }
"""
SINCE = [format_instant(NOON - 15 * MINUTE_US), None]
FEED = {"deleted": True, "changed": SINCE}


@pytest.mark.parametrize(
    ("partition", "predicates"),
    [
        ('{ by = "none" }', [{"changed": SINCE}]),
        ('{ by = "id_range", size = 10, upper = 1000 }', [{"changed": SINCE}]),
        ('{ by = "window", start = "2020-01-01T00:00Z", step = "30d" }', [{"changed": SINCE}]),
        (
            '{ by = "box", area = [0, 0, 10, 20], degrees = 10 }',
            [{"box": [0, west, 10, west + 10], "changed": SINCE} for west in (0, 10)],
        ),
        (
            '{ by = "box", area = [0, 0, 10, 10], degrees = 10, '
            'then = { by = "window", start = "2020-01-01T00:00Z", step = "30d" } }',
            [{"box": [0, 0, 10, 10], "changed": SINCE}],
        ),
    ],
)
def test_changes_are_divided_by_geography_or_not_at_all(partition: str, predicates: list[dict[str, object]]) -> None:
    """Changes are few, so many shards would only add requests; the feed of deleted records comes last."""
    spec = read_spec(MARKS.replace('key = "id"\n', f'key = "id"\npartition = {partition}\n'), "s.toml")
    base = complete("a", NOON)
    caps = JsonSource(spec, {}).caps
    plan = build_plan(
        spec, caps, SourceProbe(server_time=NOON + MINUTE_US), None, 100, base=base, last_full=base, known=base
    )
    assert [dict(shard.predicate) for shard in plan.shards] == [*predicates, FEED]
    assert (plan.rows, plan.requests) == (None, None), "how many have changed, nobody says"


def test_a_source_without_a_clock_is_measured_by_ours() -> None:
    """Many sources send no server time, and a run without a watermark could never become incremental."""
    spec = read_spec(MARKS, "s.toml")
    plan = build_plan(spec, JsonSource(spec, {}).caps, SourceProbe(), None, 100, now=NOON + 7)
    assert (plan.mode, plan.watermark) == (RunMode.FULL, NOON)


def test_a_feed_without_a_window_is_read_by_every_run() -> None:
    """The source cannot be asked for recent deletions alone."""
    text = MARKS.replace('incremental = { overlap = "15m", filter = "changed" }\n', "")
    spec = read_spec(text, "s.toml")
    plan = build_plan(spec, JsonSource(spec, {}).caps, SourceProbe(), None, 100)
    assert [dict(shard.predicate) for shard in plan.shards] == [{}, {"deleted": True}]


def test_after_a_change_of_the_spec_the_feed_goes_on_where_it_was() -> None:
    """All rows are read again, but records that were deleted meanwhile are in no list."""
    spec = read_spec(MARKS, "s.toml")
    plan = build_plan(
        spec, JsonSource(spec, {}).caps, SourceProbe(), None, 100, known=complete("other", NOON), now=NOON
    )
    assert [dict(shard.predicate) for shard in plan.shards] == [{}, FEED]


def test_windows_with_an_end_are_no_place_for_changes() -> None:
    """Changes after the fixed end would never be fetched."""
    window = '{ by = "window", start = "2020-01-01T00:00Z", end = "2021-01-01T00:00Z", step = "30d" }'
    with pytest.raises(UsageError, match=r"resource.partition.end: excludes later changes"):
        read_spec(MARKS.replace('key = "id"\n', f'key = "id"\npartition = {window}\n'), "s.toml")


# -- whole runs --


async def test_a_second_run_asks_for_what_has_changed_and_for_nothing_else(tmp_path: Path) -> None:
    """Incremental runs exist to save requests, and must still leave the table equal to the source."""
    async with changing(tmp_path, more="") as place:
        assert await place.run("first") is RunState.COMPLETE
        first = await place.row("first")
        assert (first.mode, first.since, first.watermark) == (RunMode.FULL, None, NOON)
        place.later(60)
        changed = sorted(place.truth())[5:8]
        place.it.table.update(changed, "mended")
        fresh = place.it.table.insert(2)
        before = len(place.asked())
        assert await place.run("second") is RunState.COMPLETE
        second = await place.row("second")
        assert (second.mode, second.since) == (RunMode.INCREMENTAL, NOON - 15 * MINUTE_US)
        assert second.watermark == NOON + 60 * MINUTE_US
        (shard,) = await place.shards("second")
        assert (shard.rows, shard.inserted, shard.updated) == (5, 2, 3)
        assert all(f"modifiedsince={format_instant(second.since or 0)[:13]}" in path for path in place.asked()[before:])
        assert place.living() == place.truth()
        assert all("mended" in place.stored()[id].document for id in changed)
        assert set(fresh) <= place.living()


async def test_a_run_that_did_not_become_complete_moves_nothing(tmp_path: Path) -> None:
    """Not all changes were seen, so the next run must start where the last complete one did."""
    async with changing(tmp_path) as place:
        await place.run("first")
        place.later(60)
        place.it.table.update(sorted(place.truth())[:1], "first change")
        plan = await place.plan()
        place.it.faults = Faults(
            ignores_filters=True
        )  # the shard is parked: it received records that were not requested
        assert await place.run("second", plan=plan) is RunState.PARTIAL
        assert "1 of 1 shards parked: window=" in str((await place.row("second")).why)
        place.it.faults = Faults()
        place.later(60)
        again = await place.plan()
        assert (again.mode, again.since) == (RunMode.INCREMENTAL, plan.since)
        # Once corrected and resumed, the run counts, with the watermark of its own start.
        assert await place.resume("second") is RunState.COMPLETE
        assert (await place.plan()).since == NOON + (60 - 15) * MINUTE_US
        assert any("first change" in row.document for row in place.stored().values())


async def test_a_full_run_is_due_after_the_time_of_reconcile_and_finds_what_no_stamp_tells(tmp_path: Path) -> None:
    """Sources change records without a new stamp, and only a full run finds those changes."""
    async with changing(tmp_path) as place:
        await place.run("first")
        victim = place.it.table.truth[min(place.truth())]
        place.it.table.put(replace(victim, comment="a change without a stamp"))
        place.later(60)
        await place.run("second")
        assert "without a stamp" not in place.stored()[victim.id].document
        place.later(7 * 24 * 60)
        assert await place.run("third") is RunState.COMPLETE
        assert (await place.row("third")).mode is RunMode.FULL
        assert "without a stamp" in place.stored()[victim.id].document


async def test_another_spec_begins_anew(tmp_path: Path) -> None:
    """With other columns or checks, the existing rows are not those that this spec would have produced."""
    async with changing(tmp_path) as place:
        await place.run("first")
        assert (await place.plan()).mode is RunMode.INCREMENTAL
        place.write(more=f"quality = {{ ID = {{ not_null = true }} }}\n{FLAG}")
        plan = await place.plan()
        assert (plan.mode, plan.why_mode) == (RunMode.FULL, "no run of this spec is complete yet")
        # Records that were deleted meanwhile are in no list, and the last run knows since when to ask.
        assert [shard.predicate["window"] for shard in plan.shards if "deleted" in shard.predicate] == [SINCE]


async def test_changes_of_countries_are_asked_for_country_by_country(tmp_path: Path) -> None:
    """If the time filter replaced the country filter, each shard would fetch the changes of all countries."""
    async with changing(tmp_path, partition='{ by = "country" }') as place:
        await place.run("first")
        place.later(60)
        some = sorted(id for id in place.stored() if place.it.table.truth[id].country == 2)[:2]
        place.it.table.update(some, "mended")
        plan = await place.plan()
        since = format_instant(NOON - 15 * MINUTE_US)
        assert [dict(shard.predicate) for shard in plan.shards] == [
            {"country": [code], "window": [since, None]} for code in ("1", "2", "210")
        ]
        assert await place.run("second", plan=plan) is RunState.COMPLETE
        assert sum(shard.updated for shard in await place.shards("second")) == 2
