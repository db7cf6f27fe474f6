"""An import that is one function: the same rows, guards and refusals as a spec, and invalid results are never
written.
"""

import functools
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.sqlite_files import open_sqlite

from leaseway import (
    App,
    BadValue,
    Country,
    Filter,
    IdRange,
    Importer,
    NoSuchJob,
    Page,
    Shard,
    TransientError,
    UsageError,
)
from leaseway.imports.domain.partition import format_instant
from leaseway.imports.domain.run_state import RunMode, RunState, ShardState
from leaseway.imports.run.assembly import load_import
from leaseway.imports.spec.importer_options import BadOption
from leaseway.testing.fake_open_charge_map import API_KEY, FakeApi, Faults, Listing, fake_api

RECORDS = [{"id": number, "name": f"thing {number}"} for number in range(1, 251)]
Fetch = Callable[..., Any]


class Place:
    """An app with its own store and sink, and the fake API."""

    def __init__(self, folder: Path, it: FakeApi) -> None:
        self.folder, self.it = folder, it
        self.app = App(f"sqlite:///{folder}/jobs.db")

    def importer(self, function: Fetch, **options: Any) -> Importer:
        known = {"key": "id", "sink": f"sqlite:///{self.folder}/data.db", "table": "things", "page_limit": 100}
        return self.app.importer("shop.things", **{**known, **options})(function)

    def rows(self) -> list[str]:
        with open_sqlite(self.folder / "data.db") as file:
            return [
                each for (each,) in file.execute("SELECT external_id FROM things ORDER BY CAST(external_id AS INT)")
            ]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with fake_api(2_000, listings={"things": Listing(RECORDS)}) as it:
        place = Place(tmp_path, it)
        yield place
        await place.app.close()


IDS = [str(record["id"]) for record in RECORDS]


# -- pages --


def test_a_page_by_key_goes_on_after_its_last_record() -> None:
    """A cursor that moves back would fetch pages twice, and an empty page is not proof of the end."""
    page = Page.keyset(RECORDS[:3], key="id")
    assert (page.next, page.is_end, page.raw_count) == ({"after": 3}, None, 3)
    assert Page.keyset([], key="id").next is None
    assert Page.keyset([], key="id").is_end is None, "an empty page is no proof of the end"
    assert Page.keyset(RECORDS[:3], key="id", limit=4).is_end is True, "promised by the source"
    assert Page.keyset(RECORDS[:3], key="id", limit=3).next == {"after": 3}
    assert Page.keyset([{"a": {"b": 7}}], key="a.b").next == {"after": 7}
    with pytest.raises(BadValue, match=r"the last record has no 'ID'; it has 'id', 'name'"):
        Page.keyset(RECORDS[:3], key="ID")


def test_a_page_by_offset_counts_what_came() -> None:
    """An offset that counts requested instead of received rows would skip rows after a short page."""
    assert Page.offset(RECORDS[:3], None).next == {"offset": 3}
    assert Page.offset(RECORDS[:3], {"offset": 7}, total=20).next == {"offset": 10}
    last = Page.offset(RECORDS[:3], {"offset": 7}, total=10)
    assert (last.next, last.is_end) == (None, True)
    empty = Page.offset([], {"offset": 7}, total=10)
    assert (empty.next, empty.is_end) == (None, None), "an empty page of which the source says that there is more"


def test_the_last_page_says_so() -> None:
    """Without an explicit end, every shard would cost one more request."""
    assert Page.last([]).is_end is True
    assert Page.last(RECORDS[:2]).raw_count == 2


# -- whole imports --


async def test_a_function_by_offset_brings_every_row_once(place: Place) -> None:
    """This is the shape of importer that most users write first."""

    async def things(cursor: Mapping[str, Any] | None, limit: int, http: Any) -> Page:
        offset = cursor["offset"] if cursor else 0
        reply = await http.get(f"{place.it.url}/offset/things", params={"offset": offset, "limit": limit})
        return Page.offset(reply.json()["items"], cursor)

    importer = place.importer(things, columns={"name": {"path": "name", "type": "text"}})
    done = await importer.run()
    assert (done.state, done.rows) == (RunState.COMPLETE, 250), done.shards[0].why
    assert place.rows() == IDS
    again = await importer.run()
    assert [sum(getattr(row, name) for row in again.shards) for name in ("inserted", "unchanged")] == [0, 250]
    assert (await importer.status()).run.id == again.run.id


