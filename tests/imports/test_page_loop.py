"""The page loop of a shard: counters, splits, and the budget of a run."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.imports.apps import import_app
from tests.imports.test_import_end_to_end import OCM, Place

from leaseway.domain.outcome import Backoff
from leaseway.imports.domain.drift import add_profiles, profile_documents
from leaseway.imports.domain.partition import make_shard
from leaseway.imports.domain.run_state import RunState, ShardState
from leaseway.imports.domain.splitting import rows_left
from leaseway.imports.run import import_shard
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.plan import plan_with_history
from leaseway.imports.run.shard_jobs import job_key, submit_open_shards
from leaseway.imports.run.start import start_planned
from leaseway.system import wall_clock_us
from leaseway.testing.fake_open_charge_map import FakeApi, Faults, Listing, fake_api


def place_of(folder: Path, it: FakeApi, size: int = 1_000) -> Place:
    text = OCM.format(url=it.url, sink=f"sqlite:///{folder}/data.db", limits='"1000/second"')
    return Place(folder, it, text.replace("size = 1000", f"size = {size}"))


async def imported(place: Place, run: str = "run", **options: Any) -> RunState:
    await place.parts.sink.open()
    app, handle = import_app(place.parts, place.store)
    async with app:
        await start_planned(place.parts, handle, run, await plan_with_history(place.parts), wall_clock_us(), **options)
        await app.run_worker(queues=[place.parts.queue], until_empty=True, concurrency=4)
        return await finish_run(place.parts, run)


def reactions(shards: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in shards:
        found.update(row.guards)
    return found


# -- budgets --


async def test_a_run_never_asks_more_often_than_its_budget_allows(tmp_path: Path) -> None:
    """With four handlers at once and retries after errors, each request must be taken from the budget before it is
    sent.
    """
    async with fake_api(5_000, faults=Faults(error_every=5)) as it:
        place = place_of(tmp_path, it)
        await place.parts.sink.open()
        await plan_with_history(place.parts)
        planning = len(it.arrivals)
        assert await imported(place, requests_max=25) is RunState.PARTIAL
        assert planning < len(it.arrivals) - planning <= planning + 25
        found = await place.parts.sink.runs.find("run")
        assert found is not None
        assert found.requests == 25
        assert "budget" in str(found.why)
        await place.parts.sink.close()


async def test_a_run_whose_budget_was_raised_goes_on(tmp_path: Path) -> None:
    """After a raise, the run must continue with the missing rows instead of starting again."""
    async with fake_api(5_000) as it:
        place = place_of(tmp_path, it)
        assert await imported(place, requests_max=20) is RunState.PARTIAL
        await place.parts.sink.runs.set_budget("run", 1_000)
        app, handle = import_app(place.parts, place.store)
        async with app:
            assert await submit_open_shards(place.parts, handle, "run") > 0
            await app.run_worker(queues=[place.parts.queue], until_empty=True)
            assert await finish_run(place.parts, "run") is RunState.COMPLETE
        assert set(place.rows()) == place.truth()
        assert sum(row.inserted for row in await place.shards()) == 5_000
        await place.parts.sink.close()


# -- the tail --


@pytest.mark.parametrize("is_open", [True, False])
async def test_one_long_shard_is_shared_among_those_who_have_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """The last shard of a plan has no upper end, so its length has to come from the plan's largest id."""
    monkeypatch.setattr(import_shard, "IDLE_CHECK_SECONDS", 0.0)
    async with fake_api(6_000) as it:
        place = place_of(tmp_path, it, size=100_000 if is_open else 5_000)
        assert await imported(place, concurrency=4) is RunState.COMPLETE
        assert set(place.rows()) == place.truth()
        shards = await place.shards()
        split = [row for row in shards if row.state is ShardState.SPLIT]
        assert split
        assert all(row.guards["shared"] == 1 for row in split)
        assert sum(row.inserted for row in shards) == 6_000
        await place.parts.sink.close()


