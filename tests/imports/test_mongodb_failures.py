"""MongoDB when something breaks: between the rows and the cursor of a page, a lost reply, a foreign collection. The
server itself is told to fail at the command that the test names.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from pymongo import MongoClient
from tests.imports.mongodb_fixtures import EPOCH, MongoPlace
from tests.imports.sql_sink_fixtures import TABLE
from tests.mongodb_faults import leave_a_transaction

from leaseway.domain.errors import BadValue, KeyConflict, StoreBusy, StoreRefused, TransientError, UnknownOutcome
from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import ColumnType, WriteCounts
from leaseway.imports.domain.run_state import RunState, ShardState
from leaseway.imports.sinks.mongodb import MongoSink, connection
from leaseway.imports.sinks.mongodb.rows import DEPTH_MAX, MARK
from leaseway.stores.mongodb.store import MongoStore
from leaseway.testing.mongodb import MongoServer, mongodb_server
from leaseway.testing.server import free_port
from leaseway.testing.sink_contract.fixtures import (
    HIGH,
    LOW,
    RUN,
    bad,
    imported,
    page,
    row,
    rows,
    shard,
    started,
    written,
)

BREAKABLE = (
    *("--setParameter", "enableTestCommands=1"),
    *("--setParameter", "transactionLifetimeLimitSeconds=3"),
)
"""An abandoned transaction is ended soon; by default the server waits for a minute."""
STEPS_MAX = 1_000
LOST: dict[str, Any] = {"closeConnection": True}
AT_THE_CURSOR: dict[str, Any] = {"mode": {"skip": 1}, "namespace": "leaseway.leaseway_shards", **LOST}
"""A page without a transaction changes its shard twice: the claim before its rows, and the cursor after them."""


@pytest.fixture(scope="module")
def replica_set() -> Iterator[MongoServer]:
    with mongodb_server(*BREAKABLE) as server:
        yield server


@pytest.fixture(scope="module")
def standalone() -> Iterator[MongoServer]:
    with mongodb_server(*BREAKABLE, replica_set=False) as server:
        yield server


@pytest.fixture(params=["replica_set", "standalone"])
def server(request: pytest.FixtureRequest) -> MongoServer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, MongoServer)
    return found


@pytest.fixture
async def place(server: MongoServer) -> MongoPlace:
    place = MongoPlace(server.url)
    await place.empty()
    return place


@pytest.fixture
async def sink(place: MongoPlace) -> AsyncIterator[MongoSink]:
    sink = place.sink()
    await sink.open()
    yield sink
    await sink.close()


@pytest.fixture
async def alone(standalone: MongoServer) -> AsyncIterator[MongoSink]:
    place = MongoPlace(standalone.url)
    await place.empty()
    sink = place.sink()
    await sink.open()
    yield sink
    await sink.close()


@contextmanager
def failing(server: MongoServer, command: str, mode: Any = "alwaysOn", **what: Any) -> Iterator[None]:
    """Make the server fail at this command: for the given number of times, or after the given number."""
    data = {"failCommands": [command], **what}
    server.command({"configureFailPoint": "failCommand", "mode": mode, "data": data})
    try:
        yield
    finally:
        server.command({"configureFailPoint": "failCommand", "mode": "off"})


# -- without transactions --


async def test_a_page_that_was_half_written_counts_once(standalone: MongoServer, alone: MongoSink) -> None:
    """The rows are stored and the cursor is not; the repeated page must not count them as unchanged."""
    await started(alone)
    await written(alone, page(rows(1, 2), after=2))
    half = page([row(2, 1), *rows(3, 4)], 2, 4, bad=[bad(0), bad(1)])
    with failing(standalone, "update", **AT_THE_CURSOR), pytest.raises(UnknownOutcome, match="may be repeated"):
        await alone.shards.write(half)
    place = MongoPlace(standalone.url)
    assert sorted(await place.rows()) == ["1", "2", "3", "4"]
    assert (await shard(alone)).cursor == {"after": 2}
    assert await alone.shards.begin(RUN.id, LOW.key, 1) == await shard(alone)
    assert await alone.shards.write(half) == WriteCounts(inserted=2, updated=1, quarantined=2)
    now = await shard(alone)
    assert (now.pages, now.rows, now.inserted, now.updated, now.unchanged, now.quarantined) == (2, 5, 4, 1, 0, 2)
    assert [one.position for _, _, one in await alone.quarantine.find_all()] == [0, 1]


async def test_the_next_worker_finishes_a_page_that_was_half_written(standalone: MongoServer, alone: MongoSink) -> None:
    """Meanwhile the source has changed one of the rows, and sends one that is new."""
    await started(alone)
    with failing(standalone, "update", **AT_THE_CURSOR), pytest.raises(UnknownOutcome):
        await alone.shards.write(page(rows(1, 2, 3), after=3, bad=[bad(7)]))
    place = MongoPlace(standalone.url)
    other = place.sink()
    await other.open()
    assert await other.shards.begin(RUN.id, LOW.key, 2) is not None
    again = page([row(1), row(2, 5), row(3, -1), row(9)], after=9, fence=2)
    assert await other.shards.write(again) == WriteCounts(inserted=4)
    assert await other.quarantine.find_all() == []
    assert (await place.rows())["2"]["content_hash"] == "hash-5"
    assert (await place.rows())["3"]["content_hash"] == "hash-0"
    assert await alone.shards.write(page(rows(1, 2, 3), after=3)) is None
    await other.close()


async def test_the_rows_of_an_older_page_are_not_the_next_ones_own(alone: MongoSink) -> None:
    """The marker names the page: the next page of the shard must find the same row unchanged."""
    await started(alone)
    await written(alone, page(rows(1), after=1))
    assert await alone.shards.write(page(rows(1), 1, 2)) == WriteCounts(unchanged=1)
    assert await alone.shards.write(page([row(1, 1)], 2, 3)) == WriteCounts(updated=1)


@pytest.mark.parametrize(("command", "where"), [("insert", "leaseway_shards"), ("update", "leaseway_runs")])
async def test_a_run_whose_start_was_interrupted_is_planned_anew(
    standalone: MongoServer, alone: MongoSink, command: str, where: str
) -> None:
    """Half a plan would import half a source and call it complete; two plans would import a part of it twice."""
    with failing(standalone, command, namespace=f"leaseway.{where}", **LOST), pytest.raises(UnknownOutcome):
        await alone.runs.start(RUN, [LOW])
    assert await alone.runs.find_all() == []
    assert await alone.runs.find(RUN.id) is None
    await alone.runs.start(RUN, [HIGH])
    assert [each.shard for each in await alone.shards.find_all(RUN.id)] == [HIGH]
    assert [run.id for run in await alone.runs.find_all()] == [RUN.id]


async def test_a_claim_of_a_worker_that_has_died_holds_nobody(standalone: MongoServer, alone: MongoSink) -> None:
    """The claim of a dead worker must not block the next one, which has a larger fence."""
    await started(alone)
    with failing(standalone, "insert", namespace=f"leaseway.{TABLE}", **LOST), pytest.raises(UnknownOutcome):
        await alone.shards.write(page(rows(1), after=1))
    other = MongoPlace(standalone.url).sink()
    await other.open()
    assert await other.shards.write(page(rows(1), after=1)) is None  # another worker with the same fence
    assert await other.shards.write(page(rows(1), after=1, fence=2)) == WriteCounts(inserted=1)
    await other.close()


# -- lost replies --


async def test_a_connection_that_breaks_inside_a_transaction_costs_nothing(replica_set: MongoServer) -> None:
    """What was not committed did not happen, so the page can be repeated automatically."""
    place = MongoPlace(replica_set.url)
    await place.empty()
    sink = place.sink()
    await sink.open()
    await started(sink)
    with failing(replica_set, "insert", {"times": 1}, namespace=f"leaseway.{TABLE}", **LOST):
        assert await sink.shards.write(page(rows(1, 2), after=2, bad=[bad(0)])) == WriteCounts(
            inserted=2, quarantined=1
        )
    assert (await shard(sink)).rows == 2
    assert len(await sink.quarantine.find_all()) == 1
    assert all(MARK not in found for found in await place.found(TABLE))
    await sink.close()


async def test_a_commit_whose_reply_is_lost_is_an_unknown_outcome(
    replica_set: MongoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit does take effect, so the repeated page must not be written twice."""
    monkeypatch.setattr(connection, "CALL_SECONDS_MAX", 0.5)
    sink = MongoPlace(replica_set.url).sink()
    await MongoPlace(replica_set.url).empty()
    await sink.open()
    await started(sink)
    text = "reply to a commit was lost; the call may be repeated"
    slow = {"blockConnection": True, "blockTimeMS": 1_500}
    with failing(replica_set, "commitTransaction", **slow), pytest.raises(UnknownOutcome, match=text):
        await sink.shards.write(page(rows(1), after=1))
    for _ in range(STEPS_MAX):  # until the server has processed it
        if (await shard(sink)).pages:
            break
        await asyncio.sleep(0.01)
    begun = await sink.shards.begin(RUN.id, LOW.key, 1)
    assert begun is not None
    assert begun.cursor == {"after": 1}
    assert await sink.shards.write(page(rows(1), after=1)) is None
    assert await sink.rows.count() == 1
    await sink.close()