async def test_a_function_by_key_is_cut_into_ranges_that_it_knows_nothing_of(place: Place) -> None:
    """The cursor sets the start of a range, and records beyond its end must be dropped, not written twice."""
    asked: list[int] = []

    async def poi(cursor: Mapping[str, Any], limit: int, http: Any) -> list[dict[str, Any]]:
        asked.append(cursor["after"])
        params = {"greaterthanid": cursor["after"], "maxresults": limit, "sortby": "id_asc"}
        reply = await http.get(f"{place.it.url}/v3/poi", params=params, headers={"X-API-Key": API_KEY})
        found: list[dict[str, Any]] = reply.json()
        return found

    top = max(place.it.table.readable())
    importer = place.importer(poi, key="ID", ascending=True, partition=IdRange(size=1_000, upper=top))
    plan = await importer.plan()
    assert len(plan.shards) == top // 1_000 + 1
    done = await importer.run()
    assert done.state is RunState.COMPLETE
    assert set(place.rows()) == {str(id_) for id_ in place.it.table.readable()}
    assert done.rows == len(place.rows()), "no shard has written a row of another one"
    assert {0 - 1, 999} <= set(asked)


async def test_a_plain_function_runs_in_a_thread_with_a_plain_client(place: Place) -> None:
    """A blocking call on the event loop would stop lease renewal for all shards."""

    def things(shard: Shard, cursor: Mapping[str, Any] | None, limit: int, http: Any) -> Any:
        params = {"limit": limit, **({"cursor": cursor["token"]} if cursor else {})}
        body = http.get(f"{place.it.url}/token/things", params=params).json()
        following = body["next_cursor"]
        return body["items"], None if following is None else {"token": following}

    done = await place.importer(things).run()
    assert (done.state, place.rows()) == (RunState.COMPLETE, IDS)


class Shop:
    async def __call__(self, http: Any) -> Page:
        return Page.last((await http.get(f"{self.url}/keyset/things?limit=1000")).json())

    def __init__(self, url: str) -> None:
        self.url = url


async def test_an_object_that_can_be_called_and_a_decorated_function_are_functions_too(place: Place) -> None:
    """Users wrap their functions with retries and tracing, and the parameters must still be recognized."""
    shop = Shop(place.it.url)
    assert (await place.importer(shop).run()).rows == 250

    async def inner(http: Any) -> Page:
        return await shop(http)

    @functools.wraps(inner)
    def decorated(**given: Any) -> Any:
        return inner(**given)

    other = App(f"sqlite:///{place.folder}/jobs.db")
    async with other:
        sink = f"sqlite:///{place.folder}/other.db"
        assert (await other.importer("other", key="id", sink=sink, table="things")(decorated).run()).rows == 250


async def test_a_function_gets_the_countries_of_its_shard(place: Place) -> None:
    """A function that does not see its part would fetch everything once per shard."""

    async def of(shard: Shard, http: Any) -> Page:
        country = shard.predicate["country"]
        return Page.last([{"id": f"{code}-{number}", "country": code} for code in country for number in range(3)])

    values = {"country": {"values": ["ES", "FR", "PT"], "path": "country", "rows": {"FR": 9_000, "ES": 40, "PT": 30}}}
    importer = place.importer(of, partition=Country(group_below=100), filters=values)
    plan = await importer.plan()
    assert [shard.label for shard in plan.shards] == ["country=ES-PT(2)", "country=FR"]
    assert (await importer.run()).rows == 9


async def test_a_record_of_another_shard_is_noticed(place: Place) -> None:
    """A function that ignores its predicate would write the whole world once for each country."""

    async def of(shard: Shard) -> Page:
        return Page.last([{"id": 1, "country": "ES"}])

    values = {"country": {"values": ["ES", "FR"], "path": "country"}}
    done = await place.importer(of, partition={"by": "country"}, filters=values).run()
    assert done.state is RunState.PARTIAL
    assert [dict(row.guards) for row in done.shards if row.state is ShardState.PARKED] == [{"filter_ignored": 1}]


async def test_a_function_that_ignores_its_range_is_noticed(place: Place) -> None:
    """Every shard would read everything, so the import would take as many times as long as it has shards."""

    async def things(shard: Shard) -> Page:
        return Page.last(RECORDS)

    parts = {"partition": IdRange(size=100, upper=250), "filters": {"id": Filter()}}
    done = await place.importer(things, **parts).run()
    assert [dict(row.guards) for row in done.shards] == [{"filter_ignored": 1}] * 3