async def test_nothing_is_cut_while_everybody_has_something_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Splitting a shard while no worker is idle only adds requests."""
    monkeypatch.setattr(import_shard, "IDLE_CHECK_SECONDS", 0.0)
    async with fake_api(4_000) as it:
        place = place_of(tmp_path, it, size=2_000)
        assert await imported(place, concurrency=1) is RunState.COMPLETE
        assert {row.state for row in await place.shards()} == {ShardState.DONE}
        await place.parts.sink.close()


def test_what_is_left_is_guessed_from_what_was_found() -> None:
    """Splits are decided by this estimate, and a wrong one splits shards that are almost done."""
    half = make_shard("s", "a", {"id": [0, 1_000]})
    assert rows_left(half, {"after": 499}, 100, None) == 100
    assert rows_left(half, {"after": 999}, 100, None) == 0
    open_end = make_shard("s", "b", {"id": [1_000, None]})
    assert rows_left(open_end, {"after": 1_099}, 50, 1_299) == 100
    assert rows_left(open_end, {"after": 1_099}, 50, None) is None
    assert rows_left(half, {"offset": 10}, 10, None) is None


def test_a_long_label_still_makes_one_key_of_its_own() -> None:
    """A split box within a window has a long label, and the job behind it must still be found."""
    long = [f"{'s' * 60}/box=1.25,2.5,3.75,5;window=2026-01-01T00:00Z..2026-02-01T00:00Z{'x' * 120}/{n}" for n in "ab"]
    assert len({job_key("run", shard) for shard in long}) == 2
    assert all(len(job_key("run", shard)) <= 200 for shard in long)
    assert job_key("run", "ocm/id=1-2/abc") == "run:ocm/id=1-2/abc"


# -- guards --


async def test_every_reaction_is_counted_with_the_page_that_followed_it(tmp_path: Path) -> None:
    """Without these counts, an unreliable source looks healthy in the report."""
    async with fake_api(3_000, faults=Faults(html_every=7, empty_every=5)) as it:
        place = place_of(tmp_path, it)
        assert await imported(place) is RunState.COMPLETE
        found = reactions(await place.shards())
        assert found["wrong_body"] > 0
        assert found["empty_page"] > 0
        await place.parts.sink.close()


async def test_all_requests_are_in_the_books_also_those_that_were_repeated(tmp_path: Path) -> None:
    """The provider bills repeated requests, too, so an uncounted one exceeds the budget."""
    async with fake_api(3_000, faults=Faults(html_every=7)) as it:
        place = place_of(tmp_path, it)
        await place.parts.sink.open()
        await plan_with_history(place.parts)
        planning = len(it.arrivals)
        assert await imported(place) is RunState.COMPLETE
        asked = len(it.arrivals) - 2 * planning
        assert sum(row.requests for row in await place.shards()) == asked
        await place.parts.sink.close()


async def test_an_attempt_that_failed_says_why_in_the_books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator must not have to search for the job behind a shard that does not move."""
    monkeypatch.setattr("leaseway.imports.run.shard_jobs.ATTEMPTS", 1)
    monkeypatch.setattr(import_shard, "DOUBT_SECONDS", 0.0)
    async with fake_api(2_000, faults=Faults(reordered=True)) as it:
        place = place_of(tmp_path, it)
        assert await imported(place) is RunState.PARTIAL
        stuck = [row for row in await place.shards() if row.state is ShardState.RUNNING]
        assert stuck
        assert all("order_violated" in str(row.why) and row.guards["order_violated"] >= 4 for row in stuck)
        assert place.rows() == {}
        await place.parts.sink.close()


