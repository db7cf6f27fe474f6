"""Servers, users, databases and values that do not fit: the message says what is wrong and what to do."""

import gc
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure, WriteError
from pymongo.write_concern import WriteConcern
from tests.mongodb_faults import leave_a_transaction
from tests.stores.conftest import empty

from leaseway import App, State
from leaseway.domain.errors import StoreRefused, TransientError, UsageError
from leaseway.domain.health import FindingLevel
from leaseway.domain.inspection import JobFilter
from leaseway.domain.limits.buckets import Granted
from leaseway.ports.store import require_inspection
from leaseway.stores.mongodb import connection, schema
from leaseway.stores.mongodb.budgets import MongoLedger
from leaseway.stores.mongodb.limits import MongoLimiter
from leaseway.stores.mongodb.schema import BUDGET_WINDOWS, JOBS
from leaseway.stores.mongodb.store import MongoStore
from leaseway.testing.job_store_contract.fixtures import ContractWorker, done, id_of, job_of, new_job
from leaseway.testing.ledger_contract.fixtures import daily, held
from leaseway.testing.limiter_contract.fixtures import MAPS, ask
from leaseway.testing.mongodb import MongoServer, mongodb_server


@pytest.fixture
def database(mongodb: MongoServer) -> Iterator[Any]:
    """A database without a schema, and its URL under `url`."""
    client: MongoClient[dict[str, Any]]
    with MongoClient(mongodb.url) as client:
        client.drop_database("fresh")
        yield client.fresh
        client.drop_database("fresh")


@pytest.fixture
async def fresh(mongodb: MongoServer, database: Any) -> AsyncIterator[MongoStore]:
    store = MongoStore(mongodb.url.replace("/leaseway", "/fresh"))
    yield store
    await store.close()


@pytest.fixture
async def store(mongodb: MongoServer) -> AsyncIterator[MongoStore]:
    store = MongoStore(mongodb.url)
    await store.open()
    await empty(store)
    yield store
    await store.close()


async def refusal(store: MongoStore) -> str:
    with pytest.raises(StoreRefused) as caught:
        await store.open()
    await store.close()
    return str(caught.value)


# -- servers ----------------------------------------------------------------------------------------------------------


async def test_a_standalone_server_is_refused_with_the_way_out() -> None:
    """Without transactions, a crash between two writes would leave a job and its lane inconsistent."""
    with mongodb_server(replica_set=False) as server:
        message = await refusal(MongoStore(server.url))
    assert "is a standalone server, which has no transactions" in message
    assert "--replSet rs0, call rs.initiate() once, and add ?replicaSet=rs0 to the URL" in message