async def test_limits_are_kept_by_the_importer(place: Place) -> None:
    """Limits that are declared but not applied would get the user's key blocked by the provider."""

    async def things(cursor: Any, limit: int, http: Any) -> Page:
        offset = cursor["offset"] if cursor else 0
        return Page.offset((await http.get(f"{place.it.url}/offset/things?offset={offset}")).json()["items"], cursor)

    importer = place.importer(things, limits=["1000/second"], concurrency=3)
    assert importer.parts.source.limit is not None
    assert importer.parts.source.limit.definition.concurrency == 3
    assert (await importer.run()).rows == 250


# -- invalid results --


async def nothing() -> None:
    return None


async def text() -> str:
    return "[]"


async def numbers() -> list[int]:
    return [1, 2, 3]


async def one_bad() -> Any:
    return [{"id": 1}, "two"], None


async def stuck(cursor: Any) -> Page:
    return Page(records=[{"id": 1}], raw_count=1, next={"at": 1}, is_end=False)


async def stuck_pair(cursor: Any) -> Any:
    return [{"id": 1}], {"at": 1}


async def wrong_cursor() -> Any:
    return [{"id": 1}], "abc"


async def unwritable_cursor() -> Any:
    return [{"id": 1}], {"at": {1, 2}}


async def full(limit: int) -> Any:
    return [{"id": number} for number in range(limit)]


async def mistaken() -> Any:
    return len(None)  # type: ignore[arg-type]


async def misread() -> Any:
    body: dict[str, Any] = {}
    return body["items"]


def plain_mistake() -> Any:
    return None + 1  # type: ignore[operator]


async def wrong_page() -> Any:
    return Page(records={"id": 1}, raw_count=1, next=None)  # type: ignore[arg-type]


async def generator() -> Any:
    yield {"id": 1}


NONSENSE = {
    nothing: "returned None; it must return a Page, a list of records, or (records, next_cursor)",
    text: "returned str '[]'; it must return a Page",
    numbers: "returned a list whose item 0 is int 1; it must return objects (dict)",
    one_bad: "returned a list whose item 1 is str 'two'",
    stuck: 'returned a page whose next cursor is the given cursor,  {"at":1}',
    stuck_pair: 'returned a page whose next cursor is the given cursor,  {"at":1}',
    wrong_cursor: "returned the next cursor 'abc'; it must return a table of plain JSON, such as {\"offset\": 200}",
    unwritable_cursor: "returned the next cursor {'at': {1, 2}}",
    full: "returned a full list of 100 records, which leaves open whether there are more",
    mistaken: "raised TypeError: object of type 'NoneType' has no len() (test_importer.py, line ",
    misread: "raised KeyError: 'items' (test_importer.py, line ",
    plain_mistake: "raised TypeError: unsupported operand",
    wrong_page: "returned a Page whose records are dict {'id': 1}; it must return a list of records",
    generator: "returned async_generator <async_generator object",
}


@pytest.mark.parametrize("function", NONSENSE, ids=lambda function: function.__name__)
async def test_nonsense_is_named_and_parks_its_shard(place: Place, function: Fetch) -> None:
    """A wrong function would return the same in all fifty attempts; its author must read what was wrong, and where."""
    done = await place.importer(function).run()
    assert done.state is RunState.PARTIAL
    (row,) = done.shards
    assert (row.state, dict(row.guards)) == (ShardState.PARKED, {"source_failed": 1})
    assert row.attempts == 1
    assert row.why is not None
    assert f"{function.__name__}() in test_importer.py, line " in row.why
    assert NONSENSE[function] in row.why
    assert row.rows == (1 if "stuck" in function.__name__ else 0)


async def test_a_reply_that_is_no_json_is_asked_for_again(place: Place) -> None:
    """An HTML error page is temporary; it must neither park the shard nor be taken for the end."""
    place.it.faults = Faults(html_every=5)

    async def things(cursor: Any, limit: int, http: Any) -> Page:
        offset = cursor["offset"] if cursor else 0
        reply = await http.get(f"{place.it.url}/offset/things", params={"offset": offset, "limit": limit})
        reply.raise_for_status()
        return Page.offset(reply.json()["items"], cursor)

    assert (await place.importer(things).run()).rows == 250