async def test_a_commit_that_never_arrived_is_an_unknown_outcome_too(replica_set: MongoServer) -> None:
    """The client cannot tell the two cases apart, so it reports both in the same way. The server frees the locks of the
    lost transaction, and the repeated page waits for that.
    """
    place = MongoPlace(replica_set.url)
    await place.empty()
    sink = place.sink()
    await sink.open()
    await started(sink)
    with failing(replica_set, "commitTransaction", **LOST), pytest.raises(UnknownOutcome):
        await sink.shards.write(page(rows(1), after=1))
    assert await place.rows() == {}
    assert await sink.shards.write(page(rows(1), after=1)) == WriteCounts(inserted=1)
    await sink.close()


async def test_a_server_that_is_killed_loses_pages_and_no_promise(server: MongoServer, sink: MongoSink) -> None:
    """A killed server may lose the last pages; they are written again, and in the end every row is stored and counted
    once.
    """
    await started(sink)
    for number in range(8):
        await written(sink, page(rows(*pair(number)), number or None, number + 1, bad=[bad(number)]))
    server.restart()  # not in a thread: the process would end with that thread
    begun = await sink.shards.begin(RUN.id, LOW.key, 2)
    assert begun is not None
    assert begun.rows == begun.inserted == 2 * begun.pages
    for number in range(begun.pages, 12):
        again = page(rows(*pair(number)), number or None, number + 1, 2, bad=[bad(number)])
        assert await sink.shards.write(again) == WriteCounts(inserted=2, quarantined=1)
    assert ((await shard(sink)).inserted, await sink.rows.count()) == (24, 24)
    assert [one.position for _, _, one in await sink.quarantine.find_all()] == list(range(12))