async def test_a_shard_that_is_never_in_order_is_parked_and_its_requests_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If resource.key names another field than the one by which the source sorts, no retry helps. Fifty attempts with
    pauses of up to a minute would hide the mistake for most of an hour, and every refused page was paid for.
    """
    monkeypatch.setattr("leaseway.imports.run.shard_jobs.BACKOFF", Backoff(first_seconds=0.001, seconds_max=0.001))
    monkeypatch.setattr(import_shard, "DOUBT_SECONDS", 0.0)
    async with fake_api(300, faults=Faults(reordered=True)) as it:
        place = place_of(tmp_path, it)
        await place.parts.sink.open()
        await plan_with_history(place.parts)
        planning = len(it.arrivals)
        assert await imported(place) is RunState.PARTIAL
        parked = [row for row in await place.shards() if row.state is ShardState.PARKED]
        assert parked
        for row in parked:
            assert "check that resource.key names the field by which the source sorts" in str(row.why)
            assert (row.attempts, row.guards["order_violated"]) == (5, import_shard.DISORDER_MAX)
        assert sum(row.requests for row in await place.shards()) == len(it.arrivals) - 2 * planning
        await place.parts.sink.close()


async def test_records_that_come_twice_are_counted(tmp_path: Path) -> None:
    """Inserts at the front shift the offsets, so rows come again; they must be written once and reported."""
    records = [{"icao": f"X{n:05}"} for n in range(300)]
    shifted = [*records[:150], *records[75:225]]
    async with fake_api(0, listings={"airports": Listing(shifted, key="icao")}) as it:
        place = Place(tmp_path, it, SHIFTING.format(url=it.url, folder=tmp_path))
        assert await imported(place) is RunState.COMPLETE
        (row,) = await place.shards()
        assert row.guards["duplicate"] == 75
        assert (row.inserted, row.unchanged) == (225, 75)
        await place.parts.sink.close()


async def test_a_list_that_shrinks_while_it_is_read_is_not_cut_short(tmp_path: Path) -> None:
    """Deletes at the front shift the following rows forward, so the next offset would skip as many rows."""
    records = [{"icao": f"X{n:05}"} for n in range(300)]
    living = list(records)
    async with fake_api(0, listings={"airports": Listing(living, key="icao")}) as it:
        place = Place(tmp_path, it, SHIFTING.format(url=it.url, folder=tmp_path).replace("limit = 75", TOTAL))
        fetch, pages = place.parts.source.fetch, 0

        async def shrinking(*arguments: Any) -> Any:
            nonlocal pages
            pages += 1
            if pages in (2, 4):
                del living[:20]
            return await fetch(*arguments)

        place.parts.source.fetch = shrinking  # type: ignore[assignment]
        assert await imported(place) is RunState.UNVERIFIED
        assert set(place.rows("airports")) == {record["icao"] for record in records}
        await place.parts.sink.close()


TOTAL = 'limit = 75, total = "$.total"'

SHIFTING = """
version = 1
[source]
name = "airports"
base_url = "{url}"
[resource]
path = "/offset/airports"
records = "$.items"
key = "icao"
page = {{ cursor = "offset", limit_param = "limit", limit = 75 }}
[sink]
url = "sqlite:///{folder}/data.db"
table = "airports"
"""


async def test_a_key_that_stops_working_at_the_very_end_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The confirmation of an end is a request like any other, and its key can be refused."""
    async with fake_api(50) as it:
        place = place_of(tmp_path, it)
        await place.parts.sink.open()
        plan = await plan_with_history(place.parts)

        app, handle = import_app(place.parts, place.store)
        async with app:
            await start_planned(place.parts, handle, "run", plan, wall_clock_us())
            fetch, calls = place.parts.source.fetch, 0

            async def fetch_once(*arguments: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > 1:
                    from leaseway.imports.sources.port import SourceRefused

                    raise SourceRefused("403: the key has expired")
                return await fetch(*arguments)

            monkeypatch.setattr(place.parts.source, "fetch", fetch_once)
            await app.run_worker(queues=[place.parts.queue], until_empty=True, concurrency=1)
        assert await finish_run(place.parts, "run") is RunState.FAILED
        assert calls == 2
        await place.parts.sink.close()


# -- document profiles --


async def test_the_books_tell_what_documents_look_like(tmp_path: Path) -> None:
    """The drift report compares these profiles between runs."""
    async with fake_api(500) as it:
        place = place_of(tmp_path, it)
        await imported(place)
        merged: Any = {}
        for row in await place.shards():
            merged = add_profiles(merged, row.profile)
        assert set(merged["AddressInfo.Title"]) == {"text"}
        assert set(merged["ID"]) == {"integer"}
        await place.parts.sink.close()


def test_a_profile_names_paths_and_types() -> None:
    """A path or type that is missing here hides a change of the source's format."""
    records = [{"a": 1, "b": {"c": [{"d": None}, {"d": 1.5}]}}, {"a": "x", "b": True}]
    assert profile_documents(records) == {
        "a": {"integer": 1, "text": 1},
        "b": {"object": 1, "boolean": 1},
        "b.c": {"list": 1},
        "b.c[*]": {"object": 1},
        "b.c[*].d": {"null": 1, "number": 1},
    }


def test_a_profile_is_bounded() -> None:
    """A source that uses ids as field names has as many paths as records."""
    wide = [{f"name-{n}-{k}": k for k in range(100)} for n in range(20)]
    assert len(profile_documents(wide)) == 300
    assert len(add_profiles(profile_documents(wide), {f"other-{n}": {"text": 1} for n in range(50)})) == 300
    deep: Any = {}
    for _ in range(50):
        deep = {"below": deep}
    assert len(profile_documents([deep])) == 6