async def test_a_wrong_key_stops_the_whole_run(place: Place) -> None:
    """A refused key must not be tried by every shard again and again."""

    async def poi(cursor: Any, http: Any) -> Any:
        reply = await http.get(f"{place.it.url}/v3/poi", headers={"X-API-Key": "wrong"})
        return reply.raise_for_status().json()

    done = await place.importer(poi, key="ID", ascending=True, partition=IdRange(size=100, upper=900)).run(workers=1)
    assert done.state is RunState.FAILED
    assert done.run.why is not None
    assert "the source answers 403: the key is wrong or has no permission" in done.run.why
    assert len(place.it.arrivals) == 1


async def test_a_status_that_will_not_pass_parks_the_shard(place: Place) -> None:
    """Retries of a 404 spend requests and never succeed."""

    def things(http: Any) -> Any:
        return http.get(f"{place.it.url}/offset/nowhere").raise_for_status().json()

    (row,) = (await place.importer(things).run()).shards
    assert row.state is ShardState.PARKED
    assert row.why is not None
    assert "answers 404" in row.why


async def test_what_may_pass_is_tried_again(place: Place) -> None:
    """A short outage of the provider must not park a shard."""
    tries: list[int] = []

    async def things() -> Page:
        tries.append(1)
        if len(tries) < 2:
            raise TransientError("not now")
        return Page.last(RECORDS)

    done = await place.importer(things).run()
    assert (done.rows, done.shards[0].attempts) == (250, 2)


async def test_a_parked_run_goes_on_with_a_mended_function(place: Place) -> None:
    """The function's code is not part of the hash, so the author can correct it and resume."""
    first = place.importer(nothing)
    assert (await first.run()).state is RunState.PARTIAL

    async def mended() -> Page:
        return Page.last(RECORDS)

    other = Place(place.folder, place.it)
    async with other.app:
        done = await other.importer(mended).run(resume=True)
    assert (done.state, done.rows, done.shards[0].attempts) == (RunState.COMPLETE, 250, 2)


async def test_a_run_has_a_name_of_its_own(place: Place) -> None:
    """Two runs under one name would mix their progress."""

    async def things() -> Page:
        return Page.last(RECORDS)

    importer = place.importer(things)
    await importer.run(run="first")
    with pytest.raises(UsageError, match="run: first exists already"):
        await importer.run(run="first")
    with pytest.raises(NoSuchJob, match="has no run second; its latest runs: first"):
        await importer.status("second")


async def test_a_budget_stops_a_run_and_a_larger_one_continues_it(place: Place) -> None:
    """Python, the command line and HTTP share one budget rule: a used-up budget is refused, a larger one continues."""

    async def things(cursor: Any, http: Any) -> Page:
        start = 0 if cursor is None else cursor["start"]
        await http.get(f"{place.it.url}/things")
        records = RECORDS[start : start + 100]
        return Page(records=records, raw_count=len(records), next={"start": start + 100}, is_end=start >= 200)

    importer = place.importer(things)
    stopped = await importer.run(requests_max=1)
    assert (stopped.state, stopped.run.requests, stopped.rows) == (RunState.PARTIAL, 1, 100)
    with pytest.raises(UsageError, match="has used 1 of 1 requests; resume it with a larger budget"):
        await importer.run(resume=True)
    done = await importer.run(resume=True, requests_max=50)
    assert (done.state, done.rows, done.run.requests_max) == (RunState.COMPLETE, 250, 50)


async def test_only_what_has_changed_is_asked_for(place: Place) -> None:
    """The second run gets a window that starts where the first run started, less the overlap."""
    windows: list[Any] = []

    async def things(shard: Shard) -> Page:
        windows.append(shard.predicate.get("window"))
        return Page.last([{"id": 1, "at": "2026-01-01T00:00Z"}])

    importer = place.importer(things, stamp="at", incremental={"overlap": "15m"})
    first = await importer.run()
    second = await importer.run()
    assert (first.run.mode, second.run.mode) == (RunMode.FULL, RunMode.INCREMENTAL)
    assert first.run.watermark is not None
    assert second.run.since is not None
    assert 0 <= first.run.watermark - second.run.since - 15 * 60_000_000 < 1_000_000
    assert windows == [None, [format_instant(second.run.since), None]]
    assert (await importer.run(mode=RunMode.FULL)).run.mode is RunMode.FULL