@pytest.fixture
async def patient(mongodb: MongoServer) -> AsyncIterator[MongoPlace]:
    """On a server that never ends an abandoned transaction by itself. A store keeps its jobs there, too."""
    limit = "transactionLifetimeLimitSeconds"
    before = mongodb.command({"getParameter": 1, limit: 1})[limit]
    mongodb.command({"setParameter": 1, limit: 100_000})
    place = MongoPlace(mongodb.url)
    await place.empty()
    store = MongoStore(mongodb.url)
    await store.open()
    await store.close()
    yield place
    mongodb.command({"setParameter": 1, limit: before})


@pytest.mark.parametrize("collection", ["leaseway_shards", TABLE])
async def test_a_page_that_a_killed_worker_has_begun_is_written_soon(
    patient: MongoPlace, monkeypatch: pytest.MonkeyPatch, collection: str
) -> None:
    """The server would keep the transaction of a killed worker for a minute, and the shard would stand still. A page
    conflicts with it; the claim of a shard, which needs no transaction, waits for it in the server."""
    monkeypatch.setattr(connection, "CALL_SECONDS_MAX", 10.0)
    monkeypatch.setattr(connection, "TRIES_MAX", 20)
    sink = patient.sink()
    await sink.open()
    await started(sink)
    await written(sink, page(rows(1, 2), after=2))
    await asyncio.to_thread(leave_a_transaction, patient.url, collection)
    assert await sink.shards.begin(RUN.id, LOW.key, 2) is not None
    counts = await sink.shards.write(page([row(2, 1), *rows(3)], 2, 3, 2))
    assert counts == WriteCounts(inserted=1, updated=1)
    await sink.close()