async def test_an_older_server_is_refused(fresh: MongoStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown stage in the middle of an exchange would say less."""
    monkeypatch.setattr(schema, "VERSION_MIN", (99, 0))
    assert "99.0 or newer is required" in await refusal(fresh)


async def test_a_server_that_does_not_answer_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong port must not look like a wrong password."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS_MAX", 0.2)
    store = MongoStore("mongodb://127.0.0.1:1/leaseway")
    with pytest.raises(TransientError, match="the connection was refused; check that MongoDB is running"):
        await store.open()
    with warnings.catch_warnings():
        # PyMongo does not close a socket whose connection attempt is cancelled, as closing the client does.
        warnings.simplefilter("ignore", ResourceWarning)
        await store.close()
        gc.collect()


async def test_an_election_without_an_end_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call must not wait for ever, and the message must not send people to look for a firewall."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS_MAX", 1.0)
    with mongodb_server() as server:
        store = MongoStore(server.url)
        await store.open()
        server.command({"replSetStepDown": 3_600, "force": True})
        with pytest.raises(TransientError, match="no primary replies; check that one is elected"):
            await store.jobs.submit([new_job(1)])
        await store.close()


async def test_a_set_that_was_never_initiated_is_reported_as_such(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The most common mistake of a first start looks like a network without a route."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS_MAX", 1.0)
    server = MongoServer(tmp_path, (), replica_set=True)
    server.create_member()
    try:
        for url in (server.url, server.url.partition("?")[0]):
            store = MongoStore(url)
            with pytest.raises(TransientError, match=r"call rs.initiate\(\) once"):
                await store.open()
            await store.close()
    finally:
        server.kill()


def test_a_url_without_a_database_is_refused() -> None:
    """The driver would use the database `test`."""
    with pytest.raises(StoreRefused, match="does not contain a database"):
        MongoStore("mongodb://127.0.0.1/?replicaSet=rs0")


async def test_an_unknown_option_in_the_url_is_refused() -> None:
    """A misspelt option must not be ignored."""
    assert "is not a valid URL" in await refusal(MongoStore("mongodb://127.0.0.1/work?replicaset_name=rs0"))


# -- users ------------------------------------------------------------------------------------------------------------


MIGRATED = "migrated"
LEAST_ACTIONS = ["find", "insert", "update", "remove", "changeStream", "collStats", "listCollections"]
"""As docs/guides/mongodb.md lists them."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    """A replica set with users: an administrator, one that may read and write, and one that may only read."""
    key: Path = tmp_path_factory.mktemp("mongodb") / "key"
    key.write_text("k" * 32)
    key.chmod(0o600)
    with mongodb_server("--auth", "--keyFile", str(key)) as server:
        client: MongoClient[dict[str, Any]]
        with MongoClient("127.0.0.1", server.port, directConnection=True) as client:
            client.admin.command("createUser", "root", pwd="secret", roles=["root"])
        with MongoClient("127.0.0.1", server.port, username="root", password="secret") as client:
            for name, role in (("worker", "readWrite"), ("auditor", "read")):
                client.admin.command("createUser", name, pwd="secret", roles=[{"role": role, "db": "leaseway"}])
            rights = {"resource": {"db": MIGRATED, "collection": ""}, "actions": LEAST_ACTIONS}
            client.admin.command("createRole", "leaseway", privileges=[rights], roles=[])
            client.admin.command("createUser", "least", pwd="secret", roles=["leaseway"])
        yield server


def address(server: MongoServer, user: str, password: str = "secret") -> str:
    return f"mongodb://{user}:{password}@127.0.0.1:{server.port}/leaseway?replicaSet=rs0&authSource=admin"


async def test_a_wrong_password_is_refused_and_not_shown(guarded: MongoServer) -> None:
    """The message is logged."""
    message = await refusal(MongoStore(address(guarded, "worker", "hunter2")))
    assert "check user, password and authSource" in message
    assert "hunter2" not in message


async def test_a_user_without_rights_is_refused(guarded: MongoServer) -> None:
    """The message names the role that is missing."""
    store = MongoStore(address(guarded, "auditor"))
    assert "grant it the role readWrite" in await refusal(store)


async def test_a_user_that_may_read_and_write_can_do_everything(guarded: MongoServer) -> None:
    """More rights than readWrite on one database are not needed, for migrations neither."""
    store = MongoStore(address(guarded, "worker"))
    assert await store.open() == 1
    await store.jobs.submit([new_job(1)])
    worker = ContractWorker(store)
    assert (await worker.claim_one()).id == id_of(1)
    assert not await store.notifications.wait(0.05)
    assert {finding.level.name for finding in await store.inspection.health()} <= {"OK", "WARNING"}  # type: ignore[union-attr]
    await store.close()


async def test_the_least_rights_are_enough_once_the_database_is_migrated(guarded: MongoServer) -> None:
    """A worker that is broken into must not be able to drop a collection or an index."""
    root = MongoStore(address(guarded, "root").replace("/leaseway", f"/{MIGRATED}"))
    url = address(guarded, "least").replace("/leaseway", f"/{MIGRATED}")
    assert await root.open() == 1
    await root.close()
    limiter, ledger = MongoLimiter(url), MongoLedger(url)
    await limiter.open()
    await limiter.definitions.declare([MAPS.definition])
    assert isinstance(await limiter.acquire([ask(MAPS)]), Granted)
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 1)
    await limiter.close()
    await ledger.close()
    async with App(url) as app:

        @app.job
        async def count(number: int) -> int:
            return number

        job = await count.submit(number=1)
        await app.run_worker(until_empty=True)
        done = await app.find(job.id)
        assert done is not None
        assert done.state is State.DONE
        database = await cast("MongoStore", await app.store()).connections.database()
        with pytest.raises(OperationFailure, match="not authorized"):
            await database[JOBS].drop()
        findings = await require_inspection(await app.store()).health(deep=True)
    assert [finding for finding in findings if finding.level is FindingLevel.PROBLEM] == []


async def test_a_user_that_may_read_and_write_can_use_limits_and_budgets(guarded: MongoServer) -> None:
    """It also ends a transaction that a killed process of the same user has left behind, which otherwise closes the
    budget for a minute."""
    url = address(guarded, "worker")
    limiter, ledger = MongoLimiter(url), MongoLedger(url)
    await limiter.open()
    await limiter.definitions.declare([MAPS.definition])
    assert isinstance(await limiter.acquire([ask(MAPS)]), Granted)
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 1)
    leave_a_transaction(url, BUDGET_WINDOWS)
    await held(ledger, "b", 1)
    await limiter.close()
    await ledger.close()


# -- databases --------------------------------------------------------------------------------------------------------


async def test_a_collection_of_another_program_is_refused_and_left_alone(fresh: MongoStore, database: Any) -> None:
    """Its documents must not become jobs, and nothing is created beside it."""
    database.leaseway_jobs.insert_one({"_id": 1, "mine": True})
    message = await refusal(fresh)
    assert "has a collection named leaseway_jobs that leaseway did not create" in message
    assert database.list_collection_names() == ["leaseway_jobs"]


async def test_a_view_of_the_same_name_is_refused(fresh: MongoStore, database: Any) -> None:
    """A view looks empty, and cannot be written."""
    database.create_collection("leaseway_lanes", viewOn="elsewhere")
    assert "has a view named leaseway_lanes" in await refusal(fresh)


async def test_a_migration_that_was_interrupted_is_completed(fresh: MongoStore, database: Any) -> None:
    """Collections cannot be created in a transaction, so a crash may leave some of them."""
    database.create_collection("leaseway_jobs")
    assert await fresh.open() == 1
    assert len(database.leaseway_jobs.index_information()) == 4
    assert "validator" in database.leaseway_jobs.options()


async def test_a_database_that_another_process_has_just_migrated_is_not_foreign(fresh: MongoStore) -> None:
    """Workers that start together for the first time all find no schema. The first one that has created it begins to
    work, and the others must not take its documents for those of another program."""
    await fresh.open()
    await fresh.jobs.submit([new_job(1)])
    async with fresh.connections.calling() as database:
        await schema.create_collections(fresh.connections, database, is_new=True)


async def test_a_schema_of_a_newer_release_is_refused(fresh: MongoStore, database: Any) -> None:
    """An older worker would write documents that newer ones cannot read."""
    database.leaseway_meta.insert_one({"_id": "schema", "version": 9, "needs": 9})
    message = await refusal(fresh)
    assert "the schema has version 9" in message
    assert "Install a newer leaseway" in message


async def test_a_newer_schema_that_older_code_may_use_is_accepted(fresh: MongoStore, database: Any) -> None:
    """During a rolling upgrade, workers of the previous release go on."""
    await fresh.open()
    database.leaseway_meta.update_one({"_id": "schema"}, {"$set": {"version": 9, "needs": 1}})
    assert await fresh.open() == 0
    assert (await fresh.versions()).present == 9


async def test_a_database_without_a_schema_is_named(fresh: MongoStore) -> None:
    """A command that only looks does not create one."""
    assert (await fresh.versions()).present == 0
    with pytest.raises(StoreRefused, match="create it: leaseway migrate"):
        await fresh.reads.now()


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"payload": '"\udc80"'}, {"lease_us": 2**70}], ids=["surrogate", "number"])
async def test_a_value_that_cannot_be_stored_is_refused_alone(store: MongoStore, fields: dict[str, Any]) -> None:
    """It is the caller's mistake, not one of the URL or the server, and must not be repeated."""
    with pytest.raises(UsageError, match="a value cannot be stored"):
        await store.jobs.submit([new_job(1), new_job(2, **fields)])
    assert await store.reads.jobs(JobFilter()) == []


async def test_a_job_that_is_larger_than_a_document_is_refused(store: MongoStore) -> None:
    """The server refuses it, and the message must not say that the network is broken."""
    with pytest.raises(UsageError, match="larger than MongoDB stores"):
        await store.jobs.submit([new_job(1, payload='"' + "x" * (17 << 20) + '"')])


@pytest.mark.parametrize(
    "change",
    [
        {"$set": {"attempts": "many"}},
        {"$unset": {"payload": ""}},
        {"$set": {"status": "finished"}},
        {"$set": {"status": "leased"}},
        {"$set": {"status": "done"}},
        {"$set": {"errors": "none"}},
        {"$set": {"errors": ["none"]}},
        {"$push": {"errors": {"message": "without a code"}}},
        {"$set": {"timeout_us": "long"}},
        {"$set": {"cursor": {"page": 3}}},
    ],
)
async def test_a_change_by_hand_that_would_stop_the_lane_is_refused_by_the_server(
    store: MongoStore, change: dict[str, Any]
) -> None:
    """Every worker reads the first jobs of a lane, so one document that cannot be read would stop all of them."""
    await store.jobs.submit([new_job(1)])
    database = await store.connections.database()
    with pytest.raises(WriteError, match="Document failed validation"):
        await database["leaseway_jobs"].update_one({"_id": id_of(1)}, change)
    assert [lease.id for lease in await ContractWorker(store).claim(5)] == [id_of(1)]


async def test_a_job_that_was_inserted_by_hand_needs_an_id_of_leaseway(store: MongoStore) -> None:
    """A shell gives every document without an id one that leaseway cannot read."""
    await store.jobs.submit([new_job(1)])
    jobs = (await store.connections.database())["leaseway_jobs"]
    copied = await jobs.find_one({}, {"_id": 0})
    assert copied is not None
    with pytest.raises(WriteError, match="Document failed validation"):
        await jobs.insert_one(copied)


@pytest.mark.parametrize("payload", ["{oops", '{"number":"one"}'])
async def test_a_job_that_was_changed_by_hand_stops_no_other(
    store: MongoStore, mongodb: MongoServer, payload: str
) -> None:
    """The server cannot know which arguments a job accepts."""
    async with App(mongodb.url) as app:

        @app.job
        async def count(number: int) -> int:
            return number

        changed, other = await count.submit(number=1), await count.submit(number=2)
        jobs = (await store.connections.database())["leaseway_jobs"]
        await jobs.update_one({"_id": changed.id}, {"$set": {"payload": payload}})
        await app.run_worker(until_empty=True)
        damaged, done = await app.find(changed.id), await app.find(other.id)
    assert damaged is not None
    assert damaged.last_error_code == "bad_payload"
    assert done is not None
    assert done.state is State.DONE


DAMAGES: Sequence[dict[str, Any]] = [
    {"$unset": {"kind": ""}}, {"$set": {"lease_us": "long"}}, {"$unset": {"payload": ""}}, {"$set": {"attempts": "x"}},
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
async def test_a_document_that_cannot_be_read_stops_no_other(store: MongoStore, damage: dict[str, Any]) -> None:
    """A restore and an administrator may bypass the validator. The first jobs of a lane are read by every claim."""
    await store.jobs.submit([new_job(number) for number in range(1, 5)])
    jobs = (await store.connections.database())[JOBS].with_options(write_concern=WriteConcern(1))
    worker = ContractWorker(store)
    leased = await worker.claim_one()
    for number in (1, 2, 3):  # one that is leased, and two that are ready
        where: dict[str, Any] = {"_id": id_of(number)}
        await jobs.update_one(where, damage | {"$inc": {"seq": 0}}, bypass_document_validation=True)
    assert leased.id == id_of(1)
    assert [lease.id for lease in await worker.claim(1)] == [id_of(4)]
    assert (await worker.settle(done(leased))).lost in ((), (id_of(1),))
    listed = [job.id for job in await store.reads.jobs(JobFilter())]
    assert id_of(4) in listed
    found = {finding.check: finding for finding in await require_inspection(store).health(deep=True)}
    assert found["documents"].level is FindingLevel.PROBLEM
    assert "has fields or values that leaseway cannot read" in found["documents"].text


async def test_text_with_nul_is_kept(store: MongoStore) -> None:
    """BSON has lengths, so unlike in PostgreSQL nothing ends at a NUL."""
    await store.jobs.submit([new_job(1, payload='"a\0b"')])
    assert (await job_of(store)).payload == '"a\0b"'
