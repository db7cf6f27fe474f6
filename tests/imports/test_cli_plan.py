"""A plan shows what a run will do and what prevents it, and changes nothing."""

import asyncio
from pathlib import Path

import pytest
from tests.imports.cli_fixtures import STAMPED, Desk, at_desk, things
from tests.sqlite_files import open_sqlite

from leaseway.domain.limits.limit import Limit
from leaseway.imports.domain.partition import make_shard
from leaseway.imports.domain.run_state import RunMode
from leaseway.imports.run.plan import Plan, make_forecast
from leaseway.imports.spec.model import RunBudget
from leaseway.testing.fake_open_charge_map import Listing, fake_api


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return at_desk(tmp_path, monkeypatch, capsys)


def test_a_plan_makes_neither_sink_nor_store(desk: Desk) -> None:
    """A plan that creates files would change the system that it only describes."""
    desk.write(things(3))
    told = desk.ok("plan", "things.toml").out
    assert "things: 1 shard into things" in told
    assert "full: the spec has no [resource.incremental]" in told
    assert sorted(path.name for path in desk.folder.iterdir()) == ["things.jsonl", "things.toml"]
    assert desk.ok("run", "things.toml", "--dry-run").out == told
    assert not (desk.folder / "data.db").exists()


def test_a_table_of_another_shape_is_refused_in_the_plan(desk: Desk) -> None:
    """A wrong table must be found before the first paid request."""
    with open_sqlite(desk.folder / "data.db") as file:
        file.execute("CREATE TABLE things (name TEXT)")
    told = desk.run("plan", "things.toml")
    assert told.code == 2
    assert "refused: sink: " in told.out
    assert "things" in told.out
    assert "1 shard into things" in told.out, "the rest of the plan is shown all the same"


def test_a_sink_in_no_folder_is_refused_in_the_plan(desk: Desk) -> None:
    """A mistyped path must be found in the plan, and must not be created by it."""
    desk.write_spec(old="data.db", new="nowhere/data.db")
    told = desk.run("plan", "things.toml", "--json")
    assert told.code == 2
    (refusal,) = told.json["refused"]
    assert "sink.url: there is no folder" in refusal
    assert not (desk.folder / "nowhere").exists()


HTTP = """
version = 1
[source]
name = "things"
base_url = "URL"
[resource]
path = "/offset/things"
records = "$.items"
key = "id"
stamp = { field = "changed" }
FILTER
[resource.page]
cursor = "offset"
[sink]
url = "sqlite:///data.db"
table = "things"
"""
WINDOWS = """
filters = { window = { lower = "since", path = "changed" } }
partition = { by = "window", start = "2026-01-01T00:00Z", end = "2026-04-01T00:00Z", step = "7d" }
"""


def test_windows_without_an_upper_bound_are_refused_with_their_price(desk: Desk) -> None:
    """Without an upper bound, every window would read everything after its start."""
    desk.spec.write_text(HTTP.replace("FILTER", WINDOWS), "utf-8")
    told = desk.run("plan", "things.toml")
    assert told.code == 2
    assert "things.toml: resource.partition.by: window needs resource.filters.window.upper" in told.err


def test_a_wish_that_the_spec_cannot_fulfil_is_refused_in_the_plan(desk: Desk) -> None:
    """A silent full run instead of an incremental one could cost a hundred times as much."""
    told = desk.run("plan", "things.toml", "--incremental")
    assert told.code == 2
    assert "refused: the spec has no [resource.incremental]; add it" in told.out
    assert "this import cannot run" in told.out


BY_IDS = """
partition = { by = "id_range", size = 1000, upper = 99998 }
filters = { id = { lower = "from", upper = "to", path = "id" } }
"""
BUDGET = """
[budget]
requests = 500
price = 0.01
currency = "EUR"
"""


async def test_a_budget_that_will_not_do_is_told_before_the_first_page(desk: Desk) -> None:
    """A user can raise a budget before the run, but cannot get back requests that were spent on half an import."""
    async with fake_api(0, listings={"things": Listing(things(10))}) as it:
        text = HTTP.replace("URL", it.url).replace("FILTER", BY_IDS).replace(STAMPED, "")
        desk.spec.write_text(text + BUDGET, "utf-8")
        told = (await asyncio.to_thread(desk.ok, "plan", "things.toml")).out
        wider = (await asyncio.to_thread(desk.ok, "plan", "things.toml", "--requests-max", "5000", "--json")).json
    assert "budget    will stop after 500 of ~1,200 requests" in told
    assert "cost      at most 12.00 EUR" in told
    assert (wider["is_over_budget"], wider["requests_max"], wider["cost"]) == (False, 5_000, 12.0)


# -- the arithmetic --

IDS = [make_shard("s", "a", {"id": [0, 1_000]}), make_shard("s", "b", {"id": [1_000, None]})]


def test_rows_are_shared_out_by_the_ids_of_each_shard() -> None:
    """The request forecast depends on the rows of each shard, because every shard ends with its own partial page."""
    found = make_forecast(Plan(IDS, 400, None, None, id_max=2_999), None, 100, None)
    assert (found.by_shard, found.rows, found.is_most) == ([133, 267], 400, False)
    assert found.requests == (2 + 3) + 2 * 2


def test_ids_are_the_most_that_there_can_be() -> None:
    """Ids have gaps, so a forecast from ids must be shown as a maximum."""
    found = make_forecast(Plan(IDS, None, None, None, id_max=2_999), None, 100, None)
    assert (found.by_shard, found.rows, found.is_most) == ([1_000, 2_000], 3_000, True)
    assert found.requests == 10 + 20 + 4


def test_nothing_is_made_up_where_nothing_is_known() -> None:
    """A made-up forecast would be trusted when money is decided."""
    for plan in (
        Plan(IDS, None, None, None),
        Plan([make_shard("s", "all", {})], None, None, None),
        Plan(IDS, None, None, None, mode=RunMode.INCREMENTAL, since=1, id_max=10),
    ):
        found = make_forecast(plan, Limit("s", "50/second"), 100, RunBudget(requests=10, price=1.0))
        assert (found.rows, found.requests, found.seconds, found.cost, found.is_over) == (None, None, None, None, False)


def test_money_and_time_follow_from_the_requests() -> None:
    """Cost and duration are the figures by which a user decides to start a run."""
    budget = RunBudget(money=5.0, price=0.5)
    found = make_forecast(
        Plan([make_shard("s", "all", {}, 1_000)], 1_000, None, None), Limit("s", "1/second"), 100, budget
    )
    assert (found.requests, found.cost, found.requests_max, found.is_over) == (12, 6.0, 10, True)
    assert found.seconds is not None
    assert found.seconds >= 12