def pair(number: int) -> tuple[int, int]:
    return 2 * number, 2 * number + 1


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a lost reply": (LOST, UnknownOutcome, "the reply was lost.*may be repeated"),
    "no primary any more": ({"errorCode": 10_107}, StoreBusy, "no longer the primary.*try again"),
    "no rights": ({"errorCode": 13}, StoreRefused, "grant it the role readWrite"),
    "a full disk": ({"errorCode": 14_031}, TransientError, "disk is full; nothing was written"),
}


@pytest.mark.parametrize(("fault", "kind", "text"), WRONG.values(), ids=WRONG)
async def test_an_error_says_what_to_do(
    replica_set: MongoServer, fault: dict[str, Any], kind: type[Exception], text: str
) -> None:
    """An operator does not know the server's error codes, and the message must not show the password."""
    sink = MongoSink(replica_set.url, TABLE)
    await sink.open()
    await sink.runs.start(replace(RUN, id="run-of-errors"), [LOW])
    with failing(replica_set, "update", **fault), pytest.raises(kind, match=text):
        await sink.runs.set_budget("run-of-errors", 5)
    await sink.runs.set_budget("run-of-errors", 5)
    await sink.close()


@pytest.mark.filterwarnings("ignore:unclosed <socket", "ignore:Exception ignored in")
async def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is not running is the most frequent error of all."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS_MAX", 1.0)
    sink = MongoSink(f"mongodb://me:secret@127.0.0.1:{free_port()}/places", "poi")
    with pytest.raises(
        TransientError, match=r"me:\*\*\*@.*the connection was refused; check that MongoDB is running"
    ) as caught:
        await sink.open()
    assert "secret" not in str(caught.value)
    await sink.close()
    del sink, caught
    gc.collect()  # the driver leaves the sockets of refused connections to the garbage collector, with a warning each


async def test_a_wrong_password_is_refused() -> None:
    """The error must come at once, and must not show the password."""
    with mongodb_server("--auth", replica_set=False) as server:
        client: MongoClient[dict[str, Any]]
        with MongoClient("127.0.0.1", server.port) as client:
            client.admin.command("createUser", "me", pwd="right", roles=["root"])
        address = f"mongodb://me:{{}}@127.0.0.1:{server.port}/places?authSource=admin"
        sink = MongoSink(address.format("wrong"), "poi")
        with pytest.raises(StoreRefused, match="check user, password and authSource") as caught:
            await sink.open()
        assert "wrong" not in str(caught.value)
        assert not sink.clients._clients, "nobody closes what did not open"
        sink = MongoSink(f"mongodb://127.0.0.1:{server.port}/places", "poi")
        with pytest.raises(StoreRefused, match="grant it the role readWrite"):
            await sink.open()
        await sink.close()
        sink = MongoSink(address.format("right"), "poi")
        await sink.open()
        assert await imported(sink, "run-1", row(1)) == WriteCounts(inserted=1)
        await sink.close()


@pytest.mark.parametrize("url", ["mongodb://host", "mongodb://host/", "mongodb://host/a/b", "mongodb://host/?w=1"])
def test_an_address_without_a_database_is_refused(url: str) -> None:
    """The driver would write into a database called `test`."""
    with pytest.raises(StoreRefused, match="does not contain a database; write it after the host"):
        MongoSink(url, "poi")


async def test_an_address_that_means_nothing_is_refused() -> None:
    """The driver's own message names the part of the URL to change."""
    sink = MongoSink("mongodb://host:none/places", "poi")
    with pytest.raises(StoreRefused, match=r"is not a valid URL \(.*ort.*\)"):
        await sink.open()


async def test_a_sink_that_is_not_open_says_so(standalone: MongoServer) -> None:
    """A sink that is not open does not know whether the server has transactions."""
    with pytest.raises(StoreRefused, match="is not open"):
        await MongoSink(standalone.url, "poi").rows.count()


async def test_an_address_cannot_take_the_promises_back(place: MongoPlace) -> None:
    """With w=0, lost writes would go unnoticed, and a secondary would return old run tables."""
    joint = "&" if "?" in place.url else "?"
    sink = MongoPlace(f"{place.url}{joint}w=0&readPreference=secondary").sink()
    await sink.open()
    assert await imported(sink, "run-1", *rows(1, 2)) == WriteCounts(inserted=2)
    assert (await sink.rows.count(), len(await sink.shards.find_all("run-1"))) == (2, 1)
    await sink.close()