async def test_a_mode_can_be_given_as_text(place: Place) -> None:
    """`mode="full"` must not be taken for "no mode given", which would skip unchanged records."""

    async def things(shard: Shard) -> Page:
        return Page.last([{"id": 1, "at": "2026-01-01T00:00Z"}])

    importer = place.importer(things, stamp="at", incremental={"overlap": "15m"})
    await importer.run()
    assert (await importer.run(mode="full")).run.mode is RunMode.FULL
    with pytest.raises(BadValue, match="must be full or incremental"):
        await importer.plan(mode="whole")


async def test_a_budget_stops_the_run(place: Place) -> None:
    """Each request above the budget costs money that the user did not approve."""

    async def things(cursor: Any, http: Any) -> Page:
        offset = cursor["offset"] if cursor else 0
        reply = await http.get(f"{place.it.url}/offset/things", params={"offset": offset, "limit": 100})
        return Page.offset(reply.json()["items"], cursor)

    done = await place.importer(things, budget={"requests": 2}).run()
    assert (done.state, done.rows, len(place.it.arrivals)) == (RunState.PARTIAL, 200, 2)


# -- declaring --

BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"colums": {}}, "options: unknown option 'colums'; did you mean 'columns'?"),
    ({"page_limit": 0}, "page_limit: must be at least 1 (is 0)"),
    ({"table": "po i"}, "table: must be table or schema.table, in a-z, 0-9 and _ (is 'po i')"),
    ({"sink": "data.db"}, "sink: must begin with one of sqlite://"),
    ({"limits": "fast"}, "limits[0]: cannot read the rate 'fast'"),
    ({"limits": [5]}, "limits[0]: must be text (is 5)"),
    ({"key": "$"}, "key: must be the path of a field; $ is the whole record"),
    ({"columns": {"name": "name"}}, "columns.name: must be a table (is 'name')"),
    ({"columns": {"name": {"path": "a", "type": "txt"}}}, "columns.name.type: must be one of text, integer"),
    ({"stamp": object()}, "stamp: cannot be part of a spec: "),
    ({"partition": IdRange(size=10)}, "partition.upper: must be the largest id, an integer"),
    ({"partition": {"by": "countri"}}, "partition.by: must be one of none, id_range, country, window, box"),
    ({"partition": Country()}, "filters.country: needs values or values_from"),
    ({"partition": {"by": "box"}}, "filters.box.latitude: is required, because a point on an edge belongs to one box"),
    ({"filters": {"country": {"separator": ";"}}}, "filters.country.separator: is not for a function"),
    ({"filters": 5}, "filters: must be a table (is 5)"),
    ({"incremental": {"overlap": "15m"}}, "stamp: is required by incremental"),
    ({"budget": {"money": 5}}, "budget.price: is required"),
    ({"deletes": {"sweep": {"confirm": {"param": "id"}}}}, "deletes.sweep.confirm: is not for a function"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_option_is_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    """A user must learn which option to change."""
    known = {"key": "id", "sink": "sqlite:///data.db", "table": "things"}
    with pytest.raises(BadOption) as caught:
        App("memory://").importer("shop", **{**known, **options})(nothing)
    assert f"importer shop: {message}" in str(caught.value)


def test_all_wrong_options_are_told_at_once() -> None:
    """One error per attempt makes the user start the program again for each of them."""
    with pytest.raises(BadOption) as caught:
        App("memory://").importer("shop", sink="sqlite:///x.db", table="a b", page_limit=0)(nothing)  # type: ignore[call-arg]
    assert [line.split(": ")[1] for line in str(caught.value).split("\n")] == ["key", "page_limit", "table"]


@pytest.mark.parametrize("name", ["", "Shop", "shop things", "9", "x" * 64])
def test_a_wrong_name_is_refused(name: str) -> None:
    """The name becomes part of a queue, a limit and every shard."""
    with pytest.raises(BadOption, match="name: must be lowercase letters"):
        App("memory://").importer(name, key="id", sink="sqlite:///x.db", table="things")(nothing)


def test_a_function_that_takes_something_else_is_refused(place_less: Callable[[Fetch], Importer]) -> None:
    """The function would only fail at its first page, in a worker process."""

    def things(shard: Shard, page: int) -> Any: ...

    with pytest.raises(
        BadValue, match=r"things\(\) in test_importer.py, line \d+: page: is not provided; a page function "
    ):
        place_less(things)


@pytest.fixture
def place_less() -> Callable[[Fetch], Importer]:
    return App("memory://").importer("shop", key="id", sink="sqlite:///x.db", table="things")


def test_two_importers_of_one_name_are_refused() -> None:
    """Two importers of one name would share their shards, their limit and their runs."""
    app = App("memory://")
    app.importer("shop", key="id", sink="sqlite:///x.db", table="things")(nothing)
    with pytest.raises(UsageError, match="there are two importers named 'shop'"):
        app.importer("shop", key="id", sink="sqlite:///x.db", table="things")(text)


def test_calling_an_importer_fetches_a_page(place_less: Callable[[Fetch], Importer]) -> None:
    """The decorated function must stay testable as a plain function."""

    def things(limit: int) -> Any:
        """Some things."""
        return RECORDS[:limit]

    importer = place_less(things)
    assert importer(2) == RECORDS[:2]
    assert importer.__doc__ == "Some things."
    assert repr(importer) == "<importer shop>"


def test_the_options_are_the_hash_and_the_function_is_not() -> None:
    """A hash that changes too often refuses a resume, and one that never changes mixes two shapes of rows."""

    def made(function: Fetch, **options: Any) -> str:
        known = {"key": "id", "sink": "sqlite:///x.db", "table": "things"}
        return App("memory://").importer("shop", **{**known, **options})(function).parts.task.spec_hash

    before = made(nothing)
    assert made(text) == before
    assert made(nothing, limits="1/second", page_limit=7, concurrency=2) == before
    assert made(nothing, key="name") != before
    assert made(nothing, ascending=True) != before
    assert made(nothing, columns={"name": {"path": "name", "type": "text"}}) != before


# -- by its name --

MODULE = """
from leaseway import App, Page

app = App("sqlite:///jobs.db")


@app.importer("shop", key="id", sink="sqlite:///data.db", table="things", page_limit=100)
def things(cursor, limit, http):
    offset = cursor["offset"] if cursor else 0
    reply = http.get("URL/offset/things", params={"offset": offset, "limit": limit})
    return Page.offset(reply.raise_for_status().json()["items"], cursor)


if __name__ == "__main__":
    print(len(things.plan_sync().shards), things.run_sync().rows, things.status_sync().state, things.parts.path)
"""


@pytest.fixture
def module(place: Place, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place.folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "shop_of_tests", raising=False)
    path = place.folder / "shop_of_tests.py"
    path.write_text(MODULE.replace("URL", place.it.url))
    return path


def test_an_importer_is_found_by_its_name(module: Path) -> None:
    """Worker processes know an importer only by its name."""
    parts = load_import("shop_of_tests:things", {})
    assert (parts.spec.source.name, str(parts.path)) == ("shop", "shop_of_tests:things")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shop_of_tests:app", "shop_of_tests:app is not an importer; it has: shop_of_tests:things"),
        ("shop_of_tests:thing", "shop_of_tests:thing is not an importer; it has: shop_of_tests:things"),
        ("json:loads", "json:loads is not an importer; the module has none; decorate the function with @app.importer"),
        ("nowhere_at_all:x", "module 'nowhere_at_all' was not found in "),
        ("shop_of_tests.py:things", "is a path; write the module name as in an import statement: shop_of_tests:things"),
        ("a b:things", "'a b:things' is not a module name; write MODULE:IMPORTER, for example shop:things"),
    ],
)
def test_a_wrong_name_of_an_importer(module: Path, name: str, message: str) -> None:
    """A typing error must lead to the right name."""
    with pytest.raises(UsageError) as caught:
        load_import(name, {})
    assert message in str(caught.value)


async def script(module: Path, *command: str) -> str:
    import asyncio

    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=module.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


@pytest.mark.slow
async def test_a_script_imports_without_a_word_of_async(module: Path) -> None:
    """Many users of imports write plain scripts and do not know asyncio."""
    assert await script(module, module.name) == "1 250 complete shop_of_tests:things\n"


@pytest.mark.slow
async def test_worker_processes_find_the_function(module: Path, place: Place) -> None:
    """The command line starts other processes, which know the function only by its name."""
    command = ["-m", "leaseway.cli", "import", "run", "shop_of_tests:things", "--store", "sqlite:///jobs.db", "--json"]
    answer = json.loads(await script(module, *command))
    assert (answer["state"], answer["rows"]) == ("complete", 250)
    assert place.rows() == IDS