def test_a_sink_goes_from_one_loop_to_another(standalone: MongoServer) -> None:
    """The command opens the sink in one event loop and works in the next; nothing may stay bound to the first."""
    sink = MongoSink(standalone.url, "loops")
    asyncio.run(sink.open())
    assert asyncio.run(imported(sink, "run-of-loops", row(1))) == WriteCounts(inserted=1)
    assert asyncio.run(sink.rows.count()) == 1


# -- collections and documents --


async def test_a_collection_of_somebody_else_is_refused(place: MongoPlace) -> None:
    """Foreign documents would be counted as rows, and no leaseway collections may be left beside them."""
    await place.add("poi", {"name": "theirs"})
    async with place.client() as client:
        await client.drop_database("elsewhere")
        await client.elsewhere.poi.insert_one({"_id": 7})
    for sink in (place.sink(table="poi"), MongoSink(place.url.replace("/leaseway", "/elsewhere"), "poi")):
        with pytest.raises(
            StoreRefused, match=r"poi contains other documents: one has the _id .*choose another collection"
        ):
            await sink.open()
        await sink.close()
    async with place.client() as client:
        assert await client.elsewhere.list_collection_names() == ["poi"]


KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "a view": ({"viewOn": "x", "pipeline": []}, "is a view, not a collection"),
    "a capped one": ({"capped": True, "size": 4096}, "is a capped collection, which drops rows"),
    "one with a collation": (
        {"collation": {"locale": "de", "strength": 1}},
        "has a collation, which can treat two ids as equal",
    ),
}


@pytest.mark.parametrize(("options", "text"), KINDS.values(), ids=KINDS)
async def test_a_collection_that_loses_rows_is_refused(place: MongoPlace, options: dict[str, Any], text: str) -> None:
    """The error must come before the first paid request."""
    async with place.client() as client:
        await client.leaseway.create_collection("odd", **options)
    sink = place.sink(table="odd")
    with pytest.raises(StoreRefused, match=f"odd {text}"):
        await sink.open()
    await sink.close()


@pytest.mark.parametrize(
    ("table", "columns", "text"),
    [
        ("system.users", {}, "table: 'system.users': is not a valid collection name"),
        ("a$b", {}, r"table: 'a\$b': is not a valid collection name"),
        ("leaseway_runs", {}, "names that begin with leaseway_"),
        ("poi", {"_id": "text"}, "columns._id: every document has a field _id;"),
        ("poi", {"a.b": "text"}, r"columns.a.b: MongoDB interprets \$ and . in names"),
        ("poi", {"$a": "text"}, r"columns.\$a: MongoDB interprets \$ and . in names"),
        ("poi", {"stamp": "text"}, "columns.stamp: the table already has a column with this name"),
    ],
)
def test_names_that_mean_something_else_are_refused(table: str, columns: dict[str, ColumnType], text: str) -> None:
    """A user must learn which field of the spec to change."""
    with pytest.raises(BadValue, match=text):
        MongoSink("mongodb://host/places", table, columns)


async def test_a_validator_that_does_not_take_a_row_is_named(place: MongoPlace) -> None:
    """The validator is the user's own rule, so only the user can change it."""
    async with place.client() as client:
        await client.leaseway.create_collection("strict", validator={"title": {"$type": "int"}})
    sink = place.sink(table="strict")
    await sink.open()
    await started(sink)
    with pytest.raises(StoreRefused, match="the collection's validator rejects a row; change it"):
        await sink.shards.write(page([row(1, title="x")], after=1))
    assert (await shard(sink)).pages == 0
    await sink.close()


async def test_fields_that_somebody_added_stay(place: MongoPlace, sink: MongoSink) -> None:
    """Users add their own fields to the rows, such as a point for a geographic index."""
    await imported(sink, "run-1", row(1, title="old"))
    async with place.client() as client:
        await client.leaseway[TABLE].update_one({}, {"$set": {"where": [1, 2]}})
    assert await imported(sink, "run-2", row(1, 1, title="new")) == WriteCounts(updated=1)
    (found,) = (await place.rows()).values()
    assert (found["title"], found["where"]) == ("new", [1, 2])


async def test_the_servers_clock_decides(place: MongoPlace, sink: MongoSink) -> None:
    """The clocks of workers differ, so rows, shards and runs must use one clock."""
    async with place.client() as client:
        hello = await client.admin.command("hello")
    early = instant_of(hello["localTime"])
    await started(sink)
    await written(sink, page(rows(1, 2), state=ShardState.DONE, bad=[bad(0)]))
    ((number, _, _),) = await sink.quarantine.find_all()
    await sink.quarantine.release(number, row(3))
    await sink.sweeps.delete(RUN.id, ["2"], "swept")
    await sink.runs.finish(RUN.id, RunState.COMPLETE)
    async with place.client() as client:
        hello = await client.admin.command("hello")
    late = instant_of(hello["localTime"])
    found, (run,), now = await place.rows(), await sink.runs.find_all(), await shard(sink)
    told = [found["1"]["first_seen"], found["2"]["deleted_at"], found["3"]["updated_at"], now.started_at]
    assert [at for at in (*told, now.finished_at, run.finished_at) if at is None or not early <= at <= late] == []


def instant_of(moment: datetime) -> Instant:
    return (moment.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


async def test_two_collections_of_one_database_do_not_mix(place: MongoPlace) -> None:
    """Each collection has its own runs and its own quarantine."""
    poi, operators = place.sink(table="poi", columns={}), place.sink(table="operators", columns={})
    await poi.open()
    await operators.open()
    await started(poi)
    await written(poi, page(rows(1), after=1, bad=[bad(0)]))
    ((number, _, _),) = await poi.quarantine.find_all()
    assert (await operators.runs.find_all(), await operators.quarantine.find_all(), await operators.rows.count()) == (
        [],
        [],
        0,
    )
    assert (await operators.runs.find(RUN.id), await operators.shards.find_all(RUN.id)) == (None, [])
    assert not await operators.quarantine.release(number, row(9))
    assert await operators.shards.begin(RUN.id, LOW.key, 5) is None
    assert await operators.shards.write(page(rows(2), 1, 2, fence=5)) is None
    with pytest.raises(KeyConflict, match="run-1: belongs to table poi, not operators"):
        await operators.runs.start(RUN, [LOW])
    await poi.close()
    await operators.close()


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


DOCUMENTS: dict[str, tuple[str, Any]] = {
    "dots": ('{"a.b":{"c..":1}}', {"a.b": {"c..": 1}}),
    "dollars": ('{"$set":{"$ref":"x"},"$where":"1"}', {"$set": {"$ref": "x"}, "$where": "1"}),
    "an _id": ('{"_id":[1,2]}', {"_id": [1, 2]}),
    "no name at all": ('{"":1}', {"": 1}),
    "a list": ("[1,[2]]", [1, [2]]),
    "nothing": ("null", None),
    "many levels": (nested(DEPTH_MAX), None),
    "braces in a text": ('{"a":"' + "{[" * 200 + '\\""}', {"a": "{[" * 200 + '"'}),
}


@pytest.mark.parametrize(("document", "expected"), DOCUMENTS.values(), ids=DOCUMENTS)
async def test_odd_documents_are_kept_as_they_are(
    place: MongoPlace, sink: MongoSink, document: str, expected: Any
) -> None:
    """Inserts and replacements use different commands."""
    odd = replace(row(1), document=document)
    assert await imported(sink, "run-1", odd) == WriteCounts(inserted=1)
    assert await imported(sink, "run-2", replace(odd, content_hash="another")) == WriteCounts(updated=1)
    (found,) = (await place.rows()).values()
    assert expected is None or found["document"] == expected


async def test_integers_without_end_become_decimals_or_texts(place: MongoPlace, sink: MongoSink) -> None:
    """BSON has 64-bit integers; one larger number must not keep a record out."""
    document = f'{{"a":[{2**64},{-(2**63)}],"b":{10**40}}}'
    assert await imported(sink, "run-1", replace(row(1), document=document)) == WriteCounts(inserted=1)
    (found,) = (await place.rows()).values()
    assert (str(found["document"]["a"][0]), found["document"]["a"][1]) == (str(2**64), -(2**63))
    assert found["document"]["b"] == str(10**40)


TOO_MUCH = {
    "a document of 17 MB": (f'{{"a":"{"x" * 17_000_000}"}}', "too_large", "larger than the 16,711,680 bytes"),
    "too many levels": (nested(DEPTH_MAX + 1), "too_large", "nested deeper than the 150 levels"),
    "a thousand levels": (nested(1_000), "too_large", "nested deeper than the 150 levels"),
    "no JSON": ('{"a":', "bad_type", "is no JSON"),
}


@pytest.mark.parametrize(("document", "code", "problem"), TOO_MUCH.values(), ids=TOO_MUCH)
async def test_what_the_server_would_not_take_goes_into_quarantine(
    place: MongoPlace, sink: MongoSink, document: str, code: str, problem: str
) -> None:
    """Only the refused row goes into quarantine; the other rows of its page must be written."""
    await started(sink)
    odd = replace(row(1), document=document)
    kept = document[:1_000]
    assert await sink.shards.write(page([odd, row(2)], after=1)) == WriteCounts(inserted=1, quarantined=1)
    ((_, _, one),) = await sink.quarantine.find_all()
    assert (one.code, one.external_id, one.document[:1_000]) == (code, "1", kept)
    assert problem in one.problem
    assert sorted(await place.rows()) == ["2"]


async def test_the_largest_row_is_taken(place: MongoPlace, sink: MongoSink) -> None:
    """The server must accept every size that the sink accepts, for inserts and for replacements."""
    text = "x" * (16 * 2**20 - 65_536 - 5_000)
    large = replace(row(1, title="t" * 4_000), document=f'{{"a":"{text}"}}')
    assert await imported(sink, "run-1", large) == WriteCounts(inserted=1)
    assert await imported(sink, "run-2", replace(large, content_hash="another")) == WriteCounts(updated=1)


async def test_a_sweep_reads_ids_in_the_servers_order(place: MongoPlace, sink: MongoSink) -> None:
    """Rows and seen ids are merged in order; two different orders would make seen rows look absent."""
    ids = ["", " ", "10", "9", "A", "a", "é", "\u2028", "\uffff", "\U00010000", "\U0010ffff"]
    await imported(sink, "run-1", *(row(key) for key in ids))
    await started(sink, run=replace(RUN, id="run-2", started_at=2**60))
    seen = [row(key) for key in ids if key not in ("9", "\uffff")]
    first, second = seen[::2], seen[1::2]
    await written(sink, replace(page(first, after=1, remembers=True), run="run-2"))
    last = replace(page(second, 1, 2, remembers=True, state=ShardState.DONE), run="run-2")
    await written(sink, last)
    found = await sink.sweeps.sweep("run-2")
    assert (found.stored, found.absent) == (len(ids), 2)
    assert await sink.sweeps.find_absent("maps", 1, 10) == ["9", "\uffff"]
    assert await place.found("leaseway_seen") == []


async def test_a_sweep_that_was_interrupted_counts_once(server: MongoServer, sink: MongoSink) -> None:
    """Each sweep brings an absent row nearer to its deletion, so a repeated sweep must not count twice."""
    await imported(sink, "run-1", *rows(1, 2))
    await started(sink, run=replace(RUN, id="run-2", started_at=2**60))
    await written(sink, replace(page(rows(1), remembers=True, state=ShardState.DONE), run="run-2"))
    with failing(server, "update", namespace="leaseway.leaseway_runs", **LOST), pytest.raises(UnknownOutcome):
        await sink.sweeps.sweep("run-2")
    for _ in range(2):
        found = await sink.sweeps.sweep("run-2")
        assert (found.stored, found.absent) == (2, 1)
    assert await sink.sweeps.find_absent("maps", 1, 10) == ["2"]
    assert await sink.sweeps.find_absent("maps", 2, 10) == []


async def test_a_document_that_grows_on_its_way_is_measured(place: MongoPlace, sink: MongoSink) -> None:
    """In a list of digits, two characters of JSON become a dozen bytes of BSON."""
    await started(sink)
    digits = replace(row(1), document=f'{{"a":[{",".join(["1"] * 1_500_000)}]}}')
    assert len(digits.document) < 3_100_000
    assert await sink.shards.write(page([digits, row(2)], after=1)) == WriteCounts(inserted=1, quarantined=1)
    ((_, _, one),) = await sink.quarantine.find_all()
    assert (one.code, one.external_id) == ("too_large", "1")
